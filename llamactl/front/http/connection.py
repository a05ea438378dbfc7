"""How does one client's connection become requests, answered in order?

A client's leaving must be seen at once in every phase, or its generation would run on for nobody: so reading goes on
while a request is answered, and where it has to stop the kernel is asked to tell (`read_gate`). What a client sends
ahead stays undecoded bytes. An end of file is a leaving, too: a client that shuts down its sending side will not be
told from one that is gone. Which phases there are and what they decide stands in `connection_state`; what is here are
the loop's callbacks, and what one part says that another has to hear.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from llamactl.endpoints import format_http_error, is_anthropics
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.http.access import RequestRecord
from llamactl.front.http.assembler import Request, RequestAssembler
from llamactl.front.http.body import BodyStream
from llamactl.front.http.connection_state import RULES, Event, Phase, Reads, step
from llamactl.front.http.direct_writer import DirectWriter
from llamactl.front.http.framing import END
from llamactl.front.http.headers import (
    CONTINUE,
    format_answer_to,
    format_error_fields,
    format_refusal,
    format_wire_error,
)
from llamactl.front.http.ports import ConnectionHost, Handler, Running
from llamactl.front.http.read_deadline import ReadDeadline, choose_limit_s
from llamactl.front.http.read_gate import AHEAD, BODY, MAX_AHEAD_BYTES, ReadGate
from llamactl.front.http.sending import SendWatch
from llamactl.front.http.upstream import Upstream
from llamactl.front.http.wire import RequestHead, WireError
from llamactl.journal_events import JournalEvent

LINGER_S = 2.0
_NO_RECORD = RequestRecord(b"", b"", b"", b"", 0.0)

# To look a member up in its class takes as long as to call a function, in Python 3.11.
_IDLE, _STREAMING_BODY = Phase.IDLE, Phase.STREAMING_BODY
_REQUEST_READ, _ANSWERED = Event.REQUEST_READ, Event.ANSWERED
_REQUESTS = Reads.REQUESTS
_NEXT = RULES[_IDLE].deadline


class ClientConnection(asyncio.Protocol):
    """One connection of a client. Implements `ports.Answering` and `ports.Connection`."""

    __slots__ = (
        "_advancing",
        "_handle",
        "_host",
        "_is_lost",
        "_linger",
        "_tunnel",
        "_writer",
        "congested",
        "deadline",
        "gate",
        "peer",
        "phase",
        "record",
        "requests",
        "running",
        "sending",
        "transport",
    )

    gate: ReadGate
    sending: SendWatch
    transport: asyncio.Transport
    _writer: DirectWriter

    def __init__(self, host: ConnectionHost, handle: Handler) -> None:
        self.congested = False
        self.peer = ""
        self.phase = Phase.NEW
        self.record = _NO_RECORD
        """Of the request that is being read or answered."""
        self.requests = RequestAssembler(host, self._hold_back)
        self.deadline = ReadDeadline(host.loop, self._find_limit_s, self._on_late)
        self.running: Running | None = None
        self._host = host
        self._handle = handle
        self._tunnel: Upstream | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._advancing = False
        self._is_lost = False

    def _enter(self, event: Event) -> None:
        self.phase = step(self.phase, event)

    # --- for the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such
        self.gate = ReadGate(self.transport, self._host.hangups, self.abort)
        self.sending = SendWatch(self._host, self.transport, self._cut)
        self._writer = DirectWriter(self.transport)
        self.peer = _find_peer(transport)
        self._host.on_connection(self)
        self.deadline.begin(RULES[self.phase].deadline)

    def data_received(self, data: bytes) -> None:
        if self.phase is _IDLE and not self.congested:
            whole = self.requests.consume_whole(data)
            if whole is not None:
                head, body = whole
                self.record = self._host.make_record(head)
                self._hand_over(head, body)
                return
        reads = RULES[self.phase].reads
        if reads is Reads.THROUGH:
            assert self._tunnel is not None
            self._tunnel.write(data)
            if self._tunnel.congested:
                self.gate.hold(BODY)
        elif reads is not Reads.NOTHING:
            self.requests.feed(data)
            if reads is _REQUESTS:
                self._read_on()
            if self.requests.buffered_bytes > MAX_AHEAD_BYTES and RULES[self.phase].holds and not self._may_read():
                self.gate.hold(AHEAD)

    def pause_writing(self) -> None:
        self.congested = True
        self.sending.begin()
        if self.running is not None:
            self.running.pause()

    def resume_writing(self) -> None:
        self.congested = False
        if not self.transport.is_closing():
            self.sending.end()
        if self.running is not None:
            self.running.resume()
        if RULES[self.phase].reads is _REQUESTS:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._enter(Event.ENDED)
        if self._linger is not None:
            self._linger.cancel()
        self.sending.close()
        self.deadline.close()
        self.gate.close()
        self._cancel_running()
        self.requests.close()
        self._finish_record(cut=True)
        self._host.on_connection_lost(self)

    # --- requests ---

    def _may_read(self) -> bool:
        """Whether what has been received is for now: not while the client, or the instance, has to take something."""
        if RULES[self.phase].reads is not _REQUESTS:
            return False
        return not self.gate.held & BODY if self.phase is _STREAMING_BODY else not self.congested

    def _read_on(self) -> None:
        """Take what has been received, up to the next request that is not answered at once, and wait for more."""
        self._advance()  # also without bytes: the end of a body takes none
        if RULES[self.phase].reads is _REQUESTS:
            if self.requests.buffered_bytes and self.phase in (Phase.NEW, Phase.IDLE):
                self._enter(Event.PART_OF_HEAD)
            self.deadline.begin(RULES[self.phase].deadline)

    def _go_on(self) -> None:
        """There may be something to read that had to wait."""
        if self.requests.buffered_bytes:
            self.deadline.forget()
        self._read_on()
        if self.gate.held and self.requests.buffered_bytes <= MAX_AHEAD_BYTES:
            self.gate.release(AHEAD)

    def _advance(self) -> None:
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._may_read():
                event = self.requests.next_event()
                if event is None:
                    break
                if isinstance(event, Request):
                    self._hand_over(event.head, event.body, event.stream)
                elif event is END:
                    self._enter(_REQUEST_READ)
                else:
                    assert isinstance(event, RequestHead)
                    self._enter(Event.HEAD_READ)
                    self.record = self._host.make_record(event)
                    if self.requests.awaits_continue:
                        self.send(CONTINUE)
        except WireError as error:
            self._refuse_bytes(error.status, error.message)
        except LlamactlError as error:
            self._refuse_body(error)
        finally:
            self._advancing = False
        if self.requests.stream is not None:
            self.record.received_bytes = self.requests.received_bytes

    def _hand_over(self, head: RequestHead, body: bytes, stream: BodyStream | None = None) -> None:
        self.record.received_bytes = len(body) if stream is None else stream.received_bytes
        is_whole = stream is None or stream.complete
        self._enter(_REQUEST_READ if is_whole else Event.HANDED_OVER)
        try:
            self._handle(self, head, body, stream)
        except LlamactlError as error:
            if not is_whole:
                raise
            if stream is not None:
                stream.close()
            self.answer_error(error, head)

    def _hold_back(self, hold: bool) -> None:
        """Whether the instance cannot take more of the body at present."""
        if hold:
            self.gate.hold(BODY)
        elif self.gate.held & BODY:
            self.gate.release(BODY)
            if self.requests.stream is not None:
                self._go_on()

    # --- for whoever answers ---

    def begin(self, running: Running) -> None:
        self.running = running

    def may_keep_alive(self, head: RequestHead) -> bool:
        return head.keep_alive and self.requests.stream is None and not self._host.leaving

    def send(self, data: bytes) -> None:
        self._writer.send(data)

    def answer(
        self,
        head: RequestHead,
        status: int,
        body: object,
        fields: tuple[tuple[str, str], ...] = (),
        content_type: str = "application/json",
    ) -> None:
        keep_alive = self.may_keep_alive(head)
        answer = format_answer_to(
            head, status, body, keep_alive=keep_alive, fields=fields, added=self.record.added, content_type=content_type
        )
        self.record.status = status
        self.record.sent_bytes += len(answer)
        self.send(answer)
        self.end_exchange(keep_alive)

    def answer_error(self, error: LlamactlError, head: RequestHead, status: int = 0) -> None:
        body = format_http_error(error, head.path, status)
        if status == 503 and not is_anthropics(head.path):
            body["error"]["type"] = "unavailable_error"
        status = status or error.kind.http_status
        self.answer(head, status, body, format_error_fields(status))

    def end_exchange(self, keep_alive: bool) -> None:
        self.running = None
        self._finish_record()
        if self.transport.is_closing():
            self._enter(Event.ENDED)
        elif keep_alive and self.requests.stream is None and not self._host.stopping:
            self._enter(_ANSWERED)
            if self.requests.buffered_bytes or self.gate.held:
                self._go_on()
            else:
                self.deadline.begin(_NEXT)
        else:
            unread = self.requests.stream is not None
            self.requests.close_stream()
            self._end_after_answer(unread)

    def break_off(self, after_flush: bool) -> None:
        self.running = None
        self._finish_record(cut=True)
        self.requests.close_stream()
        if self._is_lost:
            return
        if after_flush:
            self._close()
        else:
            self._enter(Event.ENDED)
            self._writer.reset()

    # --- another protocol ---

    def begin_tunnel(self, upstream: Upstream) -> None:
        self._enter(Event.SWITCHED)
        self._tunnel = upstream
        upstream.write(self.requests.consume_rest())
        self.gate.release(AHEAD)

    def resume_tunnel(self) -> None:
        self.gate.release(BODY)

    # --- the end ---

    def drain(self) -> None:
        self.deadline.arm()

    def stop(self) -> bool:
        if not RULES[self.phase].may_stop:
            return False
        self._close()
        return True

    def abort(self) -> None:
        self.transport.abort()

    def _close(self) -> None:
        """Close once the client has taken what was sent to it."""
        self._enter(Event.ENDED)
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.sending.begin()

    def _cancel_running(self) -> None:
        running, self.running = self.running, None
        if running is not None:
            running.cancel()

    def _finish_record(self, cut: bool = False) -> None:
        record = self.record
        if record is not _NO_RECORD:
            self.record = _NO_RECORD
            if cut:
                record.is_cut = True
            self._host.on_request_end(record)

    def _refuse_body(self, error: LlamactlError) -> None:
        """The body cannot be taken, or says something that cannot be meant."""
        if error.code is ErrorCode.NO_STORAGE:
            self._host.log.warning(
                JournalEvent.BODY_NOT_KEPT, why=str(error), received_bytes=self.requests.received_bytes
            )
        head = self.requests.head
        self._refuse(error.kind.http_status, partial(format_refusal, error, b"" if head is None else head.path))

    def _refuse_bytes(self, status: int, why: str) -> None:
        """They are no request, or not all of one."""
        self._refuse(status, partial(format_wire_error, status, why))

    def _refuse(self, status: int, answer: Callable[[bytes], bytes]) -> None:
        """Answer what is being read without reading on, if nothing has been answered yet, and end the connection."""
        if self.record is _NO_RECORD:
            self.record = self._host.make_record(self.requests.head)
        self._cancel_running()
        self.requests.close_stream()
        record = self.record
        if record.status:
            self.break_off(after_flush=False)
            return
        record.status = status
        self._finish_record()
        self.send(answer(record.added))
        self._end_after_answer(unread=True)

    def _end_after_answer(self, unread: bool) -> None:
        transport = self.transport
        if transport.is_closing():
            self._enter(Event.ENDED)
        elif not unread and not self.requests.buffered_bytes and not self.gate.held:
            self._close()
        else:
            self._enter(Event.LAST_SENT)
            self.gate.release(AHEAD | BODY)
            self._linger = self._host.loop.call_later(LINGER_S, self.abort)
            if transport.can_write_eof():
                transport.write_eof()

    # --- a client that is late ---

    def _find_limit_s(self) -> float:
        deadline = RULES[self.phase].deadline
        return choose_limit_s(deadline, self._host.settings, self._host.draining, bool(self.gate.held & BODY))

    def _on_late(self, limit_s: float) -> None:
        if RULES[self.phase].is_told:
            what = "head has not come" if self.phase is Phase.HEAD else "body has not gone on"
            self._refuse_bytes(408, f"its {what} for {limit_s:g} s")
        else:
            self._close()

    def is_behind(self) -> bool:
        return self.sending.is_behind()

    def _cut(self, why: str, unsent_bytes: int) -> None:
        self._host.on_client_cut(self.record, why, unsent_bytes)
        self._cancel_running()
        self.break_off(after_flush=False)


def _find_peer(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""
