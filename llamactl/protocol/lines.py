"""How does a message become a line of a socket, and a line a message?

A message is a JSON object with a `type`, the tag of its class. A line that is too long, is no JSON or is no message of
its direction ends the connection with an `error` message: ProtocolError says why. The version rises with any change
that an older peer would misread; peers of other versions are refused in the greeting.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A message: its `type` is the tag of its class."""


class ErrorNotice(Message, frozen=True, kw_only=True, tag="error"):
    """Last message before the connection ends: what was wrong with what came."""

    message: str


class ProtocolError(Exception):
    """A line that is no message of its direction. The text says what is wrong and is safe to show.

    `before` holds the messages that the same bytes completed before it.
    """

    def __init__(self, reason: str, before: Sequence[Any] = ()) -> None:
        super().__init__(reason)
        self.before = before


_SURROGATES = re.compile("[\ud800-\udfff]")
_encoder = msgspec.json.Encoder()


def encode_message(message: msgspec.Struct) -> bytes:
    """One line, newline included. What is no Unicode, as names of files may be, comes out with U+FFFD in its place."""
    try:
        return _encoder.encode(message) + b"\n"
    except UnicodeEncodeError:
        return _encoder.encode(_replace_surrogates(msgspec.to_builtins(message))) + b"\n"


def _replace_surrogates(value: Any) -> Any:
    match value:
        case str():
            return _SURROGATES.sub("\ufffd", value)
        case dict():
            return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [_replace_surrogates(item) for item in value]
        case _:
            return value


class LineReader:
    """Bytes in, messages of one direction out. Does no I/O: feed it what was received, in pieces of any size."""

    def __init__(self, message_type: Any, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(message_type)
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def unfinished(self) -> int:
        """Bytes of a line whose end has not come."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Any]:
        """Messages completed by `data`, in order. Raises ProtocolError; the reader is of no use after that."""
        start = len(self._buffer)
        self._buffer += data
        messages: list[Any] = []
        while (end := self._buffer.find(b"\n", start)) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            start = 0
            if len(line) > self._max_bytes:
                raise ProtocolError(f"message of {len(line)} bytes, at most {self._max_bytes} are taken", messages)
            try:
                messages.append(self._decoder.decode(line))
            except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
                raise ProtocolError(f"not a message: {error}", messages) from None
        if len(self._buffer) > self._max_bytes:
            raise ProtocolError(f"message of more than {self._max_bytes} bytes", messages)
        return messages
