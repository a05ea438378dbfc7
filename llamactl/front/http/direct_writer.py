"""How do bytes leave?

To the kernel at once, not when the event loop comes round: the peer is at work already while we do our accounts, and
what the kernel takes whole has never been copied.
"""

import asyncio
import os
import socket
import struct


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

    def reset(self) -> None:
        """Close at once. A peer on TCP sees that what it has got was not all; what it has not got is lost."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
