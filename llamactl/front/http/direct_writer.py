"""How do bytes leave?

To the kernel at once, not when the event loop comes round: the peer is at work already while we do our accounts, and
what the kernel takes whole has never been copied.
"""

import asyncio
import os


class DirectWriter:
    """The sending side of one connection."""

    __slots__ = ("_descriptor", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._descriptor: int = transport.get_extra_info("socket").fileno()

    def send(self, data: bytes) -> None:
        """Send now what the kernel takes; the transport keeps the rest, and tells of a peer that is gone."""
        transport = self._transport
        if transport.is_closing():  # its descriptor may be another connection's by now
            return
        if not transport.get_write_buffer_size():
            try:
                sent = os.write(self._descriptor, data)
            except OSError:
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        transport.write(data)
