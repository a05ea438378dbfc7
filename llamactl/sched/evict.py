"""Which instances must go so that a model can be loaded, and why does each other one stay?

`choose_victims` is a function of one snapshot. A victim must be able to go (ready or asleep, idle, not pinned, not
wanted, its report connection up) and it must help: hold memory on a device that is short, or a slot where `max_loaded`
is what is exceeded. The walk takes the lowest priority first, then the least recently used, until it fits; then it
spares, most recently used first, each one that turned out not to be needed. If it cannot fit that way nothing is
stopped at all: memory that nobody gets is the worst of both.

On a device where the model would not fit even alone, `short` means that anything of ours that can go is still there:
fitting then gets all there is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec


class VictimVerdict(StrEnum):
    """Why an instance goes or stays, in the words of the journal."""

    CHOSEN = "chosen"
    NOT_NEEDED = "not needed"
    NO_HELP = "holds nothing where memory is short"
    LEAVING = "is stopping already"
    PINNED = "pinned"
    LOADING = "is loading"
    FRESH = "was loaded only just now"
    SILENT = "its report connection is down"
    DRAINING = "is finishing its requests"
    BUSY = "serves a request"
    WANTED = "a request waits for it"


class Outcome(StrEnum):
    """What a plan comes to."""

    FITS = "fits"
    EVICT = "evict"
    WAIT = "wait"
    PINNED = "pinned"


class Candidate(msgspec.Struct, frozen=True):
    """One instance, as the rule sees it."""

    model: str
    holds: Mapping[str, int] = {}
    priority: int = 0
    last_used_s: float = 0.0
    busy_since_s: float = 0.0
    loading: bool = False
    busy: bool = False
    fresh: bool = False
    """It has been ready for less than `min_resident`."""
    wanted: bool = False
    pinned: bool = False
    silent: bool = False
    leaving: bool = False
    """Its stop cannot be called off any more."""
    draining: bool = False
    """It goes when its running requests have ended, which may take long."""
    recalled: bool = False
    """It was chosen before and its leases are being recalled; that can still be called off."""
    goes_first: bool = False
    """It is no longer in the configuration."""


@dataclass(frozen=True)
class Demand:
    """The question: needs and limits in bytes per account. `max_loaded` 0: any number of instances."""

    needs: Mapping[str, int]
    capacities: Mapping[str, int]
    candidates: tuple[Candidate, ...] = ()
    max_loaded: int = 0


@dataclass(frozen=True)
class Plan:
    """The answer. `victims` contains those that were recalled before and are still needed."""

    outcome: Outcome
    victims: tuple[str, ...] = ()
    waiting_for: tuple[str, ...] = ()
    """Instances that stand in the way and cannot go now; under PINNED the pinned ones."""
    hopeless: Mapping[str, int] = field(default_factory=dict)
    """Account -> bytes missing even with all of ours gone."""
    shortages: Mapping[str, int] = field(default_factory=dict)
    """Account -> bytes missing now."""
    slots_short: int = 0
    reasons: Mapping[str, VictimVerdict] = field(default_factory=dict)
    frees: int = 0
    """Bytes that the victims hold on what is short."""

    @property
    def is_under_way(self) -> bool:
        """Nobody else has to go: those that stop already make the room."""
        waited = [self.reasons.get(model) for model in self.waiting_for]
        return self.outcome is Outcome.WAIT and bool(waited) and all(why is VictimVerdict.LEAVING for why in waited)


class _Space:
    """Running sums: what is short once some candidates are thought away."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._needs = {name: size for name, size in demand.needs.items() if size > 0 and name in demand.capacities}
        self.hopeless = {
            name: s - demand.capacities[name] for name, s in self._needs.items() if s > demand.capacities[name]
        }
        self._held = dict.fromkeys(self._needs, 0)
        self._movable = dict.fromkeys(self._needs, 0)
        self._count = 0
        for candidate in demand.candidates:
            self.put_back(candidate)

    def put_back(self, candidate: Candidate) -> None:
        self._move(candidate, 1)

    def free(self, candidate: Candidate) -> None:
        self._move(candidate, -1)

    def _move(self, candidate: Candidate, sign: int) -> None:
        self._count += sign
        for name in self._needs:
            size = candidate.holds.get(name, 0)
            self._held[name] += sign * size
            if size > 0 and (not candidate.pinned or candidate.leaving):
                self._movable[name] += sign

    @property
    def slots_short(self) -> int:
        return max(0, self._count + 1 - self._demand.max_loaded) if self._demand.max_loaded else 0

    def list_short(self) -> set[str]:
        return {
            name
            for name, need in self._needs.items()
            if (
                self._movable[name] > 0
                if name in self.hopeless
                else need + self._held[name] > self._demand.capacities[name]
            )
        }

    def is_short(self) -> bool:
        return self.slots_short > 0 or bool(self.list_short())

    def measure_shortages(self) -> dict[str, int]:
        missing = {name: need + self._held[name] - self._demand.capacities[name] for name, need in self._needs.items()}
        return {name: size for name, size in missing.items() if size > 0}

    def is_helped_by(self, candidate: Candidate) -> bool:
        return bool(self.list_helpful((candidate,)))

    def list_helpful(self, candidates: Iterable[Candidate]) -> set[str]:
        """Those that hold something of what is short."""
        short, slots_short = self.list_short(), self.slots_short > 0
        return {c.model for c in candidates if slots_short or any(c.holds.get(name, 0) > 0 for name in short)}


def judge_candidate(candidate: Candidate) -> VictimVerdict | None:
    """Why an instance cannot be a victim now; None when it can."""
    if candidate.leaving:
        return VictimVerdict.LEAVING
    if candidate.pinned:
        return VictimVerdict.PINNED
    if candidate.loading:
        return VictimVerdict.LOADING
    if candidate.silent:
        return VictimVerdict.SILENT
    if candidate.draining:
        return VictimVerdict.DRAINING
    if candidate.fresh and not candidate.recalled:
        return VictimVerdict.FRESH
    if candidate.busy:
        return VictimVerdict.BUSY
    if candidate.wanted and not candidate.recalled:
        return VictimVerdict.WANTED
    return None


def _order_victims(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda c: (not c.recalled, not c.goes_first, c.priority, c.last_used_s, c.model))


def choose_victims(demand: Demand) -> Plan:
    """What to do so that the demand fits.

    1. Nothing is short: it fits.
    2. Those that stop already make the room: wait for them.
    3. Of those that may go, in order, each that helps is a victim until it fits.
    4. The last of them first, each is spared that turns out not to be needed.
    5. It would fit if those went that cannot go now: wait for them, and stop nothing.
    6. Only pinned ones are left that could go.
    """
    space = _Space(demand)
    shortages, slots_short = space.measure_shortages(), space.slots_short
    judged = {candidate.model: judge_candidate(candidate) for candidate in demand.candidates}
    helpful = space.list_helpful(demand.candidates)
    reasons = {
        model: why or (VictimVerdict.NOT_NEEDED if model in helpful else VictimVerdict.NO_HELP)
        for model, why in sorted(judged.items())
    }

    def plan(outcome: Outcome, victims: tuple[str, ...] = (), waiting_for: tuple[str, ...] = ()) -> Plan:
        chosen = {**reasons, **dict.fromkeys(victims, VictimVerdict.CHOSEN)}
        holds = [candidate.holds for candidate in demand.candidates if candidate.model in victims]
        frees = sum(held.get(name, 0) for held in holds for name in shortages)
        return Plan(outcome, victims, waiting_for, space.hopeless, shortages, slots_short, chosen, frees)

    if not space.is_short():  # 1
        return plan(Outcome.FITS)
    leaving = [candidate for candidate in demand.candidates if judged[candidate.model] is VictimVerdict.LEAVING]
    leaving_names = tuple(sorted(candidate.model for candidate in leaving if candidate.model in helpful))
    for candidate in leaving:
        space.free(candidate)
    if not space.is_short():  # 2
        return plan(Outcome.WAIT, (), leaving_names)

    victims: list[Candidate] = []
    for candidate in _order_victims(c for c in demand.candidates if judged[c.model] is None):  # 3
        if not space.is_short():
            break
        if space.is_helped_by(candidate):
            space.free(candidate)
            victims.append(candidate)
    if not space.is_short():
        for candidate in reversed(list(victims)):  # 4
            space.put_back(candidate)
            if space.is_short():
                space.free(candidate)
            else:
                victims.remove(candidate)
        return plan(Outcome.EVICT, tuple(candidate.model for candidate in victims), leaving_names)

    blocking = _order_blocking(
        c for c in demand.candidates if judged[c.model] not in (None, VictimVerdict.LEAVING, VictimVerdict.PINNED)
    )
    in_the_way = tuple(candidate.model for candidate in blocking if space.is_helped_by(candidate))
    for candidate in blocking:
        space.free(candidate)
    if not space.is_short():  # 5
        return plan(Outcome.WAIT, (), in_the_way or leaving_names)
    pinned = sorted(  # 6
        c.model for c in demand.candidates if judged[c.model] is VictimVerdict.PINNED and space.is_helped_by(c)
    )
    return plan(Outcome.PINNED, (), tuple(pinned))


def _order_blocking(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda c: (not c.draining, not c.busy, c.busy_since_s, c.last_used_s, c.model))


def choose_drains(demand: Demand) -> tuple[str, ...]:
    """Which busy instances to drain for a need that has waited too long: the fewest in the order of the start of their
    oldest request, so that with them and every idle one gone it fits. Those that drain already come first. Empty where
    draining does not help. One that was loaded only just now is not drained, and goes by itself if it is idle.
    """
    space = _Space(demand)
    judged = {candidate.model: judge_candidate(candidate) for candidate in demand.candidates}
    for candidate in demand.candidates:
        why = judged[candidate.model]
        if why in (None, VictimVerdict.LEAVING) or (why is VictimVerdict.FRESH and not candidate.busy):
            space.free(candidate)
    drains: list[str] = []
    for candidate in _order_blocking(
        c for c in demand.candidates if judged[c.model] in (VictimVerdict.BUSY, VictimVerdict.DRAINING)
    ):
        if space.is_short() and space.is_helped_by(candidate):
            space.free(candidate)
            drains.append(candidate.model)
    return tuple(drains)
