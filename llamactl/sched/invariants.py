"""What must hold after each event, whatever came?

Tests call this after every event. It looks only at the state; what a sequence of effects must hold (each waiter
answered once, a limit of instances never passed) is checked by who applies them.
"""

import itertools

from llamactl.protocol.values import State
from llamactl.sched.breakdowns import is_self_fitting
from llamactl.sched.core import Core
from llamactl.sched.instances import Instance, Model, StopReason
from llamactl.sched.shares import count_sharers
from llamactl.sched.states import RUNNING


def check_invariants(core: Core) -> None:
    """Raise AssertionError, with what is wrong."""
    _check_accounts(core)
    for model in core.models.values():
        _check_model(core, model)
    _check_queue(core)
    _check_measuring(core)
    _check_shares(core)
    undecided = bool(core.agenda)
    assert not undecided, "an event was handled, and not decided upon to the end"
    assert not core.effects, "effects were left behind"


def _check_shares(core: Core) -> None:
    busy, sharers = count_sharers(core)
    for instance in busy:
        told = instance.sharers
        assert told == sharers or not instance.connected, f"{instance.model!r} shares with {told}, not {sharers}"


def _check_accounts(core: Core) -> None:
    ledger = core.ledger
    sums: dict[str, int] = {}
    for name, sizes in ledger.holds.items():
        assert name in core.running, f"{name!r} is charged and does not run"
        for account, size in sizes.items():
            assert size >= 0, f"{name!r} is charged {size} bytes on {account}"
            sums[account] = sums.get(account, 0) + size
    assert sums == ledger.held, f"held is {ledger.held}, the charges sum up to {sums}"
    for account, row in ledger.accounts.items():
        assert row.external >= 0, f"external is {row.external} bytes on {account}"


def _check_model(core: Core, model: Model) -> None:
    name, instance = model.name, model.instance
    assert core.models.get(name) is model, f"{name!r} is filed under another name"
    assert (instance is not None) == (model.state in RUNNING), f"{name!r} is {model.state}, its instance is {instance}"
    assert (instance is not None) == (name in core.running), f"{name!r} is missing in the running ones, or left there"
    assert not model.removed or instance is not None, f"{name!r} is removed, does not run, and is still known"
    assert model.removed or bool(model.invalid) == (model.settings is None), f"{name!r} has settings and is invalid"
    if instance is not None:
        _check_instance(core, model, instance)


def _check_instance(core: Core, model: Model, instance: Instance) -> None:
    name, takedown = model.name, instance.takedown
    assert instance.model == name, f"the instance of {name!r} is of {instance.model!r}"
    assert takedown is not None or model.state is not State.STOPPING, f"{name!r} stops without a reason"
    assert takedown is None or model.state is not State.LOADING, f"{name!r} loads and is taken down"
    assert instance.uncharged or instance.adopted or name in core.ledger.holds, f"{name!r} is charged nothing"
    asleep = model.state is State.SLEEPING
    assert not (asleep and (instance.leases or instance.sleep_ordered)), f"{name!r} sleeps and may get requests"
    if takedown is None or model.state is State.STOPPING or takedown.ordered or instance.sleep_ordered:
        return
    assert instance.leases or takedown.retry_s is not None or not instance.connected, (
        f"{name!r} is recalled from nobody"
    )
    if takedown.reason is StopReason.EVICTED:
        assert not model.is_pinned(), f"{name!r} is pinned and a victim"
        assert takedown.drain or not instance.count_busy(), f"{name!r} is busy and a victim"
        assert instance.connected, f"{name!r} is silent and a victim"
        assert core.recovery is None, f"{name!r} is a victim before everything is known"
        assert takedown.for_model in core.queue, f"{name!r} goes for {takedown.for_model!r}, which nobody wants"


def _check_queue(core: Core) -> None:
    for entry in core.queue:
        model = core.models.get(entry.model)
        assert model is not None, f"{entry.model!r} is queued and unknown"
        assert entry.is_wanted, f"nobody waits for {entry.model!r}"
        assert model.instance is not None or model.settings is not None, f"{entry.model!r} is queued and invalid"
        granting = model.instance is not None and model.instance.is_granting and model.state is State.READY
        assert not granting, f"{entry.model!r} is ready, and requests wait for it"
        for waiter in entry.waiters:
            assert core.queue.has_waiter(waiter), f"waiter {waiter} of {entry.model!r} cannot be found"
    loading = [i for model, i in core.list_running() if model.state is State.LOADING and not i.adopted]
    for instance in loading:
        assert instance.model in core.queue, f"{instance.model!r} loads for nobody"
    for first, second in itertools.combinations(loading, 2):
        fitting = is_self_fitting(first.settings) or is_self_fitting(second.settings)
        blind = first.uncharged or second.uncharged or (fitting and first.claimed & second.claimed)
        assert not blind, f"{first.model!r} loads beside {second.model!r}, and one of them takes what is free"


def _check_measuring(core: Core) -> None:
    queue = core.measuring
    for name in queue.pending:
        assert name in core.models, f"{name!r} is to be measured and unknown"
        assert core.models[name].settings is not None, f"{name!r} is to be measured and invalid"
    for waiter, name in queue.waiters.items():
        assert name in queue.pending or queue.is_current(name), f"waiter {waiter} waits for no measurement of {name!r}"
    assert queue.current or not queue.pending or not core.started or core.list_unreported(), "nobody is being measured"
