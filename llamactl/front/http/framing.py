"""Which events are in these bytes: heads, pieces of bodies, ends?

Two readers, one for each direction, that do no I/O: `feed` what was received, in pieces of any size, then ask
`next_event` until it says None. Cut differently, the same bytes give the same heads, the same body and the same end.
A reader stops at the end of each message: what follows stays bytes until the owner asks again, so that a client that
pipelines cannot make us work ahead of our answers. After a WireError a reader is of no use: where its message ends is
unknown.
"""

import re
from enum import Enum, auto
from typing import Literal

from llamactl.front.http.wire import (
    RequestHead,
    ResponseHead,
    WireError,
    find_head_end,
    parse_request_head,
    parse_response_head,
)

MAX_CHUNK_LINE_BYTES = 1024
MAX_TRAILER_BYTES = 8 * 1024

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\0]*)?\r\n")
_TRAILER_LINE = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n\0]*)?\r\n")


class End(Enum):
    """The message is complete."""

    END = auto()


END = End.END
RequestEvent = RequestHead | bytes | Literal[End.END] | None
ResponseEvent = ResponseHead | bytes | Literal[End.END] | None


class _Stage(Enum):
    HEAD = auto()
    LENGTH = auto()
    CHUNKED = auto()
    CLOSE = auto()
    COMPLETE = auto()


# To look a member up in its class takes as long as to call a function, in Python 3.11.
_HEAD, _LENGTH, _CHUNKED, _CLOSE, _COMPLETE = _Stage


class ChunkDecoder:
    """RFC 9112 7.1, strictly. Extensions are ignored, trailers are read and dropped."""

    __slots__ = ("_left", "_line", "_state", "_trailer_bytes")

    def __init__(self) -> None:
        self._state: Literal["size", "data", "data_end", "trailer", "done"] = "size"
        self._left = 0
        self._line = b""
        self._trailer_bytes = 0

    @property
    def done(self) -> bool:
        return self._state == "done"

    def decode(self, data: bytes, pos: int) -> tuple[bytes, int]:
        """Body bytes of `data` from `pos` on, and where decoding stopped: at its end, or behind the trailer."""
        pieces = []
        end = len(data)
        while pos < end and self._state != "done":
            if self._state == "data":
                piece = data[pos : pos + self._left]
                pieces.append(piece)
                pos += len(piece)
                self._left -= len(piece)
                if self._left == 0:
                    self._state = "data_end"
                continue
            newline = data.find(b"\n", pos)
            stop = newline + 1 if newline >= 0 else end
            self._line = self._line + data[pos:stop] if self._line else data[pos:stop]
            pos = stop
            if len(self._line) > MAX_CHUNK_LINE_BYTES:
                raise WireError(400, "line of a chunk is too long")
            if newline >= 0:
                line, self._line = self._line, b""
                self._consume_line(line)
            elif self._state == "data_end" and self._line not in (b"", b"\r"):
                raise WireError(400, "chunk is longer than it said")
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), pos

    def _consume_line(self, line: bytes) -> None:
        if self._state == "data_end":
            if line != b"\r\n":
                raise WireError(400, "chunk is longer than it said")
            self._state = "size"
        elif self._state == "size":
            match = _CHUNK_LINE.fullmatch(line)
            if not match:
                raise WireError(400, "malformed chunk size")
            self._left = int(match[1], 16)
            self._state = "data" if self._left else "trailer"
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > MAX_TRAILER_BYTES or not _TRAILER_LINE.fullmatch(line):
                raise WireError(400, "malformed trailer")
            if line == b"\r\n":
                self._state = "done"


class _Reader:
    """What both directions share: the buffer and the body."""

    __slots__ = ("_chunks", "_data", "_last_bytes", "_last_size", "_left", "_pos", "_stage")

    def __init__(self) -> None:
        self._data = b""
        self._pos = 0
        self._stage = _HEAD
        self._left = 0
        self._chunks = ChunkDecoder()
        self._last_bytes = b""
        """The last head."""
        self._last_size = -1
        """Of the whole message that it began; -1: it does not tell."""

    def feed(self, data: bytes) -> None:
        rest = len(self._data) - self._pos
        self._data = self._data[self._pos :] + data if rest else data
        self._pos = 0

    def consume_rest(self) -> bytes:
        """What was fed and is no part of an event: the peers have changed protocols."""
        rest = self._data[self._pos :]
        self._data, self._pos = b"", 0
        return rest

    @property
    def buffered_bytes(self) -> int:
        """Fed, but not yet part of an event."""
        return len(self._data) - self._pos

    @property
    def is_complete(self) -> bool:
        """The last piece of a body has been taken: the next event is the end."""
        return self._stage is _COMPLETE

    def pass_over(self, nbytes: int) -> bool:
        """Count bytes as fed and taken that are wholly part of a body, and the next to come; False: feed them."""
        if self._stage is not _LENGTH or nbytes > self._left or self._pos != len(self._data):
            return False
        self._left -= nbytes
        if not self._left:
            self._stage = _COMPLETE
        return True

    def _end_message(self) -> None:
        self._stage = _HEAD
        if self._pos == len(self._data):  # a connection that waits for its next message holds nothing of the last one
            self._data, self._pos = b"", 0

    def _consume_head(self) -> bytes | None:
        while self._data.startswith(b"\r\n", self._pos):  # RFC 9112 2.2: empty lines before a message are ignored
            self._pos += 2
        if self._pos == len(self._data) or self._data[self._pos :] == b"\r":
            return None
        end = find_head_end(self._data, self._pos)
        if end < 0:
            return None
        head = self._data[self._pos : end]
        self._pos = end
        return head

    def _begin_length(self, length: int) -> None:
        self._left = length
        self._stage = _LENGTH if length else _COMPLETE

    def _begin_chunked(self) -> None:
        self._chunks = ChunkDecoder()
        self._stage = _CHUNKED

    def _next_piece(self) -> bytes | None:
        """The next bytes of the body; None where there are none yet. Moves on to COMPLETE behind the last one."""
        data, pos = self._data, self._pos
        if pos == len(data):
            return None
        if self._stage is _CHUNKED:
            piece, self._pos = self._chunks.decode(data, pos)
            if self._chunks.done:
                self._stage = _COMPLETE
            return piece
        if self._stage is _CLOSE:
            self._pos = len(data)
            return data[pos:] if pos else data
        piece = data if not pos and len(data) <= self._left else data[pos : pos + self._left]
        self._pos = pos + len(piece)
        self._left -= len(piece)
        if self._left == 0:
            self._stage = _COMPLETE
        return piece


class RequestReader(_Reader):
    """Bytes of a client in, its requests out."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        super().__init__()
        self._last: RequestHead | None = None

    def consume_whole(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """Head and body, where `data` is one message with the head of the last one: most are. None: feed it."""
        head, raw = self._last, self._last_bytes
        if head is None or len(data) != self._last_size or not data.startswith(raw):
            return None
        return None if self._data or self._stage is not _HEAD else (head, data[len(raw) :])

    def next_event(self) -> RequestEvent:
        """Head, pieces of the body (never empty), END; then the next request. None: feed more. Raises WireError."""
        while True:
            if self._stage is _HEAD:
                raw = self._consume_head()
                if raw is None:
                    return None
                # Most clients send one head again and again over a connection.
                if raw == self._last_bytes and self._last is not None:
                    head = self._last
                else:
                    head = self._last = parse_request_head(raw)
                    self._last_bytes = raw
                    self._last_size = -1 if head.chunked else len(raw) + max(head.content_length, 0)
                if head.chunked:
                    self._begin_chunked()
                else:
                    self._begin_length(max(head.content_length, 0))
                return head
            if self._stage is _COMPLETE:
                self._end_message()
                return END
            piece = self._next_piece()
            if piece is None:
                return None
            if piece:
                return piece


class ResponseReader(_Reader):
    """Bytes of an instance in, its answers out."""

    __slots__ = ("_last", "_may_switch", "_to_head")

    def __init__(self) -> None:
        super().__init__()
        self._last: ResponseHead | None = None
        self._to_head = False
        self._may_switch = False

    def expect(self, to_head: bool, may_switch: bool = False) -> None:
        """A request has been sent; `to_head`: by HEAD, so that its answer has no body whatever it says; `may_switch`:
        101 is an answer, and all that follows it is its body.
        """
        self._to_head = to_head
        self._may_switch = may_switch

    def consume_whole(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """Head and body, where `data` is one message with the head of the last one, which says its length. None:
        feed it.
        """
        head, raw = self._last, self._last_bytes
        if head is None or len(data) != self._last_size or not data.startswith(raw):
            return None
        return None if self._to_head or self._data or self._stage is not _HEAD else (head, data[len(raw) :])

    def next_event(self) -> ResponseEvent:
        """Head, pieces of the body (never empty), END; interim responses (1xx) are dropped. None: feed more.

        Raises WireError.
        """
        while True:
            if self._stage is _HEAD:
                raw = self._consume_head()
                if raw is None:
                    return None
                if raw == self._last_bytes and self._last is not None:
                    head = self._last
                else:
                    head = self._last = parse_response_head(raw)
                    self._last_bytes = raw
                    tells = head.content_length >= 0 and head.status >= 200 and head.status not in (204, 304)
                    self._last_size = len(raw) + head.content_length if tells else -1
                if head.status == 101:
                    if not self._may_switch:
                        raise WireError(502, "unwanted change of protocols")
                    self._stage = _CLOSE
                    return head
                if head.status < 200:
                    continue
                if self._to_head or head.status in (204, 304):
                    self._begin_length(0)
                elif head.chunked:
                    self._begin_chunked()
                elif head.content_length >= 0:
                    self._begin_length(head.content_length)
                else:
                    self._stage = _CLOSE
                return head
            if self._stage is _COMPLETE:
                self._end_message()
                return END
            piece = self._next_piece()
            if piece is None:
                return None
            if piece:
                return piece

    def finish(self) -> bool:
        """The peer has closed. True: that was the end of a body without a length, so the answer is complete."""
        return self._stage is _CLOSE
