"""How does one client's connection become requests, answered in order?

A client's leaving must be seen at once in every phase, or its generation would run on for nobody: so reading goes on
while a request is answered, and where it has to stop (a client far ahead, an instance slower than the body that it is
sent) the kernel is asked to tell. What a client sends ahead stays undecoded bytes, up to MAX_AHEAD_BYTES. An end of
file is a leaving, too: a client that shuts down its sending side will not be told from one that is gone. A refusal
that leaves request bytes unread shuts down only our sending side and reads on for a moment: closing would reset the
connection and take the refusal with it. One timer for each connection, armed for the earliest moment that could
matter and looked at only then: no request pays for it.
"""

import asyncio
import socket
import struct
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol, cast

from llamactl.endpoints import format_http_error, is_anthropics
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.http.access import RequestRecord
from llamactl.front.http.body import HELD_BYTES, BodyStream
from llamactl.front.http.framing import End, RequestReader
from llamactl.front.http.headers import CONTINUE, format_answer, format_error_fields, format_wire_error
from llamactl.front.http.outlet import Outlet
from llamactl.front.http.sending import SendWatch
from llamactl.front.http.upstream import Upstream
from llamactl.front.http.wire import RequestHead, WireError
from llamactl.front.routes import dispatch
from llamactl.front.scan import make_scanner

if TYPE_CHECKING:
    from llamactl.front.service import Front

MAX_AHEAD_BYTES = 64 * 1024
MAX_PIECES = 64
LINGER_S = 2.0
DRAIN_IDLE_S = 10.0
"""How long a process that has been replaced keeps a connection for its client's next request."""
_NO_RECORD = RequestRecord(b"", b"", b"", b"", 0.0)

_AHEAD = 1
_BODY = 2
"""Why reading is paused: the client has sent ahead; its body waits for the instance."""


class _Wait(Enum):
    """What a connection waits for, where a time-out applies."""

    FIRST = auto()
    HEAD = auto()
    BODY = auto()
    IDLE = auto()


# To look a member up in its class takes as long as to call a function, in Python 3.11.
_FIRST, _AWAITS_HEAD, _AWAITS_BODY, _IDLE = _Wait


class Running(Protocol):
    """A request that is being answered."""

    def cancel(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        "_advancing",
        "_answering",
        "_body",
        "_body_bytes",
        "_front",
        "_head",
        "_linger",
        "_outlet",
        "_paused",
        "_reader",
        "_running",
        "_sending",
        "_since_s",
        "_stream",
        "_timer",
        "_transport",
        "_tunnel",
        "_wait",
        "congested",
        "peer",
        "record",
    )

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
        self._outlet: Outlet | None = None
        self._head: RequestHead | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._stream: BodyStream | None = None
        """A large body, until its end has been read."""
        self._tunnel: Upstream | None = None
        self._running: Running | None = None
        self._answering = False
        """From the dispatch of a request to the end of its answer."""
        self._advancing = False
        self._paused = 0
        self._linger: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sending: SendWatch | None = None
        """From the first time on that the client was behind."""
        self._wait = _FIRST
        self._since_s = 0.0

    # --- for the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such
        self._outlet = Outlet(self._transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer = str(peer[0])
        self._front.clients.add(self)
        self._since_s = self._front.loop.time()
        self._arm()

    def data_received(self, data: bytes) -> None:
        if not self._answering and self._head is None and not self.congested and self._linger is None:
            whole = self._reader.take_whole(data)
            if whole is not None:
                self._take_whole(*whole)
            else:
                self._take_data(data)
            return
        if self._linger is not None:
            return
        if self._stream is not None and self._reader.pass_over(len(data)):
            self._take_passed(data)
            return
        if self._tunnel is not None:
            self._tunnel.write(data)
            if self._tunnel.congested:
                self._pause(_BODY)
            return
        self._take_data(data)

    def _take_data(self, data: bytes) -> None:
        self._reader.feed(data)
        if not self._answering or self._stream is not None:
            self._advance()
            if not self._answering or self._stream is not None:
                self._note_wait()
        if self._reader.buffered_bytes > MAX_AHEAD_BYTES and (self._answering or self.congested):
            self._pause(_AHEAD)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.congested = True
        self._watch_sending()
        if self._running is not None:
            self._running.pause()

    def resume_writing(self) -> None:
        self.congested = False
        if self._sending is not None and self._transport is not None and not self._transport.is_closing():
            self._sending.end()
        if self._running is not None:
            self._running.resume()
        if not self._answering:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport = self._transport, None
        self._outlet = None
        self._front.clients.discard(self)
        for timer in (self._linger, self._timer):
            if timer is not None:
                timer.cancel()
        self._timer = None
        if self._sending is not None:
            self._sending.end()
        if self._paused:
            self._front.hangups.forget(self._fileno(transport))
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
        self._close_stream()
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
            while self._may_advance():
                event = self._reader.next_event()
                if event is None:
                    break
                if type(event) is bytes:
                    self._take_body(event)
                elif event is End.END:
                    self._take_end()
                else:
                    assert isinstance(event, RequestHead)
                    self._take_head(event)
        except WireError as error:
            if self._head is None:
                self.record = self._front.make_record(None)
            self._refuse(error.status, format_wire_error(error.status, error.message, self.record.added))
        finally:
            self._advancing = False

    def _may_advance(self) -> bool:
        if self._linger is not None or self._transport is None or self._tunnel is not None:
            return False
        if self._stream is not None:
            return not self._paused & _BODY
        return not (self._answering or self.congested)

    def _take_whole(self, head: RequestHead, body: bytes) -> None:
        """A request that has come in one piece, and whose head has been read before."""
        self.record = self._front.make_record(head)
        if len(body) <= self._front.max_held_bytes:
            self._dispatch(head, body)
            return
        self._head = head
        self._take_body(body)
        if self._linger is None:
            self._take_end()

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
        elif self._stream is not None:
            self._add_to_stream(piece)
        else:
            self._body.append(piece)
            if len(self._body) == MAX_PIECES:  # a body that comes byte by byte would take forty times its size
                self._body = [b"".join(self._body)]
            if self._body_bytes > HELD_BYTES:
                self._open_stream()

    def _take_passed(self, piece: bytes) -> None:
        """What was read is a piece of a large body and nothing else."""
        self._body_bytes += len(piece)
        self._add_to_stream(piece)
        self._advance()  # that may have been the last piece
        if not self._answering or self._stream is not None:
            self._note_wait()

    def _open_stream(self) -> None:
        """The body is a large one: it goes on to the instance as it comes, once it is known to which."""
        head = self._head
        assert head is not None
        self._stream = BodyStream(make_scanner(head.find(b"content-type") or b""), self._hold_back)
        pieces, self._body = self._body, []
        self._add_to_stream(b"".join(pieces))

    def _add_to_stream(self, piece: bytes) -> None:
        stream, head = self._stream, self._head
        assert stream is not None
        assert head is not None
        try:
            stream.add(piece)
            self.record.received_bytes = stream.received_bytes
            if not self._answering and (stream.scanner.done or stream.scanner.find_model()):
                self._answering = True
                dispatch(self._front, self, head, b"", stream)
        except LlamactlError as error:
            if error.code is ErrorCode.NO_STORAGE:
                self._front.log.warning("body not kept", why=str(error), received_bytes=stream.received_bytes)
            self._refuse(error.kind.http_status, self._format_refusal(error))

    def _take_end(self) -> None:
        stream = self._stream
        head, self._head = self._head, None
        assert head is not None
        if stream is None:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            if body:
                self._body = []
                self._body_bytes = 0
            self._dispatch(head, body)
            return
        self._stream = None
        self._body_bytes = 0
        stream.end()
        if not self._answering:
            self._answering = True
            try:
                dispatch(self._front, self, head, b"", stream)
            except LlamactlError as error:
                stream.close()
                self.answer_error(error, head)

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _hold_back(self, hold: bool) -> None:
        """Whether the instance cannot take more of the body at present."""
        if hold:
            self._pause(_BODY)
        elif self._paused & _BODY:
            self._unpause(_BODY)
            if self._stream is not None:
                self._advance()
                self._note_wait()

    def _refuse_body(self) -> None:
        limit = self._front.settings.max_body_bytes
        error = LlamactlError(
            ErrorCode.TOO_LARGE,
            f"cannot take body: it has more than {limit} bytes",
            hint="max_body in llamactl.toml is the limit",
        )
        self._refuse(413, self._format_refusal(error))

    def _format_refusal(self, error: LlamactlError) -> bytes:
        """The last answer on a connection whose request is not read to its end."""
        status = error.kind.http_status
        body = format_http_error(error, b"" if self._head is None else self._head.path)
        fields = format_error_fields(status)
        return format_answer(status, body, keep_alive=False, fields=fields, added=self.record.added)

    def _dispatch(self, head: RequestHead, body: bytes) -> None:
        self.record.received_bytes = len(body)
        self._answering = True
        try:
            dispatch(self._front, self, head, body)
        except LlamactlError as error:
            self.answer_error(error, head)

    def begin(self, running: Running) -> None:
        """`running` will answer the present request, and wants to know if the client leaves."""
        self._running = running

    def begin_tunnel(self, upstream: Upstream) -> None:
        """Both sides have changed protocols: bytes go through as they are."""
        self._tunnel = upstream
        ahead = self._reader.take_rest()
        if ahead:
            upstream.write(ahead)
        self._unpause(_AHEAD)

    def resume_tunnel(self) -> None:
        """The instance takes more of what was changed to."""
        self._unpause(_BODY)

    # --- answers ---

    def may_keep_alive(self, head: RequestHead) -> bool:
        return head.keep_alive and self._stream is None and not self._front.leaving

    def send(self, data: bytes) -> None:
        if self._outlet is not None:
            self._outlet.send(data)

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
        """Send an error in the form of the route. `status`: other than the error's own."""
        body = format_http_error(error, head.path, status)
        if status == 503 and not is_anthropics(head.path):
            body["error"]["type"] = "unavailable_error"
        status = status or error.kind.http_status
        self.answer(head, status, body, format_error_fields(status))

    def end_exchange(self, keep_alive: bool) -> None:
        """The answer is complete."""
        self._running = None
        self._answering = False
        self._finish_record()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if keep_alive and self._stream is None and not self._front.stopping:
            self._go_on()
        else:
            unread = self._stream is not None
            self._close_stream()
            self._end_after_answer(unread)

    def _go_on(self) -> None:
        if self._reader.buffered_bytes:
            self._advance()
        if not self._answering:
            self._note_wait()
        if self._paused and self._reader.buffered_bytes <= MAX_AHEAD_BYTES:
            self._unpause(_AHEAD)

    def break_off(self, after_flush: bool) -> None:
        """The answer cannot be completed: end the connection so that the client sees it."""
        self._running = None
        self._finish_record(cut=True)
        self._close_stream()
        if self._transport is None:
            return
        if not after_flush:
            sock = self._transport.get_extra_info("socket")
            if sock is not None and sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._close()

    def drain(self) -> None:
        """This process has been replaced: an idle connection has little time left for its next request."""
        self._arm()

    def stop(self) -> bool:
        """Close if nothing is being answered or read. False: it ends with its present answer."""
        if self._answering or self._head is not None or self._linger is not None or self._reader.buffered_bytes:
            return False
        self._close()
        return True

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        """Close once the client has taken what was sent to it."""
        if self._transport is not None:
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self._watch_sending()

    def _finish_record(self, cut: bool = False) -> None:
        record = self.record
        if record is not _NO_RECORD:
            self.record = _NO_RECORD
            if cut:
                record.is_cut = True
            self._front.take_record(record)

    def _refuse(self, status: int, answer: bytes) -> None:
        """Answer what is being read without reading on, if nothing has been answered yet, and end the connection."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
        self._close_stream()
        if self._answering and self.record.status:
            self.break_off(after_flush=False)
            return
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
        if not unread and not self._reader.buffered_bytes and not self._paused:
            self._close()
            return
        self._unpause(_AHEAD | _BODY)
        self._linger = self._front.loop.call_later(LINGER_S, self.abort)
        if transport.can_write_eof():
            transport.write_eof()

    # --- a client that does not read ---

    def is_behind(self) -> bool:
        """Whether something that was sent has not even reached the kernel. From then on the client has to go on."""
        transport = self._transport
        if transport is None or not transport.get_write_buffer_size():
            return False
        self._watch_sending()
        return True

    def _watch_sending(self) -> None:
        """What was sent waits for the client: cut it when it takes nothing for too long."""
        if self._sending is None:
            limit_s = self._front.settings.send_timeout_s
            if not limit_s or self._transport is None:
                return
            self._sending = SendWatch(self._front.loop, self._transport, limit_s, self._cut)
        self._sending.begin()

    def _cut(self, why: str, unsent_bytes: int) -> None:
        record, running, self._running = self.record, self._running, None
        self._front.log.info(
            "client cut",
            why=why,
            unsent_bytes=unsent_bytes,
            model=record.model or None,
            request_id=record.request_id.decode("latin-1") or None,
        )
        if running is not None:
            running.cancel()
        self.break_off(after_flush=False)

    # --- reading and waiting ---

    def _pause(self, reason: int) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not self._paused:
            transport.pause_reading()
            self._front.hangups.watch(self._fileno(transport), self.abort)
        self._paused |= reason

    def _unpause(self, reason: int) -> None:
        was, self._paused = self._paused, self._paused & ~reason
        transport = self._transport
        if was and not self._paused and transport is not None:
            self._front.hangups.forget(self._fileno(transport))
            if not transport.is_closing():
                transport.resume_reading()

    @staticmethod
    def _fileno(transport: asyncio.Transport | None) -> int:
        descriptor: int = transport.get_extra_info("socket").fileno() if transport is not None else -1
        return descriptor

    def _note_wait(self) -> None:
        """The client has to send something now: from when on is it late?"""
        wait = _AWAITS_BODY if self._head is not None else _AWAITS_HEAD if self._reader.buffered_bytes else _IDLE
        if wait is not self._wait or wait is not _AWAITS_HEAD:
            self._wait = wait
            self._since_s = self._front.loop.time()
        if wait is not _IDLE or self._timer is None:
            self._arm()

    def _find_limit_s(self) -> float:
        """How long the client may take for what it has to send now; 0: for ever."""
        settings = self._front.settings
        if self._linger is not None or self._tunnel is not None:
            return 0.0
        if self._wait is _AWAITS_BODY and self._head is not None:
            return 0.0 if self._paused & _BODY else settings.body_timeout_s
        if self._answering:
            return 0.0
        if self._wait is _IDLE:
            if self._front.draining:
                return min(settings.keepalive_timeout_s or DRAIN_IDLE_S, DRAIN_IDLE_S)
            return settings.keepalive_timeout_s
        return settings.head_timeout_s

    def _arm(self) -> None:
        """See to it that the timer fires no later than the time-out."""
        limit_s = self._find_limit_s()
        if limit_s:
            at_s = self._since_s + limit_s
            if self._timer is not None:
                if self._timer.when() <= at_s:
                    return
                self._timer.cancel()
            self._timer = self._front.loop.call_at(at_s, self._check_wait)

    def _check_wait(self) -> None:
        self._timer = None
        limit_s = self._find_limit_s()
        if not limit_s or self._transport is None:
            return
        if self._front.loop.time() < self._since_s + limit_s:
            self._arm()
        elif self._wait in (_FIRST, _IDLE):
            self._close()
        else:
            what = "head has not come" if self._wait is _AWAITS_HEAD else "body has not gone on"
            if self._head is None:
                self.record = self._front.make_record(None)
            self._refuse(408, format_wire_error(408, f"its {what} for {limit_s:g} s", self.record.added))
