"""How does one request become one answer of an instance?

One object for each request, driven by callbacks alone: acquire a lease, take or make a connection, relay, release. No
task and no future is made where the lease is held and a connection idle. The rule for trouble: while nothing has been
sent to the client and the instance has not read the request, it is tried once more on a fresh instance; after that
the client must see that the answer failed: 502 before its first byte, an error event and an end that is not clean in
a stream, the loss of the connection in anything else. A failed answer that ends like a whole one is the one thing
that never happens.
"""

import time

from llamactl.endpoints import INSTANCE, refuse_route
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.event_stream import format_lines
from llamactl.front import refusals
from llamactl.front.http.access import TAIL_BYTES
from llamactl.front.http.body import BodyStream
from llamactl.front.http.headers import (
    LAST_CHUNK,
    format_chunk,
    format_client_head,
    format_stream_head,
    format_upstream_head,
)
from llamactl.front.http.members import Members
from llamactl.front.http.ports import Answering
from llamactl.front.http.upstream import Upstream
from llamactl.front.http.wire import RequestHead, ResponseHead
from llamactl.front.lease import Asked, Lease
from llamactl.front.naming import check_length, decode_path
from llamactl.front.ports import RelayHost
from llamactl.front.precheck import find_mistake
from llamactl.front.stream_texts import ends_with_error, format_loading_comment, format_stream_error
from llamactl.front.wait import Wait
from llamactl.journal_events import JournalEvent

_UNKNOWN_NAMES = (ErrorCode.UNKNOWN_MODEL, ErrorCode.INVALID_CONFIG)
"""The second one: of a file that cannot be read nobody knows the models."""
_FOREIGN_NAMES = (*_UNKNOWN_NAMES, ErrorCode.NO_SUPERVISOR)
"""Errors whose `model` is what the client wrote, not a model of ours."""


MAX_BUFFERED_BYTES = 64 * 1024


class Exchange:
    """One request that an instance answers, from the moment that it is known which model it wants."""

    # Defaults of the class, not stores in every object: most requests never touch most of these.
    _tail: bytes | None = None
    """The last bytes of an answer that may tell its tokens; None: it does not."""
    _lease: Lease | None = None
    _upstream: Upstream | None = None
    _mistake: LlamactlError | None = None
    """Why every model would refuse this request."""
    _started = False
    _done = False
    _retried = False
    _rechunk = False
    _keep_alive = True
    _event_stream = False
    _mid_event = False
    _wait: Wait | None = None
    _commented = False
    """The client has a stream already, with comments in it, though no instance has answered."""
    _buffered_non_stream_answer: bytearray | None = None
    """An answer that is no stream, where the client has one already."""
    _asleep: LlamactlError | None = None
    """Why there is no lease, where an instance that sleeps is asked without one."""

    def __init__(
        self,
        host: RelayHost,
        client: Answering,
        head: RequestHead,
        body: bytes,
        members: Members,
        name: str,
        autoload: bool,
        passive: bool,
        stream: BodyStream | None = None,
    ) -> None:
        self._host = host
        self._leasing = host.leasing
        self._client = client
        self._head = head
        self._body = body
        self._members = members
        self._stream = stream
        """A large body, instead of `body`: it may still be on its way."""
        self._name = name
        self._autoload = autoload
        self._passive = passive
        """It is no use of the model: it never loads it, and does not keep it."""
        self._record = client.record

    def start(self) -> None:
        lease = self._leasing.acquire_warm(self, self._name, self._passive)
        if lease is None:
            try:
                check_length(self._name)
            except LlamactlError as error:
                self.on_refusal(error)
                return
            if self._autoload and self._stream is None and not self._head.upgrade:
                self._look_for_mistake()
                if self._done:
                    return
            asked = Asked(self._name, self._autoload, passive=self._passive)
            lease = self._leasing.acquire(self, asked)
        if lease is not None:
            self.on_lease(lease)
        elif not self._done:
            self._begin_wait()

    def _look_for_mistake(self) -> None:
        """A request that every model refuses is none to load one for: a model that runs says so itself."""
        self._mistake = find_mistake(self._head.path, self._body)
        if self._mistake is None:
            return
        self._autoload, self._passive = False, True
        if not self._leasing.connected:
            self._finish_with(self._mistake)

    def _begin_wait(self) -> None:
        limit_s = self._host.settings.queue_timeout_s
        self._wait = Wait(self._host.loop, self._record, self._comment, limit_s, self._give_up_waiting)

    def _end_wait(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.end()

    def _comment(self) -> bool:
        """Tell a client that wants a stream how far its model is. False: it wants none."""
        if not self._members.wants_stream:
            return False
        head = self._head
        out = b""
        if not self._commented:
            self._commented = self._event_stream = True
            self._rechunk = head.minor == 1
            self._keep_alive = self._rechunk and self._client.may_keep_alive(head)
            self._record.status = 200
            out = format_stream_head(head.minor, self._keep_alive, self._record.added)
        comment = format_loading_comment(self._name, self._leasing.find_progress(self))
        self._client.send(out + (format_chunk(comment) if self._rechunk else comment))
        return True

    def _give_up_waiting(self, limit_s: float) -> None:
        self._leasing.leave(self)
        self._finish_with(refusals.make_queue_timeout(self._name, limit_s))

    # --- the lease ---

    def on_lease(self, lease: Lease) -> None:
        """The request is counted on `lease`."""
        self._lease = lease
        self._record.model = lease.model
        if self._wait is not None:
            self._end_wait()
        stream = self._stream
        # A large body, or one that nobody knows the end of, cannot be sent twice: never on a kept connection, which
        # may be closing.
        upstream = None if stream is not None or self._head.upgrade else self._host.pool.pop_idle(lease.key)
        if stream is not None:
            stream.hold()
        if upstream is None:
            self._host.pool.connect(lease.socket, lease.key, self._on_connection)
        else:
            self._send(upstream)

    def on_refusal(self, error: LlamactlError) -> None:
        """There will be no lease."""
        default = self._host.settings.default_model
        if error.code in _UNKNOWN_NAMES and default and self._name != default:
            self._host.note_unknown(self._name)
            self._name = default
            self._end_wait()
            self.start()
            return
        is_asleep = self._passive and error.code is ErrorCode.NOT_LOADED and "socket" in error.details
        if error.code is ErrorCode.NOT_LOADED and self._mistake is not None:
            error = self._mistake
        elif error.code is ErrorCode.NOT_LOADED and self._head.path not in INSTANCE and not is_asleep:
            error = refuse_route(decode_path(self._head.path))
        if error.code not in _FOREIGN_NAMES:
            self._record.model = error.model
        if is_asleep and self._mistake is None:
            self._ask_sleeper(error)
            return
        status = 503 if self._passive and error.code is ErrorCode.NOT_LOADED else 0
        self._finish_with(error, status)

    def _ask_sleeper(self, error: LlamactlError) -> None:
        """An instance without its model still says how it was. That is no use of it, and wakes nothing."""
        self._end_wait()
        self._asleep = LlamactlError(error.code, error.message, hint=error.hint, model=error.model)
        key = f"{error.model} {error.details['asleep']}"
        self._host.pool.connect(error.details["socket"], key, self._on_connection)

    # --- the connection ---

    def _on_connection(self, result: Upstream | OSError) -> None:
        if self._done:
            if isinstance(result, Upstream):
                self._host.pool.keep(result)
        elif isinstance(result, Upstream):
            self._send(result)
        elif isinstance(result, (ConnectionRefusedError, FileNotFoundError, ConnectionResetError)):
            self._lose_instance(unread=True, reason=f"its socket does not answer: {result.strerror}")
        else:
            self._lose_instance(unread=False, reason=f"cannot connect to it: {result}")

    def _send(self, upstream: Upstream) -> None:
        self._upstream = upstream
        head, stream, record = self._head, self._stream, self._record
        to_head = head.method == b"HEAD"
        if stream is None:
            out = format_upstream_head(head, len(self._body), record.id_line, self._client.peer)
            if head.upgrade:
                upstream.begin(self, out, None, chunked=False, to_head=to_head, may_switch=True)
            else:
                upstream.send(self, out, self._body, to_head)
            return
        length = stream.received_bytes if stream.complete else head.content_length
        out = format_upstream_head(head, length, record.id_line, self._client.peer)
        upstream.begin(self, out, stream, chunked=length < 0, to_head=to_head)

    def on_room(self) -> None:
        if self._stream is not None:
            self._stream.resume()
        else:
            self._client.resume_tunnel()

    def on_response(self, head: ResponseHead | None, body: bytes, ended: bool) -> None:
        out = b""
        if head is not None:
            out = self._begin_response(head)
        if self._buffered_non_stream_answer is not None:
            self._buffer_non_stream_answer(body, ended)
            return
        if body:
            self._record.sent_bytes += len(body)
            if self._tail is not None:
                self._tail = body if len(body) >= TAIL_BYTES else (self._tail + body)[-TAIL_BYTES:]
            if self._event_stream:
                self._mid_event = not body.endswith((b"\n\n", b"\r\n\r\n"))
            out += format_chunk(body) if self._rechunk else body
        failed = ended and self._event_stream and ends_with_error(self._tail or b"")
        if ended and self._rechunk and not failed:
            out += LAST_CHUNK
        if out:
            self._client.send(out)
        if ended:
            if self._tail:
                self._record.parse_usage(self._tail[-TAIL_BYTES:])
            self._finish(self._keep_alive, failed)

    def on_whole_response(self, head: ResponseHead, body: bytes) -> None:
        """As on_response, for what most answers are."""
        if self._commented:
            self.on_response(head, body, True)
            return
        request, record, client = self._head, self._record, self._client
        record.first_byte_s = time.monotonic() - record.began_s
        record.status = head.status
        record.sent_bytes = len(body)
        self._started = True
        keep_alive = client.may_keep_alive(request)
        client.send(format_client_head(head, request.minor, keep_alive, False, record.added) + body)
        if head.may_tell_usage:
            record.parse_usage(body[-TAIL_BYTES:])
        self._finish(keep_alive)

    def _begin_response(self, head: ResponseHead) -> bytes:
        request = self._head
        record = self._record
        record.first_byte_s = time.monotonic() - record.began_s
        self._tail = b"" if head.may_tell_usage else None
        self._started = True
        self._body = b""
        if self._commented:
            if head.status != 200 or not head.is_event_stream:
                self._buffered_non_stream_answer = bytearray()
            return b""
        record.status = head.status
        if head.status == 101:
            assert self._upstream is not None
            self._client.begin_tunnel(self._upstream)
            self._keep_alive = False
            return format_client_head(head, request.minor, False, False, record.added)
        self._event_stream = head.is_event_stream and head.content_length < 0
        bodiless = request.method == b"HEAD" or head.status in (204, 304)
        self._rechunk = head.chunked and request.minor == 1 and not bodiless
        self._keep_alive = self._client.may_keep_alive(request) and (
            bodiless or self._rechunk or head.content_length >= 0
        )
        return format_client_head(head, request.minor, self._keep_alive, self._rechunk, record.added)

    def _buffer_non_stream_answer(self, body: bytes, ended: bool) -> None:
        """An answer that is no stream, most likely an error: it can only be an event of the stream begun already."""
        buffered = self._buffered_non_stream_answer
        assert buffered is not None
        buffered += body[: MAX_BUFFERED_BYTES - len(buffered)]
        if ended:
            event = format_lines(bytes(buffered))
            self._close_request()
            self._client.send(format_chunk(event) if self._rechunk else event)
            self._client.break_off(after_flush=True)

    def on_loss(self, unread: bool, reason: str) -> None:
        upstream, self._upstream = self._upstream, None
        if self._stream is not None:
            self._stream.detach()
        if unread and not self._started and upstream is not None and not upstream.fresh:
            # A kept connection that the instance was closing: it says nothing about the instance.
            assert self._lease is not None
            self._host.pool.drop(self._lease.key)
            self.on_lease(self._lease)
        else:
            self._lose_instance(unread, reason)

    def _lose_instance(self, unread: bool, reason: str) -> None:
        if self._asleep is not None:  # it has woken, or ended, since
            self._finish_with(self._asleep, 503)
            return
        lease = self._lease
        assert lease is not None
        sendable = self._stream is None or self._stream.can_rewind
        if unread and sendable and not self._started and not self._retried:
            self._retried = True
            self._release()
            again = self._leasing.acquire(self, Asked(self._name, self._autoload, lease.generation, self._passive))
            if again is not None:
                self.on_lease(again)
            elif not self._done:
                self._begin_wait()
            return
        self._host.log.warning(JournalEvent.REQUEST_FAILED, model=lease.model, reason=reason, answered=self._started)
        self._finish_with(refusals.make_instance_died(lease.model, reason))

    # --- the end ---

    def cancel(self) -> None:
        """The client is gone."""
        if self._done:
            return
        upstream = self._upstream
        if self._lease is None:
            self._leasing.leave(self)
        self._close_request()
        if upstream is not None:
            upstream.abandon()

    def pause(self) -> None:
        """The client does not read as fast as the instance writes."""
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()

    def _release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            kept_s = self._members.read_keep_alive_s() if self._members.keep_alive is not None else None
            self._leasing.release(lease, self._passive, waiter=self, keep_alive_s=kept_s)

    def _close_request(self) -> None:
        """Nothing is wanted for this request any more."""
        self._done = True
        self._upstream = None
        if self._wait is not None:
            self._end_wait()
        if self._stream is not None:
            self._stream.close()
        self._release()

    def _finish(self, keep_alive: bool, failed: bool = False) -> None:
        self._close_request()
        # A client that knows no error events must not take what came for the whole answer.
        self._client.break_off(after_flush=True) if failed else self._client.end_exchange(keep_alive)

    def _finish_with(self, error: LlamactlError, status: int = 0) -> None:
        """End with an error: as an answer while there is none yet, else as well as the framing allows."""
        self._close_request()
        if not self._started and not self._commented:
            self._client.answer_error(error, self._head, status)
            return
        if self._event_stream:
            event = format_stream_error(error, self._mid_event, self._head.path)
            self._client.send(format_chunk(event) if self._rechunk else event)
        self._client.break_off(after_flush=self._event_stream)
