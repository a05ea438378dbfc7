"""What is simulated: a machine with devices, models of known size, and a trace of requests; time is a number.

Everything happens at a moment of one queue, so a run is exact and repeatable. The world knows what a policy must not:
how long a request will take. It counts what users feel: waits, answers cut off, loads that fail for want of memory.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

GIB = 1 << 30
LOAD_RATE = 2 * GIB
"""Bytes of a model that are loaded in a second."""
LOAD_FIXED_S = 1.0
STOP_S = 0.5
DEVICE_BYTES = 48 * GIB
MARGIN_BYTES = GIB
THRASH_S = 60.0
"""A model that is loaded again within this time after it was evicted has been evicted for nothing."""


@dataclass(frozen=True)
class SimModel:
    """A model that lies on one device."""

    name: str
    device: str
    size: int

    @property
    def load_s(self) -> float:
        return LOAD_FIXED_S + self.size / LOAD_RATE


@dataclass(frozen=True)
class Arrival:
    at_s: float
    model: str
    duration_s: float


@dataclass(frozen=True)
class Trace:
    name: str
    what: str
    models: dict[str, SimModel]
    arrivals: tuple[Arrival, ...]


@dataclass(eq=False)
class Request:
    arrival: Arrival
    started_s: float | None = None
    outcome: str = ""
    """`served`, `cut` (its instance was stopped under it), `failed` (no memory); empty: not answered yet."""


@dataclass
class Outcome:
    """What came of one trace under one policy."""

    waits_s: list[float] = field(default_factory=list)
    served: int = 0
    cut: int = 0
    failed: int = 0
    unanswered: int = 0
    loads: int = 0
    evictions: int = 0
    thrash: int = 0

    def quantile_wait_s(self, share: float) -> float:
        ordered = sorted(self.waits_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Clock:
    """The queue of moments. Of two things at one moment, the first that was planned happens first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when_s, self.now), next(self._order), action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay_s, action)

    def run(self) -> None:
        while self._queue:
            self.now, _, action = heapq.heappop(self._queue)
            action()


class Machine:
    """Running requests and the instances under them. Policies start and stop; the machine says what comes of it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.clock = Clock()
        self.outcome = Outcome()
        self.used: dict[str, int] = {}
        self.running: dict[str, dict[Request, None]] = {}
        """Requests in flight, by model."""
        self.ended: Callable[[str, Request], None] = lambda model, request: None
        self._evicted_s: dict[str, float] = {}

    def begin(self, model: str, request: Request) -> None:
        """The request's answer begins now."""
        request.started_s = self.clock.now
        self.outcome.waits_s.append(self.clock.now - request.arrival.at_s)
        self.running.setdefault(model, {})[request] = None

        def finish() -> None:
            if not request.outcome:
                request.outcome = "served"
                self.outcome.served += 1
                del self.running[model][request]
                self.ended(model, request)

        self.clock.after(request.arrival.duration_s, finish)

    def cut(self, model: str) -> None:
        """Its instance goes away under all requests in flight."""
        for request in self.running.pop(model, {}):
            request.outcome = "cut"
            self.outcome.cut += 1

    def fail(self, request: Request) -> None:
        request.outcome = "failed"
        self.outcome.failed += 1

    def take(self, model: str) -> bool:
        """Memory for an instance; False: there is not enough, as the driver would say in the middle of the load."""
        sim = self.trace.models[model]
        self.outcome.loads += 1
        if self.clock.now - self._evicted_s.get(model, -THRASH_S) < THRASH_S:
            self.outcome.thrash += 1
        if self.used.get(sim.device, 0) + sim.size > DEVICE_BYTES:
            return False
        self.used[sim.device] = self.used.get(sim.device, 0) + sim.size
        return True

    def give_back(self, model: str, *, evicted: bool) -> None:
        sim = self.trace.models[model]
        self.used[sim.device] -= sim.size
        if evicted:
            self.outcome.evictions += 1
            self._evicted_s[model] = self.clock.now


# --- traces ---


def make_models(rng: random.Random, devices: int = 4, models: int = 40) -> dict[str, SimModel]:
    """Sizes from 3 to 40 GiB, small ones more often, dealt out over the devices."""
    made: dict[str, SimModel] = {}
    for index in range(models):
        size = int(3 * GIB * (40 / 3) ** (rng.random() ** 1.5))
        name = f"m{index:02}"
        made[name] = SimModel(name, f"GPU{index % devices}", size)
    return made


def _choose_by_rank(rng: random.Random, names: list[str]) -> str:
    return rng.choices(names, weights=[1 / (rank + 1) for rank in range(len(names))])[0]


def make_office(seed: int, hours: float = 4.0) -> Trace:
    """A team at work: few models are asked for often, most seldom; answers take 2 to 40 s."""
    rng = random.Random(seed)
    models = make_models(rng)
    names = sorted(models, key=lambda _: rng.random())
    arrivals: list[Arrival] = []
    now = 0.0
    while (now := now + rng.expovariate(1 / 6.0)) < hours * 3600:
        arrivals.append(Arrival(now, _choose_by_rank(rng, names), rng.uniform(2, 40)))
    return Trace("office", "40 models by popularity, a request each 6 s", models, tuple(arrivals))


def make_agents(seed: int, hours: float = 4.0) -> Trace:
    """Agents that go back and forth between a few models of one device each, in bursts: A-B-A-B."""
    rng = random.Random(seed)
    models = make_models(rng)
    arrivals: list[Arrival] = []
    start = 0.0
    while (start := start + rng.expovariate(1 / 90.0)) < hours * 3600:
        crew = rng.sample(sorted(models), rng.randint(2, 4))
        now = start
        for turn in range(rng.randint(6, 20)):
            arrivals.append(Arrival(now, crew[turn % len(crew)], rng.uniform(1, 8)))
            now += rng.uniform(2, 10)
    arrivals.sort(key=lambda arrival: arrival.at_s)
    return Trace("agents", "bursts that alternate between 2 to 4 models", models, tuple(arrivals))


def make_batch(seed: int, hours: float = 4.0) -> Trace:
    """Long jobs of many minutes beside people who ask for short answers."""
    rng = random.Random(seed)
    models = make_models(rng)
    names = sorted(models, key=lambda _: rng.random())
    arrivals: list[Arrival] = []
    now = 0.0
    while (now := now + rng.expovariate(1 / 300.0)) < hours * 3600:
        arrivals.append(Arrival(now, rng.choice(names[:12]), rng.uniform(300, 900)))
    now = 0.0
    while (now := now + rng.expovariate(1 / 15.0)) < hours * 3600:
        arrivals.append(Arrival(now, _choose_by_rank(rng, names), rng.uniform(2, 20)))
    arrivals.sort(key=lambda arrival: arrival.at_s)
    return Trace("batch", "jobs of 5 to 15 minutes beside short answers", models, tuple(arrivals))


TRACES: dict[str, Callable[..., Trace]] = {"office": make_office, "agents": make_agents, "batch": make_batch}
