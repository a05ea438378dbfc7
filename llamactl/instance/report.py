"""How does a child keep in touch with a supervisor that may restart at any moment? It connects again, for ever, and
repeats its last report.

The child never ends because the supervisor is away. A report is its whole state, so what was missed meanwhile does
not matter; what the child must know to have arrived, it waits for with a bound (`deliver`). The note, what only the
supervisor knows of this instance, is kept here and returned with every report. A report that spoke of requests in
flight is followed by one more when they have ended: whoever was told "busy" cannot know otherwise.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llamactl.child.orders import ChildEnvironment
from llamactl.journal_events import JournalEvent
from llamactl.protocol.lines import VERSION, ErrorNotice, LineReader, ProtocolError, encode_message
from llamactl.protocol.report_socket import (
    Ack,
    Answer,
    AnswerResult,
    ChildHello,
    ChildState,
    ChildWelcome,
    Order,
    OrderKind,
    OrderMessage,
    Report,
)
from llamactl.protocol.values import Note
from llamactl.systemd.journal import get_logger
from llamactl.tasks import TaskSet

log = get_logger()

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 5.0


def make_hello(environment: ChildEnvironment) -> ChildHello:
    """Make the greeting of this process, which says whose child it is."""
    from llamactl.instance.llama.bindings import read_version

    return ChildHello(
        version=VERSION,
        role=environment.role,
        model=environment.model,
        generation=environment.generation,
        pid=os.getpid(),
        llama_cpp=read_version(),
    )


class ReportLink:
    """The connection to report.sock. Belongs to one event loop."""

    def __init__(
        self,
        path: Path,
        hello: ChildHello,
        handle_order: Callable[[Order], tuple[AnswerResult, str]],
        count_busy: Callable[[], int],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_failure` is told the error after which the connection is not kept any longer: a bug."""
        self._path = path
        self._hello = hello
        self._handle_order = handle_order
        self._count_busy = count_busy
        self._report: Report | None = None
        self._note: Note | None = None
        self._seq = 0
        self._acked = 0
        self._told_busy = False
        """The report that went out last spoke of requests in flight."""
        self._writer: asyncio.StreamWriter | None = None
        self._ack_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._tasks = TaskSet(on_failure)

    def start(self) -> None:
        """Connect, and stay connected until `close`."""
        self._tasks.spawn(self._run())

    async def close(self) -> None:
        """End the connection; what has not gone out is lost (`deliver` it before)."""
        self._tasks.cancel()
        await self._tasks.wait()

    @property
    def is_connected(self) -> bool:
        """Whether there is a supervisor that has taken the greeting."""
        return self._writer is not None

    def send(self, state: ChildState, **fields: Any) -> int:
        """Replaces the child's state. Goes out now, or as soon as there is a supervisor. Returns its number."""
        self._report = Report(seq=0, state=state, **fields)
        return self._write_report()

    def tell_idle(self) -> None:
        """The last request in flight has ended."""
        if self._told_busy:
            self._write_report()

    async def deliver(self, state: ChildState, *, timeout_s: float, **fields: Any) -> bool:
        """Sends and waits until the supervisor has it. False: `timeout_s` was over first."""
        seq = self.send(state, **fields)
        acked = asyncio.get_running_loop().create_future()
        self._ack_waiters.append((seq, acked))
        try:
            await asyncio.wait_for(acked, timeout_s)
        except TimeoutError:
            return False
        return True

    # --- the connection ---------------------------------------------------------------------------

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                if await self._talk():
                    pause_s = FIRST_PAUSE_S
            except OSError as error:
                log.debug(JournalEvent.SUPERVISOR_NOT_CONNECTED, reason=str(error))
            finally:
                self._writer = None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    async def _talk(self) -> bool:
        """One connection, until it ends. Whether the supervisor took the greeting."""
        reader, writer = await asyncio.open_unix_connection(str(self._path))
        welcomed = False
        try:
            writer.write(encode_message(self._hello))
            lines = LineReader(OrderMessage)
            while data := await reader.read(1 << 16):
                junk: ProtocolError | None = None
                try:
                    messages: Sequence[Any] = lines.feed(data)
                except ProtocolError as error:
                    messages, junk = error.before, error
                for message in messages:
                    if isinstance(message, ChildWelcome):
                        if message.version != VERSION:
                            raise ConnectionError(f"it speaks version {message.version}, this child {VERSION}")
                        welcomed = True
                        self._writer = writer
                        self._write_report()
                    else:
                        self._handle(message, writer)
                if junk is not None:
                    log.warning(JournalEvent.SUPERVISOR_NOT_UNDERSTOOD, reason=str(junk))
                    return welcomed
            return welcomed
        finally:
            writer.close()

    def _handle(self, message: Ack | Order | ErrorNotice, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, Ack):
            self._acked = max(self._acked, message.seq)
            self._wake_ack_waiters()
        elif isinstance(message, Order):
            result, text = self._apply_order(message)
            writer.write(encode_message(Answer(id=message.id, result=result, message=text)))
        else:
            log.warning(JournalEvent.MESSAGE_REFUSED_BY_SUPERVISOR, reason=message.message)

    def _apply_order(self, order: Order) -> tuple[AnswerResult, str]:
        if order.order is OrderKind.NOTE:
            self._note = order.note
            return AnswerResult.OK, ""
        return self._handle_order(order)

    def _write_report(self) -> int:
        """Each sending has a number of its own: an acknowledgement of an older state must not count for a newer one."""
        self._seq += 1
        if self._report is not None and self._writer is not None:
            report = msgspec.structs.replace(self._report, seq=self._seq, busy=self._count_busy(), note=self._note)
            self._writer.write(encode_message(report))
            self._told_busy = report.busy > 0
        return self._seq

    def _wake_ack_waiters(self) -> None:
        waiting = []
        for seq, future in self._ack_waiters:
            if future.done():
                continue
            if seq <= self._acked:
                future.set_result(None)
            else:
                waiting.append((seq, future))
        self._ack_waiters = waiting
