"""What is a supervisor's world without systemd? Real sockets, a real scheduler, and units that a test makes up.

`Systemd` stands in for systemd.manager.Manager: units begin and end as the test says, and calls fail on cue. Who
connects to report.sock is in the unit that the test names.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w

from llamactl.child.orders import ChildEnvironment
from llamactl.child.properties import Surroundings, choose_model_properties
from llamactl.names import Role, format_unit, parse_unit
from llamactl.paths import Paths
from llamactl.protocol.control_socket import (
    ClientHello,
    ClientRole,
    ListRequest,
    ModelList,
    ModelNotice,
    ServerMessage,
    SubscribeRequest,
)
from llamactl.protocol.lines import VERSION, LineReader, encode_message
from llamactl.protocol.report_socket import ChildHello, ChildRole, ChildState, OrderMessage, Report
from llamactl.supervisor import line_server, units
from llamactl.supervisor.daemon import Supervisor
from llamactl.systemd.manager import ManagerError
from llamactl.systemd.notify import Notifier
from llamactl.systemd.peer import Peer
from llamactl.systemd.replies import RUNNING
from llamactl.systemd.unit_state import UnitEnded, UnitEvent, UnitSnapshot, UnitStarted

TIMEOUT_S = 10.0


@dataclass
class FakeUnit:
    """One unit that is loaded."""

    environment: dict[str, str]
    active_state: str = "activating"
    pid: int = 4711


class Systemd:
    """Units by name. `refusals`: what the next starts meet; with `applied`, the unit begins all the same."""

    def __init__(self) -> None:
        self.units: dict[str, FakeUnit] = {}
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.made: asyncio.Queue[str] = asyncio.Queue()
        self.stopped: asyncio.Queue[str] = asyncio.Queue()
        self.refusals: deque[tuple[ManagerError, bool]] = deque()
        self.controllers: tuple[str, ...] = ()
        self.slice_jobs = 0
        self._on_event: Callable[[UnitEvent], None] = lambda _: None

    def __call__(
        self, on_event: Callable[[UnitEvent], None], on_lost: Callable[[str], None], *_: object, **__: object
    ) -> "Systemd":
        self._on_event = on_event
        return self

    def emit(self, event: UnitEvent) -> None:
        self._on_event(event)

    def end(self, unit: str, result: str = "success", exit_code: int = 0) -> None:
        """The unit ends, and is gone."""
        self.units.pop(unit, None)
        self.emit(UnitEnded(unit, result, exit_code, 1, "", True))

    def die_unheard(self, unit: str) -> None:
        """The unit's process ends before it has said anything."""
        del self.units[unit]
        self.emit(UnitEnded(unit, "exit-code", 1, 1, "", False))

    def become_active(self, unit: str) -> None:
        self.units[unit].active_state = "active"
        self.emit(UnitStarted(unit, self.units[unit].pid))

    # --- what the supervisor calls ---

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def list_units(self) -> list[UnitSnapshot]:
        return [make_snapshot(name, unit) for name, unit in self.units.items()]

    async def list_states(self) -> dict[str, bool]:
        return {name: unit.active_state in ("active", "activating") for name, unit in self.units.items()}

    async def start_transient(self, unit: str, properties: Mapping[str, Any], on_begun: Callable[[], None]) -> None:
        refusal, applied = None, True
        if self.refusals and parse_unit(unit)[0] is Role.MODEL:  # type: ignore[index]
            refusal, applied = self.refusals.popleft()
        if applied:
            self.units[unit] = FakeUnit(dict(entry.split("=", 1) for entry in properties["Environment"]))
            self.made.put_nowait(unit)
        if refusal is not None:
            raise refusal
        on_begun()
        self.started.put_nowait(unit)
        if parse_unit(unit)[0] is Role.MEASURE:  # type: ignore[index]
            self.end(unit, "exit-code", 1)

    async def wait_slice_job(self, since: int) -> None:
        self.slice_jobs = since + 1

    async def stop_unit(self, unit: str) -> None:
        self.stopped.put_nowait(unit)
        if unit in self.units:
            self.end(unit)

    async def reset_failed(self, unit: str) -> None:
        pass

    async def free_name(self, unit: str) -> None:
        if unit in self.units:
            raise ManagerError(f"cannot free '{unit}': it is active", unit=unit, name=RUNNING)


def make_snapshot(name: str, unit: FakeUnit) -> UnitSnapshot:
    known = parse_unit(name)
    assert known is not None
    return UnitSnapshot(
        unit=name,
        role=known[0],
        slug=known[1],
        load_state="loaded",
        active_state=unit.active_state,
        sub_state="",
        result="success",
        exit_code=0,
        exit_kind=0,
        main_pid=unit.pid,
        invocation_id="",
        environment=unit.environment,
    )


@dataclass
class Connection:
    """One end of a socket of the supervisor's."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lines: LineReader
    waiting: deque[Any] = field(default_factory=deque)

    def send(self, *messages: msgspec.Struct) -> None:
        self.writer.write(b"".join(map(encode_message, messages)))

    async def receive(self) -> Any:
        """The next message; None at the end."""
        while not self.waiting:
            data = await asyncio.wait_for(self.reader.read(1 << 16), TIMEOUT_S)
            if not data:
                return None
            self.waiting += self.lines.feed(data)
        return self.waiting.popleft()

    async def receive_kind(self, kind: type) -> Any:
        """The next message of this class."""
        while not isinstance(message := await self.receive(), kind):
            assert message is not None, f"the connection has ended, and no {kind.__name__} has come"
        return message


class Stage:
    """One supervisor in a directory."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths = Paths(directory / "run", directory / "etc", directory / "cache")
        self.systemd = Systemd()
        self.peer_unit: str | None = None
        self._sequence = itertools.count(1)
        monkeypatch.setattr(units, "Manager", self.systemd)
        monkeypatch.setattr(line_server, "acquire_peer", lambda _: Peer(1, 0, 0, self.peer_unit))
        monkeypatch.setattr(units, "acquire_last_log_lines", no_lines)
        monkeypatch.setattr(units, "choose_model_properties", choose_properties)

    def write_models(self, *names: str, **settings: Any) -> None:
        self.paths.models_config_dir.mkdir(parents=True, exist_ok=True)
        models = {}
        for name in names:
            path = self.paths.config_dir / f"{name}.gguf"
            path.write_bytes(b"GGUF" + bytes(60))
            models[name] = {"path": str(path), **settings}
        (self.paths.models_config_dir / "test.toml").write_text(tomli_w.dumps({"models": models}))

    async def start(self) -> Supervisor:
        supervisor = Supervisor(self.paths, Notifier())
        await supervisor.start(None, None)
        return supervisor

    async def _open(self, path: Path, messages: Any) -> Connection:
        return Connection(*await asyncio.open_unix_connection(str(path)), LineReader(messages))

    async def connect_client(self, role: ClientRole = ClientRole.CLI) -> Connection:
        """A client that has been welcomed."""
        connection = await self._open(self.paths.control_socket, ServerMessage)
        connection.send(ClientHello(version=VERSION, role=role))
        await connection.receive()
        return connection

    async def connect_child(self, slug: str, role: Role = Role.MODEL) -> Connection:
        """A child of the unit that runs; its greeting is sent."""
        self.peer_unit = format_unit(role, slug)
        connection = await self._open(self.paths.report_socket, OrderMessage)
        unit = self.systemd.units[self.peer_unit]
        child_role = ChildRole.SERVE if role is Role.MODEL else ChildRole.MEASURE
        generation = unit.environment["LLAMACTL_GENERATION"]
        connection.send(ChildHello(version=VERSION, role=child_role, model=slug, generation=generation, pid=unit.pid))
        await connection.receive()
        return connection

    async def wait_unit(self, unit: str) -> None:
        """Until it is there, whether the supervisor has been told so or not."""
        while await asyncio.wait_for(self.systemd.made.get(), TIMEOUT_S) != unit:
            pass

    async def wait_start(self, name: str) -> Connection:
        """The child of a model's unit, when that has been started."""
        while await asyncio.wait_for(self.systemd.started.get(), TIMEOUT_S) != format_unit(Role.MODEL, name):
            pass
        return await self.connect_child(name)

    async def list_states(self, client: Connection) -> dict[str, str]:
        """The state of each model, as a client is told."""
        client.send(ListRequest(id=999))
        return {model.name: str(model.state) for model in (await client.receive_kind(ModelList)).models}

    async def wait_state(self, name: str, state: str) -> None:
        """Be told of a model until it is in this state."""
        watcher = await self.connect_client()
        watcher.send(SubscribeRequest(id=1))
        found = [model for model in (await watcher.receive_kind(ModelList)).models if model.name == name]
        while not found or found[0].state != state:
            notice: ModelNotice = await watcher.receive_kind(ModelNotice)
            found = [notice.model] if notice.model.name == name else found
        watcher.writer.close()

    def make_report(self, state: ChildState, **more: Any) -> Report:
        return Report(seq=next(self._sequence), state=state, **more)


def choose_properties(orders: ChildEnvironment, around: Surroundings, **_: object) -> dict[str, Any]:
    """As for a runtime directory below /run, where alone units can have theirs."""
    usual = replace(orders, socket=Paths().instance_socket(orders.model))
    return choose_model_properties(usual, replace(around, paths=Paths()), stop_timeout_s=1.0)


async def no_lines(*_: str) -> str:
    return ""
