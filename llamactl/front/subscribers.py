"""Who listens to `GET /models/sse`, and how do the events get there?

The front asks the supervisor to tell it of changes when the first client wants to know, and from then on for good: a
client that comes back must find what it missed. Each client goes through the log at its own pace; one that does not
read is sent nothing more until it does, and the whole picture when the log has forgotten what it missed. So a slow
client costs no memory, and one that takes nothing at all is cut by its connection. A stop ends all of these streams at
once: they never end by themselves.
"""

import asyncio
import os
import time

from llamactl.errors import LlamactlError
from llamactl.front.control import Reply
from llamactl.front.events import EventLog
from llamactl.front.http.headers import LAST_CHUNK, format_chunk, format_stream_head
from llamactl.front.http.ports import Answering
from llamactl.front.http.wire import RequestHead
from llamactl.front.ports import Questions
from llamactl.front.stream_texts import KEEP_ALIVE
from llamactl.protocol.control_socket import ModelList, ModelNotice, ModelRemoved, ModelsChanged, SubscribeRequest

KEEP_ALIVE_S = 15.0


class Subscribers:
    """All clients of `/models/sse`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, control: Questions) -> None:
        self.log = EventLog(os.urandom(4).hex())
        self.is_closed = False
        """No stream goes on: clients come back, and find the process that has taken over."""
        self._loop = loop
        self._control = control
        self._streams: set[EventStream] = set()
        self._due_timer: asyncio.TimerHandle | None = None
        self._keep_alive_timer: asyncio.TimerHandle | None = None

    # --- the supervisor ---

    def handle_connected(self) -> None:
        """A supervisor is there (again): ask what has changed, if anybody ever wanted to know."""
        if self.log.known is not None:
            self._control.ask(lambda number: SubscribeRequest(id=number), self._on_reply)

    def _on_reply(self, reply: Reply | LlamactlError) -> None:
        if isinstance(reply, ModelList):
            self.on_models(reply)

    def on_models(self, models: ModelList) -> None:
        self.log.on_models(models.models, time.monotonic())
        self._pump()

    def handle_message(self, message: ModelNotice | ModelRemoved | ModelsChanged) -> None:
        match message:
            case ModelNotice():
                self.log.on_model(message.model, time.monotonic())
            case ModelRemoved():
                self.log.on_removed(message.model)
            case ModelsChanged():
                self.log.on_reload()

    def handle_batch_end(self) -> None:
        self._pump()

    # --- streams ---

    def add(self, stream: "EventStream") -> None:
        self._streams.add(stream)
        if self._keep_alive_timer is None:
            self._keep_alive_timer = self._loop.call_later(KEEP_ALIVE_S, self._keep_alive)

    def discard(self, stream: "EventStream") -> None:
        """Send a stream nothing any more; one that is unknown is none either."""
        self._streams.discard(stream)

    def close(self) -> None:
        self.is_closed = True
        for stream in list(self._streams):
            stream.end()
        for timer in (self._due_timer, self._keep_alive_timer):
            if timer is not None:
                timer.cancel()
        self._due_timer = self._keep_alive_timer = None

    def _pump(self) -> None:
        for stream in list(self._streams):
            stream.pump()
        due_s = self.log.next_due_s()
        if due_s is not None and self._due_timer is None:
            self._due_timer = self._loop.call_later(max(0.0, due_s - time.monotonic()), self._tell_due)

    def _tell_due(self) -> None:
        self._due_timer = None
        self.log.tell_due(time.monotonic())
        self._pump()

    def _keep_alive(self) -> None:
        self._keep_alive_timer = None
        for stream in list(self._streams):
            stream.keep_alive()
        if self._streams:
            self._keep_alive_timer = self._loop.call_later(KEEP_ALIVE_S, self._keep_alive)


class EventStream:
    """One client."""

    def __init__(self, subscribers: Subscribers, client: Answering, head: RequestHead) -> None:
        self._subscribers = subscribers
        self._client = client
        self._head = head
        self._chunked = head.minor == 1
        self._number: int | None = None
        """The last event that it was sent; None: it must begin with all models."""
        self._was_sent = False
        """Since the last time that keep_alive looked."""

    def start(self) -> None:
        """Send the head and what is there. The log knows the models."""
        subscribers = self._subscribers
        record = self._client.record
        record.status = 200
        record.first_byte_s = time.monotonic() - record.began_s
        keep_alive = self._chunked and self._client.may_keep_alive(self._head)
        self._client.send(format_stream_head(self._head.minor, keep_alive, record.added))
        if self._head.method == b"HEAD":
            self._client.end_exchange(keep_alive)
            return
        self._client.begin(self)
        self._number = subscribers.log.parse_id(self._head.find(b"last-event-id"))
        subscribers.add(self)
        if subscribers.is_closed:
            self.end()
        else:
            self.pump()

    def pump(self) -> None:
        """Send what it has not been sent, unless it does not read."""
        if self._client.congested:
            return
        log = self._subscribers.log
        events = log.format_since(self._number) if self._number is not None else None
        if events is None:
            events = log.format_snapshot()
        self._number = log.number
        if events:
            self._send(events)

    def keep_alive(self) -> None:
        """Send a comment where nothing was sent since the last call, so that nobody takes the stream for dead."""
        if not self._client.is_behind() and not self._was_sent:
            self._send(KEEP_ALIVE)
        self._was_sent = False

    def end(self) -> None:
        self._subscribers.discard(self)
        if self._chunked:
            self._client.send(LAST_CHUNK)
        self._client.end_exchange(keep_alive=False)

    def _send(self, data: bytes) -> None:
        self._was_sent = True
        self._client.record.sent_bytes += len(data)
        self._client.send(format_chunk(data) if self._chunked else data)

    # --- for the client's connection ---

    def cancel(self) -> None:
        self._subscribers.discard(self)

    def pause(self) -> None:
        """`pump` sees it."""

    def resume(self) -> None:
        self.pump()
