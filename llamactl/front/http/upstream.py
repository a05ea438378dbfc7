"""How does one connection to an instance carry one request after the other, and which connections are kept?

A connection that is lost before the first byte of an answer poses the question whether the instance has read the
request: then it may have died of it, and sending it again may kill the next one. A Unix socket tells: unread data at
the peer's close is ECONNRESET (also for a connection that was never accepted), a peer that was closed already is
EPIPE, and a plain end of file means that all had been read. Only the first two are `unread`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol, cast

from llamactl.front.http.body import BodyStream
from llamactl.front.http.direct_writer import DirectWriter
from llamactl.front.http.framing import End, ResponseReader
from llamactl.front.http.wire import ResponseHead, WireError
from llamactl.tasks import TaskSet, raise_in_loop

MAX_IDLE_PER_INSTANCE = 64
BACKLOG_DELAYS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Receiver(Protocol):
    """Who waits for an answer."""

    def on_response(self, head: ResponseHead | None, body: bytes, ended: bool) -> None:
        """The next part of the answer: a head at most once, any bytes of the body, and whether that was all."""

    def on_whole_response(self, head: ResponseHead, body: bytes) -> None:
        """The answer, in one piece, and its head says its length."""

    def on_room(self) -> None:
        """More of the request can be sent."""

    def on_loss(self, unread: bool, reason: str) -> None:
        """The connection is gone before the answer was complete. `unread`: the instance has not read the request."""


class Upstream(asyncio.Protocol):
    """One connection to an instance, with one request at a time."""

    def __init__(self, pool: "UpstreamPool", key: str) -> None:
        self.key = key
        self.fresh = True
        """No answer has come over this connection yet."""
        self._pool = pool
        self._reader = ResponseReader()
        self._receiver: Receiver | None = None
        self._transport: asyncio.Transport | None = None
        self._writer: DirectWriter | None = None
        self._paused = False
        self._answered = False
        """Something of the answer to the present request has come."""
        self._unsent = False
        self._stream: BodyStream | None = None
        self.congested = False
        """The instance does not read as fast as we write."""

    # --- for the one who sends ---

    def send(self, receiver: Receiver, head: bytes, body: bytes, to_head: bool) -> None:
        """Send a request; the answer goes to `receiver`."""
        assert self._receiver is None
        assert self._writer is not None
        self._receiver = receiver
        self._answered = False
        self._reader.expect(to_head)
        self._writer.send(head + body if body else head)

    def begin(
        self,
        receiver: Receiver,
        head: bytes,
        stream: BodyStream | None,
        chunked: bool,
        to_head: bool,
        may_switch: bool = False,
    ) -> None:
        """Send a request whose body comes as it comes, or one that may change protocols."""
        assert self._receiver is None
        assert self._writer is not None
        self._receiver = receiver
        self._answered = False
        self._reader.expect(to_head, may_switch)
        self._stream = stream
        self._writer.send(head)
        if stream is not None:
            stream.attach(self, chunked)

    def write(self, data: bytes) -> None:
        if self._writer is not None:
            self._writer.send(data)

    def ask_later(self) -> None:
        self._pool.loop.call_soon(self._ask)

    def _ask(self) -> None:
        if self._receiver is not None and not self.congested:
            self._receiver.on_room()

    def abandon(self) -> None:
        """The receiver is gone: close at once, which is what stops a generation."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    # --- for the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such
        self._writer = DirectWriter(self._transport)

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:  # an idle connection has nothing to say
            self._close()
            return
        self._answered = True
        if self._stream is None:
            whole = self._reader.consume_whole(data)
            if whole is not None:
                self._keep_alive = whole[0].keep_alive
                self._end_answer()
                receiver.on_whole_response(*whole)
                return
        self._reader.feed(data)
        try:
            self._relay(receiver)
        except WireError as error:
            self._lose(False, f"it does not speak HTTP: {error.message}")
            self._close()

    def _relay(self, receiver: Receiver) -> None:
        reader = self._reader
        head: ResponseHead | None = None
        body = b""
        while True:
            event = reader.next_event()
            if event is None:
                if head is not None or body:
                    receiver.on_response(head, body, False)
                return
            if type(event) is bytes:
                body = body + event if body else event
            elif event is End.END:
                self._end_answer()
                receiver.on_response(head, body, True)
                return
            else:
                assert isinstance(event, ResponseHead)
                head = event
                self._keep_alive = event.keep_alive

    def _end_answer(self) -> None:
        """The connection is free for another request, if it can be."""
        self._receiver = None
        # A request that is not wholly sent, or bytes behind the answer: the next answer could be told wrong.
        assert self._transport is not None
        clean = not self._transport.get_write_buffer_size() and not self._reader.buffered_bytes
        if self._stream is not None:
            clean = clean and self._stream.sent_whole
            self._stream.detach()
            self._stream = None
        self.fresh = False
        if self._paused:
            self.resume()
        if clean and self._keep_alive:
            self._pool.keep(self)
        else:
            self._close()

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        if self._receiver is not None:
            self._receiver.on_room()

    def eof_received(self) -> bool:
        if self._transport is not None:
            self._unsent = self._transport.get_write_buffer_size() > 0
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._writer = None
        self._pool.forget(self)
        receiver = self._receiver
        if receiver is None:
            return
        if exc is None and self._answered and self._reader.finish():
            self._receiver = None
            receiver.on_response(None, b"", True)
            return
        unread = not self._answered and (self._unsent or isinstance(exc, (ConnectionResetError, BrokenPipeError)))
        self._lose(unread, "it has closed the connection" if exc is None else str(exc))

    def _lose(self, unread: bool, reason: str) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.on_loss(unread, reason)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    _keep_alive = False


class UpstreamPool:
    """Connections to instances that are idle, by socket and generation."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._idle: dict[str, list[Upstream]] = {}
        self._connecting = TaskSet(raise_in_loop)

    def pop_idle(self, key: str) -> Upstream | None:
        """The idle connection that was used last, or None."""
        idle = self._idle.get(key)
        return idle.pop() if idle else None

    def connect(self, socket: str, key: str, then: Callable[[Upstream | OSError], None]) -> None:
        """Connect, and call `then` with the connection or with what went wrong."""
        self._connecting.spawn(self._connect(socket, key, then))

    async def _connect(self, socket: str, key: str, then: Callable[[Upstream | OSError], None]) -> None:
        for delay_s in (*BACKLOG_DELAYS_S, None):
            try:
                _, upstream = await self.loop.create_unix_connection(lambda: Upstream(self, key), socket)
            except BlockingIOError as error:
                # More connections at once than the instance's backlog holds. A Unix socket does not let them wait.
                if delay_s is None:
                    then(error)
                else:
                    await asyncio.sleep(delay_s)
            except OSError as error:
                then(error)
                return
            else:
                then(upstream)
                return

    def keep(self, upstream: Upstream) -> None:
        """Keep an idle connection for the next request, as far as there are not many already."""
        idle = self._idle.get(upstream.key)
        if idle is None:
            idle = self._idle[upstream.key] = []
        if len(idle) < MAX_IDLE_PER_INSTANCE:
            idle.append(upstream)
        else:
            upstream.abandon()

    def forget(self, upstream: Upstream) -> None:
        idle = self._idle.get(upstream.key)
        if idle:
            with contextlib.suppress(ValueError):
                idle.remove(upstream)
            if not idle:
                del self._idle[upstream.key]

    def drop(self, key: str) -> None:
        """The instance is not ours any more: close what is idle."""
        for upstream in self._idle.pop(key, []):
            upstream.abandon()

    def list_keys(self) -> list[str]:
        """List the instances to which connections are kept, by their keys."""
        return list(self._idle)

    def close(self) -> None:
        for key in self.list_keys():
            self.drop(key)
        self._connecting.cancel()
