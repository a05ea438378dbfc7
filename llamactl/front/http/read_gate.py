"""May we read on from a client, and who notices that it has left while we do not?

Reading stops where a client is far ahead of its answers, or its instance slower than the body that it is sent; both may
be the case at once, and both have to be over. A loop tells only those who read that the other side has gone: while
reading is stopped the kernel is asked to tell (see `hangup`).
"""

import asyncio
from collections.abc import Callable

from llamactl.front.http.hangup import HangupWatch

MAX_AHEAD_BYTES = 64 * 1024
"""What a client may have sent before its turn."""

AHEAD = 1
BODY = 2
"""Why reading is stopped: the client has sent ahead; what it sends waits for the instance."""


class ReadGate:
    """Of one connection."""

    __slots__ = ("_descriptor", "_hangups", "_left", "_transport", "held")

    def __init__(self, transport: asyncio.Transport, hangups: HangupWatch, left: Callable[[], None]) -> None:
        """`left` is called when the client leaves while nobody reads."""
        self._transport = transport
        self._hangups = hangups
        self._left: Callable[[], None] | None = left
        self._descriptor = -1
        self.held = 0
        """Why reading is stopped; 0: it is not."""

    def hold(self, why: int) -> None:
        """Stop reading for this reason, too."""
        left = self._left
        if left is None or self._transport.is_closing():
            return
        if not self.held:
            self._transport.pause_reading()
            self._descriptor = self._transport.get_extra_info("socket").fileno()
            self._hangups.watch(self._descriptor, left)
        self.held |= why

    def release(self, why: int) -> None:
        """This reason is over, or these are: read on if no other is left."""
        was, self.held = self.held, self.held & ~why
        if was and not self.held:
            self._hangups.forget(self._descriptor)
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def close(self) -> None:
        """The connection is lost, its descriptor about to be closed."""
        if self.held:
            self._hangups.forget(self._descriptor)
            self.held = 0
        self._left = None
