"""How do lines become messages on both of the supervisor's sockets, and how does junk end?

One Protocol class serves both. Whatever is wrong with what a peer sends ends that peer's connection, after one
`error` line that says why, and nothing else. A peer that does not read may not grow the supervisor: beyond a
bound its connection is dropped.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from llamactl.protocol.lines import MAX_MESSAGE_BYTES, ErrorNotice, LineReader, ProtocolError, encode_message

MAX_UNSENT_BYTES = 8 * MAX_MESSAGE_BYTES


class LineConnection(asyncio.Protocol):
    """One peer. `on_message` gets each message, `on_closed` is called exactly once when the connection was made
    and has ended.
    """

    def __init__(
        self,
        message_type: Any,
        on_open: Callable[["LineConnection"], None],
        on_message: Callable[["LineConnection", Any], None],
        on_closed: Callable[["LineConnection"], None],
        on_unfinished: Callable[["LineConnection", int], None] = lambda *_: None,
    ) -> None:
        """`on_unfinished` is told how many bytes of a line have come without its end, whenever that changes."""
        self._reader = LineReader(message_type)
        self._on_open = on_open
        self._on_message = on_message
        self._on_closed = on_closed
        self._on_unfinished = on_unfinished
        self._unfinished = 0
        self._transport: asyncio.Transport | None = None

    @property
    def socket(self) -> socket.socket:
        """The connected socket, for the peer's credentials."""
        assert self._transport is not None
        peer: socket.socket = self._transport.get_extra_info("socket")
        return peer

    @property
    def closing(self) -> bool:
        """Whether it takes and gives nothing any longer."""
        return self._transport is None or self._transport.is_closing()

    def send(self, message: msgspec.Struct) -> None:
        """Queue one message; nothing happens on a connection that is closing."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._transport.abort()
            return
        self._transport.write(encode_message(message))

    def refuse(self, reason: str) -> None:
        """Say what is wrong and end the connection."""
        self.send(ErrorNotice(message=reason))
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        try:
            messages, junk = self._reader.feed(data), ""
        except ProtocolError as error:
            messages, junk = list(error.before), str(error)
        for message in messages:
            if self.closing:
                return
            self._on_message(self, message)
        if junk:
            self.refuse(junk)
        elif self._unfinished != self._reader.unfinished:
            self._unfinished = self._reader.unfinished
            self._on_unfinished(self, self._unfinished)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_closed(self)
