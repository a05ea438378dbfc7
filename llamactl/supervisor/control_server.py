"""Who asks for what on `control.sock`, and which answer belongs to which question?

Each connection is a client; a request is known to the scheduler as the pair of client and request id, and its
answers find the way back by that pair. Requests that only look are answered here from the scheduler's present
state; all others become events. A request is open until its one final answer: answers to requests that are not
open (the client has left, did not want to wait, or had its answer) go nowhere.
"""

import itertools
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.journal_events import JournalEvent
from llamactl.protocol.control_socket import (
    BusyNotice,
    CancelRequest,
    ClientHello,
    ClientMessage,
    ClientRole,
    Done,
    Failure,
    IdleNotice,
    LeaseRequest,
    ListRequest,
    LoadRequest,
    MachineStatus,
    MeasureRequest,
    ModelList,
    PinRequest,
    PlanRequest,
    PlanResult,
    Progress,
    RecallAnswer,
    ReloadRequest,
    ReloadResult,
    StatusRequest,
    SubscribeRequest,
    UnloadRequest,
    Welcome,
)
from llamactl.protocol.descriptions import LoadPlan
from llamactl.protocol.failures import format_failure
from llamactl.protocol.lines import VERSION
from llamactl.sched import events
from llamactl.sched.events import Holder, Waiter
from llamactl.supervisor.line_connection import LineConnection
from llamactl.supervisor.line_server import LineServer
from llamactl.systemd.journal import get_logger
from llamactl.systemd.peer import Peer
from llamactl.tasks import TaskSet

CONNECTIONS = 256
"""Of one unit: a front, or all that is run in somebody's session."""
MAX_REASON = 200
"""Of an error that quotes what somebody sent."""

_log = get_logger()


class SupervisorApi(Protocol):
    """What the control socket needs of the supervisor."""

    def dispatch(self, event: events.Event) -> None:
        """Have the scheduler handle an event, and carry out what follows from it."""

    def blame(self, sender: Callable[[Exception], None]) -> AbstractContextManager[None]:
        """While the body runs, an error in what a message has caused is its sender's: `sender` is told, the daemon goes
        on.
        """

    def welcome(self) -> Welcome:
        """Make the answer to a greeting: what fronts and commands must know of this supervisor."""

    def list_models(self, name: str) -> ModelList:
        """Describe all models, or the one that a name or alias means. Raises LlamactlError(UNKNOWN_MODEL)."""

    async def explain_load(self, name: str) -> LoadPlan:
        """Explain what a load of the model would do now. Raises LlamactlError(UNKNOWN_MODEL)."""

    def watch(self, holder: Holder) -> ModelList:
        """Send notices of changes to this connection from now on; returns what they are changes of."""

    def unwatch(self, holder: Holder) -> None:
        """Send no more notices to this connection."""

    def machine_status(self) -> MachineStatus:
        """Describe the machine: accounts, queue, decisions, problems."""

    def is_settled(self) -> bool:
        """Whether all that was found at the start has reported."""

    async def settle(self) -> None:
        """Return when all that was found at the start has reported."""

    async def reload(self) -> ReloadResult:
        """Read the configuration again. Raises LlamactlError where nothing of it can be used."""

    def fail(self, error: BaseException) -> None:
        """Give up after an error that nothing can make good: a new supervisor takes over."""


@dataclass(eq=False)
class Client:
    """One connection after its greeting."""

    holder: Holder
    role: ClientRole
    connection: LineConnection
    open: set[int] = field(default_factory=set)
    """Requests that have not had their final answer."""


class Control:
    """The server of `control.sock`."""

    def __init__(self, api: SupervisorApi) -> None:
        self._api = api
        self._ids = itertools.count(1)
        self._clients: dict[LineConnection, Client | None] = {}
        self._by_holder: dict[Holder, Client] = {}
        self._tasks = TaskSet(api.fail)
        self._server = LineServer(
            ClientMessage, CONNECTIONS, self._handle_open, self._handle_message, self._handle_closed
        )

    async def listen(self, path: Path, group: int | None) -> None:
        """Bind the socket again; members of `group` may connect. Raises OSError."""
        await self._server.listen(path, group)

    def close(self) -> None:
        """End all connections; fronts connect again with whoever comes next."""
        self._server.close()

    # --- answers ---

    def tell(self, holder: Holder, message: msgspec.Struct) -> None:
        """A notice to one client; nothing when it has left."""
        client = self._by_holder.get(holder)
        if client is not None:
            client.connection.send(message)

    def tell_fronts(self, message: msgspec.Struct) -> None:
        """A notice to every front."""
        for client in self._by_holder.values():
            if client.role is ClientRole.FRONT:
                client.connection.send(message)

    def tell_waiter(self, waiter: Waiter, message: msgspec.Struct) -> bool:
        """How far an open request is (Progress), or its one final answer (all else); False when nobody waits for it any
        more.
        """
        client = self._by_holder.get(waiter[0])
        if client is None or waiter[1] not in client.open:
            return False
        if not isinstance(message, Progress):
            client.open.discard(waiter[1])
        client.connection.send(message)
        return True

    # --- questions ---

    def _handle_open(self, connection: LineConnection, _: Peer) -> None:
        self._clients[connection] = None

    def _handle_closed(self, connection: LineConnection) -> None:
        client = self._clients.pop(connection, None)
        if client is not None:
            del self._by_holder[client.holder]
            self._api.unwatch(client.holder)
            self._api.dispatch(events.ConnectionGone(client.holder))

    def _handle_message(self, connection: LineConnection, message: Any) -> None:
        with self._api.blame(lambda error: self._refuse_fault(connection, message, error)):
            self._dispatch_message(connection, message)

    def _refuse_fault(self, connection: LineConnection, message: Any, error: Exception) -> None:
        """A message that cannot be handled ends its connection, with all that it holds and waits for."""
        kind = type(message).__name__
        reason = f"{type(error).__name__}: {error}"[:MAX_REASON]
        _log.error(JournalEvent.REQUEST_NOT_HANDLED, request=kind, reason=reason, exc_info=error)
        connection.refuse(f"cannot handle {kind}: internal error: {type(error).__name__}")

    def _dispatch_message(self, connection: LineConnection, message: Any) -> None:
        client = self._clients.get(connection)
        if client is None:
            if isinstance(message, ClientHello):
                self._greet(connection, message)
            else:
                connection.refuse("the first message must be a hello")
        elif isinstance(message, ClientHello):
            connection.refuse("a connection greets once")
        else:
            try:
                self._handle_request(client, message)
            except LlamactlError as error:
                client.connection.send(format_failure(message.id, error))

    def _greet(self, connection: LineConnection, hello: ClientHello) -> None:
        if hello.version != VERSION:
            connection.refuse(
                f"protocol version {hello.version}, this supervisor speaks {VERSION}: restart the older of the two"
            )
            return
        client = Client(next(self._ids), hello.role, connection)
        self._clients[connection] = client
        self._by_holder[client.holder] = client
        connection.send(self._api.welcome())
        if hello.role is ClientRole.FRONT:
            for lease in hello.leases:
                self._api.dispatch(
                    events.LeaseAnnounced(
                        client.holder, lease.model, lease.generation, lease.busy, lease.last_used_s, lease.since_s
                    )
                )
            self._api.dispatch(events.FrontAnnounced(client.holder))

    def _handle_request(self, client: Client, message: Any) -> None:
        holder = client.holder
        match message:
            case BusyNotice():
                self._api.dispatch(events.LeaseBusy(holder, message.model, message.generation, message.since_s))
            case IdleNotice():
                self._api.dispatch(
                    events.LeaseIdle(
                        holder, message.model, message.generation, message.last_used_s, message.keep_alive_s
                    )
                )
            case RecallAnswer():
                self._api.dispatch(
                    events.RecallAnswered(
                        holder,
                        message.model,
                        message.generation,
                        message.returned,
                        message.last_used_s,
                        message.recall,
                        message.since_s,
                    )
                )
            case CancelRequest():
                if message.id in client.open:
                    client.open.discard(message.id)
                    client.connection.send(
                        Failure(id=message.id, code=ErrorCode.CANCELLED, message="cancelled by the client")
                    )
                    self._api.dispatch(events.WaiterGone((holder, message.id)))
            case LeaseRequest():
                if client.role is not ClientRole.FRONT:
                    raise LlamactlError(ErrorCode.PROTOCOL, "cannot grant a lease: only fronts hold leases")
                self._open(
                    client,
                    message.id,
                    events.LeaseRequested(
                        (holder, message.id), message.model, message.autoload, message.stale_generation, message.passive
                    ),
                )
            case LoadRequest():
                self._open(client, message.id, events.LoadRequested((holder, message.id), message.model))
                self._detach(message.wait, (holder, message.id), message.model)
            case UnloadRequest():
                event = events.UnloadRequested((holder, message.id), message.model, message.now, message.wait)
                self._open(client, message.id, event)
                self._detach(message.wait, (holder, message.id), message.model)
            case MeasureRequest():
                self._open(client, message.id, events.MeasureRequested((holder, message.id), message.model))
            case PinRequest():
                pin = events.PinRequested((holder, message.id), message.model, message.pinned)
                self._open(client, message.id, pin)
            case PlanRequest():
                self._answer_later(client, message, self._explain_load(message))
            case ListRequest() if client.role is ClientRole.CLI and not self._api.is_settled():
                # Else whoever asks right after a restart would be shown models that load again.
                self._answer_later(client, message, self._list_when_settled(message))
            case ListRequest():
                self._send(client, message, self._api.list_models(message.model))
            case SubscribeRequest():
                self._send(client, message, self._api.watch(holder))
            case StatusRequest():
                self._send(client, message, self._api.machine_status())
            case ReloadRequest():
                self._answer_later(client, message, self._api.reload())

    def _open(self, client: Client, request_id: int, event: events.Event) -> None:
        if request_id in client.open:
            raise LlamactlError(ErrorCode.PROTOCOL, f"cannot take request {request_id}: a request of that id is open")
        client.open.add(request_id)
        self._api.dispatch(event)

    def _detach(self, wait: bool, waiter: Waiter, model: str) -> None:
        """A request that does not wait is done when it was not refused at once."""
        if not wait:
            self.tell_waiter(waiter, Done(id=waiter[1], model=model))

    def _send(self, client: Client, message: Any, answer: msgspec.Struct) -> None:
        client.connection.send(msgspec.structs.replace(answer, id=message.id))

    def _answer_later(self, client: Client, message: Any, answer: Awaitable[msgspec.Struct]) -> None:
        self._tasks.spawn(self._answer(client, message, answer))

    async def _answer(self, client: Client, message: Any, answer: Awaitable[msgspec.Struct]) -> None:
        try:
            self._send(client, message, await answer)
        except LlamactlError as error:
            client.connection.send(format_failure(message.id, error))
        except Exception as error:
            self._refuse_fault(client.connection, message, error)

    async def _explain_load(self, message: PlanRequest) -> PlanResult:
        return PlanResult(id=message.id, plan=await self._api.explain_load(message.model))

    async def _list_when_settled(self, message: ListRequest) -> ModelList:
        await self._api.settle()
        return self._api.list_models(message.model)
