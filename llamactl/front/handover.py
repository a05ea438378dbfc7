"""How does a new front take over without a client noticing?

On SIGHUP the running process starts its successor from the files as they are now, with the same listening sockets. It
goes on accepting until the successor says that it listens, makes it the unit's main process, and then only ends what
it has begun, however long that takes. The successor is nobody's child but systemd's (two forks), which would otherwise
not learn of its death. A pipe tells the old process how the new one fares: `ready`, `leaving` before it goes on
purpose, and the end of the pipe when it is gone. Gone without `leaving`, the old one must go at once: systemd waits for
it before it starts the unit again, and until then nobody accepts.
"""

import asyncio
import fcntl
import os
import socket
import sys
from collections.abc import Callable, MutableMapping

from llamactl.systemd.listen import FIRST_DESCRIPTOR

LINK_VARIABLE = "LLAMACTL_FRONT_LINK"
_HIGH = 128
"""Descriptors are copied up here first, so that none is overwritten before it has been copied."""


class Successor:
    """The process that takes over, as its predecessor sees it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sockets: list[socket.socket], changed: Callable[["Successor"], None]
    ) -> None:
        """Start it. `changed` is called with each news. Raises OSError."""
        self.pid = 0
        """Once it listens."""
        self.is_leaving = False
        self.is_gone = False
        self._loop = loop
        self._changed = changed
        self._text = b""
        self._link, link = os.pipe()
        try:
            _spawn([sock.fileno() for sock in sockets], [_name(sock) for sock in sockets], link)
        finally:
            os.close(link)
        os.set_blocking(self._link, False)
        loop.add_reader(self._link, self._read)

    def forget(self) -> None:
        if self._link >= 0:
            self._loop.remove_reader(self._link)
            os.close(self._link)
            self._link = -1

    def _read(self) -> None:
        data = os.read(self._link, 4096)
        if not data:
            self.is_gone = True
            self.forget()
            self._changed(self)
            return
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            word, _, value = line.partition(b" ")
            if word == b"ready":
                self.pid = int(value)
            elif word == b"leaving":
                self.is_leaving = True
            self._changed(self)


class Predecessor:
    """The process that this one takes over from, if there is one."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        text = environ.pop(LINK_VARIABLE, "")
        self._link = int(text) if text.isdecimal() else -1
        if self._link >= 0:
            os.set_inheritable(self._link, False)

    @property
    def is_there(self) -> bool:
        return self._link >= 0

    def say_ready(self) -> None:
        """Tell it that this process serves: it takes no new connection from now on."""
        self._say(b"ready %d\n" % os.getpid())

    def say_leaving(self) -> None:
        """Tell it that this process ends in order, and needs no replacement by it."""
        self._say(b"leaving\n")

    def _say(self, line: bytes) -> None:
        if self._link >= 0:
            try:
                os.write(self._link, line)
            except OSError:  # it has ended its last stream and is gone
                os.close(self._link)
                self._link = -1


def _name(sock: socket.socket) -> str:
    return "http" if sock.family == socket.AF_UNIX else "tcp"


def _spawn(descriptors: list[int], names: list[str], link: int) -> None:
    """Start this program again, as no child of this process, with listening sockets and a pipe."""
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:
                _become_successor(descriptors, names, link)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _become_successor(descriptors: list[int], names: list[str], link: int) -> None:
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _HIGH) for descriptor in [*descriptors, link]]
    for index, descriptor in enumerate(high):
        os.dup2(descriptor, FIRST_DESCRIPTOR + index)
        os.close(descriptor)
    pid = str(os.getpid())
    environ = {
        **os.environ,
        "LISTEN_PID": pid,
        "LISTEN_FDS": str(len(descriptors)),
        "LISTEN_FDNAMES": ":".join(names),
        LINK_VARIABLE: str(FIRST_DESCRIPTOR + len(descriptors)),
    }
    if "WATCHDOG_PID" in environ:
        environ["WATCHDOG_PID"] = pid
    os.execve(sys.executable, sys.orig_argv, environ)
