"""How does the front talk to the supervisor, which may be away for a while?

One connection to `control.sock`, made again with back-off whenever it is lost. Leases live through that; questions
(lists, loads) do not: one that was sent and not answered fails, because nobody knows whether it was carried out, and
one that could not be sent waits CONTROL_WAIT_S. What the messages mean is not decided here: `Listener` gets them.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.lease_queue import CONTROL_WAIT_S
from llamactl.protocol.control_socket import (
    ClientHello,
    ClientMessage,
    ClientRole,
    Done,
    Failure,
    HeldLease,
    MachineStatus,
    MeasureResult,
    ModelList,
    ReloadResult,
    ServerMessage,
    Welcome,
)
from llamactl.protocol.failures import parse_failure
from llamactl.protocol.lines import VERSION, ErrorNotice, LineReader, ProtocolError, encode_message

BACKOFF_FIRST_S = 0.05
BACKOFF_LAST_S = 1.0

Reply = Done | ModelList | MachineStatus | ReloadResult | MeasureResult


class Listener(Protocol):
    """Who acts on what the supervisor says."""

    def announce_leases(self) -> tuple[HeldLease, ...]:
        """The leases that are held, for the greeting of a supervisor that may know nothing of them."""

    def handle_connected(self, welcome: Welcome) -> None:
        """The supervisor has taken the greeting."""

    def handle_lost(self, reason: str) -> None:
        """The connection has ended; another one is being tried."""

    def handle_message(self, message: ServerMessage) -> None:
        """A message has come that answers no question."""

    def handle_batch_end(self) -> None:
        """All messages that came together have been handled: what was collected meanwhile may go out."""


@dataclass
class _Question:
    message: ClientMessage
    then: Callable[[Reply | LlamactlError], None]
    sent: bool
    timer: asyncio.TimerHandle | None = None


class Control:
    """The connection to the supervisor, and the questions on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, listener: Listener) -> None:
        self.ids = itertools.count(1)
        self.connected = False
        """The supervisor has answered our greeting."""
        self._loop = loop
        self._path = path
        self._listener = listener
        self._connection: _Connection | None = None
        self._questions: dict[int, _Question] = {}

    async def run(self) -> None:
        """Keep a connection until cancelled."""
        backoff_s = BACKOFF_FIRST_S
        while True:
            connection = _Connection(self)
            try:
                await self._loop.create_unix_connection(lambda c=connection: c, str(self._path))  # type: ignore[misc]
            except OSError:
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_LAST_S)
                continue
            self._connection = connection
            hello = ClientHello(version=VERSION, role=ClientRole.FRONT, leases=self._listener.announce_leases())
            connection.write(encode_message(hello))
            try:
                reason = await connection.closed
            finally:
                connection.close()
            self._connection = None
            welcomed, self.connected = self.connected, False
            self._fail_sent()
            self._listener.handle_lost(reason)
            if welcomed:
                backoff_s = BACKOFF_FIRST_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_LAST_S)

    def send(self, messages: list[ClientMessage]) -> None:
        """Send notices and requests whose answers go to the listener. Nothing is sent while there is no connection."""
        if self._connection is not None:
            self._connection.write(b"".join([encode_message(message) for message in messages]))

    def ask(self, make: Callable[[int], ClientMessage], then: Callable[[Reply | LlamactlError], None]) -> int:
        """Ask a question; `then` gets the answer or the error. Returns what `forget` takes."""
        number = next(self.ids)
        question = _Question(make(number), then, self.connected)
        self._questions[number] = question
        if self.connected:
            self.send([question.message])
        else:
            question.timer = self._loop.call_later(CONTROL_WAIT_S, self._finish, number, _format_away())
        return number

    def forget(self, number: int) -> None:
        """Nobody wants the answer any more."""
        question = self._questions.pop(number, None)
        if question is not None and question.timer is not None:
            question.timer.cancel()

    def on_message(self, message: ServerMessage) -> None:
        """One message has come."""
        match message:
            case Welcome():
                self.connected = True
                self._listener.handle_connected(message)
                self._send_waiting()
            case Done() | ModelList() | MachineStatus() | ReloadResult() | MeasureResult():
                self._finish(message.id, message)
            case Failure() if message.id in self._questions:
                self._finish(message.id, parse_failure(message))
            case _:
                self._listener.handle_message(message)

    def on_batch_end(self) -> None:
        """Tell the listener that all messages which came together have been handled."""
        self._listener.handle_batch_end()

    def _send_waiting(self) -> None:
        for question in self._questions.values():
            if not question.sent:
                question.sent = True
                if question.timer is not None:
                    question.timer.cancel()
                    question.timer = None
                self.send([question.message])

    def _fail_sent(self) -> None:
        for number, question in list(self._questions.items()):
            if question.sent:
                self._finish(number, _format_away())

    def _finish(self, number: int, reply: Reply | LlamactlError) -> None:
        question = self._questions.get(number)
        if question is not None:
            self.forget(number)
            question.then(reply)


class _Connection(asyncio.Protocol):
    def __init__(self, control: Control) -> None:
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Ends with the reason."""
        self._control = control
        self._reader = LineReader(ServerMessage)
        self._transport: asyncio.Transport | None = None
        self._reason = ""

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                if isinstance(message, ErrorNotice):
                    self._reason = f"refused: {message.message}"
                self._control.on_message(message)
        except ProtocolError as error:
            self._reason = f"junk from the supervisor: {error}"
            self.close()
        self._control.on_batch_end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(self._reason or (str(exc) if exc else "it has closed the connection"))


def _format_away() -> LlamactlError:
    return LlamactlError(
        ErrorCode.NO_SUPERVISOR, "cannot reach the supervisor: it does not answer", hint="systemctl status llamactl"
    )
