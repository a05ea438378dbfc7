"""What would really happen? A small world around the scheduler: units, instances, measure children, fronts and clients,
with messages in flight.

Every channel keeps its order, and which channel delivers next is chosen by whoever drives the world (a seeded
generator, or hypothesis). The world knows the truth (which request runs where, how much memory is taken) and holds the
scheduler's effects against it: nothing busy is stopped by an eviction, each request is answered once, limits hold.
`settle` ends all requests and delivers everything; then nobody may be left waiting.
"""

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from llamactl.protocol.control_socket import LeaseGone, Progress, Recall, RecallCancelled
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import Breakdown, LoadFailure, Note, Row, RowKind
from llamactl.sched import effects as fx
from llamactl.sched import events as ev
from llamactl.sched.breakdowns import is_self_fitting
from llamactl.sched.scheduler import Scheduler
from llamactl.settings import Config, GlobalSettings, InvalidModel, ModelSettings

Choose = Callable[[int], int]
"""A number from 0 to n-1."""

DEVICE_TOTAL = 100
MARGIN = 10
CRASH = LoadFailure(result="signal", exit_code=9, message="killed")
FAULT = LoadFailure(result="signal", exit_code=4, message="illegal instruction")


@dataclass
class Unit:
    """A model's unit, and the instance inside."""

    settings: ModelSettings
    generation: str
    extra_bufts: bool
    margins: dict[str, int]
    sizes: dict[str, int]
    """What its file takes."""
    version: int
    """Of its file."""
    surprising: bool = False
    """Its file was replaced between the scheduler's last look and its start."""
    state: ChildState = ChildState.LOADING
    stage: str = "starting"
    connected: bool = False
    allocated: dict[str, int] = field(default_factory=dict)
    effective: Breakdown | None = None
    requests: int = 0
    note: Note | None = None
    sleep_ordered: bool = False
    """It has agreed to sleep, and is about to free what it holds."""
    stop_ordered: bool = False
    """StopUnit came: it ends whatever it does."""
    adopted: bool = False


@dataclass
class Lease:
    generation: str
    running: int = 0
    draining: bool = False
    recall: int = 0


@dataclass
class Front:
    holder: int
    leases: dict[str, Lease] = field(default_factory=dict)
    waiting: dict[int, str] = field(default_factory=dict)
    """Request id -> model, at the supervisor."""
    held_back: list[str] = field(default_factory=list)
    """Requests for models whose lease drains."""
    inbox: deque[fx.Effect] = field(default_factory=deque)
    outbox: deque[ev.Event] = field(default_factory=deque)


class World:
    def __init__(self, choose: Choose, models: int = 5, fronts: int = 2) -> None:
        self.choose = choose
        self.now = 1000.0
        self.scheduler = Scheduler()
        self.units: dict[str, Unit] = {}
        self.measuring: ModelSettings | None = None
        self.unit_events: deque[ev.Event] = deque()
        self.instance_events: dict[str, deque[ev.Event]] = {}
        self.fronts: list[Front] = []
        self.cli: dict[ev.Waiter, str] = {}
        """Open requests of commands."""
        self.open: set[ev.Waiter] = set()
        self.may_cut: set[str] = set()
        """Models that somebody unloaded with --now, or that were taken out of the configuration."""
        self.unloading: set[str] = set()
        self.next_id = 0
        self.external = {"G0": 0, "G1": 0}
        self.count = 0
        self.interrupt_next = self.interrupted = False
        self.blind = False
        """Something was loaded that the scheduler could not check, or had no choice about."""
        self.sizes: dict[str, dict[str, int]] = {}
        self.versions: dict[str, int] = {}
        """Of each model's file."""
        self.dies_in_warmup = choose(4) == 0
        self.removed: set[str] = set()
        names = [f"m{index}" for index in range(models)]
        for name in names:
            self.replace_file(name)
        self.config = self.make_config(names)
        self.apply(ev.Configured(self.config))
        self.apply(ev.RecoveryBegan(self.now, 0))
        for _ in range(fronts):
            self.add_front()

    def make_config(self, names: list[str]) -> Config:
        settings = GlobalSettings(
            margin_bytes=MARGIN,
            host_budget_bytes=(None, 40, 60)[self.choose(3)],
            max_loaded=(0, 1, 2, 3)[self.choose(4)],
            max_wait_s=(0.0, 5.0, 60.0)[self.choose(3)],
            min_resident_s=(0.0, 3.0)[self.choose(2)],
            max_queue_total=(0, 6)[self.choose(2)],
            strict=self.choose(3) == 0,
            max_queue=(3, 256)[self.choose(2)],
        )
        models = {
            name: ModelSettings(
                name=name,
                path=f"/m/{name}",
                aliases=(f"alias-{name}",),
                ctx=(0, 4096)[self.choose(2)],
                n_gpu_layers=0 if self.choose(2) else -1,
                pin=self.choose(6) == 0,
                priority=self.choose(2),
                idle_timeout_s=(0.0, 30.0)[self.choose(2)],
                sleep_after_s=(0.0, 0.0, 2.0)[self.choose(3)],
                devices=((), (), ("G0",))[self.choose(3)],
                load_on_start=self.choose(6) == 0,
            )
            for name in names
        }
        return Config(settings=settings, models=models)

    # --- the scheduler's side ---

    def apply(self, event: ev.Event) -> None:
        """Let an event reach the scheduler, and its effects happen."""
        self.count += 1
        if isinstance(event, ev.Configured):
            self.config = event.config
        if isinstance(event, ev.WaiterGone):
            self.open.discard(event.waiter)
        if isinstance(event, ev.ConnectionGone):
            self.open = {waiter for waiter in self.open if waiter[0] != event.holder}
        effects = self.scheduler.handle(event, self.now)
        self.scheduler.check_invariants()
        if self.count % 16 == 0:
            self.check_settled()
        if self.interrupt_next and effects:
            # The supervisor dies in the middle of what it wanted to do.
            effects = effects[: self.choose(len(effects) + 1)]
            self.interrupted = True
        for effect in effects:
            self.apply_effect(effect)

    def check_settled(self) -> None:
        """Only what may have changed is decided again after an event. Deciding everything must come to the same."""
        deadline = self.scheduler.next_deadline()
        if deadline is None or deadline > self.now:
            more = copy.deepcopy(self.scheduler).decide_again(self.now)
            # What is known of a device grows old by itself.
            asks = any(isinstance(effect, fx.ReadDevices | fx.LookAtFiles) for effect in more)
            assert asks or not more, f"something was left undecided: {more}"

    def apply_effect(self, effect: fx.Effect) -> None:
        match effect:
            case fx.StartInstance():
                self.start_unit(effect)
            case fx.StopUnit():
                unit = self.find(effect.model, effect.generation)
                if unit is not None:
                    assert not unit.requests or effect.model in self.may_cut, f"{effect.model} was cut"
                    unit.stop_ordered = True
            case fx.OrderStop():
                unit = self.find(effect.model, effect.generation)
                status = self.scheduler.model_status(effect.model)
                if unit is not None and status is not None and status.pinned:
                    again = status.queued > 0  # it sleeps, and its settings have changed
                    assert again or effect.model in self.unloading, f"{effect.model} is pinned, and asked to stop"
                channel = self.channel(effect.model)
                live = (ChildState.READY, ChildState.STOPPING, ChildState.SLEEPING)
                agrees = unit is not None and unit.connected and not unit.requests and unit.state in live
                if unit is not None and agrees:
                    unit.state, unit.sleep_ordered = ChildState.STOPPING, False
                channel.append(ev.StopAnswered(effect.model, effect.generation, agrees))
            case fx.OrderSleep():
                unit = self.find(effect.model, effect.generation)
                agrees = unit is not None and unit.connected and not unit.requests and unit.state is ChildState.READY
                if unit is not None and agrees:
                    unit.state, unit.sleep_ordered = ChildState.SLEEPING, True
                self.channel(effect.model).append(ev.SleepAnswered(effect.model, effect.generation, agrees))
            case fx.OrderWake():
                unit = self.find(effect.model, effect.generation)
                if unit is not None and unit.connected and unit.state is ChildState.SLEEPING:
                    if self.knows_file(effect.model) and unit.note is not None and unit.note.files:
                        assert unit.version == self.versions[effect.model], f"{effect.model} wakes with another file"
                    self.check_limits(effect.model, unit)
                    unit.sleep_ordered, unit.state, unit.stage = False, ChildState.LOADING, "starting"
                    unit.margins = effect.margins_bytes
                    unit.sizes, unit.version = self.sizes[effect.model], self.versions[effect.model]
                    unit.surprising = not self.knows_file(effect.model)
                    unit.effective = None
                    unit.allocated.pop("Host", None)
            case fx.SendNote():
                unit = self.find(effect.model, effect.generation)
                if unit is not None and unit.connected:
                    unit.note = effect.note
            case fx.StartMeasure():
                assert self.measuring is None, "two measure children at a time"
                self.measuring = effect.settings
                self.unit_events.append(self.look(effect.settings.name, measuring=True))
            case fx.StopMeasure():
                if self.measuring is not None and self.measuring.name == effect.model:
                    self.unit_events.append(ev.MeasureEnded(effect.model, "stopped"))
                    self.measuring = None
            case fx.LookAtFiles():
                self.unit_events.append(self.look(effect.settings.name))
            case fx.ReadDevices():
                if self.choose(4):
                    rows = self.make_breakdown({}).devices[:-1]
                    self.unit_events.append(ev.DevicesRead(rows, complete=True))
                self.unit_events.append(ev.DevicesReadEnded())
            case fx.Notify(holder=holder):
                for front in self.fronts:
                    if front.holder == holder:
                        front.inbox.append(effect)
            case fx.Tell(message=Progress()):
                assert effect.waiter in self.open, f"progress for {effect.waiter}, which waits for nothing"
            case fx.GrantLease() | fx.Tell():
                self.answer(effect)
            case fx.Record():
                assert all(isinstance(v, int) for k, v in effect.fields.items() if k.endswith("_bytes")), effect

    def answer(self, effect: fx.GrantLease | fx.Tell) -> None:
        assert effect.waiter in self.open, f"{effect} answers somebody who waits for nothing"
        self.open.remove(effect.waiter)
        if self.cli.pop(effect.waiter, None) is not None:
            assert not isinstance(effect, fx.GrantLease)
            return
        for front in self.fronts:
            if front.holder == effect.waiter[0]:
                front.inbox.append(effect)

    def start_unit(self, effect: fx.StartInstance) -> None:
        name = effect.settings.name
        assert name not in self.units, f"{name} is started twice"
        limit = self.config.settings.max_loaded
        assert limit == 0 or len(self.units) < limit, f"{name} is one too many"
        self.check_limits(name, None)
        self.units[name] = Unit(
            effect.settings,
            effect.generation,
            effect.extra_bufts,
            effect.margins_bytes,
            dict(self.sizes[name]),
            self.versions[name],
            surprising=not self.knows_file(name),
        )

    def check_limits(self, name: str, itself: Unit | None) -> None:
        """Before a start or a wake: the host's budget holds with it."""
        budget, need = self.config.settings.host_budget_bytes, self.sizes[name].get("Host", 0)
        known = self.knows_file(name) and self.scheduler.model_status(name).memory.min is not None  # type: ignore[union-attr]
        if budget is not None and known:
            held = sum(
                unit.allocated.get("Host", unit.sizes.get("Host", 0))
                for unit in self.units.values()
                if unit is not itself and (unit.state is not ChildState.SLEEPING or unit.sleep_ordered)
            )
            moved = any(unit.adopted or unit.surprising for unit in self.units.values())
            assert need == 0 or need > budget or need + held <= budget or moved, f"{name} breaks the budget"

    # --- files ---

    def replace_file(self, name: str) -> None:
        """Another one lies there from now on. What runs has the old one."""
        self.versions[name] = self.versions.get(name, 0) + 1
        shares = (("Host", self.choose(4) * 10), ("G0", self.choose(4) * 15), ("G1", self.choose(3) * 20))
        self.sizes[name] = {account: size for account, size in shares if size}

    def look(self, name: str, measuring: bool = False) -> ev.FilesSeen:
        files = f"v{self.versions[name]}" if self.choose(8) else ""
        return ev.FilesSeen(name, files, self.now, measuring)

    def knows_file(self, name: str) -> bool:
        """Whether the scheduler has been told of the file that is there; a moment later it may be another one."""
        return self.scheduler.list_files()[name] == f"v{self.versions[name]}"

    def find(self, model: str, generation: str) -> Unit | None:
        unit = self.units.get(model)
        return unit if unit is not None and unit.generation == generation else None

    def channel(self, model: str) -> deque[ev.Event]:
        return self.instance_events.setdefault(model, deque())

    # --- units ---

    def free(self, device: str) -> int:
        taken = sum(unit.allocated.get(device, 0) for unit in self.units.values())
        return max(0, DEVICE_TOTAL - self.external[device] - taken)

    def make_breakdown(self, sizes: dict[str, int]) -> Breakdown:
        rows = [
            Row(kind=RowKind.DEVICE, name=name, model=sizes.get(name, 0), total=DEVICE_TOTAL, free=self.free(name))
            for name in self.external
        ]
        on_host = sizes.get("Host", 0)
        host = Row(kind=RowKind.HOST, name="Host", model=on_host // 2, context=on_host - on_host // 2)
        return Breakdown(n_ctx=4096, devices=(*rows, host))

    def report(self, unit: Unit) -> None:
        name = unit.settings.name
        if unit.connected:
            self.channel(name).append(
                ev.InstanceReported(
                    name,
                    unit.generation,
                    ChildState.READY if unit.sleep_ordered else unit.state,
                    unit.stage,
                    0.5,
                    unit.effective,
                    unit.requests,
                    note=unit.note,
                )
            )

    def advance_unit(self, unit: Unit) -> None:
        """One step of a unit's own life."""
        name = unit.settings.name
        if unit.stop_ordered or unit.state is ChildState.STOPPING:
            self.end_unit(unit, None)
        elif not unit.connected:
            unit.connected = True
            self.report(unit)
        elif unit.state is ChildState.SLEEPING:
            if unit.sleep_ordered:
                unit.sleep_ordered = False
                residue = self.choose(2)
                unit.allocated = {"Host": 0, "G1": residue} if residue else {"Host": 0}
                unit.effective = self.make_breakdown(unit.allocated)
            self.report(unit)
        elif unit.state is ChildState.LOADING:
            if unit.stage == "starting":
                unit.stage = "warmup"
                unit.allocated = self.allocate(unit)
                self.check_devices(unit)
            elif self.dies_in_warmup and unit.extra_bufts and unit.settings.repack:
                self.end_unit(unit, FAULT)
                return
            else:
                unit.state, unit.stage = ChildState.READY, ""
                unit.effective = self.make_breakdown(unit.allocated)
            self.report(unit)
        else:
            self.channel(name)
            self.report(unit)

    def check_devices(self, unit: Unit) -> None:
        """Nothing is promised twice: a device is never full, as long as the scheduler could know and had a choice."""
        status = self.scheduler.model_status(unit.settings.name)
        sizes = self.place(unit.settings, unit.sizes)
        beyond = any(size > DEVICE_TOTAL - MARGIN - self.external.get(name, 0) for name, size in sizes.items())
        if status is None or status.memory.min is None or beyond or unit.surprising:
            self.blind = True
        for name, others in self.external.items():
            taken = sum(u.allocated.get(name, 0) for u in self.units.values())
            assert self.blind or taken + others <= DEVICE_TOTAL, f"{name} is full: {taken} + {others}"

    def place(self, settings: ModelSettings, file: dict[str, int]) -> dict[str, int]:
        """What a model with such a file takes at least, on the devices that its settings name."""
        sizes = dict(file)
        if settings.devices:
            taken = sum(size for name, size in sizes.items() if name != "Host")
            sizes = {name: size for name, size in sizes.items() if name == "Host"}
            if taken:
                sizes[settings.devices[0]] = taken
        return sizes

    def allocate(self, unit: Unit) -> dict[str, int]:
        sizes = self.place(unit.settings, unit.sizes)
        devices = unit.settings.devices or tuple(self.external)
        if is_self_fitting(unit.settings):
            for name in devices:
                margin = unit.margins.get(name, unit.margins.get("", 0))
                more = max(0, self.free(name) - margin - sizes.get(name, 0))
                sizes[name] = sizes.get(name, 0) + more // 2
        return sizes

    def end_unit(self, unit: Unit, failure: LoadFailure | None) -> None:
        name = unit.settings.name
        del self.units[name]
        self.unloading.discard(name)
        self.may_cut.discard(name)
        self.unit_events.append(ev.InstanceEnded(name, unit.generation, failure))
        for front in self.fronts:
            lease = front.leases.get(name)
            if lease is not None and lease.generation == unit.generation:
                self.finish(front, name, lease.running)

    def disconnect(self, unit: Unit) -> None:
        unit.connected = False
        self.channel(unit.settings.name).append(ev.InstanceDisconnected(unit.settings.name, unit.generation))

    # --- measuring ---

    def advance_measure(self) -> None:
        settings = self.measuring
        assert settings is not None
        self.measuring = None
        if self.choose(6):
            size = self.make_breakdown(self.place(settings, self.sizes[settings.name]))
            self.unit_events.append(ev.MeasureReported(settings.name, size, size))
            self.unit_events.append(ev.MeasureEnded(settings.name))
        else:
            self.unit_events.append(ev.MeasureEnded(settings.name, "exit-code 1"))

    # --- fronts ---

    def add_front(self) -> Front:
        self.next_id += 1
        front = Front(self.next_id)
        self.fronts.append(front)
        return front

    def request(self, front: Front, model: str) -> None:
        lease = front.leases.get(model)
        if lease is not None and lease.draining:
            front.held_back.append(model)
        elif lease is not None:
            self.run_request(front, model, lease)
        else:
            self.ask(front, model)

    def ask(self, front: Front, model: str, stale: str = "") -> None:
        self.next_id += 1
        waiter = (front.holder, self.next_id)
        front.waiting[self.next_id] = model
        name = f"alias-{model}" if self.choose(4) == 0 else model
        front.outbox.append(ev.LeaseRequested(waiter, name, self.choose(8) > 0, stale))

    def run_request(self, front: Front, model: str, lease: Lease, granted: bool = False) -> None:
        unit = self.find(model, lease.generation)
        if (
            unit is None
            or unit.state not in (ChildState.READY, ChildState.STOPPING)
            or unit.state is ChildState.STOPPING
        ):
            # Nobody listens there: the lease is of no use, and the supervisor may not know yet.
            if granted and lease.running == 0:
                front.outbox.append(ev.LeaseIdle(front.holder, model, lease.generation, self.now))
            self.ask(front, model, stale=lease.generation)
            return
        lease.running += 1
        unit.requests += 1
        if lease.running == 1 and not granted:
            front.outbox.append(ev.LeaseBusy(front.holder, model, lease.generation))

    def finish(self, front: Front, model: str, count: int = 1) -> None:
        lease = front.leases[model]
        if not count:
            return
        lease.running -= count
        unit = self.find(model, lease.generation)
        if unit is not None:
            unit.requests -= count
        if lease.running == 0:
            if lease.draining:
                self.give_back(front, model)
            else:
                kept_s = (None, None, 0.0, -1.0, 30.0)[self.choose(5)]
                front.outbox.append(ev.LeaseIdle(front.holder, model, lease.generation, self.now, kept_s))

    def give_back(self, front: Front, model: str) -> None:
        lease = front.leases.pop(model)
        front.outbox.append(
            ev.RecallAnswered(front.holder, model, lease.generation, True, self.now, recall=lease.recall)
        )
        self.go_on(front, model)

    def go_on(self, front: Front, model: str) -> None:
        held, front.held_back = front.held_back, [name for name in front.held_back if name != model]
        for _ in range(held.count(model)):
            self.request(front, model)

    def read_inbox(self, front: Front) -> None:
        effect = front.inbox.popleft()
        match effect:
            case fx.GrantLease(waiter=(_, request), model=model, generation=generation):
                lease = front.leases.get(model)
                if lease is None or lease.generation != generation:
                    lease = front.leases[model] = Lease(generation)
                if front.waiting.pop(request, None) is not None:
                    self.run_request(front, model, lease, granted=True)
                elif lease.running == 0:
                    front.outbox.append(ev.LeaseIdle(front.holder, model, generation, self.now))
            case fx.Tell(waiter=(_, request)):
                front.waiting.pop(request, None)
            case fx.Notify(message=Recall(model=model, generation=generation, drain=drain, id=recall)):
                lease = front.leases.get(model)
                if lease is not None and lease.generation == generation:
                    lease.recall = recall
                if lease is None or lease.generation != generation:
                    front.outbox.append(
                        ev.RecallAnswered(front.holder, model, generation, True, self.now, recall=recall)
                    )
                elif lease.running == 0:
                    self.give_back(front, model)
                else:
                    lease.draining = lease.draining or drain
                    front.outbox.append(ev.RecallAnswered(front.holder, model, generation, False, recall=recall))
            case fx.Notify(message=RecallCancelled(model=model, generation=generation)):
                lease = front.leases.get(model)
                if lease is not None and lease.generation == generation:
                    lease.draining = False
                    self.go_on(front, model)
            case fx.Notify(message=LeaseGone(model=model, generation=generation)):
                lease = front.leases.get(model)
                if lease is not None and lease.generation == generation:
                    unit = self.find(model, generation)
                    if unit is not None:
                        unit.requests -= lease.running
                    del front.leases[model]
                    self.go_on(front, model)

    def leave(self, front: Front, request: int) -> None:
        """A client goes away while its request waits."""
        del front.waiting[request]
        front.outbox.append(ev.WaiterGone((front.holder, request)))

    def kill_front(self, front: Front) -> None:
        self.fronts.remove(front)
        for model, lease in front.leases.items():
            unit = self.find(model, lease.generation)
            if unit is not None:
                unit.requests -= lease.running
        self.apply(ev.ConnectionGone(front.holder))
        self.add_front()

    # --- commands ---

    def command(self, make: Callable[[ev.Waiter], ev.Event], model: str) -> None:
        self.next_id += 1
        waiter = (1_000_000 + self.next_id, 1)
        self.cli[waiter] = model
        self.open.add(waiter)
        self.apply(make(waiter))

    def unload(self, model: str, now: bool) -> None:
        self.unloading.add(model)
        if now:
            self.may_cut.add(model)
        self.command(lambda waiter: ev.UnloadRequested(waiter, model, now), model)

    def pin(self, model: str, pinned: bool) -> None:
        self.command(lambda waiter: ev.PinRequested(waiter, model, pinned), model)

    def abandon_command(self, waiter: ev.Waiter) -> None:
        del self.cli[waiter]
        self.apply(ev.ConnectionGone(waiter[0]) if self.choose(2) else ev.WaiterGone(waiter))

    def reconfigure(self) -> None:
        names = list(self.sizes)
        gone = {name for name in names if self.choose(6) == 0}
        config = self.make_config([name for name in names if name not in gone])
        invalid = {name: InvalidModel(name=name, reason="broken") for name in gone if self.choose(2)}
        config = Config(settings=config.settings, models=config.models, invalid=invalid)
        self.unloading |= gone
        self.may_cut |= gone
        self.apply(ev.Configured(config))

    # --- the supervisor dies, and another one starts ---

    def restart(self) -> None:
        self.scheduler = Scheduler()
        self.unit_events.clear()
        self.instance_events.clear()
        self.open.clear()
        self.cli.clear()
        self.unloading.clear()
        if self.measuring is not None:
            self.measuring = None
        self.apply(ev.Configured(self.config))
        for name, unit in self.units.items():
            unit.adopted = True
            unit.connected = False
            if name not in self.config.models:
                self.unloading.add(name)
            self.apply(ev.InstanceFound(name, unit.generation, unit.settings))
        self.apply(ev.RecoveryBegan(self.now + 5, self.choose(3)))
        for name in self.sizes:
            if self.choose(2) and self.scheduler.model_status(name) is not None:
                self.unit_events.append(self.look(name))
        for front in self.fronts:
            self.reconnect_front(front)

    def reconnect_front(self, front: Front) -> None:
        self.next_id += 1
        front.holder = self.next_id
        front.inbox.clear()
        front.outbox.clear()
        for model, lease in front.leases.items():
            lease.draining = False
            event = ev.LeaseAnnounced(front.holder, model, lease.generation, lease.running > 0, self.now)
            front.outbox.append(event)
        front.outbox.append(ev.FrontAnnounced(front.holder))
        waiting, front.waiting = front.waiting, {}
        for model in waiting.values():
            self.ask(front, model)
        for model in list(front.leases):
            self.go_on(front, model)

    # --- driving ---

    def deliver_front(self, front: Front) -> None:
        event = front.outbox.popleft()
        if isinstance(event, ev.LeaseRequested):
            self.open.add(event.waiter)
        self.apply(event)

    def list_quiet_steps(self) -> list[Callable[[], None]]:
        """Everything that happens of itself once nobody asks for more."""
        steps: list[Callable[[], None]] = []
        if self.unit_events:
            steps.append(lambda: self.apply(self.unit_events.popleft()))
        for channel in self.instance_events.values():
            if channel:
                steps.append(lambda c=channel: self.apply(c.popleft()))  # type: ignore[misc]
        for front in self.fronts:
            if front.inbox:
                steps.append(lambda f=front: self.read_inbox(f))  # type: ignore[misc]
            if front.outbox:
                steps.append(lambda f=front: self.deliver_front(f))  # type: ignore[misc]
            for model, lease in front.leases.items():
                if lease.running:
                    steps.append(lambda f=front, m=model: self.finish(f, m))  # type: ignore[misc]
        for unit in self.units.values():
            moving = unit.stop_ordered or unit.sleep_ordered
            moving = moving or unit.state in (ChildState.LOADING, ChildState.STOPPING)
            if moving or not unit.connected:
                steps.append(lambda u=unit: self.advance_unit(u))  # type: ignore[misc]
        if self.measuring is not None:
            steps.append(self.advance_measure)
        return steps

    def list_steps(self) -> list[Callable[[], None]]:
        steps = self.list_quiet_steps() * 2
        names = list(self.sizes)
        for front in self.fronts:
            for _ in range(2):
                steps.append(lambda f=front: self.request(f, names[self.choose(len(names))]))  # type: ignore[misc]
            if front.waiting:
                request = list(front.waiting)[self.choose(len(front.waiting))]
                steps.append(lambda f=front, r=request: self.leave(f, r))  # type: ignore[misc]
        steps.append(self.tick)
        rare = self.choose(12)
        model = names[self.choose(len(names))]
        if rare == 0:
            steps.append(lambda: self.command(lambda w: ev.LoadRequested(w, model), model))
        elif rare == 1:
            steps.append(lambda: self.unload(model, self.choose(3) == 0))
        elif rare == 2:
            steps.append(lambda: self.command(lambda w: ev.MeasureRequested(w, model), model))
            steps.append(lambda: self.pin(model, self.choose(3) == 0))
        elif rare == 3:
            steps += [lambda u=u: self.disconnect(u) for u in self.units.values() if u.connected]  # type: ignore[misc]
        elif rare == 4:
            steps += [lambda u=u: self.end_unit(u, CRASH) for u in self.units.values()]  # type: ignore[misc]
        elif rare == 5 and self.choose(4) == 0:
            steps.append(lambda: self.kill_front(self.fronts[self.choose(len(self.fronts))]))
        elif rare == 6 and self.choose(3) == 0:
            steps.append(self.reconfigure)
        elif rare == 7 and self.choose(3) == 0:
            steps.append(self.restart)
        elif rare == 8 and self.cli:
            waiter = list(self.cli)[self.choose(len(self.cli))]
            steps.append(lambda: self.abandon_command(waiter))
        elif rare == 9:
            steps.append(self.send_garbage)
        elif rare == 10:
            steps += [lambda u=u: self.advance_unit(u) for u in self.units.values()]  # type: ignore[misc]
        elif rare == 11:
            steps.append(self.move_external)
            steps.append(lambda: self.replace_file(model))
        return steps

    def move_external(self) -> None:
        self.external["G0"] = self.choose(3) * 15
        self.blind = True

    def tick(self) -> None:
        deadline = self.scheduler.next_deadline()
        if deadline is not None and self.choose(3) == 0:
            self.now = max(self.now, deadline)
        else:
            self.now += (0.0, 0.1, 1.0)[self.choose(3)]
        self.apply(ev.Tick())

    def send_garbage(self) -> None:
        """News of other generations, of unknown models and holders."""
        model = ("m0", "m1", "nonsense")[self.choose(3)]
        garbage: list[ev.Event] = [
            ev.InstanceReported(model, "old", ChildState.READY, effective=self.make_breakdown({"G0": 5})),
            ev.InstanceDisconnected(model, "old"),
            ev.InstanceEnded(model, "old", CRASH),
            ev.StopAnswered(model, "old", True),
            ev.MeasureReported("nonsense", self.make_breakdown({}), self.make_breakdown({})),
            ev.MeasureEnded("nonsense", "?"),
            ev.WaiterGone((77, 7)),
            ev.LeaseBusy(77, model, "old"),
            ev.LeaseIdle(77, model, "old", self.now),
            ev.RecallAnswered(77, model, "old", True, self.now),
            ev.ConnectionGone(77),
            ev.FrontAnnounced(77),
            ev.HostRead(1000, 500),
            ev.FilesSeen("nonsense", "v1", self.now),
            ev.FilesSeen(model, "", self.now) if model in self.sizes else ev.FilesSeen(model, "v1", self.now, True),
        ]
        self.apply(garbage[self.choose(len(garbage))])

    def step(self, interrupt: bool = False) -> None:
        """One thing happens; with `interrupt`, the supervisor dies of it if there is anything to do."""
        self.interrupt_next = interrupt
        steps = self.list_steps()
        steps[self.choose(len(steps))]()
        self.interrupt_next = False
        if self.interrupted:
            self.interrupted = False
            self.restart()

    def settle(self, limit: int = 5000) -> None:
        """Let everything that runs end. Raises AssertionError when somebody still waits."""
        for _ in range(limit):
            steps = self.list_quiet_steps()
            if steps:
                steps[self.choose(len(steps))]()
                continue
            deadline = self.scheduler.next_deadline()
            if deadline is None:
                break
            if not self.open and deadline > self.now + 20:
                break
            self.now = max(self.now, deadline)
            self.apply(ev.Tick())
        assert not self.open, f"still waiting: {self.open}; queue {self.scheduler.queue_names()}"
        for account in self.scheduler.list_devices():
            taken = {name: u.allocated[account.name] for name, u in self.units.items() if u.allocated.get(account.name)}
            assert account.holders == taken, f"on {account.name} really: {taken}, charged: {account.holders}"
