"""When is a client that does not read cut? When it has taken nothing for `send_timeout` of what waits for it.

A sequence of the model waits behind that, and whoever waits for the model's room. One that takes little is slow, not
gone: what is left unsent is looked at when the time is over, and any change gives it as much time again. No request
pays for this: it begins when the kernel's buffer is full.
"""

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable
from typing import Protocol

from llamactl.settings import FrontSettings


class SendHost(Protocol):
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def settings(self) -> FrontSettings: ...


class SendWatch:
    """Of one connection."""

    __slots__ = ("_cut", "_host", "_limit_s", "_timer", "_transport", "unsent_bytes")

    def __init__(self, host: SendHost, transport: asyncio.Transport, cut: Callable[[str, int], None]) -> None:
        """`cut` is called with the reason and the bytes that were not taken."""
        self._host = host
        self._transport = transport
        self._cut: Callable[[str, int], None] | None = cut
        self._limit_s = 0.0
        """As it was when the client was found behind for the first time."""
        self.unsent_bytes = 0
        """When it was looked at last."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def is_behind(self) -> bool:
        """Whether something that was sent has not even reached the kernel. From then on the client has to go on."""
        if not self._transport.get_write_buffer_size():
            return False
        self.begin()
        return True

    def begin(self) -> None:
        """Something waits for the client, unless that is known already."""
        self._limit_s = self._limit_s or self._host.settings.send_timeout_s
        if self._timer is None and self._limit_s and self._cut is not None:
            self.unsent_bytes = self.count_unsent()
            self._timer = self._host.loop.call_later(self._limit_s, self.check)

    def end(self) -> None:
        """Nothing waits any more, or nobody."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """The connection is lost."""
        self.end()
        self._cut = None

    def check(self) -> None:
        """The time is over."""
        self.end()
        if not self._transport.get_write_buffer_size() or self._cut is None:
            return
        if self.count_unsent() != self.unsent_bytes:
            self.begin()
        else:
            self._cut(f"it took nothing for {self._limit_s:g} s", self.unsent_bytes)

    def count_unsent(self) -> int:
        """What the client has not taken: of a Unix socket what it has not read, of a TCP connection what its machine
        has not acknowledged. A Unix socket counts whole pieces as they were written.
        """
        unsent = bytearray(4)
        fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, unsent)
        return self._transport.get_write_buffer_size() + int.from_bytes(unsent, sys.byteorder)
