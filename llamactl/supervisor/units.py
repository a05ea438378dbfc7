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
from dataclasses import replace
from typing import Any

from llamactl.child import variables
from llamactl.child.orders import ChildEnvironment
from llamactl.child.properties import Surroundings, choose_measure_properties, choose_model_properties
from llamactl.config.permissions import explain_unreadable
from llamactl.errors import LlamactlError
from llamactl.journal_events import JournalEvent
from llamactl.names import DEVICES_SLUG, Role, format_slug, format_unit, parse_unit
from llamactl.paths import Paths
from llamactl.protocol.report_socket import ChildRole
from llamactl.protocol.values import LoadFailure
from llamactl.sched.effects import StartInstance, StartMeasure
from llamactl.settings import GlobalSettings, ModelSettings
from llamactl.share import python_paths
from llamactl.supervisor.comparison import find_contradictions
from llamactl.supervisor.installation import Installation
from llamactl.supervisor.last_log_lines import acquire_last_log_lines
from llamactl.supervisor.run import CONDEMNED, INSTALLING, NOT_STARTED, STOPPED, UNREACHABLE, Run, adopt_run
from llamactl.systemd.host import acquire_gpu_groups
from llamactl.systemd.journal import get_logger
from llamactl.systemd.manager import Manager, ManagerError
from llamactl.systemd.unit_state import (
    RESULT_UNKNOWN,
    UnitChanged,
    UnitEnded,
    UnitEvent,
    UnitSnapshot,
    UnitStarted,
    explain_result,
)
from llamactl.tasks import TaskSet

START_S = 60.0
"""For a start, until systemd has taken it; D-Bus may come and go, and a slice that stops ends first."""
LISTING_TIMEOUT_S = 30.0
LOOK_S = 5.0
"""For looking at files; a file system that hangs must not keep an end from being told."""

_log = get_logger()


class Units:
    """All model and measure units of this supervisor.

    `on_found(run)` is called for a run that somebody else has started, `on_ended(run, failure)` once for each run,
    `on_failure` for an error that nothing else tells of.
    """

    def __init__(
        self,
        paths: Paths,
        on_found: Callable[[Run], None],
        on_ended: Callable[[Run, LoadFailure | None], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._paths = paths
        self._on_found = on_found
        self._on_ended = on_ended
        self._runs: dict[tuple[Role, str], Run] = {}
        self._measure_starts = 0
        self._failed: set[str] = set()
        """Slugs of model units that systemd keeps, failed, until they are reset. Measure units it never keeps."""
        self._strangers: set[str] = set()
        """Units of our names that somebody else has started, and that are being looked at."""
        self._restarted: set[str] = set()
        """Of these, those whose last run is not done with: they are looked at when it is."""
        self._tasks = TaskSet(on_failure)
        self.installation = Installation()
        self.corrections = 0
        """How often what is known here was not what systemd says."""
        self.manager = Manager(self._handle_unit_event, self._handle_lost, on_failure=on_failure)
        self.settings = GlobalSettings()

    async def open(self) -> list[Run]:
        """Connect to systemd; the model units that run already. Measure units of a predecessor are stopped. Raises
        ManagerError.
        """
        await self.manager.open()
        found: list[Run] = []
        for snapshot in await self.manager.list_units():
            run = adopt_run(snapshot)
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
            async with asyncio.timeout(START_S):
                while not await self._try_start(run, properties):
                    pass
            if run.stopping and not run.ended:  # a stop that came while the start was on its way found no unit
                await self._stop(run)
        except (ManagerError, TimeoutError) as error:
            lost = isinstance(error, TimeoutError) or error.is_unreachable
            reason = "systemd could not be reached" if isinstance(error, TimeoutError) else str(error)
            message = f"cannot start {run.unit}: {reason}"
            self._end(run, LoadFailure(result=UNREACHABLE if lost else NOT_STARTED, exit_code=0, message=message))
        except (LlamactlError, OSError, ValueError) as error:
            self._end(run, LoadFailure(result=NOT_STARTED, exit_code=0, message=f"cannot start {run.unit}: {error}"))

    async def _try_start(self, run: Run, properties: dict[str, Any]) -> bool:
        """Whether it is done with: started, or not wanted any longer. False: something has come between, try again."""
        slice_jobs = self.manager.slice_jobs
        if not self.installation.is_whole():
            _log.warning(JournalEvent.INSTALLATION_AWAITED, unit=run.unit, reason="its own files are being replaced")
            await self.installation.wait_whole()
        run.stamp = self.installation.stamp
        try:
            await self.manager.free_name(run.unit)
            if run.role is Role.MODEL:
                self._failed.discard(run.slug)
            if run.stopping:  # a stop that came before there was a unit
                self._end(run, None)
                return True
            await self.manager.start_transient(run.unit, properties, lambda: self._handle_begun(run))
            return True
        except ManagerError as error:
            if error.is_destructive:  # its slice is being stopped
                await self.manager.wait_slice_job(slice_jobs)
                return False
            if not (error.is_lost or error.is_running or error.exists):
                raise
        # The request may have reached systemd although the reply was lost; or somebody else has started the unit.
        snapshot = await self._find_snapshot(run.unit)
        if snapshot is None or not snapshot.has_run:
            return False
        if snapshot.environment.get(variables.GENERATION) == run.generation:
            self._handle_begun(run)
            if snapshot.ended:
                self._handle_unit_event(snapshot.make_end())
            return True
        if not snapshot.ended:
            _log.warning(JournalEvent.UNIT_STOPPED, unit=run.unit, reason="its model is being loaded by another start")
            await self.manager.stop_unit(run.unit)
        return False

    def _handle_begun(self, run: Run) -> None:
        run.begun = True

    async def _find_snapshot(self, unit: str) -> UnitSnapshot | None:
        return next((snapshot for snapshot in await self.manager.list_units() if snapshot.unit == unit), None)

    async def _stop(self, run: Run) -> None:
        while not run.ended:
            try:
                await self.manager.stop_unit(run.unit)
            except ManagerError as error:
                if error.is_lost:  # the next call waits for the connection; to ask twice changes nothing
                    continue
                _log.error(JournalEvent.STOP_FAILED, model=run.settings.name, unit=run.unit, reason=str(error))
            return

    # --- what nobody here has started ---

    def _look_at_stranger(self, unit: str) -> None:
        """A unit under a name of ours is running, and nobody here knows why."""
        if unit not in self._strangers:
            self._strangers.add(unit)
            self._tasks.spawn(self._take_in(unit))

    async def _take_in(self, unit: str) -> None:
        """Adopt it where it is a model's, else stop it."""
        try:
            snapshot = await self._find_snapshot(unit)
            if snapshot is None or snapshot.active_state not in ("active", "activating", "reloading"):
                return
            if (run := self._runs.get((snapshot.role, snapshot.slug))) is not None:
                if run.over:  # its last run is not done with
                    self._restarted.add(unit)
                return
            run = adopt_run(snapshot) if snapshot.role is Role.MODEL else None
            if run is None or run.slug != format_slug(run.settings.name):
                reason = "nobody here has started it, and it does not say which model it is"
                _log.warning(JournalEvent.UNIT_STOPPED, unit=unit, reason=reason)
                await self.manager.stop_unit(unit)
                return
            self._failed.discard(run.slug)
            self._runs[run.role, run.slug] = run
            self._on_found(run)
        except ManagerError as error:
            _log.warning(JournalEvent.UNIT_IGNORED, unit=unit, reason=f"cannot look at it: {error}")
        finally:
            self._strangers.discard(unit)

    async def compare(self) -> None:
        """Correct what is known here by what systemd says; costs one call where they agree."""
        try:
            states = await self.manager.list_states()
            contradictions = find_contradictions(self._runs.values(), states)
            if not contradictions:
                return
            await self.manager.list_units()  # what is news to the tracker comes as events
        except ManagerError as error:
            _log.debug(JournalEvent.UNITS_NOT_COMPARED, reason=str(error))
            return
        for unit in contradictions:
            run = self._run_of(unit)
            if run is None and (known := parse_unit(unit)) is not None and known not in self._runs:
                self.count_correction(unit, "it runs, and nobody here has started it")
                self._look_at_stranger(unit)
            elif run is not None and unit not in states:
                self.count_correction(unit, "it has ended, and nobody here has heard of it")
                self._handle_unit_event(UnitEnded(unit, RESULT_UNKNOWN, 0, 0, "", True))

    def count_correction(self, unit: str, reason: str) -> None:
        """What was known of this unit is not so, for this reason."""
        self.corrections += 1
        _log.warning(JournalEvent.STATE_CORRECTED, unit=unit, reason=reason)

    # --- what happens to units ---

    def _handle_unit_event(self, event: UnitEvent) -> None:
        run = self._run_of(event.unit)
        match event:
            case UnitStarted() | UnitChanged() if run is None:
                self._look_at_stranger(event.unit)
            case UnitStarted() if run is not None:
                run.pid = event.main_pid
            case UnitEnded() if run is not None and run.begun:
                run.over = True
                self._tasks.spawn(self._report_end(run, event))

    def _handle_lost(self, reason: str) -> None:
        _log.error(JournalEvent.SYSTEMD_CONNECTION_LOST, reason=reason)

    def _run_of(self, unit: str) -> Run | None:
        return next((run for run in self._runs.values() if run.unit == unit and not run.over), None)

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
        unheard = event.result == "exit-code" and not (event.started or run.pid)
        if unheard and run.stamp and self.installation.stamp != run.stamp:
            message = "llamactl's own files were replaced while it was started"
            self._end(run, LoadFailure(result=INSTALLING, exit_code=event.exit_code, message=message))
            return
        message = run.error or await _find_last_log_lines(run) or event.status_text
        # What systemd or the kernel did to it is the reason; its last lines may be about something else.
        if done_to_it := explain_result(event.result, event.exit_code):
            source = "it said" if run.error else "its last lines"
            message = f"{done_to_it}; {source}: {message}" if message else done_to_it
        elif unreadable := await _explain_unreadable(self._paths, run):
            message = f"{message}; {unreadable}" if message else unreadable
        self._end(run, LoadFailure(result=event.result, exit_code=event.exit_code, message=message))

    def _end(self, run: Run, failure: LoadFailure | None) -> None:
        if run.ended:
            return
        run.ended = True
        run.pid = 0
        if self._runs.get((run.role, run.slug)) is run:
            del self._runs[run.role, run.slug]
        self._on_ended(run, failure)
        if run.unit in self._restarted:
            self._restarted.discard(run.unit)
            self._look_at_stranger(run.unit)


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


async def _explain_unreadable(paths: Paths, run: Run) -> str:
    """What keeps the files of a run that has failed from it: nobody else knows the cure."""
    if run.is_listing:
        return ""
    try:
        return await asyncio.wait_for(asyncio.to_thread(explain_unreadable, paths, run.settings), LOOK_S)
    except OSError as error:  # TimeoutError is one
        _log.debug(JournalEvent.FILES_NOT_LOOKED_AT, model=run.settings.name, reason=str(error))
        return ""
