"""What does the supervisor do with each thing that happens? It tells the scheduler, and carries out what the
scheduler wants.

All state that decisions need is the scheduler's; this file owns only connections, units and timers. `dispatch` is the
one way in (dispatcher.py). Order at the start matters: subscribe and list units first, then bind the sockets, so that
every child that connects belongs to a unit that is known; and READY only when all of it stands.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.journal_events import JournalEvent
from llamactl.names import Role, format_slug, format_unit
from llamactl.paths import Paths
from llamactl.protocol.control_socket import (
    MachineStatus,
    ModelList,
    ModelsChanged,
    ReloadResult,
    Welcome,
)
from llamactl.protocol.descriptions import LoadPlan
from llamactl.protocol.report_socket import Report
from llamactl.protocol.values import LoadFailure
from llamactl.sched import events
from llamactl.sched.scheduler import Scheduler
from llamactl.settings import ModelSettings
from llamactl.supervisor.children import Child, Children
from llamactl.supervisor.configuration import Configuration, describe_reload, log_reload
from llamactl.supervisor.control_server import Control
from llamactl.supervisor.dispatcher import Dispatcher, Sender
from llamactl.supervisor.effect_runner import EffectRunner
from llamactl.supervisor.file_looks import FileLooks
from llamactl.supervisor.host_memory import acquire_host_memory
from llamactl.supervisor.measurements import Measurements
from llamactl.supervisor.overview import Overview
from llamactl.supervisor.run import Run
from llamactl.supervisor.suspects import Suspects
from llamactl.supervisor.units import Units
from llamactl.supervisor.watchers import Watchers
from llamactl.systemd.journal import get_logger
from llamactl.systemd.notify import Notifier
from llamactl.systemd.unit_state import RESULT_UNKNOWN
from llamactl.tasks import TaskSet

RECOVERY_S = 5.0
COMPARE_S = 10.0
"""Between two looks at the states of all units: one call of systemd's."""
LOST = LoadFailure(result=RESULT_UNKNOWN, exit_code=0, message="its unit is gone, and nobody saw it end")
MAX_REASON = 200
"""Of an error that quotes what somebody sent."""

_log = get_logger()


class Supervisor:
    """The daemon. Lives in one event loop; `start` brings it up, `stop` ends it and leaves the instances running."""

    def __init__(self, paths: Paths, notifier: Notifier) -> None:
        self._paths = paths
        self._notifier = notifier
        self._scheduler = Scheduler()
        self._units = Units(paths, self._handle_found, self._handle_unit_ended, self.fail)
        self._measurements = Measurements(paths, self._units, self.dispatch, self.fail)
        self._files = FileLooks()
        self._children = Children(self._units.is_expected, self._handle_report, self._handle_disconnected)
        self._control = Control(self)
        self._configuration = Configuration(paths)
        self._suspects = Suspects(paths.suspects_file)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskSet(self.fail)
        self._runner = EffectRunner(
            paths,
            self._units,
            self._measurements,
            self._children,
            self._control,
            self._tasks,
            self.dispatch,
            self._look_at_files,
        )
        self._overview = Overview(
            self._scheduler, self._units, self._configuration, self._runner.counters, self._runner.history
        )
        self._watchers = Watchers(self._overview.list_statuses, self._control.tell)
        self._dispatcher = Dispatcher(
            self._scheduler,
            self._look_around,
            self._runner.run,
            lambda: self._watchers.touch(self._scheduler.pop_passed()),
            self._handle_settled,
            self.fail,
        )
        self._reloading = asyncio.Lock()
        self._status = ""
        self._settled = asyncio.Event()
        self._started = False
        """All units that run were found."""
        self._stopping = False
        """Nothing is decided any more: what ends from now on (connections, tasks) ends because this daemon does."""
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when the scheduler or a task has: the state can no longer be trusted, and a new supervisor finds all it
        needs in systemd.
        """

    # --- life ---

    async def start(self, admin_group: int | None, model_group: int | None) -> None:
        """Read the configuration, find what runs, listen. Raises ManagerError or OSError."""
        try:
            self._suspects.open()
        except OSError as error:
            _log.warning(JournalEvent.SUSPECTS_NOT_KEPT, reason=str(error))
        await self._read_configuration()
        await asyncio.to_thread(self._measurements.load)
        found = await self._units.open()
        self._configuration.keep_hidden(run.settings for run in found)
        self._apply_configuration()
        for run in found:
            self._handle_found(run)
        self._started = True
        await self._children.listen(self._paths.report_socket, model_group)
        await self._control.listen(self._paths.control_socket, admin_group)
        self.dispatch(events.RecoveryBegan(time.monotonic() + RECOVERY_S, 1 if found else 0))
        asyncio.get_running_loop().call_later(RECOVERY_S, self._settled.set)
        # So that a reload can tell which files were replaced since, also of models that wait to be measured.
        self._tasks.spawn(self._look_at_files(self._configuration.current.models.values()))
        self._tasks.spawn(self._compare())

    async def _compare(self) -> None:
        """See to it, now and then, that what is known here is what systemd says."""
        while True:
            await asyncio.sleep(COMPARE_S)
            await self._units.compare()
            for name, generation in self._scheduler.list_instances():
                run = self._units.find(Role.MODEL, format_slug(name))
                if run is None or run.generation != generation:
                    self._units.count_correction(format_unit(Role.MODEL, format_slug(name)), "it is not there")
                    self.dispatch(events.InstanceEnded(name, generation, LOST))

    async def stop(self) -> None:
        """End the daemon's own connections; instances, their streams and their loads go on. What clients waited for,
        their fronts ask the next supervisor.
        """
        self._stopping = True
        self._dispatcher.close()
        if self._timer is not None:
            self._timer.cancel()
        self._watchers.close()
        self._control.close()
        self._children.close()
        self._tasks.cancel()
        self._measurements.close()
        await self._units.close()

    async def reload(self) -> ReloadResult:
        """Read the configuration again and apply it. Models that run keep the settings with which they were started.

        Raises LlamactlError (internal): the configuration is as it was.
        """
        try:
            return await self._reload()
        except Exception as error:
            _log.error(JournalEvent.RELOAD_FAILED, reason=f"internal error: {type(error).__name__}", exc_info=error)
            raise LlamactlError(ErrorCode.INTERNAL, f"cannot reload: internal error: {type(error).__name__}") from error

    async def _reload(self) -> ReloadResult:
        async with self._reloading:
            before = self._configuration.current
            await self._read_configuration()
            self._apply_configuration()
            after = self._configuration.current
            self._control.tell_fronts(ModelsChanged(front=self._configuration.make_front_settings()))
            known = self._scheduler.list_files()
            await self._look_at_files(after.models.values())
            files, serving = self._scheduler.list_files(), self._scheduler.list_serving()
            result = describe_reload(before, after, known, files, serving, self._configuration.list_unenforced())
            log_reload(after, result)
            return result

    async def _read_configuration(self) -> None:
        await self._configuration.read()
        self._units.settings = self._configuration.current.settings
        self._measurements.set_config(self._configuration.current)

    def _apply_configuration(self) -> None:
        config = self._configuration.current
        self.dispatch(events.Configured(config))
        self._units.forget_failed(config.models)

    def fail(self, error: BaseException) -> None:
        """An error that nothing here can make good again: `broken` fails with it."""
        if not self._stopping and not self.broken.done():
            self.broken.set_exception(error)

    # --- events and effects ---

    def dispatch(self, event: events.Event) -> None:
        """Have the scheduler handle an event, and everything that follows from it at once."""
        self._dispatcher.dispatch(event)

    def blame(self, sender: Sender) -> AbstractContextManager[None]:
        """Errors in what is done within are the sender's: it is told of them, and nothing else suffers."""
        return self._dispatcher.blame(sender)

    def _handle_settled(self, acted: bool) -> None:
        self._arm_timer()
        if not self._settled.is_set() and self._started and not self._scheduler.list_unreported():
            self._settled.set()
        if acted:
            self._tell_status()

    def _look_around(self, event: events.Event) -> Iterator[events.Event]:
        """What is to be known before an event, which may start something: host memory, where it is a limit at all, and
        the memory of devices that the kernel counts.
        """
        if self._configuration.current.settings.host_margin_bytes is not None:
            try:
                yield events.HostRead(*acquire_host_memory())
            except (OSError, ValueError) as error:
                _log.warning(JournalEvent.HOST_MEMORY_UNKNOWN, reason=str(error))
        reading = None if isinstance(event, events.DevicesRead) else self._measurements.read_vram()
        if reading is not None:
            yield reading

    async def _look_at_files(self, models: Iterable[ModelSettings]) -> None:
        """Tell the scheduler which files these models have now."""
        for event in await self._files.look(models):
            self.dispatch(event)

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._scheduler.next_deadline()
        if deadline is not None:
            delay_s = max(0.0, deadline - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.dispatch, events.Tick())

    # --- children ---

    def _handle_report(self, child: Child, report: Report) -> None:
        run = self._units.find(child.role, child.slug)
        if run is None:
            return
        if self._suspects.is_guilty(run.unit, run.generation):
            self._condemn(run, child, "supervisors have died of its report, one after the other")
            return
        self._suspects.begin(run.unit, run.generation)
        with self.blame(
            lambda error: self._condemn(run, child, f"{type(error).__name__}: {error}"[:MAX_REASON], error)
        ):
            self._apply_report(run, child, report)
        self._suspects.end()

    def _condemn(self, run: Run, child: Child, reason: str, error: Exception | None = None) -> None:
        """A child whose report cannot be handled is not heard again, and its unit is stopped."""
        _log.error(
            JournalEvent.REPORT_NOT_HANDLED, model=run.settings.name, unit=run.unit, reason=reason, exc_info=error
        )
        self._units.condemn(run, f"the supervisor cannot handle its report ({reason})")
        child.connection.refuse("this report cannot be handled; the unit is stopped")

    def _apply_report(self, run: Run, child: Child, report: Report) -> None:
        run.pid = run.pid or child.pid
        if report.error:
            run.error = report.error
        if child.role is Role.MEASURE:
            self._measurements.handle_report(run, child, report)
            return
        self.dispatch(
            events.InstanceReported(
                model=run.settings.name,
                generation=run.generation,
                state=report.state,
                stage=report.stage,
                progress=report.progress,
                effective=report.effective,
                busy=report.busy,
                error=report.error,
                facts=report.facts,
                note=report.note,
            )
        )

    def _handle_disconnected(self, child: Child) -> None:
        run = self._units.find(child.role, child.slug)
        if run is not None and child.role is Role.MODEL:
            self.dispatch(events.InstanceDisconnected(run.settings.name, run.generation))

    def _handle_found(self, run: Run) -> None:
        _log.info(JournalEvent.INSTANCE_FOUND, model=run.settings.name, unit=run.unit, pid=run.pid)
        self.dispatch(events.InstanceFound(run.settings.name, run.generation, run.settings))

    def _handle_unit_ended(self, run: Run, failure: LoadFailure | None) -> None:
        if run.role is Role.MODEL:
            self.dispatch(events.InstanceEnded(run.settings.name, run.generation, failure))
        else:
            self._measurements.handle_ended(run, failure)

    # --- what clients see ---

    def welcome(self) -> Welcome:
        return self._overview.welcome()

    def is_settled(self) -> bool:
        """Whether every instance found at the start has said what it does, or had the time to."""
        return self._settled.is_set()

    async def settle(self) -> None:
        """Wait until `is_settled`."""
        await self._settled.wait()

    def list_models(self, name: str) -> ModelList:
        return self._overview.list_models(name)

    def machine_status(self) -> MachineStatus:
        return self._overview.machine_status()

    async def explain_load(self, name: str) -> LoadPlan:
        """What would happen if the model were loaded now, with the files that it has now. Raises LlamactlError
        (unknown_model).
        """
        config = self._configuration.current
        known = config.models.get(config.resolve(name) or "")
        if known is not None:
            await self._look_at_files([known])
        return self._overview.explain_load(name)

    def watch(self, holder: events.Holder) -> ModelList:
        """All models; `holder` is told of each change from now on."""
        return self._overview.make_list(self._watchers.add(holder))

    def unwatch(self, holder: events.Holder) -> None:
        self._watchers.remove(holder)

    def _tell_status(self) -> None:
        status = self._overview.format_status()
        if status != self._status:
            self._status = status
            self._notifier.status(status)
