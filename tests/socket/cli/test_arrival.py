"""A supervisor that is just being started again is waited for; one that is not is told at once."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from llamactl.cli import arrival
from llamactl.cli.client import Client
from llamactl.errors import LlamactlError
from llamactl.protocol.control_socket import ModelList
from tests.socket.cli.scripted import TIMEOUT_S, Supervisor, add_systemctl, answer, make_command, make_environment

LIST = answer(ModelList(id=1, now_s=1.0, models=()))


def run_while_away(tmp_path: Path, state: str, come_back: Callable[[Supervisor], None]) -> tuple[int, str]:
    """`ps` against a socket that is not there at first; `come_back` happens once systemd was asked."""
    fifo = tmp_path / "asked"
    os.mkfifo(fifo)
    path = add_systemctl(tmp_path, state, told=fifo)
    with Supervisor(LIST) as supervisor:
        hidden = supervisor.paths.control_socket.with_name("hidden")
        supervisor.paths.control_socket.rename(hidden)
        process = subprocess.Popen(
            make_command("ps"),
            env=make_environment(supervisor.paths) | {"PATH": path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert fifo.read_text() == "asked\n"
        come_back(supervisor)
        _, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, err


@pytest.mark.parametrize("state", ["activating", "active", "deactivating"])
def test_supervisor_that_is_on_its_way_is_waited_for(tmp_path: Path, state: str) -> None:
    def come_back(supervisor: Supervisor) -> None:
        socket = supervisor.paths.control_socket
        socket.with_name("hidden").rename(socket)

    assert run_while_away(tmp_path, state, come_back) == (0, "")


@pytest.mark.parametrize("state", ["inactive", "failed", "''"])
def test_supervisor_that_is_not_on_its_way_is_not_waited_for(tmp_path: Path, state: str) -> None:
    status, err = run_while_away(tmp_path, state, lambda supervisor: None)
    assert status == 6
    assert "nobody listens" in err


def test_waiting_has_an_end_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "ARRIVAL_S", 0.05)
    monkeypatch.setattr(arrival, "PATIENCE_S", 0.01)
    monkeypatch.setattr(arrival, "is_coming", lambda: True)
    said: list[str] = []
    arrived = arrival.wait_for_supervisor(tmp_path / "control.sock", lambda: False, said.append)
    assert arrived is arrival.Arrival.LATE
    assert said == ["the supervisor is being started: waiting for it"]


def test_each_thing_that_appears_is_a_new_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket appears between the last try and the wait: the watch stood before, so that it is seen."""
    monkeypatch.setattr(arrival, "is_coming", lambda: (tmp_path / "control.sock").touch() is None)
    tries = iter([False, True])
    arrived = arrival.wait_for_supervisor(tmp_path / "control.sock", lambda: next(tries), lambda text: None)
    assert arrived is arrival.Arrival.HERE


def test_place_that_cannot_be_watched_is_not_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    arrived = arrival.wait_for_supervisor(tmp_path / "none" / "control.sock", lambda: True, said.append)
    assert arrived is arrival.Arrival.NOBODY
    assert said == []


@pytest.mark.parametrize(
    ("state", "hint"), [("active", "systemctl restart llamactl"), ("activating", "systemctl start llamactl")]
)
def test_socket_that_is_gone_while_the_supervisor_runs_wants_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, hint: str
) -> None:
    monkeypatch.setattr(arrival, "ARRIVAL_S", 0.05)
    monkeypatch.setenv("PATH", add_systemctl(tmp_path, state))
    with pytest.raises(LlamactlError) as refused:
        Client(tmp_path / "control.sock")
    assert refused.value.hint.endswith(hint)


@pytest.mark.parametrize(
    ("load", "uid", "hint"),
    [
        ("not-found", 1000, "install it first: sudo llamactl install; then: sudo systemctl enable --now llamactl"),
        ("not-found", 0, "install it first: llamactl install; then: systemctl enable --now llamactl"),
        ("loaded", 1000, "start it: systemctl start llamactl"),
    ],
)
def test_before_it_is_installed_it_is_to_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: str, uid: int, hint: str
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setenv("PATH", add_systemctl(tmp_path, "inactive", load=load))
    with pytest.raises(LlamactlError) as refused:
        Client(tmp_path / "none" / "control.sock")
    assert refused.value.hint == hint


def test_command_that_root_would_not_find_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", add_systemctl(tmp_path, "inactive", load="not-found"))
    for program, command in (
        ("/srv/a b/.venv/bin/llamactl", "'/srv/a b/.venv/bin/llamactl'"),
        ("/usr/local/bin/llamactl", "llamactl"),
    ):
        monkeypatch.setattr("sys.argv", [program, "ps"])
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        with pytest.raises(LlamactlError) as refused:
            Client(tmp_path / "none" / "control.sock")
        assert refused.value.hint.startswith(f"install it first: sudo {command} install; then: ")


def test_without_systemd_the_unit_file_says_whether_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(arrival, "UNIT_DIRECTORIES", (tmp_path,))
    assert not arrival.is_installed()
    (tmp_path / arrival.UNIT).touch()
    assert arrival.is_installed()
