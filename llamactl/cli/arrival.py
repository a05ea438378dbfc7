"""Will there be a supervisor in a moment, and when is it there?

A supervisor that has died is started again by systemd within a second, and until then nobody listens. Whoever asks
just then should not be told that there is none: systemd says whether one is on its way, and the kernel tells when its
socket appears (inotify(7); Python's own library has no call for it). The watch must stand before the last try to
connect, or a socket that appears between the two goes unseen.
"""

import ctypes
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path

UNIT = "llamactl.service"
UNIT_DIRECTORIES = tuple(map(Path, ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")))
"""Where a unit of ours may be: systemd.unit(5)."""
ARRIVAL_S = 10.0
PATIENCE_S = 1.0
"""A shorter wait is nothing to speak of."""

_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80
_COMING = frozenset({"activating", "reloading", "deactivating", "active"})
"""States in which a socket may appear. `active`: it has died, and systemd has not heard of it yet."""


def acquire_state() -> str:
    """What systemd says of the supervisor: `active`, `failed` ...; empty where it cannot be asked."""
    return _acquire_property("ActiveState")


def is_installed() -> bool:
    """Whether there is a unit of the supervisor; where systemd cannot be asked, whether `install` has left one."""
    known = _acquire_property("LoadState")
    return known != "not-found" if known else any((directory / UNIT).is_file() for directory in UNIT_DIRECTORIES)


def _acquire_property(name: str) -> str:
    command = ("systemctl", "show", f"--property={name}", "--value", UNIT)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ARRIVAL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def is_coming() -> bool:
    """Whether systemd has a supervisor that starts, or starts again."""
    return acquire_state() in _COMING


@contextmanager
def watch_directory(directory: Path) -> Iterator[int]:
    """A descriptor that becomes readable when something appears in a directory. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "cannot watch")
    try:
        if libc.inotify_add_watch(fd, os.fsencode(directory), _IN_CREATE | _IN_MOVED_TO) < 0:
            raise OSError(ctypes.get_errno(), "cannot watch", str(directory))
        yield fd
    finally:
        os.close(fd)


class Arrival(Enum):
    """What came of waiting."""

    HERE = auto()
    LATE = auto()
    """Not within ARRIVAL_S, though systemd said that it comes, or is there."""
    NOBODY = auto()
    """Nobody is coming."""


def wait_for_supervisor(socket: Path, connect: Callable[[], bool], say: Callable[[str], None]) -> Arrival:
    """Try to connect until it works, each time that something appears beside `socket`."""
    try:
        with watch_directory(socket.parent) as fd:
            if connect():
                return Arrival.HERE
            if not is_coming():
                return Arrival.NOBODY
            return Arrival.HERE if _wait(fd, connect, say) else Arrival.LATE
    except OSError:  # we may not look there, or there is no such place
        return Arrival.NOBODY


def _wait(fd: int, connect: Callable[[], bool], say: Callable[[str], None]) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    began = time.monotonic()
    said = False
    while (left_s := began + ARRIVAL_S - time.monotonic()) > 0:
        if poll.poll(1000 * (left_s if said else min(left_s, PATIENCE_S))):
            os.read(fd, 1 << 16)
            if connect():
                return True
        elif not said:
            said = True
            say("the supervisor is being started: waiting for it")
    return False
