"""Do ordinary commands on the front's sockets, and on all of llamactl, leave a state that works?"""

import threading
from pathlib import Path

import pytest

from tests.system.harness import PATHS, Llamactl, run, show

FRONT = "llamactl-front.service"
SOCKETS = ("llamactl-front.socket", "llamactl-front-tcp.socket")
STOP_ALL = ("systemctl", "stop", "llamactl.service", *SOCKETS, "llamactl-models.slice")


@pytest.fixture
def loaded(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": 1024})
    llamactl.start()
    llamactl.cli("load", "a")
    return llamactl


@pytest.mark.parametrize("sockets", [SOCKETS[:1], SOCKETS[1:], SOCKETS], ids=["unix", "tcp", "both"])
def test_sockets_can_be_restarted_while_the_front_runs(loaded: Llamactl, sockets: tuple[str, ...]) -> None:
    assert loaded.chat("a").status == 200
    before = loaded.show_pid(FRONT)
    model = loaded.list_loaded()["a"]["pid"]
    run("systemctl", "restart", *sockets)
    assert PATHS.http_socket.is_socket()
    assert [show(socket, "ActiveState") for socket in SOCKETS] == ["active", "active"]
    assert loaded.chat("a").status == 200
    assert loaded.show_pid(FRONT) != before
    assert loaded.list_loaded()["a"]["pid"] == model


def test_socket_that_was_stopped_can_be_started_again(loaded: Llamactl) -> None:
    run("systemctl", "stop", SOCKETS[0])
    assert not PATHS.http_socket.exists()
    run("systemctl", "start", SOCKETS[0])
    assert loaded.chat("a").status == 200


def test_one_command_stops_all_under_traffic_and_one_starts_it_again(loaded: Llamactl) -> None:
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            try:
                loaded.chat("a")
            except OSError:
                if not PATHS.http_socket.exists():
                    return

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        run(*STOP_ALL)
        for unit in ("llamactl.service", FRONT, *SOCKETS, "llamactl-models.slice", "llamactl-model@a.service"):
            assert show(unit, "ActiveState") in ("inactive", "failed"), unit
    finally:
        done.set()
        for client in clients:
            client.join()
    assert show("llamactl-model@a.service", "Result") in ("success", "")
    run("systemctl", "start", "llamactl.service")
    assert loaded.chat("a").status == 200
