"""How do the examples talk to the scheduler? A bench: one scheduler, a clock that stands still unless moved, and verbs
for what happens outside.

Every event goes through `do`, which checks the invariants after it and keeps all effects.
"""

from typing import Any, TypeVar

from msgspec import Struct

from llamactl.protocol.control_socket import Done, Failure, MeasureResult, Progress, Recall
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import Breakdown, Facts, LoadFailure, Note, Row, RowKind, Stage
from llamactl.sched.effects import (
    Effect,
    GrantLease,
    Notify,
    OrderStop,
    Record,
    StartInstance,
    StartMeasure,
    StopUnit,
    Tell,
)
from llamactl.sched.events import (
    Configured,
    Event,
    InstanceEnded,
    InstanceFound,
    InstanceReported,
    LeaseIdle,
    LeaseRequested,
    LoadRequested,
    MeasureEnded,
    MeasureReported,
    RecallAnswered,
    RecoveryBegan,
    StopAnswered,
    Tick,
    UnloadRequested,
    Waiter,
)
from llamactl.sched.scheduler import Scheduler
from llamactl.settings import Config, GlobalSettings, InvalidModel, ModelSettings

E = TypeVar("E")
CRASH = LoadFailure(result="signal", exit_code=11, message="segmentation fault")


def tell_progress(
    waiter: Waiter,
    stage: Stage,
    fraction: float | None = None,
    waiting_for: tuple[str, ...] = (),
    busy: tuple[str, ...] = (),
    going: tuple[str, ...] = (),
    why: str = "",
) -> Tell:
    """The effect by which a waiter is told how far its request is."""
    message = Progress(
        id=waiter[1], stage=stage, fraction=fraction, waiting_for=waiting_for, busy=busy, going=going, why=why
    )
    return Tell(waiter, message)


def make_settings(name: str, **settings: Any) -> ModelSettings:
    """A model whose context is pinned, on the CPU, so that loads do not fit themselves."""
    return ModelSettings(**{"name": name, "path": f"/models/{name}.gguf", "ctx": 4096, "n_gpu_layers": 0, **settings})


def make_breakdown(
    host: int = 0,
    total: int | None = None,
    free: int | None = None,
    n_ctx: int = 4096,
    weights: int = 0,
    **devices: int,
) -> Breakdown:
    """Bytes on the host, `weights` of them of the model itself, and on devices by name; every device gets the same
    total and free.
    """
    rows = [
        Row(kind=RowKind.DEVICE, name=name, model=size, total=total, free=free)
        for name, size in sorted(devices.items())
    ]
    return Breakdown(
        n_ctx=n_ctx, devices=(*rows, Row(kind=RowKind.HOST, name="Host", model=weights, context=host - weights))
    )


def make_config(*models: ModelSettings, invalid: tuple[InvalidModel, ...] = (), **settings: Any) -> Config:
    return Config(
        settings=GlobalSettings(**{"min_resident_s": 0.0, **settings}),
        models={model.name: model for model in models},
        invalid={model.name: model for model in invalid},
    )


class Bench:
    """A scheduler under examination."""

    def __init__(self, *models: ModelSettings, start: bool = True, **settings: Any) -> None:
        self.scheduler = Scheduler()
        self.now = 1000.0
        self.last: list[Effect] = []
        self.all: list[Effect] = []
        self.generations: dict[str, str] = {}
        self._ids = 0
        self.do(Configured(make_config(*models, **settings)))
        if start:
            self.do(RecoveryBegan(self.now, 0))

    # --- events ---

    def do(self, event: Event, after_s: float = 0.0) -> list[Effect]:
        """Let an event happen, `after_s` later."""
        self.now += after_s
        self.last = self.scheduler.handle(event, self.now)
        self.all += self.last
        for effect in self.last:
            if isinstance(effect, StartInstance):
                self.generations[effect.settings.name] = effect.generation
            if isinstance(effect, Tell):
                assert effect.message.id == effect.waiter[1], f"{effect} answers another request"
        self.scheduler.check_invariants()
        return self.last

    def tick(self, after_s: float) -> list[Effect]:
        return self.do(Tick(), after_s)

    def measure(self, name: str, **breakdown: Any) -> list[Effect]:
        """The model's measure child, which must be running or come next, reports and ends."""
        size = make_breakdown(**breakdown)
        self.do(MeasureReported(name, size, size))
        effects = self.last
        return effects + self.do(MeasureEnded(name))

    def fail_measure(self, name: str, error: str = "exit-code 1") -> list[Effect]:
        return self.do(MeasureEnded(name, error))

    def measure_next(self, **breakdown: Any) -> None:
        """Whatever is being measured reports and ends."""
        current = self.list_all(StartMeasure)[-1].settings.name
        self.measure(current, **breakdown)

    def found(self, name: str) -> list[Effect]:
        """Coldplug: a unit of this model runs."""
        self.generations[name] = f"found-{name}"
        return self.do(InstanceFound(name, self.generations[name], make_settings(name)))

    def recover(self, fronts: int = 0) -> list[Effect]:
        return self.do(RecoveryBegan(self.now + 5, fronts))

    def lease(self, name: str, front: int = 1, **more: Any) -> Waiter:
        waiter = self.make_waiter(front)
        self.do(LeaseRequested(waiter, name, **more))
        return waiter

    def load(self, name: str, client: int = 90) -> Waiter:
        waiter = self.make_waiter(client)
        self.do(LoadRequested(waiter, name))
        return waiter

    def unload(self, name: str, client: int = 91, now: bool = False) -> Waiter:
        waiter = self.make_waiter(client)
        self.do(UnloadRequested(waiter, name, now))
        return waiter

    def make_waiter(self, connection: int) -> Waiter:
        self._ids += 1
        return (connection, self._ids)

    def report(self, name: str, state: ChildState, after_s: float = 0.0, **more: Any) -> list[Effect]:
        return self.do(InstanceReported(name, self.generations[name], state, **more), after_s)

    def ready(self, name: str, after_s: float = 0.0, **breakdown: Any) -> list[Effect]:
        effective = make_breakdown(**breakdown) if breakdown else None
        return self.report(name, ChildState.READY, after_s, effective=effective)

    def ended(self, name: str, failure: LoadFailure | None = None, after_s: float = 0.0) -> list[Effect]:
        return self.do(InstanceEnded(name, self.generations[name], failure), after_s)

    def idle(self, name: str, front: int = 1, after_s: float = 0.0) -> list[Effect]:
        self.now += after_s
        return self.do(LeaseIdle(front, name, self.generations[name], self.now))

    def returned(self, name: str, front: int = 1, returned: bool = True) -> list[Effect]:
        """The front's answer to its last recall."""
        notices = [e for e in self.all if isinstance(e, Notify) and e.holder == front]
        recalls = [e.message.id for e in notices if isinstance(e.message, Recall) and e.message.model == name]
        recall = recalls[-1] if recalls else 0
        return self.do(RecallAnswered(front, name, self.generations[name], returned, self.now, recall))

    def stopping(self, name: str, stopping: bool = True) -> list[Effect]:
        return self.do(StopAnswered(name, self.generations[name], stopping))

    # --- whole stories ---

    def bring_up(self, name: str, front: int = 1, after_s: float = 1.0) -> None:
        """Load a model that is measured and fits, by a request that then ends."""
        self.lease(name, front)
        assert self.started() == [name], f"{name} was not started: {self.last}"
        self.ready(name)
        self.idle(name, front, after_s)

    def take_down(self, name: str, front: int = 1) -> None:
        """Everybody agrees to an eviction that has begun."""
        self.returned(name, front)
        self.stopping(name)
        self.ended(name)

    # --- what came out ---

    def list_last(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.last if isinstance(effect, kind)]

    def list_all(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.all if isinstance(effect, kind)]

    def list_told(self, *kinds: type[Struct]) -> list[Tell]:
        """What waiters were told last, of these messages."""
        return [told for told in self.list_last(Tell) if isinstance(told.message, kinds)]

    def list_notices(self, kind: type[Struct]) -> list[Notify]:
        """What holders of leases were told last, of this message."""
        return [notice for notice in self.list_last(Notify) if isinstance(notice.message, kind)]

    def refusals(self) -> list[Failure]:
        return [told.message for told in self.list_last(Tell) if isinstance(told.message, Failure)]

    def recalls(self) -> list[Recall]:
        return [notice.message for notice in self.list_last(Notify) if isinstance(notice.message, Recall)]

    def progress(self) -> list[Progress]:
        return [told.message for told in self.list_last(Tell) if isinstance(told.message, Progress)]

    def started(self) -> list[str]:
        return [effect.settings.name for effect in self.list_last(StartInstance)]

    def measured(self) -> list[str]:
        return [effect.settings.name for effect in self.list_last(StartMeasure)]

    def recalled(self) -> list[tuple[int, str]]:
        return [(effect.holder, effect.message.model) for effect in self.list_notices(Recall)]

    def ordered(self) -> list[str]:
        return [effect.model for effect in self.list_last(OrderStop)]

    def stopped(self) -> list[str]:
        return [effect.model for effect in self.list_last(StopUnit)]

    def granted(self) -> list[Waiter]:
        return [effect.waiter for effect in self.list_last(GrantLease)]

    def completed(self) -> list[Waiter]:
        return [told.waiter for told in self.list_told(Done, MeasureResult)]

    def refused(self) -> dict[Waiter, str]:
        return {
            told.waiter: str(told.message.code) for told in self.list_told(Failure) if isinstance(told.message, Failure)
        }

    def records(self, event: str, model: str = "") -> list[Record]:
        return [r for r in self.list_all(Record) if r.event == event and model in ("", r.model)]

    def status(self, name: str) -> ModelStatus:
        status = self.scheduler.model_status(name)
        assert status is not None
        return status

    def state(self, name: str) -> str:
        return str(self.status(name).state)


__all__ = ["CRASH", "Bench", "Facts", "Note", "make_breakdown", "make_config", "make_settings", "tell_progress"]
