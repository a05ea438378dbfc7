"""Which placement options has a model that is to be loaded or woken, and what would each one take?

Each option is weighed against one picture of all instances: who could go, who is busy, which loads are under way.
Nothing here changes anything, so that `llamactl plan` asks the same questions as a real load.
"""

from collections.abc import Mapping
from dataclasses import replace

from llamactl.protocol.values import State
from llamactl.sched.breakdowns import is_self_fitting, list_claimed_devices, sum_per_account
from llamactl.sched.core import Core
from llamactl.sched.evict import Candidate, Demand, choose_victims
from llamactl.sched.instances import Instance, Model, StopReason
from llamactl.sched.placement import Choice, Option, choose_placement, list_options
from llamactl.sched.queue import Entry

Needs = Mapping[str, int] | None
"""Bytes per account; None: nobody knows."""


def get_needs(model: Model) -> Needs:
    """Bytes per account that loading it takes as measured; None: nobody knows."""
    return model.get_needs()


def list_placement_options(core: Core, model: Model) -> tuple[Option, ...]:
    """All ways to load, or to wake, a model. A sleeping one needs what it had when it was awake, where it was."""
    needs, instance = get_needs(model), model.instance
    needs = {} if needs is None else needs
    if instance is None:
        ledger = core.ledger
        present = tuple([name for name, account in ledger.accounts.items() if account.present and account.total])
        settings, known = model.get_settings(), model.placement_options
        if known is None or known[0] is not settings or known[1] is not needs or known[2] != present:
            known = model.placement_options = (
                settings,
                needs,
                present,
                list_options(settings, model.min, needs, present),
            )
        return known[3]
    awake = sum_per_account(instance.awake) if instance.awake is not None else instance.place(needs)
    held = core.ledger.holds.get(model.name, {})
    return (Option({name: max(0, size - held.get(name, 0)) for name, size in awake.items()}, instance.placement),)


def choose_placement_option(core: Core, model: Model, entry: Entry | None, now: float) -> Choice:
    """The best way to load or wake a model now, and what must happen for it."""
    instance = model.instance
    candidates = tuple(
        _describe(core, other, running, now) for other, running in core.list_running() if running is not instance
    )
    known, loaders = get_needs(model) is not None, list_loaders(core)
    choices = [
        _weigh(core, model, option, candidates, known, loaders) for option in list_placement_options(core, model)
    ]
    best = choose_placement(choices, entry.placement if entry is not None else None)
    # Whatever would help another option may make it the better one.
    watched = frozenset(name for choice in choices for name in choice.plan.shortages)
    slots = frozenset({""}) if best.plan.slots_short else frozenset()
    return replace(best, watched=watched | slots)


def _weigh(
    core: Core,
    model: Model,
    option: Option,
    candidates: tuple[Candidate, ...],
    known: bool,
    loaders: list[tuple[Model, Instance]],
) -> Choice:
    capacities = core.ledger.list_capacities(option.needs)
    if model.retried:
        # Nobody knows a limit there, but it was met: everything idle goes.
        capacities |= {name: size for name, size in model.learnt.items() if name not in capacities}
    demand = Demand(option.needs, capacities, candidates, core.settings.max_loaded)
    conflicts = find_conflicts(model, option.needs if known else None, option.devices, loaders)
    left = sum(
        demand.capacities[name] - core.ledger.held.get(name, 0) - option.needs.get(name, 0)
        for name in option.devices
        if name in demand.capacities
    )
    return Choice(option, demand, choose_victims(demand), conflicts, left=left)


def list_loaders(core: Core) -> list[tuple[Model, Instance]]:
    """Instances that may still take more than they are charged. One that stayed silent for as long as a new supervisor
    waits is none: nobody waits longer for what cannot be known.
    """
    # One that is stopped while it loads may have taken more than it is charged, until it is gone.
    return [
        (model, instance)
        for model, instance in core.list_running()
        if not instance.is_unknown
        and (model.state is State.LOADING or (model.state is State.STOPPING and instance.effective is None))
    ]


def find_conflicts(
    model: Model, needs: Needs, placement: tuple[str, ...], loaders: list[tuple[Model, Instance]]
) -> tuple[str, ...]:
    """Loads that must end before this one may begin: those of which one takes nobody knows how much, and those that
    share a device if one of the two fits itself to what is free there. On the host alone nothing fits itself.
    """
    if not loaders:
        return ()
    claimed = frozenset(placement) or list_claimed_devices(model.get_settings(), model.min)
    fitting = is_self_fitting(model.get_settings())
    conflicts: list[str] = []
    for other, instance in loaders:
        if other is model:
            continue
        shared = claimed & instance.claimed
        if needs is None or instance.uncharged or (shared and (fitting or is_self_fitting(instance.settings))):
            conflicts.append(other.name)
    return tuple(conflicts)


def _describe(core: Core, model: Model, instance: Instance, now: float) -> Candidate:
    takedown = instance.takedown
    stopping = model.state is State.STOPPING
    busy = instance.is_busy(now)
    evicting = takedown is not None and takedown.reason is StopReason.EVICTED and not takedown.ordered
    going = takedown is not None and not evicting
    return Candidate(
        model=model.name,
        holds=core.ledger.holds.get(model.name, {}),
        priority=model.settings.priority if model.settings is not None else 0,
        last_used_s=max(instance.last_used_s, instance.ready_since_s),
        busy_since_s=instance.get_busy_since(),
        loading=model.state is State.LOADING,
        busy=busy,
        fresh=model.state is State.READY and now < instance.ready_since_s + core.settings.min_resident_s,
        # Two that sleep would wait for each other: whoever is first gets the room, the other is loaded again.
        wanted=model.name in core.queue and model.state is not State.SLEEPING,
        pinned=model.is_pinned(),
        silent=not instance.connected,
        leaving=stopping or (takedown is not None and takedown.ordered) or (going and not busy),
        draining=takedown is not None and takedown.drain and not takedown.ordered and busy,
        recalled=evicting and takedown is not None and not (takedown.drain and busy),
        goes_first=model.removed,
    )


def promise(core: Core, model: Model) -> Needs:
    """What a load that waits has been promised, wherever it will go in the end. None: nobody knows."""
    if get_needs(model) is None and model.instance is None:
        return None
    promised: dict[str, int] = {}
    for option in list_placement_options(core, model):
        for name, size in option.needs.items():
            promised[name] = max(promised.get(name, 0), size)
    return promised
