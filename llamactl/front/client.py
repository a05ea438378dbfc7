"""How does one client's connection become requests, answered in order?

Reading never stops while a request is answered, or the client's leaving would go unseen and its generation would run
on for nobody; what a client sends ahead stays undecoded bytes, up to MAX_AHEAD_BYTES. An end of file is a leaving,
too: a client that shuts down its sending side will not be told from one that is gone. A refusal that leaves request
bytes unread shuts down only our sending side and reads on for a moment: closing would reset the connection and take
the refusal with it.
"""

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Protocol, cast

from llamactl.errors import ErrorCode, LlamactlError, format_http_error
from llamactl.front.access import RequestRecord
from llamactl.front.buffers import READ_VIEW
from llamactl.front.framing import End, RequestReader
from llamactl.front.headers import CONTINUE, format_answer, format_error_fields, format_wire_error
from llamactl.front.routes import dispatch
from llamactl.front.wire import RequestHead, WireError

if TYPE_CHECKING:
    from llamactl.front.service import Front

MAX_AHEAD_BYTES = 64 * 1024
LINGER_S = 2.0
_NO_RECORD = RequestRecord(b"", b"", b"", b"", 0.0)


class Running(Protocol):
    """A request that is being answered."""

    def cancel(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class ClientConnection(asyncio.BufferedProtocol):
    """One connection of a client."""

    def __init__(self, front: "Front") -> None:
        self.congested = False
        """The client does not read as fast as we write."""
        self.peer = ""
        """The address of a client on TCP; empty for one on the Unix socket."""
        self.record = _NO_RECORD
        """Of the request that is being read or answered."""
        self._front = front
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._head: RequestHead | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._running: Running | None = None
        self._answering = False
        """From the dispatch of a request to the end of its answer."""
        self._advancing = False
        self._reading_paused = False
        self._linger: asyncio.TimerHandle | None = None

    # --- for the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer = str(peer[0])
        self._front.clients.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return READ_VIEW

    def buffer_updated(self, nbytes: int) -> None:
        if self._linger is not None:
            return
        self._reader.feed(bytes(READ_VIEW[:nbytes]))
        if not self._answering:
            self._advance()
        if self._reader.buffered_bytes > MAX_AHEAD_BYTES and (self._answering or self.congested):
            self._pause_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.congested = True
        if self._running is not None:
            self._running.pause()

    def resume_writing(self) -> None:
        self.congested = False
        if self._running is not None:
            self._running.resume()
        if not self._answering:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._front.clients.discard(self)
        if self._linger is not None:
            self._linger.cancel()
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
        if self._answering or self._head is not None:
            self._finish_record(cut=True)
        self._front.note_client_gone()

    # --- requests ---

    def _advance(self) -> None:
        """Take what has been read, up to the next request that is not answered at once."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while not (self._answering or self.congested or self._linger) and self._transport is not None:
                event = self._reader.next_event()
                if event is None:
                    break
                if type(event) is bytes:
                    self._take_body(event)
                elif event is End.END:
                    self._dispatch()
                else:
                    assert isinstance(event, RequestHead)
                    self._take_head(event)
        except WireError as error:
            if self._head is None:
                self.record = self._front.make_record(None)
            self._refuse(error.status, format_wire_error(error.status, error.message, self.record.added))
        finally:
            self._advancing = False

    def _take_head(self, head: RequestHead) -> None:
        self._head = head
        self.record = self._front.make_record(head)
        if head.content_length > self._front.settings.max_body_bytes:
            self._refuse_body()
        elif head.expect_continue and (head.chunked or head.content_length > 0) and not self._reader.buffered_bytes:
            self.send(CONTINUE)

    def _take_body(self, piece: bytes) -> None:
        self._body_bytes += len(piece)
        if self._body_bytes > self._front.settings.max_body_bytes:
            self._refuse_body()
        else:
            self._body.append(piece)

    def _refuse_body(self) -> None:
        limit = self._front.settings.max_body_bytes
        error = LlamactlError(
            ErrorCode.TOO_LARGE,
            f"cannot take body: it has more than {limit} bytes",
            hint="max_body in llamactl.toml is the limit",
        )
        self._refuse(413, format_answer(413, format_http_error(error), keep_alive=False, added=self.record.added))

    def _dispatch(self) -> None:
        head = self._head
        assert head is not None
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._head = None
        self.record.received_bytes = len(body)
        if body:
            self._body = []
            self._body_bytes = 0
        self._answering = True
        try:
            dispatch(self._front, self, head, body)
        except LlamactlError as error:
            self.answer_error(error, head)

    def begin(self, running: Running) -> None:
        """`running` will answer the present request, and wants to know if the client leaves."""
        self._running = running

    # --- answers ---

    def may_keep_alive(self, head: RequestHead) -> bool:
        return head.keep_alive and not self._front.stopping

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def answer(
        self,
        head: RequestHead,
        status: int,
        body: object,
        fields: tuple[tuple[str, str], ...] = (),
        content_type: str = "application/json",
    ) -> None:
        """Send a whole answer of our own, and go on to the next request."""
        keep_alive = self.may_keep_alive(head)
        answer = format_answer(
            status,
            body,
            minor=head.minor,
            keep_alive=keep_alive,
            to_head=head.method == b"HEAD",
            fields=fields,
            added=self.record.added,
            content_type=content_type,
        )
        self.record.status = status
        self.record.sent_bytes += len(answer)
        self.send(answer)
        self.end_exchange(keep_alive)

    def answer_error(self, error: LlamactlError, head: RequestHead, status: int = 0) -> None:
        """Send an error as llama-server words it. `status`: other than the error's own."""
        body = format_http_error(error)
        if status:
            body["error"]["code"] = status
        status = status or error.kind.http_status
        self.answer(head, status, body, format_error_fields(status))

    def end_exchange(self, keep_alive: bool) -> None:
        """The answer is complete."""
        self._running = None
        self._answering = False
        self._finish_record()
        if self._transport is None or self._transport.is_closing():
            return
        if keep_alive and not self._front.stopping:
            self._go_on()
        else:
            self._end_after_answer()

    def _go_on(self) -> None:
        if self._reader.buffered_bytes:
            self._advance()
        if self._reader.buffered_bytes > MAX_AHEAD_BYTES or self._transport is None or self._transport.is_closing():
            return
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()

    def break_off(self, after_flush: bool) -> None:
        """The answer cannot be completed: end the connection so that the client sees it."""
        self._running = None
        self._finish_record(cut=True)
        if self._transport is None:
            return
        if not after_flush:
            sock = self._transport.get_extra_info("socket")
            if sock is not None and sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    def stop(self) -> bool:
        """Close if nothing is being answered or read. False: it ends with its present answer."""
        if self._answering or self._head is not None or self._linger is not None or self._reader.buffered_bytes:
            return False
        if self._transport is not None:
            self._transport.close()
        return True

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _finish_record(self, cut: bool = False) -> None:
        record = self.record
        if record is not _NO_RECORD:
            self.record = _NO_RECORD
            record.is_cut = cut
            self._front.take_record(record)

    def _refuse(self, status: int, answer: bytes) -> None:
        self._answering = False
        self._body = []
        self.record.status = status
        self._finish_record()
        self.send(answer)
        self._end_after_answer(unread=True)

    def _end_after_answer(self, unread: bool = False) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not unread and not self._reader.buffered_bytes and not self._reading_paused:
            transport.close()
            return
        if self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()
        self._linger = self._front.loop.call_later(LINGER_S, self.abort)
        if transport.can_write_eof():
            transport.write_eof()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()
