"""What does `status` tell of the endpoints and of the past, with a real systemd?"""

import json
import os
import socket
from pathlib import Path

import pytest

from llamactl.cli.listeners import Listener
from tests.system.harness import PATHS, Llamactl, run

TCP = "llamactl-front-tcp.socket"


@pytest.fixture
def one_of_two(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    llamactl.write_settings(max_loaded=1)
    llamactl.write_models(**{name: {"path": str(tiny[name]), "ctx": 1024} for name in "ab"})
    llamactl.start()
    return llamactl


def test_evicted_model_says_when_and_for_whom(one_of_two: Llamactl) -> None:
    one_of_two.cli("load", "a")
    one_of_two.cli("load", "b")
    [model] = [one_of_two.cli_json("status", "b")]
    assert model["ended"] is None
    shown = one_of_two.cli("status", "a", status=3).stdout
    assert " ago: evicted for b\n" in shown
    ended = json.loads(one_of_two.cli("status", "a", "--json", status=3).stdout)["ended"]
    assert (ended["event"], ended["reason"], ended["for_model"]) == ("model unloaded", "evicted", "b")
    decisions = one_of_two.cli_json("status")["decisions"]
    assert [(one["event"], one["model"]) for one in decisions] == [
        ("load decided", "b"),
        ("load waits", "b"),
        ("victim chosen", "a"),
        ("load decided", "a"),
    ]
    assert "on Host" in decisions[0]["why"]
    run("systemctl", "restart", "llamactl.service")
    assert one_of_two.cli_json("status")["decisions"] == []
    assert json.loads(one_of_two.cli("status", "a", "--json", status=3).stdout)["ended"] is None


def test_endpoints_are_in_force_or_said_to_be_off(one_of_two: Llamactl) -> None:
    endpoints = [Listener(**one) for one in one_of_two.cli_json("status")["endpoints"]]
    assert [(one.address, one.in_force) for one in endpoints] == [
        ("/run/llamactl/http.sock", True),
        ("127.0.0.1:8080", True),
    ]
    one_of_two.cli("check")
    PATHS.http_socket.unlink()
    shown = one_of_two.cli("status").stdout
    assert "/run/llamactl/http.sock: NOT IN FORCE: somebody has removed it" in shown
    assert "systemctl restart llamactl-front.socket" in shown
    run("systemctl", "restart", "llamactl-front.socket")
    assert "/run/llamactl/http.sock: in force" in one_of_two.cli("status").stdout
    run("systemctl", "stop", TCP)
    assert f"127.0.0.1:8080: off: {TCP} is inactive\n" in one_of_two.cli("status").stdout
    one_of_two.cli("check")


def test_port_that_somebody_has_taken_is_loud(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": 1024})
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 8080))
        other.listen()
        run("systemctl", "start", TCP, check=False)
        run("systemctl", "start", "llamactl-front.socket", "llamactl.service")
        why = f"the port is taken by {Path('/proc/self/comm').read_text().strip()} (PID {os.getpid()}); free it"
        assert f"127.0.0.1:8080: NOT IN FORCE: {why}" in llamactl.cli("status").stdout
        assert f"{TCP}: 127.0.0.1:8080: NOT IN FORCE: {why}" in llamactl.cli("check", status=1).stdout
    freed = llamactl.cli("status").stdout
    assert f"127.0.0.1:8080: NOT IN FORCE: {TCP} has failed (resources)" in freed
    run("systemctl", "restart", "llamactl-front")
    assert "127.0.0.1:8080: in force" in llamactl.cli("status").stdout
