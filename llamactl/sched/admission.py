"""Which queued load may start now, and what must happen first?

For each entry, in order:
1. Its unit still exists (it loads, or the old one stops), or its memory is being measured: it is passed over.
2. Instances found at the start have not reported yet: wait.
3. Its files have not been looked at since it was wanted: they may be others than those that were measured.
4. Another load is fitting itself on one of its devices, or takes nobody knows how much: wait, and stop nothing for it.
   What is free on its devices was seen too long ago: that is read first.
5. It fits: spawn. Victims would help: recall their leases. What could help is busy: wait. Only pins could: refuse.
6. A model that may choose its devices has all this decided for each way to place it; the best one counts.
7. The first entry that must wait is the head. Those behind it start only if they fit without stopping anything,
   beside what the head needs.
8. The head has waited for `max_wait`: drain the busy instances that have been so for longest.

A model that is asleep and wanted is decided like a load: what it takes beyond its residue must be there, and its place
is its own already.

The plan is made again after each change. What was recalled for an older plan and is no longer in the new one is
called off.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from llamactl.journal_events import JournalEvent
from llamactl.protocol.control_socket import Failure, Progress
from llamactl.protocol.values import MemoryStatus, Note, Stage, State
from llamactl.sched import explain
from llamactl.sched.breakdowns import HOST, add_bytes, list_claimed_devices
from llamactl.sched.core import Core
from llamactl.sched.effects import OrderWake, StartInstance
from llamactl.sched.evict import Demand, Outcome, Plan, choose_drains
from llamactl.sched.instances import Instance, Model, StopReason
from llamactl.sched.load_plan import record_plan
from llamactl.sched.placement import Option
from llamactl.sched.placement_options import (
    Needs,
    choose_placement_option,
    find_conflicts,
    get_needs,
    list_loaders,
    list_placement_options,
    promise,
)
from llamactl.sched.queue import Entry
from llamactl.sched.readings import ask_devices, ask_files
from llamactl.sched.recheck import Scope
from llamactl.sched.reserve import reserve_headroom
from llamactl.sched.takedown import begin_takedown, call_off_takedown
from llamactl.settings import ModelSettings


def is_to_be_admitted(model: Model) -> bool:
    """Whether a queued model must be started or woken; else it is on its way already, or its old unit still stops."""
    return model.instance is None or (model.state is State.SLEEPING and model.instance.takedown is None)


def is_to_be_measured(model: Model) -> bool:
    """Whether a load must wait for figures that are still to come."""
    return model.min is None and model.memory is not MemoryStatus.FAILED


def admit_loads(core: Core, now: float) -> None:
    """Start what can start, make room for the first that cannot, and call off what is not needed any more."""
    core.head, core.head_short, core.overdue_s = "", None, None
    wanted: set[str] = set()
    backfill = Backfill({}, [])
    for entry in core.queue:
        model = core.models[entry.model]
        if not is_to_be_admitted(model):  # 1
            continue
        if is_to_be_measured(model):  # 1
            core.set_stage(entry, Stage.MEASURING)
        elif not core.head:
            waits, keep = _pursue(core, model, entry, now)
            if waits:  # 7
                core.head, wanted = model.name, keep
                backfill = _measure_backfill(core)
        elif _backfill(core, model, entry, backfill, now):
            backfill = _measure_backfill(core)
    _call_off_unwanted(core, wanted, now)


def admit_head(core: Core, now: float) -> None:
    """The same when no memory and no place has come or gone: only what the head needs can be decided differently."""
    entry = core.queue.get(core.head)
    model = core.models.get(core.head)
    if entry is None or model is None or not is_to_be_admitted(model):
        if core.head:
            core.recheck(Scope.ALL)
        return
    core.head_short, core.overdue_s = None, None
    waits, wanted = _pursue(core, model, entry, now)
    if waits:
        _call_off_unwanted(core, wanted, now)
    else:
        core.recheck(Scope.ALL)


def admit_new(core: Core, names: list[str], now: float) -> None:
    """The same when nothing has changed but that these were queued behind a head."""
    for name in names:
        entry, model = core.queue.get(name), core.models.get(name)
        if entry is None or model is None or not is_to_be_admitted(model):
            continue
        if is_to_be_measured(model):
            core.set_stage(entry, Stage.MEASURING)
        elif name != core.head:
            _backfill(core, model, entry, _measure_backfill(core), now)


def _call_off_unwanted(core: Core, wanted: set[str], now: float) -> None:
    for model, instance in core.list_running():
        takedown = instance.takedown
        if takedown is None or takedown.reason is not StopReason.EVICTED or model.name in wanted:
            continue
        if takedown.can_be_called_off and model.state is not State.STOPPING:
            call_off_takedown(core, model, "not needed any more", now)


# --- the head of the queue ---


def _pursue(core: Core, model: Model, entry: Entry, now: float) -> tuple[bool, set[str]]:
    """Do what the entry needs next. Whether it has to wait, and which instances stay recalled or draining for it."""
    recalled = {m.name for m, i in core.list_running() if i.takedown is not None and i.takedown.for_model == model.name}
    unreported = core.list_unreported() if core.recovery is not None else []
    if unreported:  # 2
        _wait(core, entry, tuple(unreported), "the supervisor has just started and does not know all instances yet")
        return True, recalled
    if ask_files(core, model, entry, now):  # 3
        return True, recalled
    # 6
    choice = choose_placement_option(core, model, entry, now)
    needs, plan = choice.option.needs, choice.plan
    core.head_short = choice.watched
    if choice.conflicts:  # 4
        _wait(core, entry, choice.conflicts, "another load must end first")
        return True, recalled
    if ask_devices(core, needs, now):  # 4
        return True, recalled
    record_plan(core, model, entry, choice, now)
    if plan.hopeless and core.settings.strict:
        _refuse(core, entry, explain.refuse_hopeless(core, model, plan, needs))
        return False, set()
    match plan.outcome:  # 5
        case Outcome.FITS:
            start(core, model, entry, choice.option, plan, now)
            return False, set()
        case Outcome.PINNED:
            _refuse(core, entry, explain.refuse_pinned(core, model, plan, needs))
            return False, set()
        case Outcome.EVICT:
            if core.recovery is not None:
                _wait(core, entry, plan.victims, "the supervisor has just started and does not know all leases yet")
                return True, recalled
            entry.placement = choice.option.devices
            _evict(core, model, plan, now)
            _wait(core, entry, plan.victims + plan.waiting_for, explain.format_lack(core, plan, needs))
            return True, set(plan.victims)
        case Outcome.WAIT:
            drains = _drain_overdue(core, entry, choice.demand, now)  # 8
            entry.placement = choice.option.devices if drains or plan.is_under_way else None
            _wait(core, entry, plan.waiting_for, explain.format_lack(core, plan, needs))
            return True, drains
    raise AssertionError(plan.outcome)


def _wait(core: Core, entry: Entry, waiting_for: tuple[str, ...], why: str) -> None:
    names = tuple(sorted(set(waiting_for)))
    core.set_stage(entry, Stage.WAITING, None, names, why)
    if entry.is_news((JournalEvent.LOAD_WAITS, names)):  # figures in `why` move with every report
        core.record(JournalEvent.LOAD_WAITS, entry.model, waiting_for=list(names), why=why)


def _refuse(core: Core, entry: Entry, refusal: Failure) -> None:
    core.refuse_all(entry.waiters, refusal)
    core.queue.remove(entry.model)
    core.record(JournalEvent.LOAD_REFUSED, entry.model, "warning", why=refusal.message, code=str(refusal.code))


def _evict(core: Core, model: Model, plan: Plan, now: float) -> None:
    for name in plan.victims:
        victim = core.running[name]
        instance = victim.instance
        takedown = instance.takedown if instance is not None else None
        if takedown is not None and takedown.reason is StopReason.EVICTED:
            takedown.for_model = model.name
            continue
        explain.record_victim(core, victim, model.name, plan, now)
        begin_takedown(core, victim, StopReason.EVICTED, now, model.name)


def _drain_overdue(core: Core, entry: Entry, demand: Demand, now: float) -> set[str]:
    """Drains for an entry that has waited too long. Sets when that will be, for those that have not."""
    drains = choose_drains(demand) if core.settings.max_wait_s > 0 and core.recovery is None else ()
    if not drains:
        return set()
    core.overdue_s = entry.since_s + core.settings.max_wait_s
    if now < core.overdue_s:
        return set()
    core.overdue_s = None
    for name in drains:
        victim = core.running[name]
        takedown = victim.instance.takedown if victim.instance is not None else None
        if takedown is not None:
            if takedown.reason is StopReason.EVICTED:
                takedown.for_model = entry.model
        else:
            waited_s = round(now - entry.since_s, 1)
            core.record(
                JournalEvent.VICTIM_DRAINED, name, for_model=entry.model, why="busy for longest", waited_s=waited_s
            )
            begin_takedown(core, victim, StopReason.EVICTED, now, entry.model, drain=True)
    return set(drains)


# --- those behind it ---


@dataclass(frozen=True)
class Backfill:
    """What those behind the head may use."""

    left: Mapping[str, int] | None
    """Bytes per account that are free beside what the head needs; accounts without a limit are left out. None: nothing
    may start beside it, because nobody knows what it needs, or too little is known yet.
    """
    loaders: list[tuple[Model, Instance]]
    """Loads that are under way."""


def _measure_backfill(core: Core) -> Backfill:
    needs, loaders = promise(core, core.models[core.head]), list_loaders(core)
    if needs is None or (core.recovery is not None and core.list_unreported()):
        return Backfill(None, loaders)
    ledger = core.ledger
    capacities = ledger.list_capacities({*ledger.accounts, HOST})
    left = {name: size - ledger.held.get(name, 0) - needs.get(name, 0) for name, size in capacities.items()}
    return Backfill(left, loaders)


def _backfill(core: Core, model: Model, entry: Entry, backfill: Backfill, now: float) -> bool:
    """Start an entry that takes nothing of what the head needs. Whether it was started."""
    head, left = core.models[core.head], backfill.left
    # The head may need the last place.
    more = (model.instance is None) + (head.instance is None)
    needs = get_needs(model)
    may_start = left is not None and needs is not None and (model.instance is not None or fits_somewhere(needs, left))
    may_start = may_start and (model.instance is not None or not _is_short_of_slots(core, more))
    options = list_placement_options(core, model) if may_start else ()
    fitting: list[tuple[bool, int, Option]] = []
    for option in options:
        rest = {name: (left or {})[name] - size for name, size in option.needs.items() if name in (left or {})}
        if all(size >= 0 for size in rest.values()) and not find_conflicts(
            model, option.needs, option.devices, backfill.loaders
        ):
            fitting.append((not option.devices, sum(rest.get(name, 0) for name in option.devices), option))
    best = min(fitting, key=lambda found: found[:2], default=None)
    if best is None or ask_files(core, model, entry, now) or ask_devices(core, best[2].needs, now):
        core.set_stage(entry, Stage.QUEUED, None, (core.head,))
        return False
    start(core, model, entry, best[2], None, now, promised=promise(core, head))
    return True


def fits_somewhere(needs: Mapping[str, int], left: Mapping[str, int]) -> bool:
    """Whether a load may fit as measured or on one device. Asked of every entry, so it looks no closer than that."""
    short = [name for name, size in needs.items() if name in left and size > left[name]]
    if not short or HOST in short:
        return not short
    total = sum(size for name, size in needs.items() if name != HOST)
    return total <= max((free for name, free in left.items() if name != HOST), default=0)


def _is_short_of_slots(core: Core, more: int) -> bool:
    """`more`: places beyond those that instances have."""
    return core.settings.max_loaded > 0 and len(core.running) + more > core.settings.max_loaded


# --- the start ---


def start(
    core: Core, model: Model, entry: Entry, option: Option, plan: Plan | None, now: float, promised: Needs = None
) -> None:
    """Reserve, and start or wake. `promised`: what the child must leave for others, besides what loading instances will
    take. `plan` None: it starts beside the head of the queue.
    """
    needs = option.needs if get_needs(model) is not None or model.instance is not None else None
    if plan is not None and plan.hopeless:
        core.record(
            JournalEvent.MODEL_DOES_NOT_FIT,
            model.name,
            "warning",
            why="needs more than there is with everything unloaded; fitting decides",
            **{f"missing_{name.lower()}_bytes": missing for name, missing in sorted(plan.hopeless.items())},
        )
        warning = explain.format_hopeless(plan, option.needs) + "; it is tried all the same, since `strict` is false"
        for waiter in entry.waiters:
            core.tell_progress(waiter, Progress(id=0, stage=Stage.STARTING, warning=warning))
    explain.record_load_decided(core, model, needs)
    reserve = reserve_headroom(core, model, option, promised or {})
    left = add_bytes([dict(promised or {}), reserve.sizes])
    margins = list_margins(core, model.get_settings(), left)
    host_headroom = get_host_headroom(core, left)
    if model.instance is not None:
        _wake(core, model, model.instance, option, now)
        core.set_stage(entry, Stage.STARTING)
        core.emit(OrderWake(model.name, model.instance.generation, margins, host_headroom))
        return
    settings = model.get_settings()
    if option.devices:
        settings = msgspec.structs.replace(settings, devices=option.devices)
    instance = Instance(
        model.name,
        core.make_generation(now),
        settings,
        now,
        extra_bufts=not (model.no_extra_bufts or model.tries_without_extra_bufts),
        claimed=frozenset(option.devices) or list_claimed_devices(settings, model.min),
        uncharged=needs is None,
        placement=option.devices,
        note=Note(files=model.files or ""),
    )
    instance.last_used_s = now
    core.add_instance(model, instance)
    core.ledger.charge(model.name, needs or {})
    core.set_stage(entry, Stage.STARTING)
    left_for = {"leaves_room_for": reserve.models} if reserve.models else {}
    core.record(
        JournalEvent.INSTANCE_SPAWNED,
        model.name,
        generation=instance.generation,
        devices=list(option.devices),
        **left_for,
    )
    # What was measured on all devices says nothing of one alone.
    measured = None if option.devices else model.max
    core.emit(StartInstance(settings, instance.generation, margins, instance.extra_bufts, host_headroom, measured))


def _wake(core: Core, model: Model, instance: Instance, option: Option, now: float) -> None:
    """It loads again in the same process."""
    charged = add_bytes([core.ledger.holds.get(model.name, {}), dict(option.needs)])
    model.change_state(State.LOADING)
    instance.started_s, instance.last_used_s, instance.adopted = now, now, False
    instance.effective, instance.uncharged = None, not charged and get_needs(model) is None
    core.ledger.charge(model.name, charged)
    core.record(JournalEvent.INSTANCE_WOKEN, model.name, generation=instance.generation)


def list_margins(core: Core, settings: ModelSettings, promised: Mapping[str, int]) -> dict[str, int]:
    """What a child that fits itself must leave free per device: the margin, and what others were promised."""
    ledger, least = core.ledger, settings.fit_margin_bytes
    margins = {"": core.settings.margin_bytes, **core.settings.margins_bytes}
    margins = {name: max(least, margin) for name, margin in margins.items()}
    loading = [model.name for model, _ in core.list_running() if model.state is State.LOADING]
    names = set(promised).union(*(ledger.holds.get(name, {}) for name in loading)) - {HOST}
    for name in sorted(names):
        others = promised.get(name, 0) + sum(ledger.get_hold(model, name) for model in loading)
        margins[name] = max(least, ledger.get_margin(name)) + others
    return margins


def get_host_headroom(core: Core, promised: Mapping[str, int]) -> int | None:
    """What a child that fits itself may take of host memory: all that the accounts leave to it. None: no limit."""
    capacity = core.ledger.get_capacity(HOST)
    if capacity is None:
        return None
    return max(0, capacity - core.ledger.held.get(HOST, 0) - promised.get(HOST, 0))
