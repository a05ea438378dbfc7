"""How does one request become one answer of an instance?

One object for each request, driven by callbacks alone: acquire a lease, take or make a connection, relay, release. No
task and no future is made where the lease is held and a connection idle. The rule for trouble: while nothing has been
sent to the client and the instance has not read the request, it is tried once more on a fresh instance; after that
the client must see that the answer failed: 502 before its first byte, an error event and an end that is not clean in
a stream, the loss of the connection in anything else. A failed answer that ends like a whole one is the one thing
that never happens.
"""

import time
from typing import TYPE_CHECKING

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.access import TAIL_BYTES
from llamactl.front.headers import (
    LAST_CHUNK,
    format_chunk,
    format_client_head,
    format_stream_error,
    format_upstream_head,
)
from llamactl.front.leases import Asked, Lease
from llamactl.front.upstream import Upstream
from llamactl.front.wire import RequestHead, ResponseHead

if TYPE_CHECKING:
    from llamactl.front.client import ClientConnection
    from llamactl.front.service import Front


_FOREIGN_NAMES = (ErrorCode.UNKNOWN_MODEL, ErrorCode.NO_SUPERVISOR)
"""Errors whose `model` is what the client wrote, not a model of ours."""


class Exchange:
    """One request that an instance answers, from the moment that its body is here."""

    __slots__ = (
        "_autoload",
        "_body",
        "_client",
        "_done",
        "_event_stream",
        "_front",
        "_head",
        "_keep_alive",
        "_lease",
        "_looks_only",
        "_mid_event",
        "_name",
        "_rechunk",
        "_record",
        "_retried",
        "_started",
        "_tail",
        "_upstream",
    )

    def __init__(
        self,
        front: "Front",
        client: "ClientConnection",
        head: RequestHead,
        body: bytes,
        name: str,
        autoload: bool,
        looks_only: bool,
    ) -> None:
        self._front = front
        self._client = client
        self._head = head
        self._body = body
        self._name = name
        self._autoload = autoload
        self._looks_only = looks_only
        """A request that only looks at a model: never loads it, and is no use of it."""
        self._record = client.record
        self._tail: bytes | None = None
        """The last bytes of an answer that may tell its tokens; None: it does not."""
        self._lease: Lease | None = None
        self._upstream: Upstream | None = None
        self._started = False
        self._done = False
        self._retried = False
        self._rechunk = False
        self._keep_alive = True
        self._event_stream = False
        self._mid_event = False

    def start(self) -> None:
        lease = self._front.acquire_lease(self, Asked(self._name, self._autoload, touch=not self._looks_only))
        if lease is not None:
            self.take_lease(lease)
        elif not self._done:
            self._record.queued_s = time.monotonic()

    # --- the lease ---

    def take_lease(self, lease: Lease) -> None:
        """The request is counted on `lease`."""
        self._lease = lease
        self._record.model = lease.model
        if self._record.queued_s:
            self._record.end_wait(time.monotonic())
        upstream = self._front.pool.take(lease.key)
        if upstream is None:
            self._front.pool.connect(lease.socket, lease.key, self._take_connection)
        else:
            self._send(upstream)

    def take_refusal(self, error: LlamactlError) -> None:
        """There will be no lease."""
        default = self._front.settings.default_model
        if error.code is ErrorCode.UNKNOWN_MODEL and default and self._name != default:
            self._front.note_unknown(self._name)
            self._name = default
            self._record.end_wait(time.monotonic())
            self.start()
            return
        if error.code not in _FOREIGN_NAMES:
            self._record.model = error.model
        status = 503 if self._looks_only and error.code is ErrorCode.NOT_LOADED else 0
        self._finish_with(error, status)

    # --- the connection ---

    def _take_connection(self, result: Upstream | OSError) -> None:
        if self._done:
            if isinstance(result, Upstream):
                self._front.pool.keep(result)
        elif isinstance(result, Upstream):
            self._send(result)
        elif isinstance(result, (ConnectionRefusedError, FileNotFoundError, ConnectionResetError)):
            self._lose_instance(unread=True, reason=f"its socket does not answer: {result.strerror}")
        else:
            self._lose_instance(unread=False, reason=f"cannot connect to it: {result}")

    def _send(self, upstream: Upstream) -> None:
        self._upstream = upstream
        head = self._head
        out = format_upstream_head(head, len(self._body), self._record.request_id, self._client.peer)
        upstream.send(self, out, self._body, head.method == b"HEAD")

    def take_response(self, head: ResponseHead | None, body: bytes, ended: bool) -> None:
        out = b""
        if head is not None:
            out = self._begin_response(head)
        if body:
            self._record.sent_bytes += len(body)
            if self._tail is not None:
                self._tail = body if len(body) >= TAIL_BYTES else (self._tail + body)[-TAIL_BYTES:]
            if self._event_stream:
                self._mid_event = not body.endswith((b"\n\n", b"\r\n\r\n"))
            out += format_chunk(body) if self._rechunk else body
        if ended and self._rechunk:
            out += LAST_CHUNK
        if out:
            self._client.send(out)
        if ended:
            if self._tail:
                self._record.take_usage(self._tail[-TAIL_BYTES:])
            self._finish(self._keep_alive)

    def _begin_response(self, head: ResponseHead) -> bytes:
        request = self._head
        record = self._record
        record.status = head.status
        record.first_byte_s = time.monotonic() - record.began_s
        self._tail = b"" if head.status == 200 and head.may_tell_usage else None
        self._started = True
        self._body = b""
        self._event_stream = head.is_event_stream and head.content_length < 0
        bodiless = request.method == b"HEAD" or head.status in (204, 304)
        self._rechunk = head.chunked and request.minor == 1 and not bodiless
        self._keep_alive = self._client.may_keep_alive(request) and (
            bodiless or self._rechunk or head.content_length >= 0
        )
        return format_client_head(head, request.minor, self._keep_alive, self._rechunk, record.added)

    def take_loss(self, unread: bool, reason: str) -> None:
        upstream, self._upstream = self._upstream, None
        if unread and not self._started and upstream is not None and not upstream.fresh:
            # A kept connection that the instance was closing: it says nothing about the instance.
            assert self._lease is not None
            self._front.pool.drop(self._lease.key)
            self.take_lease(self._lease)
        else:
            self._lose_instance(unread, reason)

    def _lose_instance(self, unread: bool, reason: str) -> None:
        lease = self._lease
        assert lease is not None
        if unread and not self._started and not self._retried:
            self._retried = True
            self._release()
            again = self._front.acquire_lease(
                self, Asked(self._name, self._autoload, lease.generation, not self._looks_only)
            )
            if again is not None:
                self.take_lease(again)
            else:
                self._record.queued_s = time.monotonic()
            return
        error = LlamactlError(
            ErrorCode.INSTANCE_DIED,
            f"cannot finish request to '{lease.model}': {reason}",
            hint=f"llamactl logs {lease.model}",
            model=lease.model,
        )
        self._front.log.warning("request failed", model=lease.model, reason=reason, answered=self._started)
        self._finish_with(error)

    # --- the end ---

    def cancel(self) -> None:
        """The client is gone."""
        if self._done:
            return
        self._done = True
        if self._upstream is not None:
            self._upstream.abandon()
            self._upstream = None
        if self._lease is None:
            self._front.leave_queue(self)
        else:
            self._release()

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
            self._front.release_lease(lease, touch=not self._looks_only)

    def _finish(self, keep_alive: bool) -> None:
        self._done = True
        self._upstream = None
        self._release()
        self._client.end_exchange(keep_alive)

    def _finish_with(self, error: LlamactlError, status: int = 0) -> None:
        """End with an error: as an answer while there is none yet, else as well as the framing allows."""
        self._done = True
        self._upstream = None
        self._release()
        if not self._started:
            self._client.answer_error(error, self._head, status)
            return
        if self._event_stream:
            event = format_stream_error(error, self._mid_event)
            self._client.send(format_chunk(event) if self._rechunk else event)
        self._client.break_off(after_flush=self._event_stream)
