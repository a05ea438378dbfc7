"""What is the scheduler's whole state, and which small steps change it?

One value that all rules share: each rule is a function over it, in the module named after its question. A rule never
waits and never calls back: what shall happen outside is appended to `effects`, what must be decided again is said to
`recheck`, and `handle` returns the one and settles the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from llamactl.journal_events import JournalEvent
from llamactl.protocol.control_socket import Done, Failure, LeaseGone, Progress, Recall, RecallCancelled
from llamactl.protocol.values import Stage, State
from llamactl.sched.effects import Effect, Notify, Record, Tell
from llamactl.sched.events import Holder, Waiter
from llamactl.sched.instances import Instance, Model
from llamactl.sched.ledger import Ledger
from llamactl.sched.queue import Entry, LoadQueue, MeasureQueue
from llamactl.sched.recheck import Agenda, Scope
from llamactl.settings import Config, GlobalSettings

PROGRESS_STEP = 0.01


@dataclass
class Recovery:
    """The time after a start in which not everything is known yet."""

    deadline_s: float
    fronts_expected: int
    fronts: set[Holder] = field(default_factory=set)


@dataclass
class Readings:
    """When each device's free memory was seen last, and whether it is being read now."""

    running: bool = False
    cheap: set[str] = field(default_factory=set)
    """Devices of which it can be read without a GPU context."""
    seen_s: dict[str, float] = field(default_factory=dict)
    listed_s: float | None = None
    """When all devices were listed last by a child that reads no model."""
    is_listed: bool = False
    """Somebody has listed all devices."""


class Core:
    """All that the scheduler knows."""

    def __init__(self) -> None:
        self.config = Config()
        self.names: dict[str, str] = {}
        """Name or alias -> own name, of everything in the configuration."""
        self.models: dict[str, Model] = {}
        self.running: dict[str, Model] = {}
        """Those with an instance."""
        self.agenda = Agenda()
        self.ledger = Ledger(on_change=lambda: self.recheck(Scope.ALL))
        self.queue = LoadQueue(on_remove=lambda: self.recheck(Scope.ALL))
        self.measuring = MeasureQueue()
        self.readings = Readings()
        self.configured = False
        self.started = False
        self.recovery: Recovery | None = None
        self.generations = 0
        self.recalls = 0
        self.overdue_s: float | None = None
        """When the head of the queue will have waited for too long; None where nothing that is busy keeps it."""
        self.head = ""
        """The first queued model that has to wait."""
        self.head_short: frozenset[str] | None = None
        """Accounts on which the head lacks memory, and "" for a place; None where something else keeps it."""
        self.effects: list[Effect] = []

    @property
    def settings(self) -> GlobalSettings:
        """Of the machine, as configured now."""
        return self.config.settings

    def recheck(self, scope: Scope, model: str = "") -> None:
        """These queued loads are to be decided again; `model` goes with Scope.NEW."""
        self.agenda.add(scope, model)

    # --- effects ---

    def emit(self, effect: Effect) -> None:
        """Have this done outside, after all that was emitted before."""
        self.effects.append(effect)

    def record(self, event: JournalEvent, model: str = "", level: str = "info", /, **fields: Any) -> None:
        """Have the journal say that this happened; what is left out of `fields` is not told."""
        self.effects.append(Record(event, model, level, fields))

    def tell_progress(self, waiter: Waiter, progress: Progress) -> None:
        """How far a request is; its `id` is filled in here."""
        self.emit(Tell(waiter, msgspec.structs.replace(progress, id=waiter[1])))

    def complete(self, waiter: Waiter, model: str, seconds: float = 0.0) -> None:
        """The load, unload or pin that `waiter` asked for is done."""
        self.emit(Tell(waiter, Done(id=waiter[1], model=model, seconds=seconds)))

    def refuse_all(self, waiters: list[Waiter], refusal: Failure) -> None:
        """The same refusal to each waiter; its `id` is filled in here."""
        for waiter in waiters:
            self.emit(Tell(waiter, msgspec.structs.replace(refusal, id=waiter[1])))

    def notify(self, holder: Holder, message: Recall | RecallCancelled | LeaseGone) -> None:
        """Tell a holder of a lease."""
        self.emit(Notify(holder, message))

    def set_stage(
        self,
        entry: Entry,
        stage: Stage,
        fraction: float | None = None,
        waiting_for: tuple[str, ...] = (),
        why: str = "",
    ) -> None:
        """Where an entry is, told to its waiters when it changes; not when only the figures in `why` do."""
        known = entry.fraction if entry.fraction is not None else -1.0
        moved = fraction is not None and (fraction >= 1.0 > known or abs(fraction - known) >= PROGRESS_STEP)
        busy, going = self._sort_waited_for(waiting_for)
        same = waiting_for == entry.waiting_for and busy == entry.busy and going == entry.going
        if stage is entry.stage and same and not moved:
            return
        entry.stage, entry.fraction, entry.waiting_for = stage, fraction, waiting_for
        entry.busy, entry.going, entry.why = busy, going, why
        for waiter in entry.waiters:
            self.tell_progress(waiter, entry.describe())

    def _sort_waited_for(self, names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those that serve requests, and those that are being unloaded."""
        busy, going = [], []
        for name in names:
            model = self.running.get(name)
            instance = model.instance if model is not None else None
            if model is None or instance is None:
                continue
            if model.state is not State.STOPPING and (instance.count_busy() or instance.requests):
                busy.append(name)
            elif model.state is State.STOPPING or instance.takedown is not None:
                going.append(name)
        return tuple(busy), tuple(going)

    # --- look-up ---

    def find(self, model: str, generation: str) -> tuple[Model, Instance] | None:
        """The model with the instance that a fact is about; None for late news."""
        known = self.running.get(model)
        if known is None or known.instance is None or known.instance.generation != generation:
            return None
        return known, known.instance

    def list_running(self) -> list[tuple[Model, Instance]]:
        """A list of its own, so that it can be gone through while instances end."""
        return [(model, model.instance) for model in self.running.values() if model.instance is not None]

    def list_unreported(self) -> list[str]:
        """Instances found at the start that have not reported yet."""
        return [model.name for model, instance in self.list_running() if instance.is_unknown]

    def is_in_the_way(self, model: str) -> bool:
        """Whether an instance's going would help the head of the queue."""
        short = self.head_short
        return short is not None and ("" in short or not short.isdisjoint(self.ledger.holds.get(model, ())))

    def is_unsettled(self, model: Model, account: str) -> bool:
        """Whether an instance's charge on an account and what it has allocated there may differ now."""
        instance = model.instance
        if instance is None:
            return False
        moving = model.state in (State.LOADING, State.STOPPING) or (
            instance.takedown is not None and instance.takedown.ordered
        )
        unknown = instance.uncharged or instance.is_unknown
        return unknown or (moving and self.ledger.get_hold(model.name, account) > 0)

    # --- instances come and go ---

    def charge(self, model: str, sizes: Mapping[str, int]) -> None:
        """Charge an instance; what `external` contained of it by mistake is taken out there."""
        instance = self.running[model].instance
        before = self.ledger.holds.get(model, {})
        for name in instance.counted_as_external_on if instance is not None else ():
            self.ledger.discount(name, sizes.get(name, 0) - before.get(name, 0))
        self.ledger.charge(model, sizes)

    def add_instance(self, model: Model, instance: Instance) -> None:
        """A unit of the model exists from now on: it is loading until it says something else."""
        model.change_state(State.LOADING)
        model.instance = instance
        self.running[model.name] = model
        self.recheck(Scope.ALL)

    def drop_instance(self, model: Model, state: State) -> None:
        """The unit is gone: its memory is free now."""
        model.change_state(state)
        model.instance = None
        self.running.pop(model.name, None)
        self.ledger.release(model.name)
        self.ledger.drop_unused()
        if model.removed:
            self.models.pop(model.name, None)

    def make_generation(self, now: float) -> str:
        """A name for one start: unique while the machine runs, since the clock never goes back."""
        self.generations += 1
        return f"{int(now * 1e6):x}-{self.generations:x}"
