"""Where is a large request body while it is on its way from its client to its instance?

In memory up to HELD_BYTES, in an unlinked file beyond that, and nowhere once the instance takes it as it comes. It is
read on while the request waits for its model: the end of a connection is only seen behind what was sent before it. The
instance's slowness reaches the client once the body is on its way: until then the file takes it, up to `max_body`. A
body can be sent again as long as none of it has flowed through without being kept.
"""

import tempfile
from collections.abc import Callable
from typing import BinaryIO, Protocol

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.http.headers import LAST_CHUNK, format_chunk
from llamactl.front.http.scan import Scanner

HELD_BYTES = 96 * 1024
"""Bodies up to this size are collected in memory and then sent in one write, which holds them once more."""
PIECE_BYTES = 64 * 1024
MAX_PIECES_A_TURN = 16
"""Of a file, to an instance that takes all of them at once: other connections wait meanwhile."""


class Sink(Protocol):
    """Where a body goes."""

    congested: bool

    def write(self, data: bytes) -> None:
        """Send, or keep until it can be sent."""

    def ask_later(self) -> None:
        """Let it be asked for more, as if it had been congested, when the loop comes round."""


class BodyStream:
    """One large body."""

    __slots__ = (
        "_chunked",
        "_file",
        "_flowing",
        "_held",
        "_hold_back",
        "_pieces",
        "_read_bytes",
        "_sink",
        "complete",
        "received_bytes",
        "scanner",
        "sent_whole",
    )

    def __init__(self, scanner: Scanner, hold_back: Callable[[bool], None]) -> None:
        self.scanner = scanner
        self.received_bytes = 0
        self.complete = False
        """All of it has come."""
        self.sent_whole = False
        """All of it has gone to the present sink."""
        self._hold_back = hold_back
        """Called with True when the client shall not send on, with False when it may."""
        self._pieces: list[bytes] = []
        self._held = 0
        self._file: BinaryIO | None = None
        self._read_bytes = 0
        """What the present sink has got of the file."""
        self._sink: Sink | None = None
        self._chunked = False
        self._flowing = False
        """Pieces go straight to the sink, and are gone then."""

    @property
    def can_rewind(self) -> bool:
        """Whether the whole body can still be sent, to another sink."""
        return not self._flowing

    def hold(self) -> None:
        """The way to the instance is being made: what is still to come shall wait."""
        if not self.complete:
            self._hold_back(True)

    # --- from the client ---

    def add(self, piece: bytes) -> None:
        """Raises LlamactlError when it cannot be kept."""
        if not self.scanner.done:
            self.scanner.feed(piece)
        self.received_bytes += len(piece)
        sink = self._sink
        if sink is None or self._file is not None:
            self._keep(piece)
            if sink is None:
                return
            self._pump()
        else:
            self._flowing = True
            self._pieces.clear()
            self._write(sink, piece)
        if sink.congested:
            self._hold_back(True)

    def end(self) -> None:
        """That was all: the client may send what comes after it, whatever becomes of this."""
        self.complete = True
        self._hold_back(False)
        if self._sink is not None:
            self._pump()

    def _keep(self, piece: bytes) -> None:
        try:
            if self._file is None:
                self._held += len(piece)
                self._pieces.append(piece)
                if self._held <= HELD_BYTES:
                    return
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
                piece, self._pieces = b"".join(self._pieces), []
            assert self._file is not None
            self._file.seek(0, 2)
            written = self._file.write(piece)
            while written < len(piece):  # the next attempt says why
                written += self._file.write(piece[written:])
        except OSError as error:
            directory = tempfile.tempdir or "/tmp"
            raise LlamactlError(
                ErrorCode.NO_STORAGE,
                f"cannot take body: what its model has not taken yet is kept in '{directory}': {error.strerror}",
                hint=f"free space in '{directory}' of llamactl-front.service, or send fewer large bodies at once",
            ) from None

    # --- to the instance ---

    def attach(self, sink: Sink, chunked: bool) -> None:
        """From now on the body goes to `sink`, from its beginning."""
        self._sink = sink
        self._chunked = chunked
        self._read_bytes = 0
        self.sent_whole = False
        for piece in self._pieces:
            self._write(sink, piece)
        self._pump()
        self._hold_back(not self.complete and sink.congested)

    def detach(self) -> None:
        """The sink is gone; what comes is kept again."""
        if self._sink is not None:
            self._sink = None
            self._hold_back(False)

    def resume(self) -> None:
        """The sink takes more."""
        if self._sink is not None:
            self._pump()
            if self._sink is not None and not self._sink.congested:
                self._hold_back(False)

    def close(self) -> None:
        """Nobody wants it any more."""
        self._sink = None
        self._pieces.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
        self._flowing = True

    def _pump(self) -> None:
        sink = self._sink
        assert sink is not None
        file = self._file
        if file is not None:
            pieces = 0
            while not sink.congested:
                if pieces == MAX_PIECES_A_TURN:
                    sink.ask_later()
                    return
                pieces += 1
                file.seek(self._read_bytes)
                piece = file.read(PIECE_BYTES)
                if not piece:
                    break
                self._read_bytes += len(piece)
                self._write(sink, piece)
            if self._read_bytes < self.received_bytes:
                return
            if not self.complete:  # the client is not faster than the instance: no need for the file any more
                file.close()
                self._file = None
                self._flowing = True
        if self.complete and not self.sent_whole:
            self.sent_whole = True
            if self._chunked:
                sink.write(LAST_CHUNK)

    def _write(self, sink: Sink, piece: bytes) -> None:
        sink.write(format_chunk(piece) if self._chunked else piece)
