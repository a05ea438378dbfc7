"""Which requests are in these bytes, and how much of each must be here before it is handed over?

A request whose body is small, or has come whole, is handed over whole. A large body goes on to its instance as it
comes, once the scanner has seen to which: then the request is handed over with a BodyStream that fills behind the
reader's back, and its end is an event of its own. `feed` what was received, then ask `next_event` until it says None;
how far to ask is the connection's to decide. After an error the assembler is of no use: where the request ends is
unknown.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.http.body import HELD_BYTES, BodyStream
from llamactl.front.http.framing import End, RequestReader
from llamactl.front.http.scan import make_scanner
from llamactl.front.http.wire import RequestHead

MAX_PIECES = 64


class Request(NamedTuple):
    """A request that can be handed over. `stream`: a large body that may still be on its way, instead of `body`."""

    head: RequestHead
    body: bytes
    stream: BodyStream | None


Assembled = RequestHead | Request | Literal[End.END] | None


class Limits(Protocol):
    """How large bodies may be, at present."""

    @property
    def max_body_bytes(self) -> int: ...
    @property
    def max_held_bytes(self) -> int:
        """Up to which they come as one piece."""


class RequestAssembler:
    """The bytes of one client, and what has become of them."""

    __slots__ = (
        "_handed_over",
        "_hold_back",
        "_limits",
        "_passed",
        "_pieces",
        "_reader",
        "head",
        "received_bytes",
        "stream",
    )

    def __init__(self, limits: Limits, hold_back: Callable[[bool], None]) -> None:
        """`hold_back`: as a BodyStream calls it."""
        self.head: RequestHead | None = None
        """Of the request whose body is being read."""
        self.received_bytes = 0
        """Of its body."""
        self.stream: BodyStream | None = None
        """Its body, if it is a large one."""
        self._limits = limits
        self._hold_back = hold_back
        self._reader = RequestReader()
        self._pieces: list[bytes] = []
        self._passed = b""
        """Fed, and known to be body and nothing else."""
        self._handed_over = False

    @property
    def buffered_bytes(self) -> int:
        """Fed, but not yet part of an event."""
        return self._reader.buffered_bytes + len(self._passed)

    @property
    def n_pieces(self) -> int:
        """In how many pieces a small body is kept."""
        return len(self._pieces)

    def consume_whole(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """Head and body, where `data` is one small request with the head of the last one: most are. None: feed it."""
        whole = self._reader.consume_whole(data)
        return whole if whole is not None and len(whole[1]) <= self._limits.max_held_bytes else None

    def feed(self, data: bytes) -> None:
        if self.stream is not None and self._reader.pass_over(len(data)):
            self._passed = self._passed + data if self._passed else data
        else:
            self._reader.feed(data)

    def consume_rest(self) -> bytes:
        """What was fed and is no part of an event: the peers have changed protocols."""
        return self._reader.consume_rest()

    def next_event(self) -> Assembled:
        """The head of the next request; the request, when it can be handed over; END, where that was before the end of
        its body. None: feed more. Raises WireError; LlamactlError (too_large, no_storage, invalid_request).
        """
        while True:
            if self._passed:
                event: RequestHead | bytes | End | None = self._passed
                self._passed = b""
            else:
                event = self._reader.next_event()
            if event is None:
                return None
            if type(event) is bytes:
                request = self._on_piece(event)
                if request is not None:
                    return request
            elif event is End.END:
                return self._on_end()
            else:
                assert isinstance(event, RequestHead)
                self.head = event
                self.received_bytes = 0
                self._handed_over = False
                if event.content_length > self._limits.max_body_bytes:
                    self._refuse_size()
                return event

    @property
    def awaits_continue(self) -> bool:
        """Whether the client, whose head has just been read, asks before it sends its body."""
        head = self.head
        return head is not None and head.expect_continue and head.has_body and not self._reader.buffered_bytes

    def close(self) -> None:
        """The connection is lost."""
        self.close_stream()
        self._hold_back = _do_nothing

    def close_stream(self) -> None:
        """Nobody wants the body any more."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    def _on_piece(self, piece: bytes) -> Request | None:
        self.received_bytes += len(piece)
        if self.received_bytes > self._limits.max_body_bytes:
            self._refuse_size()
        if self.stream is not None:
            return self._add_to_stream(piece)
        self._pieces.append(piece)
        if len(self._pieces) == MAX_PIECES:  # a body that comes byte by byte would take forty times its size
            self._pieces = [b"".join(self._pieces)]
        if self.received_bytes <= HELD_BYTES:
            return None
        head = self.head
        assert head is not None
        self.stream = BodyStream(make_scanner(head.find(b"content-type") or b""), self._hold_back)
        pieces, self._pieces = self._pieces, []
        return self._add_to_stream(b"".join(pieces))

    def _add_to_stream(self, piece: bytes) -> Request | None:
        stream, head = self.stream, self.head
        assert stream is not None
        assert head is not None
        stream.add(piece)
        if self._handed_over or self._reader.is_complete:  # its end comes next, and brings all of it
            return None
        if not (stream.scanner.done or stream.scanner.members.read_model()):
            return None
        self._handed_over = True
        return Request(head, b"", stream)

    def _on_end(self) -> Request | Literal[End.END]:
        head, stream = self.head, self.stream
        assert head is not None
        self.head = None
        if stream is None:
            pieces, self._pieces = self._pieces, []
            return Request(head, pieces[0] if len(pieces) == 1 else b"".join(pieces), None)
        self.stream = None
        stream.end()
        return End.END if self._handed_over else Request(head, b"", stream)

    def _refuse_size(self) -> None:
        raise LlamactlError(
            ErrorCode.TOO_LARGE,
            f"cannot take body: it has more than {self._limits.max_body_bytes} bytes",
            hint="max_body in llamactl.toml is the limit",
        )


def _do_nothing(_: bool) -> None:
    """There is nobody left to hold back."""
