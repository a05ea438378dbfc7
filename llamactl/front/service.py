"""What is one front? Its clients, its leases, its connections, and the supervisor that it listens to.

The parts do not know each other; this is where what one of them says reaches the others. A stop closes the listening
sockets first (systemd holds them on, so that nobody is refused) and lets running answers end; leases need no goodbye,
they go back when the connection does.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from llamactl.front.accesslog import AccessLog, Lines, open_lines
from llamactl.front.control import Control
from llamactl.front.http.access import RequestRecord, choose_request_id
from llamactl.front.http.body import HELD_BYTES
from llamactl.front.http.connection import ClientConnection
from llamactl.front.http.guard import Guard
from llamactl.front.http.hangup import HangupWatch
from llamactl.front.http.ports import Connection, Handler
from llamactl.front.http.upstream import UpstreamPool
from llamactl.front.http.wire import RequestHead
from llamactl.front.leasing import LeaseDriver
from llamactl.front.routes import dispatch
from llamactl.front.subscribers import Subscribers
from llamactl.front.tally import Tally
from llamactl.journal_events import JournalEvent
from llamactl.names import MAX_NAME_LENGTH
from llamactl.protocol.control_socket import (
    Failure,
    HeldLease,
    LeaseGone,
    LeaseGrant,
    ModelNotice,
    ModelRemoved,
    ModelsChanged,
    Progress,
    Recall,
    RecallCancelled,
    ServerMessage,
    Welcome,
)
from llamactl.settings import FrontSettings
from llamactl.tasks import TaskSet

BACKLOG = 4096
MAX_UNKNOWN_NAMES = 1024


class Front:
    """The state of one front process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        control_socket: Path,
        log: Any,
        open_lines: Callable[[str], Lines | None] = open_lines,
    ) -> None:
        """`open_lines`: where lines of a level go that come by the thousand; None: nowhere."""
        self.loop = loop
        self.log = log
        self._open_lines = open_lines
        self.control = Control(loop, control_socket, self)
        self.leasing = LeaseDriver(loop, self.control)
        self.leases = self.leasing.table
        self.pool = UpstreamPool(loop)
        self.clients: set[Connection] = set()
        self._handle: Handler = partial(dispatch, self)
        self.hangups = HangupWatch(loop)
        self.stopping = False
        self.draining = False
        """Another process has taken over the listening sockets."""
        self.leaving = False
        """One of both: no connection is kept for another request."""
        self.settings = FrontSettings()
        """Until the supervisor says what they are."""
        self.max_held_bytes = min(HELD_BYTES, self.settings.max_body_bytes)
        """Bodies up to this size are taken whole."""
        self.guard = Guard(self.settings)
        self.access = self._open_access_log()
        self.tally = Tally()
        self.subscribers = Subscribers(loop, self.control)
        self.unknown_names: set[str] = set()
        """Names for which the default model stands in."""
        self._servers: list[asyncio.AbstractServer] = []
        self._tasks = TaskSet(self._fail)
        self.broken: asyncio.Future[None] = loop.create_future()
        """Fails when the link to the supervisor has, by a bug: nobody would ever get a lease again."""
        self._empty: asyncio.Event = asyncio.Event()
        self._supervised = asyncio.Event()
        self.drained = asyncio.Event()
        """Another process serves, and nothing is left to do here."""

    # --- life ---

    async def start(self, sockets: list[socket.socket], wait_s: float = 0.0) -> None:
        """Look for the supervisor, for `wait_s` before anything is accepted, and serve on listening sockets."""
        self._tasks.spawn(self.control.run())
        if wait_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._supervised.wait(), wait_s)
        for sock in sockets:
            if sock.family == socket.AF_UNIX:
                server = await self.loop.create_unix_server(self._make_client, sock=sock, backlog=BACKLOG)
            else:
                server = await self.loop.create_server(self._make_client, sock=sock, backlog=BACKLOG)
            self._servers.append(server)

    async def stop(self, limit_s: float) -> int:
        """Take no new connection, let answers end for `limit_s`, then cut. Returns how many were cut."""
        self.stopping = self.leaving = True
        for server in self._servers:
            server.close()
        self.subscribers.close()
        for client in list(self.clients):
            client.stop()
        if self.clients:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wait_empty(), limit_s)
        cut = len(self.clients)
        for client in list(self.clients):
            client.abort()
        self._tasks.cancel()
        self.leasing.close()
        self.pool.close()
        self.hangups.close()
        self.access.close()
        return cut

    def _fail(self, error: BaseException) -> None:
        if not self.broken.done():
            self.broken.set_exception(error)

    def drain(self) -> None:
        """Another process has taken over the sockets: end what has begun, however long it takes."""
        self.draining = self.leaving = True
        for server in self._servers:
            server.close()
        self.subscribers.close()
        for client in list(self.clients):
            client.drain()
        self._note_empty()

    async def _wait_empty(self) -> None:
        while self.clients:
            self._empty.clear()
            await self._empty.wait()

    def _note_empty(self) -> None:
        if not self.clients:
            self._empty.set()
            if self.draining:
                self.drained.set()

    def _make_client(self) -> ClientConnection:
        return ClientConnection(self, self._handle)

    # --- connections: see http.ports.ConnectionHost ---

    @property
    def max_body_bytes(self) -> int:
        return self.settings.max_body_bytes

    def on_connection(self, connection: Connection) -> None:
        self.clients.add(connection)

    def on_connection_lost(self, connection: Connection) -> None:
        self.clients.discard(connection)
        self._note_empty()

    def count_connections(self) -> int:
        return len(self.clients)

    def make_record(self, head: RequestHead | None) -> RequestRecord:
        request_id = choose_request_id(head)
        if head is None:
            return RequestRecord(b"-", b"-", request_id, b"", monotonic())
        cors = self.guard.format_cors(head) if self.guard.has_cors else b""
        return RequestRecord(head.method, head.path, request_id, cors, monotonic())

    def on_client_cut(self, record: RequestRecord, why: str, unsent_bytes: int) -> None:
        self.log.info(
            JournalEvent.CLIENT_CUT,
            why=why,
            unsent_bytes=unsent_bytes,
            model=record.model or None,
            request_id=record.request_id.decode("latin-1") or None,
        )

    def on_request_end(self, record: RequestRecord) -> None:
        record.ended_s = now_s = monotonic()
        if record.queued_s:
            record.end_wait(now_s)
        self.tally.count(record)
        if self.access.is_on:
            self.access.write(record)

    def note_unknown(self, name: str) -> None:
        if len(name) > MAX_NAME_LENGTH:
            return
        if len(self.unknown_names) >= MAX_UNKNOWN_NAMES:
            self.unknown_names.clear()
        self.unknown_names.add(name)

    def _apply_settings(self, settings: FrontSettings) -> None:
        self.leases.queue.max_queue, self.leases.queue.max_queue_total = settings.max_queue, settings.max_queue_total
        if settings != self.settings:
            self.settings = settings
            self.max_held_bytes = min(HELD_BYTES, settings.max_body_bytes)
            self.unknown_names.clear()
            self.guard = Guard(settings)
            self.access.close()
            self.access = self._open_access_log()

    def _open_access_log(self) -> AccessLog:
        return AccessLog(self.loop, self._open_lines(self.settings.access_log))

    # --- the supervisor, for Control ---

    def announce_leases(self) -> tuple[HeldLease, ...]:
        return self.leases.announce()

    def handle_connected(self, welcome: Welcome) -> None:
        self._apply_settings(welcome.front)
        self.leasing.handle_connected()
        self._supervised.set()
        self.subscribers.handle_connected()
        self.log.info(JournalEvent.SUPERVISOR_CONNECTED, pid=welcome.pid, leases=len(self.leases.leases()))

    def handle_lost(self, reason: str) -> None:
        if self.leasing.connected:
            self.log.warning(JournalEvent.SUPERVISOR_LOST, reason=reason, leases=len(self.leases.leases()))
        self.leasing.handle_lost()

    def handle_message(self, message: ServerMessage) -> None:
        match message:
            case LeaseGrant() | Failure() | Recall() | RecallCancelled() | LeaseGone():
                self.leasing.handle(message)
            case Progress():
                self.leases.queue.note_progress(message)
            case ModelsChanged():
                self._apply_settings(message.front)
                self.leases.forget_aliases()
                self.unknown_names.clear()
                self.subscribers.handle_message(message)
            case ModelNotice() | ModelRemoved():
                self.subscribers.handle_message(message)
            case _:
                self.log.warning(JournalEvent.SUPERVISOR_REFUSED, reason=str(message))

    def handle_batch_end(self) -> None:
        self.leasing.flush()
        self.subscribers.handle_batch_end()
        held = {lease.key for lease in self.leases.leases()}
        for key in self.pool.list_keys():
            if key not in held:
                self.pool.drop(key)
