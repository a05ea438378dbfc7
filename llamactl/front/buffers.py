"""Where is received data put, and how do bytes leave?

All clients' connections read into one buffer, and the loop calls the protocol at once, which copies out what is to be
kept: so an idle connection costs no buffer, and no read brings more than READ_BYTES, which is what bounds how much one
client can make us hold. What instances send comes in the loop's own copies, one call less for each. Bytes to be sent
go to the kernel at once, not when the loop comes round: the peer is at work already while we do our accounts, and what
the kernel takes whole has never been copied.
"""

import asyncio
import os

READ_BYTES = 128 * 1024
READ_BUFFER = bytearray(READ_BYTES)
READ_VIEW = memoryview(READ_BUFFER)


class Outlet:
    """The sending side of one connection."""

    __slots__ = ("_descriptor", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._descriptor: int = transport.get_extra_info("socket").fileno()

    def send(self, data: bytes | memoryview) -> None:
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
        transport.write(bytes(data))
