"""Has a peer left that we are not reading from?

A loop tells of the end of a connection only behind what was sent before it, and to one that reads. Where reading is
paused, because a client sends ahead or an instance is slow, nobody would notice that the client has gone. The kernel
knows: one epoll of our own waits for EPOLLRDHUP alone, for the few connections that are paused, and the loop waits for
that epoll.
"""

import asyncio
import contextlib
import select
from collections.abc import Callable

_EVENTS = select.EPOLLRDHUP | select.EPOLLONESHOT
MAX_EVENTS = 256


class HangupWatch:
    """The connections that are paused, by descriptor."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._on_events)

    def watch(self, descriptor: int, left: Callable[[], None]) -> None:
        """Call `left` once when the peer has closed, or has shut down its sending side."""
        self.forget(descriptor)
        self._epoll.register(descriptor, _EVENTS)
        self._callbacks[descriptor] = left

    def forget(self, descriptor: int) -> None:
        """To be called before the descriptor is closed: its number may be another's right after."""
        if self._callbacks.pop(descriptor, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(descriptor)

    def close(self) -> None:
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
        self._callbacks.clear()

    def _on_events(self) -> None:
        for descriptor, _ in self._epoll.poll(0, MAX_EVENTS):
            left = self._callbacks.get(descriptor)
            if left is not None:
                self.forget(descriptor)
                left()
