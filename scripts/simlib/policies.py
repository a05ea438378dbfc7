"""Who decides in the simulation? llamactl's own scheduler, and two rules that other programs go by.

`LlamactlPolicy` drives the very core that the supervisor runs: the same events, the same effects. The other two are
what the rules say and no more: a count of models with the least recently used idle one stopped (llama-server's
router by default), and bytes per device with the first idle model stopped until it fits (Ollama's rule), whichever
device it lies on.
"""

from collections import deque
from collections.abc import Iterable

from llamactl.protocol.control_socket import Failure, Recall, RecallCancelled
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import Breakdown, Row, RowKind
from llamactl.sched import effects, events
from llamactl.sched.scheduler import Scheduler
from llamactl.settings import Config, GlobalSettings, ModelSettings
from simlib.world import DEVICE_BYTES, MARGIN_BYTES, STOP_S, Machine, Outcome, Request, Trace

FRONT = 1


def run_all(trace: Trace, max_loaded: int) -> dict[str, Outcome]:
    """One outcome per policy, in the order of the table."""
    outcomes: dict[str, Outcome] = {}
    for name, policy in (
        ("llamactl", LlamactlPolicy(Machine(trace))),
        (f"count only ({max_loaded})", CountPolicy(Machine(trace), max_loaded)),
        ("first idle", FirstIdlePolicy(Machine(trace))),
    ):
        outcomes[name] = policy.run()
    return outcomes


class Policy:
    """Takes requests as they come; `run` plays the whole trace."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.clock = machine.clock
        machine.ended = self.handle_end

    def run(self) -> Outcome:
        requests = [Request(arrival) for arrival in self.machine.trace.arrivals]
        for request in requests:
            self.clock.at(request.arrival.at_s, lambda request=request: self.handle_request(request))  # type: ignore[misc]
        self.clock.run()
        self.machine.outcome.unanswered = sum(not request.outcome for request in requests)
        return self.machine.outcome

    def handle_request(self, request: Request) -> None:
        raise NotImplementedError

    def handle_end(self, model: str, request: Request) -> None:
        raise NotImplementedError


class LlamactlPolicy(Policy):
    """The real scheduler, with one front that holds leases as the real one does."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.scheduler = Scheduler()
        self.leases: dict[str, str] = {}
        """Model -> generation."""
        self.draining: set[str] = set()
        self.held_back: dict[str, list[Request]] = {}
        self.waiting: dict[events.Waiter, Request] = {}
        self.generations: dict[str, str] = {}
        self.evicting: set[str] = set()
        self.ids = 0
        self.tick_s: float | None = None

    def run(self) -> Outcome:
        models = {
            name: ModelSettings(name=name, path=f"/m/{name}", ctx=4096, n_gpu_layers=99, devices=(sim.device,))
            for name, sim in self.machine.trace.models.items()
        }
        settings = GlobalSettings(margin_bytes=MARGIN_BYTES, max_queue=1_000_000)
        self.dispatch(events.Configured(Config(settings=settings, models=models)))
        self.dispatch(events.RecoveryBegan(self.clock.now, 0))
        return super().run()

    def handle_request(self, request: Request) -> None:
        model = request.arrival.model
        if model in self.leases and model in self.draining:
            self.held_back.setdefault(model, []).append(request)
        elif model in self.leases:
            if not self.machine.running.get(model):
                self.dispatch(events.LeaseBusy(FRONT, model, self.leases[model]))
            self.machine.begin(model, request)
        else:
            self.ask(request)

    def ask(self, request: Request) -> None:
        self.ids += 1
        waiter = (FRONT, self.ids)
        self.waiting[waiter] = request
        self.dispatch(events.LeaseRequested(waiter, request.arrival.model))

    def handle_end(self, model: str, request: Request) -> None:
        if self.machine.running.get(model) or model not in self.leases:
            return
        generation = self.leases[model]
        if model in self.draining:
            self.return_lease(model, generation)
        else:
            self.dispatch(events.LeaseIdle(FRONT, model, generation, self.clock.now))

    def return_lease(self, model: str, generation: str) -> None:
        del self.leases[model]
        self.draining.discard(model)
        self.dispatch(events.RecallAnswered(FRONT, model, generation, True, self.clock.now))
        for request in self.held_back.pop(model, []):
            self.ask(request)

    def dispatch(self, event: events.Event) -> None:
        pending: deque[events.Event] = deque([event])
        while pending:
            for effect in self.scheduler.handle(pending.popleft(), self.clock.now):
                pending.extend(self.apply(effect))
        deadline_s = self.scheduler.next_deadline()
        if deadline_s is not None and (
            self.tick_s is None or deadline_s < self.tick_s or self.tick_s <= self.clock.now
        ):
            self.tick_s = deadline_s
            self.clock.at(deadline_s, lambda: self.dispatch(events.Tick()))

    def apply(self, effect: effects.Effect) -> Iterable[events.Event]:
        match effect:
            case effects.StartMeasure(settings=settings):
                breakdown = self.describe(settings.name)
                yield events.MeasureReported(settings.name, breakdown, breakdown)
                yield events.MeasureEnded(settings.name)
            case effects.ReadDevices(names=names):
                used = self.machine.used
                rows = (
                    Row(kind=RowKind.DEVICE, name=name, total=DEVICE_BYTES, free=DEVICE_BYTES - used.get(name, 0))
                    for name in names
                )
                yield events.DevicesRead(tuple(rows), cheap=True)
                yield events.DevicesReadEnded()
            case effects.StartInstance(settings=settings, generation=generation):
                self.generations[settings.name] = generation
                taken = self.machine.take(settings.name)
                assert taken, "the accounts let a load through that does not fit"
                self.clock.after(
                    self.machine.trace.models[settings.name].load_s,
                    lambda: self.handle_loaded(settings.name, generation),
                )
            case effects.GrantLease(waiter=waiter, model=model, generation=generation):
                self.leases[model] = generation
                self.draining.discard(model)
                self.machine.begin(model, self.waiting.pop(waiter))
            case effects.Tell(waiter=waiter, message=Failure()):
                self.machine.fail(self.waiting.pop(waiter))
            case effects.Notify(message=Recall(model=model, generation=generation, drain=drain)):
                if self.leases.get(model) != generation:
                    yield events.RecallAnswered(FRONT, model, generation, True, self.clock.now)
                elif not self.machine.running.get(model):
                    del self.leases[model]
                    yield events.RecallAnswered(FRONT, model, generation, True, self.clock.now)
                else:
                    if drain:
                        self.draining.add(model)
                    yield events.RecallAnswered(FRONT, model, generation, False)
            case effects.Notify(message=RecallCancelled(model=model)):
                self.draining.discard(model)
                for request in self.held_back.pop(model, []):
                    self.clock.after(0.0, lambda request=request: self.handle_request(request))  # type: ignore[misc]
            case effects.OrderStop(model=model, generation=generation):
                self.evicting.add(model)
                yield events.StopAnswered(model, generation, not self.machine.running.get(model))
            case effects.StopUnit(model=model, generation=generation):
                assert not self.machine.running.get(model), "a busy model was stopped"
                self.clock.after(STOP_S, lambda: self.handle_stopped(model, generation))
            case _:
                pass

    def describe(self, model: str) -> Breakdown:
        sim = self.machine.trace.models[model]
        free = DEVICE_BYTES - self.machine.used.get(sim.device, 0)
        row = Row(kind=RowKind.DEVICE, name=sim.device, model=sim.size, total=DEVICE_BYTES, free=free)
        return Breakdown(n_ctx=4096, devices=(row,))

    def handle_loaded(self, model: str, generation: str) -> None:
        if self.generations.get(model) == generation:
            self.dispatch(events.InstanceReported(model, generation, ChildState.READY, effective=self.describe(model)))

    def handle_stopped(self, model: str, generation: str) -> None:
        if self.generations.get(model) == generation:
            del self.generations[model]
            self.machine.give_back(model, evicted=True)
            self.dispatch(events.InstanceEnded(model, generation))


class _RulePolicy(Policy):
    """What both simple rules share: which models are loaded, and since when unused."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.used_s: dict[str, float] = {}
        """Loaded or loading models, with their last use, in the order of their loads."""
        self.ready: set[str] = set()
        self.queue: deque[Request] = deque()

    def handle_request(self, request: Request) -> None:
        self.queue.append(request)
        self.serve()

    def handle_end(self, model: str, request: Request) -> None:
        self.used_s[model] = self.clock.now
        self.serve()

    def serve(self) -> None:
        """Begin what can begin, then make room for the others in the order in which they came."""
        rest: deque[Request] = deque()
        for request in self.queue:
            model = request.arrival.model
            if model in self.ready:
                self.used_s[model] = self.clock.now
                self.machine.begin(model, request)
            else:
                rest.append(request)
        self.queue = rest
        for request in rest:
            model = request.arrival.model
            if model not in self.used_s and self.make_room(model):
                self.load(model)

    def make_room(self, model: str) -> bool:
        """Stop others; whether the load may begin."""
        raise NotImplementedError

    def load(self, model: str) -> None:
        self.used_s[model] = self.clock.now
        if self.machine.take(model):
            self.clock.after(self.machine.trace.models[model].load_s, lambda: self.handle_loaded(model))
        else:
            self.clock.after(self.machine.trace.models[model].load_s, lambda: self.handle_failed(model))

    def handle_loaded(self, model: str) -> None:
        if model in self.used_s:
            self.ready.add(model)
            self.serve()

    def handle_failed(self, model: str) -> None:
        """Out of memory: all who wait for it fail."""
        self.used_s.pop(model, None)
        for request in [request for request in self.queue if request.arrival.model == model]:
            self.queue.remove(request)
            self.machine.fail(request)
        self.serve()

    def stop(self, model: str) -> None:
        self.machine.cut(model)
        del self.used_s[model]
        self.ready.discard(model)
        self.machine.give_back(model, evicted=True)


class CountPolicy(_RulePolicy):
    """At most so many models; the least recently used idle one goes, whatever it holds."""

    def __init__(self, machine: Machine, max_loaded: int) -> None:
        super().__init__(machine)
        self.max_loaded = max_loaded

    def make_room(self, model: str) -> bool:
        if len(self.used_s) >= self.max_loaded:
            idle = [name for name in self.ready if not self.machine.running.get(name)]
            if not idle:
                return False
            self.stop(min(idle, key=lambda name: self.used_s[name]))
        return True


class FirstIdlePolicy(_RulePolicy):
    """By bytes: the first idle model goes until it fits, helpful or not; busy ones are waited for."""

    def make_room(self, model: str) -> bool:
        sim = self.machine.trace.models[model]
        while self.machine.used.get(sim.device, 0) + sim.size > DEVICE_BYTES - MARGIN_BYTES:
            idle = [name for name in self.used_s if name in self.ready and not self.machine.running.get(name)]
            if not idle:
                return False
            self.stop(idle[0])
        return True
