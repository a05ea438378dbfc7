"""How does a test follow units through Manager? Events are kept in order; waiting is for the next one, never for a
while."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from llamactl.systemd.manager import Manager, UnitChanged, UnitEnded, UnitEvent, UnitGone

TIMEOUT_S = 30.0
READY = "systemd-notify --ready; exec sleep infinity"

E = TypeVar("E", bound=UnitEvent)
T = TypeVar("T")


class Follower:
    """A manager with all that it told."""

    def __init__(self) -> None:
        self.events: list[UnitEvent] = []
        self.lost: list[str] = []
        self._news = asyncio.Condition()
        self.manager = Manager(self._handle_event, self.lost.append)

    def _handle_event(self, event: UnitEvent) -> None:
        self.events.append(event)
        asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def wait(self, kind: type[E], unit: str, count: int = 1) -> E:
        """The `count`-th event of its kind about the unit."""

        def find() -> E | None:
            found = [event for event in self.events if isinstance(event, kind) and event.unit == unit]
            return found[count - 1] if len(found) >= count else None

        return await self._wait_for(find)

    async def wait_state(self, unit: str, state: str) -> UnitChanged:
        """Until the last thing told of the unit is that it is in that state."""

        def find() -> UnitChanged | None:
            found = [event for event in self.events if isinstance(event, UnitChanged) and event.unit == unit]
            return found[-1] if found and found[-1].active_state == state else None

        return await self._wait_for(find)

    async def _wait_for(self, find: Callable[[], T | None]) -> T:
        async with asyncio.timeout(TIMEOUT_S), self._news:
            while (found := find()) is None:
                await self._news.wait()
        return found

    def steps(self, unit: str) -> list[str]:
        """The kinds of the unit's events, in order, without changes in between."""
        return [
            type(event).__name__ for event in self.events if event.unit == unit and not isinstance(event, UnitChanged)
        ]

    async def settle(self) -> None:
        """Until everything is told that systemd said before now: replies keep their order with signals."""
        await self.manager.list_units()


@contextlib.asynccontextmanager
async def follow(*units: str) -> AsyncIterator[Follower]:
    """A connected follower; the units named are gone before and after."""
    follower = Follower()
    await follower.manager.open()
    try:
        for unit in units:
            await clear(follower, unit)
        follower.events.clear()
        yield follower
        for unit in units:
            await clear(follower, unit)
    finally:
        await follower.manager.close()


async def kill(unit: str, signal: str) -> None:
    """Send a signal to all processes of a unit. Nothing happens where there is none."""
    command = ("systemctl", "kill", f"--signal={signal}", unit)
    await (await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)).wait()


async def clear(follower: Follower, unit: str) -> None:
    """Stop a unit, whatever it does, and free its name."""
    await kill(unit, "KILL")
    await follower.manager.stop_unit(unit)
    loaded = {snapshot.unit: snapshot for snapshot in await follower.manager.list_units()}
    if unit in loaded and not loaded[unit].ended:
        ended = sum(isinstance(event, UnitEnded) and event.unit == unit for event in follower.events)
        await follower.wait(UnitEnded, unit, ended or 1)
    await follower.manager.free_name(unit)


def run(test: Callable[[], Any]) -> None:
    """An asynchronous test."""
    asyncio.run(test())


def shell(script: str, **properties: Any) -> dict[str, Any]:
    """Properties of a unit that runs a shell script, as a model's unit would be set up."""
    return {
        "Type": "notify",
        "NotifyAccess": "all",
        "CollectMode": "inactive",
        "ExecStart": [["/bin/sh", ["/bin/sh", "-c", script.replace("$", "$$")], False]],
        **properties,
    }


__all__ = ["READY", "TIMEOUT_S", "Follower", "UnitGone", "clear", "follow", "kill", "run", "shell"]
