"""How do the scheduler's starts and stops become units, and how do units' ends become its events?

One record per unit that should exist, made before the unit is started, so that a child which connects at once is
known. A unit's name is free only when the last unit of that name is gone, so each start first frees it. What ends
is told exactly once, with the reason that a person can use: what the child itself reported, else the last lines
of its log.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from llamactl.child import variables
from llamactl.child.orders import ChildEnvironment
from llamactl.child.properties import Surroundings, choose_measure_properties, choose_model_properties
from llamactl.config.permissions import explain_unreadable
from llamactl.errors import LlamactlError
from llamactl.journal_events import JournalEvent
from llamactl.names import DEVICES_SLUG, Role, format_slug, format_unit
from llamactl.paths import Paths
from llamactl.protocol.report_socket import ChildRole
from llamactl.protocol.values import LoadFailure
from llamactl.sched.effects import StartInstance, StartMeasure
from llamactl.settings import GlobalSettings, ModelSettings, decode_spec
from llamactl.share import python_paths
from llamactl.supervisor.last_log_lines import acquire_last_log_lines
from llamactl.systemd.host import acquire_gpu_groups
from llamactl.systemd.journal import get_logger
from llamactl.systemd.manager import Manager, ManagerError
from llamactl.systemd.unit_state import RESULT_UNKNOWN, UnitEnded, UnitEvent, UnitSnapshot, UnitStarted, explain_result
from llamactl.tasks import TaskSet

NOT_STARTED = "start"
STOPPED = "stopped"
CONDEMNED = "condemned"
"""Results that are not systemd's: it refused the start; it ended well but before it had anything to say; what it said
could not be handled."""
LISTING_TIMEOUT_S = 30.0
LOOK_S = 5.0
"""For looking at files; a file system that hangs must not keep an end from being told."""

_log = get_logger()


@dataclass(eq=False)
class Run:
    """One unit that was started, or found running."""

    role: Role
    slug: str
    generation: str
    settings: ModelSettings
    pid: int = 0
    error: str = ""
    """What the child reported of its own failure."""
    condemned: str = ""
    """Why it is stopped and not heard any longer."""
    reported: bool = False
    """A measure child's figures have come."""
    stopping: bool = False
    ended: bool = False

    @property
    def unit(self) -> str:
        """Its name in systemd."""
        return format_unit(self.role, self.slug)

    @property
    def is_listing(self) -> bool:
        """It measures no model, and lists devices."""
        return self.slug == DEVICES_SLUG


class Units:
    """All model and measure units of this supervisor.

    `on_ended(run, failure)` is called once for each run, `on_failure` for an error that nothing else tells of.
    """

    def __init__(
        self,
        paths: Paths,
        on_ended: Callable[[Run, LoadFailure | None], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._paths = paths
        self._on_ended = on_ended
        self._runs: dict[tuple[Role, str], Run] = {}
        self._measure_starts = 0
        self._failed: set[str] = set()
        """Slugs of model units that systemd keeps, failed, until they are reset. Measure units it never keeps."""
        self._tasks = TaskSet(on_failure)
        self.manager = Manager(self._handle_unit_event, self._handle_lost, on_failure=on_failure)
        self.settings = GlobalSettings()

    async def open(self) -> list[Run]:
        """Connect to systemd; the model units that run already. Measure units of a predecessor are stopped. Raises
        ManagerError.
        """
        await self.manager.open()
        found: list[Run] = []
        for snapshot in await self.manager.list_units():
            run = _adopt(snapshot)
            if snapshot.role is Role.MEASURE:
                await self.manager.stop_unit(snapshot.unit)
            elif snapshot.active_state == "failed":
                self._failed.add(snapshot.slug)
            elif run is not None:
                self._runs[run.role, run.slug] = run
                found.append(run)
        return found

    def forget_failed(self, models: Iterable[str]) -> None:
        """Reset the failed units of all but these models: those are in the configuration no longer, and nobody would
        start them again.
        """
        for slug in self._failed.difference(map(format_slug, models)):
            self._failed.discard(slug)
            self._tasks.spawn(self._reset(format_unit(Role.MODEL, slug)))

    async def _reset(self, unit: str) -> None:
        try:
            await self.manager.reset_failed(unit)
        except ManagerError as error:
            _log.warning(JournalEvent.FAILED_UNIT_NOT_RESET, unit=unit, reason=str(error))
        else:
            _log.info(JournalEvent.FAILED_UNIT_RESET, unit=unit, reason="its model is no longer in the configuration")

    async def close(self) -> None:
        """End the connection. Models run on; measure children, whose figures nobody would take, are stopped, and so is
        what a stop was wanted of.
        """
        self._tasks.cancel()
        for run in list(self._runs.values()):
            if run.role is Role.MEASURE or run.stopping:
                with contextlib.suppress(ManagerError):
                    await self.manager.stop_unit(run.unit)
        await self.manager.close()

    def find(self, role: Role, slug: str) -> Run | None:
        """The run that should exist under this name; None where there is none."""
        return self._runs.get((role, slug))

    def is_expected(self, role: Role, slug: str, generation: str) -> bool:
        """Whether a child that says so belongs to a run that has not ended."""
        run = self._runs.get((role, slug))
        return run is not None and run.generation == generation and not (run.ended or run.condemned)

    def start_instance(self, effect: StartInstance) -> None:
        """Start a model's unit with the settings of this moment; its end is told in any case."""
        run = Run(Role.MODEL, format_slug(effect.settings.name), effect.generation, effect.settings)
        orders = replace(
            self._choose_orders(ChildRole.SERVE, run, effect.margins_bytes, effect.extra_bufts, effect.host_room_bytes),
            socket=self._paths.instance_socket(run.slug),
            measured=effect.measured,
            load_stall_s=self.settings.load_stall_s,
        )
        stop_timeout_s = self.settings.stop_timeout_s
        self._start(run, lambda: choose_model_properties(orders, self._look_around(), stop_timeout_s=stop_timeout_s))

    def start_measure(self, effect: StartMeasure) -> None:
        """Start a measure child; its end is told in any case."""
        run = self._make_measure_run(format_slug(effect.settings.name), effect.settings)
        orders = self._choose_orders(
            ChildRole.MEASURE, run, effect.margins_bytes, effect.extra_bufts, effect.host_room_bytes
        )
        timeout_s = self.settings.measure_timeout_s
        self._start(run, lambda: choose_measure_properties(orders, self._look_around(), timeout_s=timeout_s))

    def start_listing(self, rpc: tuple[str, ...], ids: dict[str, str]) -> None:
        """A measure child that lists devices, those behind RPC servers too. `ids`: if only the free memory of known
        devices is wanted, their bus addresses by name. Not while one runs.
        """
        run = self._make_measure_run(DEVICES_SLUG, ModelSettings(name="devices", path="", rpc=rpc))
        orders = replace(self._choose_orders(ChildRole.MEASURE, run, {}), devices_only=True, device_ids=ids)
        timeout_s = min(LISTING_TIMEOUT_S, self.settings.measure_timeout_s)
        self._start(run, lambda: choose_measure_properties(orders, self._look_around(), timeout_s=timeout_s))

    def _make_measure_run(self, slug: str, settings: ModelSettings) -> Run:
        self._measure_starts += 1
        return Run(Role.MEASURE, slug, f"{os.getpid()}.{self._measure_starts}", settings)

    def _choose_orders(
        self,
        role: ChildRole,
        run: Run,
        margins_bytes: Mapping[str, int],
        extra_bufts: bool = True,
        host_room_bytes: int | None = None,
    ) -> ChildEnvironment:
        return ChildEnvironment(
            role=role,
            model=run.settings.name,
            settings=run.settings,
            generation=run.generation,
            socket=None,
            report=self._paths.report_socket,
            margins_bytes=dict(margins_bytes),
            host_room_bytes=host_room_bytes,
            extra_bufts=extra_bufts,
            log_level=self.settings.log_level,
        )

    def _look_around(self) -> Surroundings:
        return Surroundings(self._paths, sys.executable, [str(path) for path in python_paths()], acquire_gpu_groups())

    def stop(self, role: Role, slug: str, generation: str | None = None) -> None:
        """Stop a unit, whatever it does; its end is told as any other."""
        run = self._runs.get((role, slug))
        if run is not None and (generation is None or run.generation == generation):
            run.stopping = True
            self._tasks.spawn(self._stop(run))

    def condemn(self, run: Run, reason: str) -> None:
        """Stop a unit that cannot be dealt with; that is how it failed."""
        run.condemned = reason
        self.stop(run.role, run.slug, run.generation)

    def _start(self, run: Run, choose_properties: Callable[[], dict[str, Any]]) -> None:
        self._runs[run.role, run.slug] = run
        self._tasks.spawn(self._start_unit(run, choose_properties))

    async def _start_unit(self, run: Run, choose_properties: Callable[[], dict[str, Any]]) -> None:
        try:
            properties = choose_properties()
            await self.manager.free_name(run.unit)
            if run.role is Role.MODEL:
                self._failed.discard(run.slug)
            if run.stopping:  # a stop that came before there was a unit
                self._end(run, None)
                return
            await self.manager.start_transient(run.unit, properties)
            await self._stop_if_wanted(run)
        except (ManagerError, LlamactlError, OSError, ValueError) as error:
            self._end(run, LoadFailure(result=NOT_STARTED, exit_code=0, message=f"cannot start {run.unit}: {error}"))

    async def _stop_if_wanted(self, run: Run) -> None:
        """A stop that came while the start was on its way to systemd found no unit."""
        if run.stopping:
            await self.manager.stop_unit(run.unit)

    async def _stop(self, run: Run) -> None:
        try:
            await self.manager.stop_unit(run.unit)
        except ManagerError as error:
            _log.error(JournalEvent.STOP_FAILED, model=run.settings.name, unit=run.unit, reason=str(error))

    def _handle_unit_event(self, event: UnitEvent) -> None:
        match event:
            case UnitStarted():
                run = self._run_of(event.unit)
                if run is not None:
                    run.pid = event.main_pid
            case UnitEnded():
                run = self._run_of(event.unit)
                if run is not None:
                    self._tasks.spawn(self._report_end(run, event))

    def _handle_lost(self, reason: str) -> None:
        _log.error(JournalEvent.SYSTEMD_CONNECTION_LOST, reason=reason)

    def _run_of(self, unit: str) -> Run | None:
        return next((run for run in self._runs.values() if run.unit == unit and not run.ended), None)

    async def _report_end(self, run: Run, event: UnitEnded) -> None:
        if run.condemned:
            self._end(run, LoadFailure(result=CONDEMNED, exit_code=event.exit_code, message=run.condemned))
            return
        # Failed units are kept until they are reset, so one that was collected unseen had ended well.
        if event.result in ("success", RESULT_UNKNOWN):
            silent = run.role is Role.MEASURE and not run.reported and not run.stopping
            self._end(
                run, LoadFailure(result=STOPPED, exit_code=0, message="ended without a report") if silent else None
            )
            return
        if run.role is Role.MODEL:
            self._failed.add(run.slug)
        message = run.error or await _find_last_log_lines(run) or event.status_text
        # What systemd or the kernel did to it is the reason; its last lines may be about something else.
        if done_to_it := explain_result(event.result, event.exit_code):
            source = "it said" if run.error else "its last lines"
            message = f"{done_to_it}; {source}: {message}" if message else done_to_it
        elif unreadable := await self._explain_unreadable(run):
            message = f"{message}; {unreadable}" if message else unreadable
        self._end(run, LoadFailure(result=event.result, exit_code=event.exit_code, message=message))

    async def _explain_unreadable(self, run: Run) -> str:
        """What keeps the files of a run that has failed from it: nobody else knows the cure."""
        if run.is_listing:
            return ""
        try:
            return await asyncio.wait_for(asyncio.to_thread(explain_unreadable, self._paths, run.settings), LOOK_S)
        except OSError as error:  # TimeoutError is one
            _log.debug(JournalEvent.FILES_NOT_LOOKED_AT, model=run.settings.name, reason=str(error))
            return ""

    def _end(self, run: Run, failure: LoadFailure | None) -> None:
        if run.ended:
            return
        run.ended = True
        run.pid = 0
        if self._runs.get((run.role, run.slug)) is run:
            del self._runs[run.role, run.slug]
        self._on_ended(run, failure)


async def _find_last_log_lines(run: Run) -> str:
    """Empty where they cannot be had: the end counts, whatever the journal says of it."""
    try:
        return await acquire_last_log_lines(run.unit, run.generation)
    except Exception as error:
        _log.error(
            JournalEvent.LAST_LOG_LINES_NOT_READ,
            unit=run.unit,
            reason=f"{type(error).__name__}: {error}",
            exc_info=error,
        )
        return ""


def _adopt(snapshot: UnitSnapshot) -> Run | None:
    """The run behind a unit found at start; None for one that has ended or whose environment is not ours."""
    if snapshot.active_state not in ("active", "activating", "deactivating", "reloading"):
        return None
    try:
        settings = decode_spec(snapshot.environment[variables.SPEC])
        generation = snapshot.environment[variables.GENERATION]
    except (KeyError, msgspec.DecodeError, msgspec.ValidationError) as error:
        _log.warning(
            JournalEvent.UNIT_IGNORED,
            unit=snapshot.unit,
            reason=f"its environment does not say which model it is: {error}",
        )
        return None
    return Run(snapshot.role, snapshot.slug, generation, settings, pid=snapshot.main_pid)
