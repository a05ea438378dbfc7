"""When is a model measured, and what follows from the figures?

One measure child at a time. Models that a load waits for come first, in the load queue's order, then those that
somebody asked to measure, then all others that have no figures. A failed measurement means a load without memory
checks, and is tried once more after that; two attempts at most, unless somebody asks. A child that systemd did not
start, or that somebody stopped, is no attempt: the next load tries again. Figures from the cache never calibrate: they
say nothing about what is free now.
"""

from llamactl.journal_events import JournalEvent
from llamactl.protocol.control_socket import MeasureResult
from llamactl.protocol.values import MemoryStatus, Row, State
from llamactl.sched import explain
from llamactl.sched.admission import get_host_headroom, is_to_be_measured, list_margins
from llamactl.sched.breakdowns import HOST, list_claimed_devices
from llamactl.sched.compare import compare_effective
from llamactl.sched.core import Core
from llamactl.sched.effects import StartMeasure, StopMeasure, Tell
from llamactl.sched.events import MeasureEnded, MeasureReported
from llamactl.sched.instances import Instance, Model
from llamactl.sched.placement_options import get_needs
from llamactl.sched.plausible import list_known_rows
from llamactl.sched.recheck import Scope

MAX_ATTEMPTS = 2


def start_measure(core: Core) -> None:
    """Start the next measure child, if there is none and somebody is to be measured."""
    queue = core.measuring
    for name in [name for name in queue.untried if name in core.queue or name in queue.pending]:
        queue.untried.discard(name)
        queue.add(name)
    if queue.current or not queue.pending or not core.started:
        return
    if core.recovery is not None and core.list_unreported():
        # What is free now contains instances that nobody is charged for yet.
        return
    wanted = (entry.model for entry in core.queue if entry.model in queue.pending)
    name = next(wanted, None) or next(iter(queue.pending))
    model = core.models[name]
    queue.remove(name)
    queue.current, queue.dropped, queue.reported = name, False, False
    model.memory = MemoryStatus.MEASURING
    if name in core.queue:
        core.recheck(Scope.ALL)
    core.emit(
        StartMeasure(
            model.get_settings(),
            list_margins(core, model.get_settings(), {}),
            not model.no_extra_bufts,
            get_host_headroom(core, {}),
            ignores_cache=name in queue.waiters.values() or model.measure_attempts > 0,
        )
    )


def drop_measurement(core: Core, model: Model) -> None:
    """Forget a model's figures: its settings have changed, or it is gone."""
    queue = core.measuring
    queue.remove(model.name)
    queue.untried.discard(model.name)
    if queue.is_current(model.name):
        queue.dropped = True
        core.emit(StopMeasure(model.name))
    model.memory, model.min, model.max = MemoryStatus.UNMEASURED, None, None
    model.measure_error, model.measure_attempts = "", 0


def keep_without_extra_bufts(core: Core, model: Model, instance: Instance) -> None:
    """A model whose warm-up died with llama.cpp's extra buffer types is ready without them: that is how it is loaded
    from now on, and what was measured with them is measured again.
    """
    if instance.extra_bufts or not model.tries_without_extra_bufts:
        return
    model.tries_without_extra_bufts, model.no_extra_bufts = False, True
    if model.settings is not None and model.min is not None:
        drop_measurement(core, model)
        queue_unmeasured(core, model)


def measure_after_load(core: Core, model: Model) -> None:
    """The second attempt of a measurement that failed."""
    if (
        model.memory is MemoryStatus.FAILED
        and model.measure_attempts < MAX_ATTEMPTS
        and model.settings is not None
        and not core.measuring.is_current(model.name)
    ):
        core.measuring.add(model.name)
        core.recheck(Scope.ALL)


def handle_measure_reported(core: Core, event: MeasureReported, now: float) -> None:
    """Take over figures of a measure child, or of the cache, unless they are late."""
    model = core.models.get(event.model)
    current = core.measuring.is_current(event.model)
    if model is None or model.settings is None or not (current or (event.cached and model.min is None)):
        return
    if not event.cached and core.measuring.reported:
        return
    model.min, model.max, model.memory = event.min, event.max, MemoryStatus.MEASURED
    model.facts = event.facts or model.facts
    model.measure_error, model.measure_attempts = "", 0
    core.measuring.remove(model.name)
    rows = list_known_rows(core, event.min, now)
    core.ledger.learn_devices(rows)
    core.measuring.reported = core.measuring.reported or current
    if event.cached:
        if model.name in core.measuring.waiters.values():
            core.measuring.add(model.name, first=True)  # who asks wants to know what is true now
    else:
        calibrate_by_measure(core, rows, now)
        for waiter in core.measuring.pop_waiters(model.name):
            core.emit(Tell(waiter, MeasureResult(id=waiter[1], model=model.name, memory=model.describe_memory())))
    explain.record_measured(core, model, event.cached)
    instance = model.instance
    if instance is not None and instance.effective is None and not core.ledger.holds.get(model.name):
        # It was started, or found, without figures: now it is charged like any other.
        core.charge(model.name, instance.place(get_needs(model) or {}))
        instance.claimed = frozenset(instance.placement) or list_claimed_devices(instance.settings, model.min)
        instance.uncharged = False
    if model.state is State.READY:
        compare_effective(core, model)
    core.recheck(Scope.ALL)


def calibrate_by_measure(core: Core, rows: list[Row], now: float) -> None:
    """Correct the accounts of devices by what a measure child found free there."""
    for row in rows:
        core.readings.seen_s[row.name] = now
        unsettled = any(core.is_unsettled(other, row.name) for other, _ in core.list_running())
        if core.ledger.calibrate(row, 0, "", only_raise=unsettled):
            mark_counted_as_external(core, row.name)


def mark_counted_as_external(core: Core, account: str) -> None:
    """Instances that have not reported since they were found are in what `external` says of this account now."""
    for _, instance in core.list_running():
        if instance.is_unknown:
            instance.counted_as_external_on.add(account)


def calibrate_host(core: Core, total: int, available: int) -> None:
    """Correct the host's account, in bytes; upwards only, while an instance is loading or ending."""
    unsettled = any(core.is_unsettled(other, HOST) for other, _ in core.list_running())
    core.ledger.read_host(total, available, only_raise=unsettled)


def handle_measure_ended(core: Core, event: MeasureEnded, now: float) -> None:
    """Free the place for the next measurement; one that failed may be tried again."""
    queue = core.measuring
    if queue.current != event.model:
        return
    model = core.models.get(event.model)
    failed = not queue.reported and not queue.dropped
    queue.current, queue.dropped, queue.reported = "", False, False
    core.recheck(Scope.ALL)
    if model is None or not failed:
        return
    model.measure_error = event.error or "its measure child ended without figures"
    if event.untried and model.min is None and model.name not in core.queue:
        model.memory = MemoryStatus.UNMEASURED
        queue.untried.add(model.name)
    else:
        # A load that waits goes on without: it would wait for ever where nothing can be started.
        model.measure_attempts += not event.untried
        model.memory = MemoryStatus.MEASURED if model.min is not None else MemoryStatus.FAILED
    core.record(
        JournalEvent.MEASUREMENT_FAILED,
        model.name,
        "warning",
        reason=model.measure_error,
        attempt=model.measure_attempts,
    )
    core.refuse_all(core.measuring.pop_waiters(model.name), explain.refuse_measure_failed(model))
    if model.state in (State.READY, State.SLEEPING):
        measure_after_load(core, model)


def queue_unmeasured(core: Core, model: Model, first: bool = False) -> None:
    """Queue a model that has no figures and none on the way."""
    if model.settings is not None and is_to_be_measured(model) and not core.measuring.is_current(model.name):
        core.measuring.add(model.name, first)
        core.recheck(Scope.ALL)
