"""Which address is in force follows from what systemd says, and who has taken a port from the kernel."""

import os
import socket
from pathlib import Path

import pytest

from llamactl.cli.listeners import Holder, Listener, Unit, find_holder, judge_unit, parse_units

TCP = "llamactl-front-tcp.socket"
FRONT = Unit("llamactl-front.service", "loaded", "active", "success")

SHOWN = """\
Listen=/run/llamactl/http.sock (Stream)
Result=success
Id=llamactl-front.socket
LoadState=loaded
ActiveState=active

Listen=127.0.0.1:8080 (Stream)
Listen=[::1]:8080 (Stream)
Result=resources
Id=llamactl-front-tcp.socket
LoadState=loaded
ActiveState=failed

Id=llamactl-front.service
LoadState=loaded
ActiveState=active
Result=success
"""


def test_units_are_read_as_systemctl_shows_them() -> None:
    unix, tcp, front = parse_units(SHOWN)
    assert unix == Unit("llamactl-front.socket", "loaded", "active", "success", ("/run/llamactl/http.sock",))
    assert (tcp.active, tcp.listen) == ("failed", ("127.0.0.1:8080", "[::1]:8080"))
    assert front == FRONT
    assert parse_units("\n") == []


def judge(active: str, load: str = "loaded", front: Unit = FRONT, proc: Path = Path("/none")) -> list[Listener]:
    return list(judge_unit(Unit(TCP, load, active, "resources", ("127.0.0.1:8080",)), front, proc))


def make_proc(directory: Path, local: str = "0100007F:1F90", state: str = "0A", pid: str = "77") -> Path:
    """A /proc with one socket, which a process named nginx has open."""
    table = directory / "net" / "tcp"
    table.parent.mkdir(parents=True)
    columns = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    table.write_text(f"{columns}   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 999 1\n")
    (directory / pid / "fd").mkdir(parents=True)
    (directory / pid / "fd" / "3").symlink_to("socket:[999]")
    (directory / pid / "comm").write_text("nginx\n")
    return directory


def test_socket_that_listens_is_in_force() -> None:
    assert judge("active") == [Listener("127.0.0.1:8080", TCP, True)]


def test_unix_socket_that_was_removed_is_not(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    unit = Unit("llamactl-front.socket", "loaded", "active", "success", (str(path),))
    [listener] = judge_unit(unit, FRONT)
    assert (listener.in_force, listener.wanted) == (False, True)
    assert "systemctl restart llamactl-front.socket" in listener.why
    path.touch()
    [listener] = judge_unit(unit, FRONT)
    assert listener.in_force


def test_socket_of_a_front_that_has_failed_is_not() -> None:
    failed = Unit("llamactl-front.service", "loaded", "failed")
    [listener] = judge("active", front=failed)
    assert (listener.in_force, listener.wanted, "journalctl -u llamactl-front" in listener.why) == (False, True, True)


@pytest.mark.parametrize("active", ["failed", "inactive"])
def test_taken_port_names_who_has_it_and_the_cure(tmp_path: Path, active: str) -> None:
    [listener] = judge(active, proc=make_proc(tmp_path))
    assert (listener.in_force, listener.wanted) == (False, True)
    assert listener.why == (
        "the port is taken by nginx (PID 77); free it, or choose another one (systemctl edit "
        "llamactl-front-tcp.socket); then: systemctl restart llamactl-front"
    )


def test_port_that_was_taken_only_at_the_start_wants_a_restart(tmp_path: Path) -> None:
    [listener] = judge("failed", proc=tmp_path)
    assert (listener.in_force, listener.wanted) == (False, True)
    assert listener.why.endswith("has failed (resources); see: systemctl status llamactl-front-tcp.socket; then: "
                                 "systemctl restart llamactl-front")  # fmt: skip


def test_socket_that_nobody_wants_is_no_fault(tmp_path: Path) -> None:
    assert judge("inactive", load="not-found") == []
    assert judge("inactive", load="masked") == [Listener(TCP, TCP, False, "it is masked", wanted=False)]
    assert judge("inactive", proc=tmp_path) == [
        Listener("127.0.0.1:8080", TCP, False, f"{TCP} is inactive", wanted=False)
    ]


@pytest.mark.parametrize(
    ("local", "state", "taken"),
    [
        ("0100007F:1F90", "0A", True),
        ("00000000:1F90", "0A", True),
        ("0100007F:1F91", "0A", False),
        ("0200007F:1F90", "0A", False),
        ("0100007F:1F90", "01", False),
    ],
)
def test_port_is_taken_by_who_listens_there_or_everywhere(tmp_path: Path, local: str, state: str, taken: bool) -> None:
    holder = find_holder("127.0.0.1:8080", make_proc(tmp_path, local, state))
    assert holder == (Holder("nginx", "77") if taken else None)


def test_address_for_everywhere_is_taken_by_anybody_at_its_port(tmp_path: Path) -> None:
    assert find_holder("0.0.0.0:8080", make_proc(tmp_path)) == Holder("nginx", "77")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::", "0.0.0.0"])
def test_kernel_shows_who_listens(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        try:
            listening.bind((host, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        listening.listen()
        port = listening.getsockname()[1]
        wanted = "[::1]" if family == socket.AF_INET6 and host != "::" else "127.0.0.1"
        assert find_holder(f"{wanted}:{port}") == Holder(Path("/proc/self/comm").read_text().strip(), str(os.getpid()))
    assert find_holder(f"{wanted}:{port}") is None
    assert find_holder("/run/llamactl/http.sock") is None
