"""What is known of each model, of its instance, and of the leases on it?

Plain records; the rules that change them live beside. A lease belongs to one instance (one generation) and one holder
(one front's connection), and counts as busy from its grant, not from the first byte. `Lease.since_recall` is the trap
here: a front that is granted a lease while its answer to an earlier recall is still under way answers for the lease
that it had before; taken literally, that answer would lose the new one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from llamactl.protocol.control_socket import LeaseGone
from llamactl.protocol.values import Breakdown, Facts, LoadFailure, MemoryStatus, ModelMemory, Note, State
from llamactl.sched.breakdowns import HOST, strip_unmeasured, sum_per_account
from llamactl.sched.events import Holder, Waiter
from llamactl.sched.placement import Option
from llamactl.sched.states import check_transition
from llamactl.settings import ModelSettings

RECALL_S = 5.0
"""Silence for so long counts as busy; also after how long a refused stop is asked for again under a drain."""
MAX_BACKOFF_S = 60.0


class StopReason(StrEnum):
    """Why an instance is taken down, in the words of the journal."""

    EVICTED = "evicted"
    COMMAND = "by command"
    IDLE = "idle timeout"
    SLEEP = "put to sleep"
    REMOVED = "removed from the configuration"
    UNWANTED = "nobody waits for it any more"
    ASLEEP = "loaded again instead of woken: its settings or files have changed"
    BY_HAND = "stopped by hand"


@dataclass
class Lease:
    """The right of one holder to send requests to an instance."""

    busy: bool
    busy_since_s: float
    last_used_s: float = 0.0
    since_recall: int = 0
    """The last recall, of any model, before it was granted: answers to that one or an earlier one are not about it."""


@dataclass
class Takedown:
    """An instance on its way out: its leases are recalled, then it is asked to stop (`ordered`), then its state is
    `stopping`.
    """

    reason: StopReason
    drain: bool
    """Running requests end first, however long they take. Without, one that is busy calls the whole thing off."""
    for_model: str = ""
    unanswered: dict[Holder, float] = field(default_factory=dict)
    """Holders asked that have not answered -> when their silence counts as busy."""
    ordered: bool = False
    retry_s: float | None = None
    """Under a drain: when to ask an instance again that refused to stop."""

    @property
    def can_be_called_off(self) -> bool:
        """Whether the instance may stay after all: it goes for room, for idleness or to sleep, and was not ordered to
        yet.
        """
        return self.reason in (StopReason.EVICTED, StopReason.IDLE, StopReason.SLEEP) and not self.ordered


@dataclass
class Instance:
    """One start of a model's unit."""

    model: str
    generation: str
    settings: ModelSettings
    started_s: float
    extra_bufts: bool = True
    adopted: bool = False
    """Found running, not started by this supervisor."""
    connected: bool = False
    reported: bool = False
    placement: tuple[str, ...] = ()
    """Devices that were chosen for it; empty where its settings say."""
    claimed: frozenset[str] = frozenset()
    """Devices on which it may allocate while it loads."""
    uncharged: bool = False
    """It takes memory that nobody knows: no other load runs beside its own."""
    counted_as_external_on: set[str] = field(default_factory=set)
    """Devices that were calibrated while its charge was unknown, so that `external` there contains it."""
    stage: str = ""
    progress: float | None = None
    ready_since_s: float = 0.0
    effective: Breakdown | None = None
    """What it holds; while it sleeps, its residue."""
    awake: Breakdown | None = None
    """What it held when it was awake last."""
    sleep_ordered: bool = False
    """It was asked to sleep, and has neither refused nor said that it sleeps."""
    error: str = ""
    facts: Facts | None = None
    note: Note = field(default_factory=Note)
    last_used_s: float = 0.0
    sharers: int = 1
    """Models that share the processors, as it was told last; 0: nobody knows what it was told."""
    requests: int = 0
    """In flight at the instance as it last said. It says when all of them have ended, and not how they come and go:
    this is shown and decides nothing.
    """
    assumed_busy_until_s: float = 0.0
    """It refused to stop, or spoke of requests that no lease covers: it counts as busy until then, and can be asked
    again.
    """
    suspect_until_s: float = 0.0
    """A front found it gone: no grants until it proves that it lives, ends, or this time has come."""
    leases: dict[Holder, Lease] = field(default_factory=dict)
    takedown: Takedown | None = None
    unwanted: bool = False
    """Somebody has ordered its end."""
    unloaders: dict[Waiter, float] = field(default_factory=dict)
    """Who waits for its end, since when."""

    def make_lease_gone(self, reason: str) -> LeaseGone:
        """What holders of a lease on it are told when that is worth nothing any longer."""
        return LeaseGone(model=self.model, generation=self.generation, reason=reason)

    def count_busy(self) -> int:
        """How many leases are in use."""
        return sum([lease.busy for lease in self.leases.values()]) if self.leases else 0

    def forget_assumed_busy(self) -> None:
        """A front has told of its lease since the instance last said what it is doing."""
        if not self.count_busy():
            self.requests, self.assumed_busy_until_s = 0, 0.0

    def is_busy(self, now: float) -> bool:
        """Whether a lease is in use, or it was said to be at work a moment ago."""
        return self.count_busy() > 0 or now < self.assumed_busy_until_s

    def place(self, needs: Mapping[str, int]) -> dict[str, int]:
        """What a model needs, with all that it needs on devices on those that were chosen for it."""
        if len(self.placement) != 1:
            return dict(needs)
        placed = {self.placement[0]: sum(size for name, size in needs.items() if name != HOST)}
        return placed | {name: size for name, size in needs.items() if name == HOST}

    def get_busy_since(self) -> float:
        """Start of the oldest request that runs."""
        starts = [lease.busy_since_s for lease in self.leases.values() if lease.busy]
        return min(starts) if starts else self.ready_since_s

    @property
    def is_unknown(self) -> bool:
        """Found running, and it has not said yet what it does."""
        return self.adopted and not self.reported

    @property
    def is_granting(self) -> bool:
        """Whether new leases on it are granted: nothing takes it down, and nobody says that it is gone."""
        return self.takedown is None and not self.suspect_until_s and not self.sleep_ordered


@dataclass
class Model:
    """One model of the configuration, or one that runs and is no longer in it."""

    name: str
    settings: ModelSettings | None
    """As configured now; the instance has those that it was started with. None: invalid or removed."""
    invalid: str = ""
    removed: bool = False
    state: State = State.UNLOADED
    passed: list[State] = field(default_factory=list)
    """States that it has come to since somebody asked, in order; for those who are told each one."""
    stopped_from: State | None = None
    """What it was before it was stopping."""
    exit_code: int = 0
    """Of its unit's last end; the number of the signal where it died of one."""
    instance: Instance | None = None
    failure: LoadFailure | None = None
    failures: int = 0
    retry_at_s: float = 0.0
    memory: MemoryStatus = MemoryStatus.UNMEASURED
    min: Breakdown | None = None
    max: Breakdown | None = None
    facts: Facts | None = None
    needs_of: Breakdown | None = None
    needs: dict[str, int] | None = None
    """Bytes per account of `needs_of`, so that they are summed up once."""
    placement_options: tuple[ModelSettings, Mapping[str, int], tuple[str, ...], tuple[Option, ...]] | None = None
    """All ways to place it, with what they were made of."""
    learnt: dict[str, int] = field(default_factory=dict)
    """Bytes per account that it turned out to need at least when a load failed for lack of memory."""
    taken: dict[str, int] = field(default_factory=dict)
    """Bytes per account that its smallest form takes, where a load took more than was measured."""
    files: str | None = None
    """Which files it had when somebody looked last; empty: nobody could, None: nobody has."""
    files_seen_s: float = 0.0
    """When that look began."""
    is_looked_at: bool = False
    """Somebody looks at its files now."""
    retried: bool = False
    """Its load has failed for lack of memory and is tried once more."""
    tries_without_extra_bufts: bool = False
    """It has died in its warm-up as processors make it: its next load is tried without extra buffer types."""
    no_extra_bufts: bool = False
    """That has worked."""
    measure_error: str = ""
    measure_attempts: int = 0

    def change_state(self, state: State) -> None:
        """Raises IllegalTransition where the table does not have the change."""
        if state is not self.state:
            check_transition(self.name, self.state, state)
            self.stopped_from = self.state if state is State.STOPPING else None
            self.state = state
            self.passed.append(state)

    def get_settings(self) -> ModelSettings:
        """Settings that exist in any case where there is an instance: the configured ones, else the instance's."""
        settings = self.settings or (self.instance.settings if self.instance is not None else None)
        assert settings is not None, f"model {self.name!r} has neither settings nor an instance"
        return settings

    def get_needs(self) -> dict[str, int] | None:
        """Bytes per account that a load must find; None: nobody knows."""
        if self.needs_of is not self.min:
            self.needs_of, self.needs = self.min, sum_per_account(self.min) if self.min is not None else None
        if self.needs is None or not (self.learnt or self.taken):
            return self.needs
        needs = dict(self.needs)
        for known in (self.learnt, self.taken):
            needs |= {name: max(needs.get(name, 0), size) for name, size in known.items()}
        return needs

    def describe_memory(self) -> ModelMemory:
        """All that is known of its memory, as clients are told."""
        effective = self.instance.effective if self.instance is not None else None
        return ModelMemory(
            status=self.memory, error=self.measure_error, min=self.min, max=self.max, effective=effective
        )

    def forget_failure(self) -> None:
        """What failed, and what was taken, with other settings or files says nothing about these."""
        self.failure, self.failures, self.retry_at_s = None, 0, 0.0
        self.learnt, self.taken, self.retried = {}, {}, False
        self.tries_without_extra_bufts = self.no_extra_bufts = False
        if self.state is State.FAILED:
            self.change_state(State.UNLOADED)

    def has_other_files(self) -> bool:
        """Whether the instance is known to have been loaded from other files than are there now."""
        loaded = self.instance.note.files if self.instance is not None else ""
        return bool(loaded and self.files and loaded != self.files)

    def has_same_form(self) -> bool:
        """Whether the instance was started with the settings that count now, as far as memory is concerned."""
        instance, settings = self.instance, self.settings
        if instance is None or settings is None:
            return False
        if instance.placement:
            settings = msgspec.structs.replace(settings, devices=instance.placement)
        return strip_unmeasured(settings) == strip_unmeasured(instance.settings)

    def is_pinned(self) -> bool:
        """Whether it is no victim: as was ordered for its instance, else as configured."""
        if self.instance is not None and self.instance.note.pinned is not None:
            return self.instance.note.pinned
        return self.settings.pin if self.settings is not None else False

    def get_idle_timeout_s(self) -> float | None:
        """After how long without a request it is unloaded; None: never."""
        if self.instance is not None and self.instance.note.keep_alive_s is not None:
            kept_s = self.instance.note.keep_alive_s
            return kept_s if kept_s >= 0 else None
        return (self.settings.idle_timeout_s or None) if self.settings is not None else None

    def get_sleep_after_s(self) -> float | None:
        """After how long without a request it goes to sleep; None: never. Who asked for it to be kept alive wants it
        awake.
        """
        if self.settings is None or (self.instance is not None and self.instance.note.keep_alive_s is not None):
            return None
        return self.settings.sleep_after_s or None

    def get_idle_deadline(self) -> float | None:
        """When its idle time-out comes; None where it has none or is not idle."""
        return self._get_quiet_deadline(self.get_idle_timeout_s(), (State.READY, State.SLEEPING))

    def get_sleep_deadline(self) -> float | None:
        """When it shall go to sleep."""
        return self._get_quiet_deadline(self.get_sleep_after_s(), (State.READY,))

    def _get_quiet_deadline(self, timeout_s: float | None, states: tuple[State, ...]) -> float | None:
        instance = self.instance
        if timeout_s is None or instance is None or self.state not in states or self.is_pinned():
            return None
        if not instance.connected or instance.takedown is not None or instance.count_busy():
            return None
        return max(instance.last_used_s, instance.ready_since_s, instance.assumed_busy_until_s - timeout_s) + timeout_s
