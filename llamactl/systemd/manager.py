"""How does the supervisor start, stop and follow units?

`Manager` is the asyncio side of a worker process (`worker.py` says why it is one). All that the worker sends is
handled in its order in one place, `_handle`, which feeds the tracker; events go to `on_event` from there. When D-Bus
or the worker goes, `on_lost` says so, a new worker is started with back-off, and what happened meanwhile comes as
events. Calls made in between wait for it.

A start that is answered is only queued: whether it worked is told by the events UnitStarted or UnitEnded.
"""

import asyncio
import contextlib
import functools
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from llamactl.controllers import acquire_controllers
from llamactl.systemd.replies import (
    LOST,
    RUNNING,
    TIMED_OUT,
    CallFailedError,
    ManagerError,
    choose_hint,
    parse_snapshots,
)
from llamactl.systemd.tracker import Tracker
from llamactl.systemd.unit_state import (
    UnitChanged,
    UnitEnded,
    UnitEvent,
    UnitGone,
    UnitSnapshot,
    UnitStarted,
)
from llamactl.tasks import TaskSet, raise_in_loop

__all__ = [
    "Manager",
    "ManagerError",
    "UnitChanged",
    "UnitEnded",
    "UnitEvent",
    "UnitGone",
    "UnitSnapshot",
    "UnitStarted",
]

BUS_TIMEOUT_S = 10
"""For one D-Bus call of the worker."""
CALL_TIMEOUT_S = 30.0
"""For one call of ours, waiting behind others included."""
SLICES = "llamactl slices"
"""Whoever waits for the end of a job of one of them does so under this name."""
OPEN_TIMEOUT_S = 25.0
FREE_TIMEOUT_S = 10.0
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
MAX_LINE_BYTES = 256 << 20

Reply = dict[str, Any] | None


class Manager:
    """The units of our models in systemd. Use from one event loop."""

    def __init__(
        self,
        on_event: Callable[[UnitEvent], None],
        on_lost: Callable[[str], None],
        *,
        user: bool = False,
        on_failure: Callable[[BaseException], None] = raise_in_loop,
    ) -> None:
        """`on_event` is called in the order of what happened; `user` talks to the user's own systemd. `on_failure` is
        told of an error after which no unit is heard of any longer: a bug.
        """
        self._on_event = on_event
        self._on_lost = on_lost
        self._user = user
        self._tracker = Tracker()
        self._pending: dict[int, tuple[asyncio.Future[Reply], Callable[[Any], None]]] = {}
        self._next_id = 0
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._referenced: set[str] = set()
        self.slice_jobs = 0
        """Jobs of slices that have ended."""
        self._tasks = TaskSet(on_failure)
        self._connected = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.controllers: tuple[str, ...] = ()
        """cgroup controllers that systemd can really apply; without "memory" a MemoryMax= is taken and ignored."""

    @property
    def worker_pid(self) -> int:
        """Of the present worker process; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    async def open(self) -> None:
        """Connect, subscribe, and learn which units there are (without events). Raises ManagerError."""
        self.controllers = acquire_controllers()
        hello = await self._connect()
        self._tracker.handle_list(parse_snapshots(hello), hello["taken_us"])
        self._connected.set()
        self._tasks.spawn(self._keep())

    async def close(self) -> None:
        """Leave the units as they are and end the worker."""
        self._tasks.cancel()
        await self._tasks.wait()
        self._connected.clear()
        self._fail_pending("closed")
        await self._disconnect()

    # --- what the supervisor asks for -------------------------------------------------------------

    async def list_units(self) -> list[UnitSnapshot]:
        """All model and measure units that are loaded, failed ones too. What is news in it is also told as events."""
        try:
            reply = await self._list()
        except ManagerError as error:
            if error.name != LOST:
                raise
            reply = await self._list()  # systemd has executed itself meanwhile; to ask twice changes nothing
        return parse_snapshots(reply or {})

    async def _list(self) -> Reply:
        return await self._call("list", "", "cannot list the models' units", self._handle_list)

    async def list_states(self) -> dict[str, bool]:
        """Of our units that have not ended, whether each runs (else it is about to, or stops). Costs systemd little."""
        reply = await self._call("states", "", "cannot list the states of the models' units")
        return dict((reply or {})["states"])

    async def start_transient(
        self, unit: str, properties: Mapping[str, Any], on_begun: Callable[[], None] = lambda: None
    ) -> None:
        """Create and start a unit; returns when the job is queued. ManagerError with `exists`: the name is taken.
        `on_begun` is called before anything is told of the unit.
        """

        def begin(_: Any) -> None:
            if properties.get("AddRef"):
                self._referenced.add(unit)
            self._emit(self._tracker.handle_begun(unit))  # the end of an earlier run
            on_begun()

        await self._call("start", unit, f"cannot start unit '{unit}'", begin, properties=dict(properties))

    async def wait_slice_job(self, since: int) -> None:
        """Wait until a job of one of our slices has ended since `slice_jobs` was so much."""
        while self.slice_jobs == since:
            await self._make_waiter(SLICES)

    async def stop_unit(self, unit: str) -> None:
        """Queue the stop. A unit that does not exist is stopped."""
        await self._call("stop", unit, f"cannot stop unit '{unit}'")

    async def reset_failed(self, unit: str) -> None:
        """Forget that the unit failed, so that systemd lets go of it. Nothing happens where it is not loaded."""
        await self._call("reset", unit, f"cannot reset unit '{unit}'")

    async def free_name(self, unit: str) -> None:
        """Reset an ended unit and wait until its name is free. Raises ManagerError if it runs, or is kept too long."""
        what = f"cannot free the name of unit '{unit}'"
        try:
            async with asyncio.timeout(FREE_TIMEOUT_S):
                while not await self._try_free(unit, what):
                    pass
        except TimeoutError:
            raise ManagerError(f"{what}: systemd did not let go of it in {FREE_TIMEOUT_S:.0f} s", unit=unit) from None

    async def _try_free(self, unit: str, what: str) -> bool:
        """Whether the name is free; if not, something has happened to the unit since it was asked."""
        changed = self._make_waiter(unit)
        try:
            reply = await self._call("free", unit, what, functools.partial(self._handle_freed, unit)) or {}
            if not reply["loaded"]:
                return True
            if reply["active_state"] not in ("inactive", "failed", "deactivating"):
                state = reply["active_state"]
                raise ManagerError(f"{what}: it is {state}", unit=unit, name=RUNNING, hint="stop it first")
            await changed
            return False
        finally:
            changed.cancel()

    def _make_waiter(self, unit: str) -> asyncio.Future[None]:
        """Done when something has happened to the unit."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(unit, [])
        waiters[:] = [other for other in waiters if not other.done()]
        waiters.append(waiter)
        return waiter

    # --- calls ------------------------------------------------------------------------------------

    async def _call(
        self, operation: str, unit: str, what: str, on_reply: Callable[[Any], None] = lambda _: None, **arguments: Any
    ) -> Reply:
        """One call of the worker. `on_reply` runs before any signal that the worker sent after its reply is handled."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._connected.wait()
                assert self._writer is not None
                self._next_id += 1
                # A call that nobody waits for any more stays: its reply is news to the tracker.
                self._pending[self._next_id] = (future, on_reply)
                request = {"id": self._next_id, "op": operation, "args": ({"unit": unit} if unit else {}) | arguments}
                self._writer.write(json.dumps(request).encode() + b"\n")
                return await future
        except TimeoutError:
            raise ManagerError(
                f"{what}: systemd did not answer in {CALL_TIMEOUT_S:.0f} s", unit=unit, errno=-110, name=TIMED_OUT
            ) from None
        except CallFailedError as error:
            raise ManagerError(
                f"{what}: {error.message}", unit=unit, errno=error.errno, name=error.name, hint=choose_hint(error)
            ) from None

    def _fail_pending(self, reason: str) -> None:
        for future, _ in self._pending.values():
            if not future.done():
                future.set_exception(CallFailedError(-107, LOST, f"lost the connection to systemd ({reason})"))
        self._pending.clear()

    # --- the worker -------------------------------------------------------------------------------

    async def _connect(self) -> dict[str, Any]:
        """Start a worker and wait for its greeting."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        kept_back = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
        environment = {name: value for name, value in os.environ.items() if name not in kept_back}
        environment["SYSTEMD_BUS_TIMEOUT"] = f"{BUS_TIMEOUT_S}s"
        mode = "user" if self._user else "system"
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "llamactl.systemd.worker", str(theirs.fileno()), mode),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=environment,
                )
            except OSError as error:
                ours.close()
                raise ManagerError(f"cannot start the D-Bus worker '{sys.executable}': {error.strerror}") from error
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE_BYTES)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                hello = await self._read()
        except TimeoutError:
            hello = {"event": "lost", "reason": f"no answer in {OPEN_TIMEOUT_S:.0f} s"}
        except BaseException:
            await self._disconnect()
            raise
        if hello["event"] != "hello":
            await self._disconnect()
            raise ManagerError(
                f"cannot connect to systemd: {hello.get('reason')}", hint="is dbus.service running, and systemd PID 1?"
            )
        return hello

    async def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = self._reader = None
        process, self._process = self._process, None
        if process is None:
            return
        try:
            async with asyncio.timeout(2):
                await process.wait()  # it ends when its socket does, unless a call holds it
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _read(self) -> dict[str, Any]:
        """The next message of the worker; the end of the stream counts as one."""
        assert self._reader is not None
        try:
            line = await self._reader.readline()
        except (OSError, ValueError) as error:
            return {"event": "lost", "reason": str(error)}
        if not line.endswith(b"\n"):
            return {"event": "lost", "reason": "the D-Bus worker has ended"}
        message: dict[str, Any] = json.loads(line)
        return message

    async def _keep(self) -> None:
        """Read until the connection is lost, connect again, for ever."""
        while True:
            message = await self._read()
            if message.get("event") != "lost":
                self._handle(message)
                continue
            self._connected.clear()
            self._fail_pending(message["reason"])
            self._on_lost(message["reason"])
            delay_s = FIRST_DELAY_S
            while True:
                await self._disconnect()
                await asyncio.sleep(delay_s)
                try:
                    hello = await self._connect()
                    break
                except ManagerError:
                    delay_s = min(2 * delay_s, LONGEST_DELAY_S)
            self._referenced.clear()  # references end with the connection that took them
            self._handle_list(hello)
            self._connected.set()

    # --- what the worker sends --------------------------------------------------------------------

    def _handle(self, message: dict[str, Any]) -> None:
        if "id" in message:
            future, on_reply = self._pending.pop(message["id"])
            if "error" in message:
                if not future.done():
                    future.set_exception(CallFailedError(**message["error"]))
                return
            on_reply(message["ok"])
            if not future.done():
                future.set_result(message["ok"])
            return
        match message["event"]:
            case "properties":
                self._emit(
                    self._tracker.handle_properties(message["unit"], message["interface"], message["properties"])
                )
            case "removed":
                self._emit(self._tracker.handle_removed(message["unit"], message["loaded"]))
                if not message["loaded"]:
                    self._wake(message["unit"])
            case "slice":
                self.slice_jobs += 1
                self._wake(SLICES)
            case "list":
                self._handle_list(message)

    def _handle_list(self, message: Any) -> None:
        snapshots = parse_snapshots(message)
        self._emit(self._tracker.handle_list(snapshots, message["taken_us"]))
        for unit in self._waiters.keys() - {snapshot.unit for snapshot in snapshots}:
            self._wake(unit)

    def _handle_freed(self, unit: str, reply: Any) -> None:
        self._referenced.discard(unit)
        if not reply["loaded"]:
            self._emit(self._tracker.handle_removed(unit, loaded=False))
            self._wake(unit)

    def _wake(self, unit: str) -> None:
        for waiter in self._waiters.pop(unit, []):
            if not waiter.done():
                waiter.set_result(None)

    def _emit(self, events: list[UnitEvent]) -> None:
        for event in events:
            if isinstance(event, UnitEnded):
                self._wake(event.unit)
                if event.unit in self._referenced:
                    self._referenced.discard(event.unit)
                    self._tasks.spawn(self._unreference(event.unit))
            try:
                self._on_event(event)
            except Exception as error:
                # The next event is no less true for that.
                what = {"message": f"event {event} was not handled", "exception": error}
                asyncio.get_running_loop().call_exception_handler(what)

    async def _unreference(self, unit: str) -> None:
        """A unit that was started with AddRef= has told its result: let systemd collect it."""
        with contextlib.suppress(ManagerError):  # a lost connection drops its references by itself
            await self._call("unref", unit, f"cannot release unit '{unit}'")
