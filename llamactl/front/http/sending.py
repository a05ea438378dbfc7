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


class SendWatch:
    """Of one connection, from the moment on that something waits for its client."""

    __slots__ = ("_cut", "_limit_s", "_loop", "_timer", "_transport", "unsent_bytes")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        limit_s: float,
        cut: Callable[[str, int], None],
    ) -> None:
        """`cut` is called with the reason and the bytes that were not taken."""
        self._loop = loop
        self._transport = transport
        self._limit_s = limit_s
        self._cut = cut
        self.unsent_bytes = 0
        """When it was looked at last."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Something waits for the client, unless that is known already."""
        if self._timer is None:
            self.unsent_bytes = self.count_unsent()
            self._timer = self._loop.call_later(self._limit_s, self.check)

    def end(self) -> None:
        """Nothing waits any more, or nobody."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def check(self) -> None:
        """The time is over."""
        self.end()
        if not self._transport.get_write_buffer_size():
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
