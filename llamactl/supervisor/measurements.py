"""How does the scheduler's request for a measurement become figures: from the cache, or from a measure child?

The scheduler wants one measurement at a time. Where the cache may have it, the devices that are there now must be
known first; a child that only lists them tells that once for all models, so that a start with models that have not
changed costs one child at most. Figures from the cache are answered like a child's, marked as such. Another listing
is made when the scheduler wants devices read again.

What a measured model is filed under is looked up before its child starts: a file that is replaced meanwhile leaves
an entry that nothing asks for.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from llamactl.journal_events import JournalEvent
from llamactl.names import Role, format_slug
from llamactl.paths import Paths
from llamactl.protocol.report_socket import ChildState, Report
from llamactl.protocol.values import DeviceList, LoadFailure, Row
from llamactl.sched import effects, events
from llamactl.sched.breakdowns import get_rpc_server, hides_devices
from llamactl.settings import Config
from llamactl.supervisor.children import Child
from llamactl.supervisor.drm import acquire_vram, match_vram
from llamactl.supervisor.file_looks import LOOK_S, format_files
from llamactl.supervisor.measurement_cache import (
    Entry,
    KeyParts,
    MeasurementCache,
    acquire_key_parts,
    format_key,
    match_devices,
)
from llamactl.supervisor.run import INSTALLING, NOT_STARTED, STOPPED, UNREACHABLE, Run
from llamactl.supervisor.units import Units
from llamactl.systemd.journal import get_logger
from llamactl.tasks import TaskSet

LISTING_S = 60.0
"""For how long a listing of devices vouches for cached figures."""
VRAM_S = 0.2
"""The kernel's count is not read again sooner."""

_log = get_logger()


class _Stage(Enum):
    """Where a wanted measurement is."""

    LOOK_UP = auto()
    LISTING = auto()
    CHILD = auto()


@dataclass
class _Wanted:
    """The measurement that the scheduler waits for."""

    effect: effects.StartMeasure
    stage: _Stage = _Stage.LOOK_UP
    parts: KeyParts | None = None
    entry: Entry | None = None
    """From the cache; counts if its devices are those that are there now."""


class Measurements:
    """Measure children, the listing of devices, and the cache. `on_failure`: as for units."""

    def __init__(
        self,
        paths: Paths,
        units: Units,
        dispatch: Callable[[events.Event], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._units = units
        self._dispatch = dispatch
        self._cache = MeasurementCache(paths.cache_dir / "measurements.json")
        self._wanted: _Wanted | None = None
        self._devices: dict[str, Row] = {}
        self._ids: dict[str, str] = {}
        self._listed_s: float | None = None
        self._vram_s = 0.0
        self._rpc: tuple[str, ...] = ()
        self._busy: frozenset[str] = frozenset()
        self._is_listing = False
        self._tasks = TaskSet(on_failure)

    def load(self) -> None:
        """Read the cache from disk; blocks."""
        self._cache.load()

    def set_config(self, config: Config) -> None:
        """Listings ask the RPC servers of all these models."""
        self._rpc = tuple(dict.fromkeys(server for model in config.models.values() for server in model.rpc))

    def close(self) -> None:
        """Look nothing up any more; measure units end with their supervisor's stop."""
        self._tasks.cancel()

    # --- what the scheduler wants ---

    def start(self, effect: effects.StartMeasure) -> None:
        """Answer from the cache where that holds, else by a child."""
        self._wanted = _Wanted(effect)
        self._tasks.spawn(self._look_up(self._wanted))

    def stop(self, model: str) -> None:
        """The figures of this model are not wanted any longer; answered all the same."""
        wanted = self._wanted
        if wanted is None or wanted.effect.settings.name != model:
            return
        if wanted.stage is _Stage.CHILD:
            self._units.stop(Role.MEASURE, format_slug(model))
        else:
            self._wanted = None
            self._dispatch(events.MeasureEnded(model))

    def read_devices(self, effect: effects.ReadDevices) -> None:
        """Have a child list devices: only what is free where all those named are known, else all."""
        known = all(name in self._ids for name in effect.names)
        self._list_devices({name: self._ids[name] for name in effect.names} if known else {})

    def _list_devices(self, ids: dict[str, str]) -> None:
        if not self._is_listing:
            self._is_listing = True
            self._units.start_listing(self._rpc, ids)

    def read_vram(self) -> events.DevicesRead | None:
        """What the kernel knows of devices at no cost, to be told before something is decided; None: nothing new."""
        now = time.monotonic()
        if not self._ids or now - self._vram_s < VRAM_S:
            return None
        self._vram_s = now
        rows = match_vram(self._devices, self._ids, acquire_vram())
        return events.DevicesRead(rows, cheap=True) if rows else None

    # --- the way to an answer ---

    async def _look_up(self, wanted: _Wanted) -> None:
        effect, since_s = wanted.effect, time.monotonic()
        try:
            look = asyncio.to_thread(acquire_key_parts, effect.settings, effect.extra_bufts)
            wanted.parts = await asyncio.wait_for(look, LOOK_S)
        except OSError as error:  # TimeoutError is one
            _log.debug(JournalEvent.MEASUREMENT_NOT_LOOKED_UP, model=effect.settings.name, reason=str(error))
        if self._wanted is not wanted:  # stopped meanwhile
            return
        files = format_files(wanted.parts.files) if wanted.parts is not None else ""
        self._dispatch(events.FilesSeen(effect.settings.name, files, since_s, measuring=True))
        if wanted.parts is not None and not effect.ignores_cache:
            wanted.entry = self._cache.find(format_key(wanted.parts))
        if wanted.entry is not None and not self._is_listed():
            wanted.stage = _Stage.LISTING
            self._list_devices({})
        else:
            self._answer(wanted)

    def _is_listed(self) -> bool:
        return self._listed_s is not None and time.monotonic() - self._listed_s < LISTING_S

    def _answer(self, wanted: _Wanted) -> None:
        """From the cache if that holds, else by a child."""
        entry, settings = wanted.entry, wanted.effect.settings
        if entry is not None and self._is_listed() and match_devices(entry, settings, self._devices, self._busy):
            self._wanted = None
            self._dispatch(events.MeasureReported(settings.name, entry.min, entry.max, entry.facts, cached=True))
            self._dispatch(events.MeasureEnded(settings.name))
        else:
            wanted.stage = _Stage.CHILD
            self._units.start_measure(wanted.effect)

    # --- what children say ---

    def handle_report(self, run: Run, child: Child, report: Report) -> None:
        """Pass on figures or a listing, and keep figures for the next start."""
        if report.state is not ChildState.MEASURED:
            return
        if report.listing is not None:
            run.reported = run.is_listing
            self._handle_listing(run, report.listing)
        if run.is_listing or report.min is None or report.max is None:
            return
        run.reported = True
        wanted = self._wanted
        if wanted is not None and wanted.parts is not None and wanted.parts.llama_cpp == child.llama_cpp:
            self._cache.store(format_key(wanted.parts), Entry(min=report.min, max=report.max, facts=report.facts))
        self._dispatch(events.MeasureReported(run.settings.name, report.min, report.max, report.facts))

    def _handle_listing(self, run: Run, listing: DeviceList) -> None:
        """`run`: of the child that has listed."""
        settings = run.settings
        complete = not listing.cheap and not hides_devices(settings)
        asked = tuple(server for server in settings.rpc if server not in listing.busy)
        if complete:
            seen = {row.name: row for row in listing.rows}
            # Behind servers that it was not told of nothing is known.
            unseen = {
                name: row
                for name, row in self._devices.items()
                if name not in seen and get_rpc_server(name) not in ("", *asked)
            }
            self._devices, self._ids = seen | unseen, listing.ids
            if set(self._rpc) <= set(settings.rpc):
                self._listed_s, self._busy = time.monotonic(), frozenset(listing.busy)
        by_model = not run.is_listing
        self._dispatch(events.DevicesRead(listing.rows, complete, asked, listing.cheap, by_model))

    def handle_ended(self, run: Run, failure: LoadFailure | None) -> None:
        """A measure child is gone; whoever waited for its listing goes on."""
        error = "" if failure is None else format_measure_error(failure)
        wanted = self._wanted
        if not run.is_listing:
            self._wanted = None
            untried = failure is not None and failure.result in (INSTALLING, NOT_STARTED, STOPPED, UNREACHABLE)
            self._dispatch(events.MeasureEnded(run.settings.name, error, untried))
            return
        self._is_listing = False
        self._dispatch(events.DevicesReadEnded(error))
        if wanted is not None and wanted.stage is _Stage.LISTING:
            self._answer(wanted)


def format_measure_error(failure: LoadFailure) -> str:
    """One line of why a measure child failed."""
    if failure.result == "timeout":
        return "took too long and was killed"
    how = f"{failure.result} {failure.exit_code}" if failure.exit_code else failure.result
    return f"{failure.message} ({how})" if failure.message else how
