"""Do notifications, the journal and passed sockets work with the real systemd at the other end?"""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import llamactl
from llamactl.systemd.manager import UnitEnded, UnitGone, UnitStarted
from tests.system import journal
from tests.system.harness import show
from tests.system.systemd_follow import READY, TIMEOUT_S, follow, kill, run, shell

UNIT = "llamactl-model@edges.service"


def python(script: str, **properties: object) -> dict[str, object]:
    """Properties of a unit that runs Python with our package."""
    checkout = str(Path(llamactl.__file__).parents[1])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {checkout!r})\n{script}".replace("$", "$$")]
    return shell("", ExecStart=[[sys.executable, command, False]], NotifyAccess="main") | properties


def test_progress_extends_the_start_and_its_absence_ends_it() -> None:
    load = """
import threading
from llamactl.systemd.notify import Notifier
notifier = Notifier()
for percent in range(0, 101, 20):
    notifier.extend_timeout(1.0)
    notifier.status(f"loading {percent} % ✓")
    threading.Event().wait(0.5)
"""

    async def test() -> None:
        async with follow(UNIT) as follower:
            extended = python(load + "notifier.ready()\nthreading.Event().wait()", TimeoutStartUSec=1_500_000)
            await follower.manager.start_transient(UNIT, extended)
            await follower.wait(UnitStarted, UNIT)
            assert show(UNIT, "StatusText") == "loading 100 % ?"
            await follower.manager.stop_unit(UNIT)
            await follower.wait(UnitGone, UNIT)
            stalled = python(load + "threading.Event().wait()", TimeoutStartUSec=1_500_000)
            await follower.manager.start_transient(UNIT, stalled)
            ended = await follower.wait(UnitEnded, UNIT, 2)
            assert (ended.result, ended.started, ended.status_text) == ("timeout", False, "loading 100 % ?")

    run(test)


def test_watchdog_that_is_fed_lets_live_and_one_that_is_not_kills() -> None:
    script = """
import threading, time
from llamactl.systemd.notify import Notifier
notifier = Notifier()
notifier.ready()
interval_s = notifier.watchdog_interval_s()
assert interval_s == 0.6
for _ in range(10):
    notifier.watchdog()
    threading.Event().wait(interval_s / 3)
notifier.status("starved")
threading.Event().wait()
"""

    async def test() -> None:
        async with follow(UNIT) as follower:
            await follower.manager.start_transient(UNIT, python(script, WatchdogUSec=600_000, WatchdogSignal=9))
            ended = await follower.wait(UnitEnded, UNIT)
            assert (ended.result, ended.exit_code, ended.status_text) == ("watchdog", 9, "starved")

    run(test)


def test_reload_is_seen_from_its_beginning_to_its_end() -> None:
    script = """
import signal
from llamactl.systemd.notify import Notifier
notifier = Notifier()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP, signal.SIGUSR1])
notifier.ready()
signal.sigwait([signal.SIGHUP])
notifier.reloading()
signal.sigwait([signal.SIGUSR1])
notifier.ready()
signal.sigwait([signal.SIGHUP])
"""

    async def test() -> None:
        async with follow(UNIT) as follower:
            await follower.manager.start_transient(UNIT, python(script))
            await follower.wait(UnitStarted, UNIT)
            for signal, state in (("HUP", "reloading"), ("USR1", "active")):
                await kill(UNIT, signal)
                await follower.wait_state(UNIT, state)
            assert follower.steps(UNIT) == ["UnitStarted"]

    run(test)


def test_stop_of_the_slice_stops_every_model() -> None:
    units = [f"llamactl-model@edges-{number}.service" for number in range(3)]

    async def test() -> None:
        async with follow(*units) as follower:
            for unit in units:
                await follower.manager.start_transient(unit, shell(READY, Slice="llamactl-models.slice"))
                await follower.wait(UnitStarted, unit)
            stop = ["systemctl", "stop", "llamactl-models.slice"]
            await asyncio.to_thread(subprocess.run, stop, check=True, timeout=TIMEOUT_S)
            for unit in units:
                assert (await follower.wait(UnitEnded, unit)).result == "success"
                await follower.wait(UnitGone, unit)

    run(test)


def test_structured_line_has_its_fields_beside_the_units(cursor: str) -> None:
    script = """
from llamactl.systemd.journal import configure, get_logger
configure("llamactl-edges", "info", {"model": "edges"})
get_logger().warning("memory measured", device="Host", needs_bytes=1 << 30, reason="for the test")
import logging
logging.getLogger("library").error("two\\nlines")
"""

    async def test() -> None:
        async with follow(UNIT) as follower:
            extra = {"LogExtraFields": ["LLAMACTL_MODEL=edges"], "SyslogIdentifier": "llamactl-edges"}
            await follower.manager.start_transient(UNIT, python(script, Type="exec", **extra))
            assert (await follower.wait(UnitEnded, UNIT)).result == "success"

    run(test)
    ours = [entry for entry in journal.read_entries(cursor) if entry.get("_SYSTEMD_UNIT") == UNIT]
    measured, library = ours
    assert measured["MESSAGE"] == "memory measured: device=Host needs=1.00 GiB: for the test"
    assert measured["_TRANSPORT"] == "journal"
    expected = {
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "llamactl-edges",
        "LLAMACTL_EVENT": "memory_measured",
        "LLAMACTL_MODEL": "edges",
        "LLAMACTL_DEVICE": "Host",
        "LLAMACTL_NEEDS_BYTES": str(1 << 30),
    }
    assert {name: measured[name] for name in expected} == expected
    assert library["MESSAGE"] == "library message: logger=library: two\nlines"


def test_sockets_that_systemd_holds_are_taken_by_name() -> None:
    path = f"/run/llamactl-edges-{os.getpid()}.sock"
    script = """
import os
from llamactl.systemd.listen import acquire_listen_sockets
(listener,) = acquire_listen_sockets()["http"]
connection, _ = listener.accept()
connection.sendall(b"taken" if not any(name.startswith("LISTEN_") for name in os.environ) else b"kept")
"""
    checkout = str(Path(llamactl.__file__).parents[1])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {checkout!r})\n{script}"]
    activate = ["systemd-run", "--quiet", "--collect"]
    unit = f"edges-{os.getpid()}"
    activate += [f"--unit={unit}", f"--socket-property=ListenStream={path}"]
    activate += ["--socket-property=FileDescriptorName=http", "--socket-property=RemoveOnStop=yes"]
    subprocess.run([*activate, *command], check=True, timeout=TIMEOUT_S)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(TIMEOUT_S)
            client.connect(path)
            assert client.recv(100) == b"taken"
    finally:
        subprocess.run(["systemctl", "stop", f"{unit}.socket", f"{unit}.service"], timeout=TIMEOUT_S)


def test_peer_is_in_its_unit_while_it_lives_and_in_none_as_a_zombie() -> None:
    script = """
import os, select, socket, sys
from llamactl.systemd.peer import acquire_peer
listener = socket.socket(socket.AF_UNIX)
listener.bind("")
listener.listen()
units = []
for lives in (True, False):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(listener.getsockname())
        if lives:
            os.read(read, 1)
        os._exit(0)
    os.close(read)
    connection, _ = listener.accept()
    if not lives:
        poll = select.poll()
        poll.register(os.pidfd_open(child), select.POLLIN)
        poll.poll()
    units.append(acquire_peer(connection).unit)
    os.close(write)
print(units)
"""
    checkout = str(Path(llamactl.__file__).parents[1])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {checkout!r})\n{script}"]
    unit = f"edges-{os.getpid()}.service"
    done = subprocess.run(
        ["systemd-run", "--quiet", "--collect", "--pipe", "--wait", f"--unit={unit}", *command],
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout.strip() == repr([unit, None])
