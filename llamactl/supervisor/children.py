"""Which child is on which connection of `report.sock`, and what has it said?

A child is who its unit says it is: the peer's process is found in its cgroup, and the unit's name gives role and
model; what the greeting claims must agree with it. The last report of each child stands for all before it. A
second connection of the same unit replaces the first. Each report is acknowledged only after the scheduler has
taken it, so that a child which exits after the acknowledgement has lost nothing.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llamactl.journal_events import JournalEvent
from llamactl.names import Role, parse_unit
from llamactl.protocol.lines import VERSION
from llamactl.protocol.report_socket import (
    Ack,
    Answer,
    AnswerResult,
    ChildHello,
    ChildMessage,
    ChildRole,
    ChildWelcome,
    Order,
    OrderKind,
    Report,
)
from llamactl.protocol.values import Note
from llamactl.supervisor.line_connection import LineConnection
from llamactl.supervisor.line_server import LineServer
from llamactl.systemd.journal import get_logger
from llamactl.systemd.peer import Peer

ORDER_TIMEOUT_S = 5.0
CONNECTIONS = 4
"""Of one unit: a child has one, and another one before it has noticed that the first is lost."""

_log = get_logger()


@dataclass(eq=False)
class Child:
    """One connected child whose greeting was accepted."""

    role: Role
    slug: str
    generation: str
    pid: int
    llama_cpp: str
    connection: LineConnection
    orders: dict[int, asyncio.Future[AnswerResult]] = field(default_factory=dict)


class Children:
    """The server of `report.sock`.

    `is_expected(role, slug, generation)` tells whether such a unit was started (or found); `on_report` and
    `on_disconnected` are the supervisor's.
    """

    def __init__(
        self,
        is_expected: Callable[[Role, str, str], bool],
        on_report: Callable[[Child, Report], None],
        on_disconnected: Callable[[Child], None],
    ) -> None:
        self._is_expected = is_expected
        self._on_report = on_report
        self._on_silent = on_disconnected
        self._peers: dict[LineConnection, tuple[Role, str] | None] = {}
        self._children: dict[tuple[Role, str], Child] = {}
        self._order_ids = itertools.count(1)
        self._server = LineServer(
            ChildMessage, CONNECTIONS, self._handle_open, self._handle_message, self._handle_closed
        )

    async def listen(self, path: Path, group: int | None) -> None:
        """Bind the socket again; members of `group` (the instances') may connect. Raises OSError."""
        await self._server.listen(path, group)

    def close(self) -> None:
        """End all connections; children connect again with whoever comes next."""
        self._server.close()

    def send_note(self, slug: str, generation: str, note: Note) -> None:
        """Have the instance keep `note`; lost when it is not connected (its next report then shows an older one)."""
        child = self._find(Role.MODEL, slug, generation)
        if child is not None:
            child.connection.send(Order(id=next(self._order_ids), order=OrderKind.NOTE, note=note))

    def order_share(self, slug: str, generation: str, sharers: int) -> None:
        """Have the instance take its part of the processors; lost when it is not connected."""
        child = self._find(Role.MODEL, slug, generation)
        if child is not None:
            child.connection.send(Order(id=next(self._order_ids), order=OrderKind.SHARE, sharers=sharers))

    def order_wake(
        self, slug: str, generation: str, margins_bytes: dict[str, int], host_room_bytes: int | None
    ) -> None:
        """Have the instance load again; lost when it is not connected (it reports that it sleeps when it is back)."""
        child = self._find(Role.MODEL, slug, generation)
        if child is not None:
            order = Order(
                id=next(self._order_ids),
                order=OrderKind.WAKE,
                margins_bytes=margins_bytes,
                host_room_bytes=host_room_bytes,
            )
            child.connection.send(order)

    async def order_stop(self, slug: str, generation: str) -> AnswerResult | None:
        """Ask the instance to stop if it is idle: its answer. No connection counts as busy; None: it was silent for
        5 s.
        """
        return await self._order_if_idle(OrderKind.STOP, slug, generation)

    async def order_sleep(self, slug: str, generation: str) -> AnswerResult | None:
        """Ask the instance to sleep if it is idle: its answer, as for `order_stop`."""
        return await self._order_if_idle(OrderKind.SLEEP, slug, generation)

    async def _order_if_idle(self, kind: OrderKind, slug: str, generation: str) -> AnswerResult | None:
        child = self._find(Role.MODEL, slug, generation)
        if child is None:
            return AnswerResult.BUSY
        order_id = next(self._order_ids)
        answer: asyncio.Future[AnswerResult] = asyncio.get_running_loop().create_future()
        child.orders[order_id] = answer
        child.connection.send(Order(id=order_id, order=kind, if_idle=True))
        try:
            return await asyncio.wait_for(answer, ORDER_TIMEOUT_S)
        except TimeoutError:
            return None
        finally:
            child.orders.pop(order_id, None)

    def _find(self, role: Role, slug: str, generation: str) -> Child | None:
        child = self._children.get((role, slug))
        return child if child is not None and child.generation == generation else None

    def _handle_open(self, connection: LineConnection, peer: Peer) -> None:
        who = parse_unit(peer.unit) if peer.unit else None
        self._peers[connection] = who
        if who is None:
            _log.warning(
                JournalEvent.REPORT_REFUSED, pid=peer.pid, unit=peer.unit or "none", reason="not a unit of llamactl"
            )
            connection.refuse(
                f"process {peer.pid} is in no unit of llamactl: only instances and measure children report here"
            )

    def _handle_message(self, connection: LineConnection, message: Any) -> None:
        who = self._peers.get(connection)
        if who is None:
            return
        child = self._children.get(who)
        if isinstance(message, ChildHello):
            self._greet(connection, who, message)
        elif child is None or child.connection is not connection:
            connection.refuse("the first message must be a hello")
        elif isinstance(message, Report):
            self._on_report(child, message)
            connection.send(Ack(seq=message.seq))
        elif isinstance(message, Answer):
            answer = child.orders.get(message.id)
            if answer is not None and not answer.done():
                answer.set_result(message.result)

    def _greet(self, connection: LineConnection, who: tuple[Role, str], hello: ChildHello) -> None:
        role, slug = who
        claimed = Role.MODEL if hello.role is ChildRole.SERVE else Role.MEASURE
        if hello.version != VERSION:
            connection.refuse(f"protocol version {hello.version}, this supervisor speaks {VERSION}")
        elif claimed is not role:
            connection.refuse(f"role {hello.role} does not belong into a {role} unit")
        elif not self._is_expected(role, slug, hello.generation):
            connection.refuse(f"generation {hello.generation!r} of {slug!r} is not the one that runs")
        else:
            previous = self._children.get(who)
            self._children[who] = Child(role, slug, hello.generation, hello.pid, hello.llama_cpp, connection)
            if previous is not None and previous.connection is not connection:
                _end_orders(previous)
                previous.connection.close()
            connection.send(ChildWelcome(version=VERSION))
            return
        _log.warning(JournalEvent.REPORT_REFUSED, unit_slug=slug, reason="greeting does not agree with its unit")

    def _handle_closed(self, connection: LineConnection) -> None:
        who = self._peers.pop(connection, None)
        if who is None:
            return
        child = self._children.get(who)
        if child is not None and child.connection is connection:
            del self._children[who]
            _end_orders(child)
            self._on_silent(child)


def _end_orders(child: Child) -> None:
    for answer in child.orders.values():
        if not answer.done():
            answer.set_result(AnswerResult.BUSY)
