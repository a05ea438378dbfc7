"""Who is at the other end of a Unix socket, and in which unit?

The kernel notes pid, uid and gid at connect(2). A pid alone may be another process's by now, so where there is
SO_PEERPIDFD (Linux 6.5) the pidfd says whether it still means the same process after its cgroup was read; before that
a pidfd opened by pid narrows the race to the time between connect and accept. A peer that has exited cannot be placed
any more: its unit is None. The unit is the first component of the cgroup below the slices, as systemd reads it: a
deeper one is named by whoever owns the first, and any user may have a service of any name below user@UID.service.
"""

import contextlib
import os
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SO_PEERPIDFD = 77
_UCRED = struct.Struct("3i")


@dataclass(frozen=True)
class Peer:
    """The process that connected. `unit` is None when it is in none, or has ended."""

    pid: int
    uid: int
    gid: int
    unit: str | None


def acquire_peer(sock: socket.socket, *, user: bool = False) -> Peer:
    """The peer of a connected Unix socket; `user` looks for units of the user's own systemd."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    unit = None
    with _open_pidfd(sock, pid) as pidfd:
        if pidfd is not None:
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/cgroup").read_text()
                if not _has_ended(pidfd):
                    unit = parse_cgroup_unit(text, user=user)
    return Peer(pid, uid, gid, unit)


@contextlib.contextmanager
def _open_pidfd(sock: socket.socket, pid: int) -> Iterator[int | None]:
    try:
        pidfd = struct.unpack("i", sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))[0]
    except OSError:
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, ValueError):  # ended, or (pid 0) outside of our pid namespace
            yield None
            return
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def parse_cgroup_unit(text: str, *, user: bool = False) -> str | None:
    """The unit in /proc/PID/cgroup; with `user` the one below user@UID.service."""
    paths = dict(line.split(":", 2)[1:] for line in text.splitlines() if line.count(":") >= 2)
    for hierarchy in ("", "name=systemd"):  # v2; or v1, in systemd's older layouts
        parts = [part.removeprefix("_") for part in paths.get(hierarchy, "").split("/") if part]
        unit, rest = _skip_slices(parts)
        if user and unit is not None:
            unit, _ = _skip_slices(rest) if unit.startswith("user@") else (None, [])
        if unit is not None:
            return unit
    return None


def _skip_slices(parts: list[str]) -> tuple[str | None, list[str]]:
    for index, part in enumerate(parts):
        if not part.endswith(".slice"):
            is_unit = part.endswith((".service", ".scope"))
            return (part if is_unit else None), parts[index + 1 :]
    return None, []
