"""Do the small edges keep what the manuals promise: notifications, passed sockets, peers, D-Bus types?"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llamactl.controllers import acquire_controllers
from llamactl.systemd.listen import acquire_listen_sockets
from llamactl.systemd.notify import Notifier, format_status
from llamactl.systemd.peer import acquire_peer, parse_cgroup_unit
from llamactl.systemd.signatures import EXTRA_SIGNATURES, pack_properties

# --- notify -------------------------------------------------------------------------------------


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where a process of a unit sends its notifications."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


def test_ready_is_sent_alone_and_statuses_are_ascii(systemd: socket.socket) -> None:
    notifier = Notifier()
    notifier.ready()
    notifier.status("modèle ✓\nready")
    notifier.watchdog()
    notifier.extend_timeout(1.5)
    notifier.stopping()
    sent = [systemd.recv(1000) for _ in range(5)]
    assert sent == [b"READY=1", b"STATUS=modele ? ready", b"WATCHDOG=1", b"EXTEND_TIMEOUT_USEC=1500000", b"STOPPING=1"]


def test_reload_carries_its_time(systemd: socket.socket) -> None:
    Notifier().reloading()
    first, second = systemd.recv(1000).split(b"\n")
    assert first == b"RELOADING=1"
    assert int(second.removeprefix(b"MONOTONIC_USEC=")) > 0


def test_busy_systemd_delays_no_watchdog_message(systemd: socket.socket) -> None:
    notifier = Notifier()
    for _ in range(20000):  # far beyond what a socket queues: would wait for ever, or 5 s each
        notifier.watchdog()
    assert systemd.recv(1000) == b"WATCHDOG=1"


def test_nothing_is_raised_outside_of_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notifier = Notifier()
    notifier.ready()
    notifier.status("x")


def test_status_is_one_line_of_bounded_length() -> None:
    assert format_status("a\n\tb   c") == "a b c"
    assert len(format_status("x" * 10000)) == 512


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "2000000"}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "x"}, None),
    ],
)
def test_watchdog_interval_is_for_the_process_that_is_meant(environ: dict[str, str], interval_s: float | None) -> None:
    assert Notifier.watchdog_interval_s(environ) == interval_s


# --- listen -------------------------------------------------------------------------------------


def test_sockets_are_taken_by_name_and_not_inherited() -> None:
    listeners = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    base = 200  # adjacent, as systemd's are, and out of the way of pytest's own
    for index, listener in enumerate(listeners):
        os.dup2(listener.fileno(), base + index, inheritable=True)
        listener.close()
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "3", "LISTEN_FDNAMES": "http:http:tcp", "PATH": "/bin"}
    sockets = acquire_listen_sockets(environ, first=base)
    assert {name: len(found) for name, found in sockets.items()} == {"http": 2, "tcp": 1}
    assert not any(sock.get_inheritable() for found in sockets.values() for sock in found)
    assert environ == {"PATH": "/bin"}
    for found in sockets.values():
        for sock in found:
            sock.close()


@pytest.mark.parametrize(
    "environ", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": "x", "LISTEN_FDS": "y"}]
)
def test_sockets_meant_for_another_process_are_left_alone(environ: dict[str, str]) -> None:
    assert acquire_listen_sockets(environ) == {}
    assert environ == {}


# --- peer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/llamactl.slice/llamactl-models.slice/llamactl-model@a.service", "llamactl-model@a.service"),
        ("/llamactl.slice/llamactl-models.slice/llamactl-model@a.service/sub/x.service", "llamactl-model@a.service"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/llamactl-model@a.service", "user@1000.service"),
        ("/user.slice/user-1000.slice/session-1.scope", "session-1.scope"),
        ("/llamactl.slice", None),
        ("/something/llamactl-model@a.service", None),
        ("/", None),
        ("/../../llamactl-model@a.service", None),
    ],
)
def test_unit_is_the_first_component_below_the_slices(path: str, unit: str | None) -> None:
    assert parse_cgroup_unit(f"4:memory:/x.service\n0::{path}\n") == unit


def test_unit_of_the_users_own_systemd() -> None:
    text = "0::/user.slice/user-1000.slice/user@1000.service/llamactl.slice/llamactl-model@a.service\n"
    assert parse_cgroup_unit(text, user=True) == "llamactl-model@a.service"
    assert parse_cgroup_unit("0::/system.slice/llamactl-model@a.service\n", user=True) is None


def test_unit_is_found_in_the_first_versions_hierarchy() -> None:
    assert parse_cgroup_unit("1:name=systemd:/system.slice/a.service\n0::/\n") == "a.service"


def connect_from_child(path: Path, script: str) -> subprocess.Popen[bytes]:
    code = f"import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect({str(path)!r})\n{script}"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


def test_peer_is_the_process_that_connected(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        child = connect_from_child(tmp_path / "s", "input()")
        with listener.accept()[0] as connection:
            peer = acquire_peer(connection)
            assert (peer.pid, peer.uid, peer.gid) == (child.pid, os.getuid(), os.getgid())
            assert peer.unit == parse_cgroup_unit(Path(f"/proc/{child.pid}/cgroup").read_text())
            child.communicate(b"\n")


def test_peer_that_has_ended_is_in_no_unit(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        child = connect_from_child(tmp_path / "s", "")
        with listener.accept()[0] as connection:
            child.wait()
            peer = acquire_peer(connection)
            assert (peer.pid, peer.unit) == (child.pid, None)


# --- D-Bus types, controllers -------------------------------------------------------------------


@pytest.mark.parametrize(
    "properties",
    [
        {"MemoryMax": 1.5},
        {"MemoryMax": -1},
        {"MemoryMax": True},
        {"RuntimeMaxUSec": 1.5},
        {"Description": 5},
        {"Description": "a\0b"},
        {"DynamicUser": 1},
        {"Environment": "A=secret"},
        {"DeviceAllow": [["/dev/null", "secret", "x"]]},
        {"AllowedCPUs": [256]},
        {"NoSuchProperty": "secret"},
        {"RuntimeMaxSec": 1},
    ],
)
def test_value_of_another_type_is_refused_without_being_shown(properties: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(properties))) as refused:
        pack_properties(properties)
    assert "secret" not in str(refused.value)


def test_byte_arrays_are_numbers_or_text() -> None:
    from_text = pack_properties({"LogExtraFields": ["A=b"]})
    assert from_text == pack_properties({"LogExtraFields": [list(b"A=b")]})


def test_own_signatures_add_to_pystemds_and_contradict_none() -> None:
    from pystemd.systemd1.unit_signatures import KNOWN_UNIT_SIGNATURES

    pack_properties({})
    for name, signature in EXTRA_SIGNATURES.items():
        assert KNOWN_UNIT_SIGNATURES[name.encode()] == signature.encode(), name


def test_controllers_are_those_of_the_second_version(tmp_path: Path) -> None:
    assert acquire_controllers(tmp_path) == ()
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("hugetlb\n")
    assert acquire_controllers(tmp_path) == ("hugetlb",)
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    assert acquire_controllers(tmp_path) == ("cpu", "memory")
