"""Which events follow from what systemd signals about our units?

Pure: signals and lists in, UnitEvents out. The rule: a run ends exactly once, when its state is final and no job is
queued. The traps:
  * the first PropertiesChanged after a start says inactive, with the start job still set;
  * a daemon-reload sends UnitRemoved for running units, so the caller says with each removal whether the unit is
    loaded nonetheless;
  * properties of the service come just before those of the unit, which carry the time of the change: only then are
    they taken over;
  * signals sent before a list was taken may be delivered after it, so what is older than what is known is dropped;
  * a unit may end and be collected while the connection is down: its end is told with the result "unknown".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llamactl.systemd.unit_state import (
    RESULT_UNKNOWN,
    UnitChanged,
    UnitEnded,
    UnitEvent,
    UnitGone,
    UnitSnapshot,
    UnitStarted,
)

SERVICE_INTERFACE = "org.freedesktop.systemd1.Service"
UNIT_INTERFACE = "org.freedesktop.systemd1.Unit"

# Which properties matter, and what they are called here.
_FIELDS = {
    "ActiveState": "active_state",
    "SubState": "sub_state",
    "Job": "job",
    "StateChangeTimestampMonotonic": "state_change_us",
    "ActiveEnterTimestampMonotonic": "active_enter_us",
    "Result": "result",
    "ExecMainCode": "exit_kind",
    "ExecMainStatus": "exit_code",
    "MainPID": "main_pid",
    "StatusText": "status_text",
}
TRACKED_PROPERTIES = frozenset(_FIELDS)

_ENDED = ("inactive", "failed")
_ACTIVE = ("active", "reloading", "refreshing")


@dataclass(frozen=True)
class _Facts:
    """What is known of a unit's present run."""

    active_state: str = ""
    sub_state: str = ""
    job: int = 0
    state_change_us: int = 0
    active_enter_us: int = 0
    result: str = ""
    exit_kind: int = 0
    exit_code: int = 0
    main_pid: int = 0
    status_text: str = ""

    @property
    def shown(self) -> tuple[str, str, int, str]:
        return self.active_state, self.sub_state, self.main_pid, self.status_text


@dataclass
class _Run:
    """One run of a unit, with what has been told of it."""

    facts: _Facts
    started: bool = False
    ended: bool = False


class Tracker:
    """The runs of our units. Feed it in the order in which the connection delivered."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._service_part: dict[str, dict[str, Any]] = {}
        self._listed_us = 0

    def knows(self, unit: str) -> bool:
        """Whether the unit's name is taken, as far as the signals say."""
        return unit in self._runs

    def handle_begun(self, unit: str) -> list[UnitEvent]:
        """systemd has taken our start: a new run begins, and an old one of that name is gone, said or not."""
        events = self._end(unit) if unit in self._runs else []
        self._runs[unit] = _Run(_Facts())
        self._service_part.pop(unit, None)
        return events

    def handle_properties(self, unit: str, interface: str, properties: Mapping[str, Any]) -> list[UnitEvent]:
        """PropertiesChanged of one interface of one unit."""
        changed = {_FIELDS[name]: value for name, value in properties.items() if name in _FIELDS}
        if interface == SERVICE_INTERFACE:
            self._service_part[unit] = changed
            return []
        if interface != UNIT_INTERFACE or "active_state" not in changed:
            return []
        changed = self._service_part.pop(unit, {}) | changed
        run = self._runs.get(unit)
        moment_us = changed.get("state_change_us", 0)
        if run is None or run.ended:
            # A run that is not ours to start (systemctl start), or news of a run whose end has been told.
            known_us = max(self._listed_us, run.facts.state_change_us if run else 0)
            if moment_us < known_us or changed["active_state"] in _ENDED:
                return []
            self._runs[unit] = run = _Run(_Facts())
        elif moment_us < run.facts.state_change_us:
            return []
        return self._apply(unit, run, replace(run.facts, **changed))

    def handle_removed(self, unit: str, loaded: bool) -> list[UnitEvent]:
        """UnitRemoved; `loaded` says whether systemd knows the unit when asked after the signal."""
        if loaded or unit not in self._runs:
            return []
        return self._end(unit)

    def handle_list(self, snapshots: Iterable[UnitSnapshot], taken_us: int) -> list[UnitEvent]:
        """All our units, read at `taken_us` (CLOCK_MONOTONIC): tells the differences to what was known."""
        events: list[UnitEvent] = []
        found = {snapshot.unit: snapshot for snapshot in snapshots}
        for unit in [unit for unit in self._runs if unit not in found]:
            events += self._end(unit)
        for unit, snapshot in found.items():
            events += self._handle_snapshot(unit, snapshot)
        self._listed_us = max(self._listed_us, taken_us)
        return events

    def _handle_snapshot(self, unit: str, snapshot: UnitSnapshot) -> list[UnitEvent]:
        facts = _Facts(**{name: getattr(snapshot, name) for name in _FIELDS.values()})
        events: list[UnitEvent] = []
        run = self._runs.get(unit)
        if run is not None and run.facts.active_enter_us not in (0, facts.active_enter_us):
            # Ended and started again unseen: the old run's end is lost, the new one begins here.
            events += self._end(unit)
            run = None
        if run is not None and run.ended:
            if snapshot.ended:
                return events
            run = None
        if run is None:
            self._runs[unit] = run = _Run(_Facts())
        return events + self._apply(unit, run, facts)

    def _apply(self, unit: str, run: _Run, facts: _Facts) -> list[UnitEvent]:
        before, run.facts = run.facts, facts
        events: list[UnitEvent] = []
        ended = facts.active_state in _ENDED
        if ended and facts.job:
            return []  # just loaded, its start job is still to come
        if not run.started and facts.active_state in _ACTIVE:
            run.started = True
            events.append(UnitStarted(unit, facts.main_pid))
        elif ended:
            run.ended = True
            run.started = run.started or facts.active_enter_us > 0
            events.append(
                UnitEnded(unit, facts.result, facts.exit_code, facts.exit_kind, facts.status_text, run.started)
            )
        elif facts.shown != before.shown:
            events.append(UnitChanged(unit, *facts.shown))
        return events

    def _end(self, unit: str) -> list[UnitEvent]:
        """The unit is not there any more."""
        run = self._runs.pop(unit)
        self._service_part.pop(unit, None)
        events: list[UnitEvent] = []
        if not run.ended:
            events.append(UnitEnded(unit, RESULT_UNKNOWN, 0, 0, run.facts.status_text, run.started))
        events.append(UnitGone(unit))
        return events
