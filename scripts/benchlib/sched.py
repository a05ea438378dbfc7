"""How long does the scheduler take for one event, with many models, devices and waiting requests?

Requests come until WAITERS of them wait; then models are loaded, serve, and make room for each other, and whoever is
served asks again, so that the crowd stays. Everything outside answers at once and takes no time: what is measured is
`Scheduler.handle` alone.
"""

import random
import time
from collections import deque

from benchlib.report import Result
from llamactl.protocol.control_socket import Failure, Recall
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import Breakdown, Row, RowKind
from llamactl.sched import effects as fx
from llamactl.sched import events as ev
from llamactl.sched.scheduler import Scheduler
from llamactl.settings import Config, GlobalSettings, ModelSettings

MODELS, DEVICES, WAITERS, EVENTS = 1000, 8, 10_000, 5_000
HOLDERS = 4
GIB = 1 << 30


def measure(models: int = MODELS, devices: int = DEVICES, waiters: int = WAITERS, count: int = EVENTS) -> list[Result]:
    """Mean and slowest of `count` events among `waiters` waiting requests."""
    crowd = _Crowd(models, devices)
    while crowd.waiting < waiters:
        crowd.ask()
        crowd.gather()
    crowd.let_go()
    times: list[float] = []
    while len(times) < count:
        if not crowd.inbox:
            crowd.ask()
        times.append(crowd.handle(crowd.inbox.popleft()))
        while crowd.waiting < waiters:
            crowd.ask()
            times.append(crowd.handle(crowd.inbox.pop()))
    ordered = sorted(times)
    setting = f"{models:,} models, {devices} devices, {waiters:,} waiters"
    return [
        Result("sched", f"one event on average, {setting}", sum(times) / len(times) * 1e6, "us"),
        Result("sched", "99 of 100 events", ordered[len(ordered) * 99 // 100] * 1e6, "us"),
        Result("sched", "slowest event", ordered[-1] * 1e6, "us"),
        Result("sched", "loads meanwhile", crowd.loads, ""),
        Result("sched", "requests granted meanwhile", crowd.granted, ""),
    ]


class _Crowd:
    """Fronts, units and children that answer at once."""

    def __init__(self, models: int, devices: int) -> None:
        self._source = random.Random(1)
        self._scheduler = Scheduler()
        self._now = 1000.0
        self._ids = 0
        self.inbox: deque[ev.Event] = deque()
        self._held: deque[ev.Event] = deque()
        self.waiting = 0
        self.loads = self.granted = 0
        self._names = [f"m{index}" for index in range(models)]
        self._devices = [f"CUDA{index}" for index in range(devices)]
        self._sizes = {name: self._source.randrange(4, 30) * GIB for name in self._names}
        settings = GlobalSettings(max_queue=0, max_queue_total=0, min_resident_s=0.0, refresh_s=0.0, margin_bytes=GIB)
        configured = {name: ModelSettings(name=name, path=f"/m/{name}", ctx=4096) for name in self._names}
        self.handle(ev.Configured(Config(settings=settings, models=configured)))
        self.handle(ev.RecoveryBegan(self._now, 0))
        for name in self._names:
            size = self._make_breakdown(name)
            self.handle(ev.MeasureReported(name, size, size, cached=True))
            self.handle(ev.MeasureEnded(name))
        rows = tuple(Row(kind=RowKind.DEVICE, name=device, total=80 * GIB, free=80 * GIB) for device in self._devices)
        self.handle(ev.DevicesRead(rows, complete=True))

    def _make_breakdown(self, name: str) -> Breakdown:
        """Spread over all devices, as a measure child would find it."""
        part = self._sizes[name] // len(self._devices)
        return Breakdown(
            n_ctx=4096,
            devices=tuple(
                Row(kind=RowKind.DEVICE, name=device, model=part, total=80 * GIB, free=80 * GIB)
                for device in self._devices
            ),
        )

    def ask(self) -> None:
        """One more request, for popular models more often."""
        self._ids += 1
        index = min(int(self._source.expovariate(8.0) * len(self._names)), len(self._names) - 1)
        waiter = (1 + self._ids % HOLDERS, self._ids)
        self.waiting += 1
        self.inbox.append(ev.LeaseRequested(waiter, self._names[index]))

    def gather(self) -> None:
        """Let requests arrive, and nothing else happen: the crowd gathers."""
        later: deque[ev.Event] = deque()
        while self.inbox:
            event = self.inbox.popleft()
            if isinstance(event, ev.LeaseRequested):
                self.handle(event)
            else:
                later.append(event)
        self._held += later

    def let_go(self) -> None:
        """Whatever was held up happens."""
        self.inbox += self._held
        self._held.clear()

    def handle(self, event: ev.Event) -> float:
        """Seconds of CPU that the scheduler took; what follows outside goes into `inbox`."""
        self._now += 0.001
        begun = time.thread_time()
        effects = self._scheduler.handle(event, self._now)
        taken = time.thread_time() - begun
        for effect in effects:
            self._answer(effect)
        return taken

    def _answer(self, effect: fx.Effect) -> None:
        match effect:
            case fx.StartInstance():
                self.loads += 1
                name = effect.settings.name
                self.inbox.append(ev.InstanceReported(name, effect.generation, ChildState.READY, facts=None))
            case fx.OrderStop():
                self.inbox.append(ev.StopAnswered(effect.model, effect.generation, True))
            case fx.StopUnit():
                self.inbox.append(ev.InstanceEnded(effect.model, effect.generation))
            case fx.Notify(holder, Recall() as recall):
                answer = ev.RecallAnswered(holder, recall.model, recall.generation, True, self._now, recall.id)
                self.inbox.append(answer)
            case fx.GrantLease():
                self.waiting -= 1
                self.granted += 1
                self.inbox.append(ev.LeaseIdle(effect.waiter[0], effect.model, effect.generation, self._now))
            case fx.Tell(message=Failure()):
                self.waiting -= 1
