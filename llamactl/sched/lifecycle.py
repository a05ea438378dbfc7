"""What follows from what an instance reports, and from its end?

A report is the instance's whole state: applying it twice changes nothing. Reports repeat after each new connection,
with the figures of the moment in which they were first made; figures that are no news do not calibrate. An end without
a stop of ours is a crash or a failed load, and what it means depends on the state in which it came.
"""

import signal

import msgspec

from llamactl.journal_events import JournalEvent
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import BY_SIGNAL, INSTALLING, UNREACHABLE, LoadFailure, Stage, State
from llamactl.sched import explain
from llamactl.sched.breakdowns import sum_per_account
from llamactl.sched.compare import compare_effective
from llamactl.sched.core import Core
from llamactl.sched.effects import SendNote
from llamactl.sched.events import InstanceDisconnected, InstanceEnded, InstanceReported
from llamactl.sched.granting import serve_waiters
from llamactl.sched.instances import MAX_BACKOFF_S, RECALL_S, Instance, Model, StopReason
from llamactl.sched.measuring import keep_without_extra_bufts, mark_counted_as_external, measure_after_load
from llamactl.sched.plausible import is_notable, limit_charge, list_known_rows
from llamactl.sched.recheck import Scope
from llamactl.sched.shortage import learn_from_failure, learn_from_success
from llamactl.sched.takedown import (
    advance_takedown,
    call_off_takedown,
    end_sleep_order,
    note_use,
    pursue_departure,
    stop_unit,
)

FAULTS = frozenset((signal.SIGILL, signal.SIGSEGV))
"""What a processor does to a process that computes with buffer types it cannot use."""
_LIVE = (State.READY, State.SLEEPING)


def handle_instance_reported(core: Core, event: InstanceReported, now: float) -> None:
    """Take over what an instance says of itself, and what follows for those who wait for it."""
    found = core.find(event.model, event.generation)
    if found is None:
        return
    model, instance = found
    first, silent_before = not instance.reported, not instance.connected
    if first:
        core.recheck(Scope.ALL)
    if not instance.connected or instance.requests != event.busy:
        core.recheck(Scope.HEAD)
    instance.connected = instance.reported = True
    if instance.requests and event.busy == 0:
        note_use(instance, now, now)  # requests that no front may have told of have ended just now
    instance.requests = max(0, event.busy)
    instance.assumed_busy_until_s = now + RECALL_S if instance.requests and not instance.leases else 0.0
    instance.facts = model.facts = event.facts or instance.facts or model.facts
    if first and instance.adopted:
        _recall_note(model, instance, event, now)
    if event.effective is not None and event.state is not ChildState.SLEEPING:
        _settle(core, model, instance, event, now, only_raise=first and instance.adopted)
    match event.state:
        case ChildState.LOADING:
            _follow_load(core, model, instance, event)
        case ChildState.READY:
            if instance.sleep_ordered and silent_before:
                end_sleep_order(core, model, "is awake", now)
            _become_ready(core, model, instance, now)
        case ChildState.SLEEPING:
            _fall_asleep(core, model, instance, event, now)
        case ChildState.STOPPING:
            if model.state is not State.STOPPING:
                stop_unit(
                    core, model, instance.takedown.reason if instance.takedown is not None else StopReason.BY_HAND
                )
        case ChildState.FAILED:
            instance.error = event.error or instance.error
        case ChildState.MEASURED:
            pass
    if instance.takedown is not None and instance.takedown.retry_s is not None and instance.requests == 0:
        instance.takedown.retry_s = now
    pursue_departure(core, model, now)
    advance_takedown(core, model, now)


def _recall_note(model: Model, instance: Instance, event: InstanceReported, now: float) -> None:
    """What an earlier supervisor knew."""
    if event.note is not None:
        instance.note = event.note
        note_use(instance, event.note.last_used_s, now)
    if event.facts is not None and not event.facts.extra_bufts and instance.settings.repack:
        instance.extra_bufts, model.tries_without_extra_bufts = False, True


def _fall_asleep(core: Core, model: Model, instance: Instance, event: InstanceReported, now: float) -> None:
    """It has freed what it held, but for a residue. Also what a waking instance says that has not heard of it."""
    if model.state not in (State.LOADING, State.READY):
        return
    woken = model.state is State.LOADING
    model.change_state(State.SLEEPING)
    instance.ready_since_s = instance.ready_since_s or now
    instance.stage, instance.progress, instance.uncharged = "", None, False
    instance.effective = event.effective
    core.charge(model.name, sum_per_account(event.effective))
    instance.sleep_ordered = False
    if instance.takedown is not None and instance.takedown.reason is StopReason.SLEEP:
        instance.takedown = None
    for holder in instance.leases:
        core.notify(holder, instance.make_lease_gone("it sleeps"))
    instance.leases.clear()
    if not woken or instance.adopted:
        core.record(
            JournalEvent.INSTANCE_ASLEEP,
            model.name,
            generation=instance.generation,
            residue_bytes=sum(core.ledger.holds.get(model.name, {}).values()),
        )
    entry = core.queue.get(model.name)
    if entry is not None:
        core.set_stage(entry, Stage.QUEUED)
    if model.settings is None:
        refuse_ended(core, model)


def _notice_waking(core: Core, model: Model, instance: Instance) -> None:
    """It loads again though we thought that it slept: an order of ours has reached it after all."""
    model.change_state(State.LOADING)
    instance.adopted, instance.effective = True, None
    core.charge(model.name, sum_per_account(instance.awake) if instance.awake else instance.place(model.needs or {}))


def _follow_load(core: Core, model: Model, instance: Instance, event: InstanceReported) -> None:
    if model.state is State.SLEEPING:
        _notice_waking(core, model, instance)
    if model.state is not State.LOADING:
        return
    instance.stage = event.stage
    if event.stage == "model":  # the others take no time worth a figure; what comes after it is as good as loaded
        instance.progress = event.progress
    entry = core.queue.get(model.name)
    if entry is not None:
        core.set_stage(entry, Stage.LOADING, instance.progress)


def _become_ready(core: Core, model: Model, instance: Instance, now: float) -> None:
    if model.state not in (State.LOADING, State.SLEEPING):
        return
    loaded = model.state is State.LOADING
    model.change_state(State.READY)
    instance.stage, instance.progress, instance.uncharged = "", None, False
    instance.ready_since_s = now
    model.failure, model.retried = None, False
    learn_from_success(model, instance)
    core.recheck(Scope.ALL)
    if loaded and not instance.adopted:
        core.record(
            JournalEvent.INSTANCE_READY,
            model.name,
            generation=instance.generation,
            load_s=round(now - instance.started_s, 3),
            ctx=instance.effective.n_ctx if instance.effective is not None else 0,
            **explain.format_rows(instance.effective),
        )
    elif loaded:
        core.record(
            JournalEvent.INSTANCE_ADOPTED,
            model.name,
            generation=instance.generation,
            **explain.format_rows(instance.effective),
        )
    compare_effective(core, model)
    keep_without_extra_bufts(core, model, instance)
    _keep_ready_since(core, instance, now)
    serve_waiters(core, model, now)
    if loaded:
        measure_after_load(core, model)


def _keep_ready_since(core: Core, instance: Instance, now: float) -> None:
    """The instance keeps since when it is ready, for the supervisor that comes after this one."""
    if instance.adopted and instance.note.ready_since_s:
        instance.ready_since_s = min(instance.note.ready_since_s, now)
        return
    note = msgspec.structs.replace(
        instance.note, last_used_s=instance.last_used_s, ready_since_s=instance.ready_since_s
    )
    instance.note = note
    core.emit(SendNote(instance.model, instance.generation, note))


def _settle(
    core: Core, model: Model, instance: Instance, event: InstanceReported, now: float, only_raise: bool
) -> None:
    """Charge what was really allocated, and learn what others use."""
    effective = event.effective
    if effective is None or effective == instance.effective:
        return
    instance.effective, instance.uncharged = effective, False
    if event.state is ChildState.READY:
        instance.awake = effective
    rows = list_known_rows(core, effective, now)
    core.ledger.learn_devices(rows)
    core.charge(model.name, limit_charge(core, sum_per_account(effective)))
    instance.counted_as_external_on.clear()
    for row in rows:
        external = core.ledger.accounts[row.name].external
        unsettled = any(core.is_unsettled(other, row.name) for other, _ in core.list_running() if other is not model)
        if core.ledger.calibrate(row, row.used, model.name, only_raise=only_raise or unsettled):
            mark_counted_as_external(core, row.name)
        if is_notable(core, row.name, external):
            core.readings.seen_s.pop(row.name, None)
        elif not only_raise:
            core.readings.seen_s[row.name] = now


def handle_instance_disconnected(core: Core, event: InstanceDisconnected, now: float) -> None:
    """Nobody can ask it any longer: it is no victim, and a takedown that could be called off is."""
    found = core.find(event.model, event.generation)
    if found is None:
        return
    model, instance = found
    instance.connected, instance.sharers = False, 0
    takedown = instance.takedown
    if takedown is not None and not takedown.ordered and model.state in _LIVE:
        if takedown.can_be_called_off:
            call_off_takedown(core, model, "its report connection is down", now)
        else:
            advance_takedown(core, model, now)
    core.recheck(Scope.HEAD)


# --- the end ---


def handle_instance_ended(core: Core, event: InstanceEnded, now: float) -> None:
    """Its memory is free: tell holders and waiters, and decide what becomes of a load that failed."""
    found = core.find(event.model, event.generation)
    if found is None:
        return
    model, instance = found
    failure = event.failure
    if failure is not None and not failure.message and instance.error:
        failure = LoadFailure(result=failure.result, exit_code=failure.exit_code, message=instance.error)
    model.exit_code = failure.exit_code if failure is not None else 0
    agreed = instance.takedown is not None and instance.takedown.ordered and failure is None
    if model.state is State.STOPPING or agreed:
        _end_stopped(core, model, instance, failure)
    elif model.state is State.LOADING:
        _end_loading(core, model, instance, failure, now)
    elif failure is not None:
        _end_crashed(core, model, instance, failure, now)
    else:
        core.record(JournalEvent.MODEL_UNLOADED, model.name, reason=str(StopReason.BY_HAND))
        core.drop_instance(model, State.UNLOADED)
    reason = failure.message or failure.result if failure is not None else "unloaded"
    for holder in instance.leases:
        core.notify(holder, instance.make_lease_gone(reason))
    for waiter, since_s in instance.unloaders.items():
        core.complete(waiter, model.name, max(0.0, now - since_s))
    if model.settings is None:
        refuse_ended(core, model)


def _end_stopped(core: Core, model: Model, instance: Instance, failure: LoadFailure | None) -> None:
    takedown = instance.takedown
    assert takedown is not None, "a stop has a reason"
    fields: dict[str, object] = {"reason": str(takedown.reason)}
    if takedown.for_model:
        fields["for_model"] = takedown.for_model
    if failure is not None:
        fields |= {"result": failure.result, "exit_code": failure.exit_code}
    freed = sum(core.ledger.holds.get(model.name, {}).values())
    core.record(
        JournalEvent.MODEL_UNLOADED, model.name, "info" if failure is None else "warning", frees_bytes=freed, **fields
    )
    model.failures = 0
    core.drop_instance(model, State.UNLOADED)


def _end_loading(core: Core, model: Model, instance: Instance, failure: LoadFailure | None, now: float) -> None:
    if failure is None:
        # One that was found running and has not said anything may have been ready for long.
        why = "its unit was stopped" if instance.is_unknown else "its unit was stopped before it was ready"
        core.record(JournalEvent.MODEL_UNLOADED, model.name, "warning", reason=why)
        core.drop_instance(model, State.UNLOADED)
        entry = core.queue.remove(model.name)
        if entry is not None:
            refusal = explain.refuse_cancelled(model, why)
            core.refuse_all(entry.waiters, refusal)
        return
    if failure.result == INSTALLING and model.settings is not None:
        core.drop_instance(model, State.UNLOADED)  # whoever waits goes on waiting: it is started again at once
        return
    if failure.result == UNREACHABLE:
        # No fault of the model's: whoever asks again is not kept waiting.
        core.drop_instance(model, State.UNLOADED)
        explain.record_ended_badly(core, JournalEvent.LOAD_FAILED, model, failure)
        _fail_entry(core, model, failure, now)
        return
    died_in_warmup = failure.result in BY_SIGNAL and failure.exit_code in FAULTS and instance.stage == "warmup"
    retry = learn_from_failure(core, model, instance, failure)
    core.drop_instance(model, State.FAILED)
    if died_in_warmup and instance.extra_bufts and instance.settings.repack and model.settings is not None:
        model.tries_without_extra_bufts = True
        explain.record_ended_badly(core, JournalEvent.WARM_UP_DIED, model, failure, next=explain.WITHOUT_EXTRA_BUFTS)
        explain.tell_retry(core, model, failure, explain.WITHOUT_EXTRA_BUFTS)
        if core.queue.get(model.name) is None:
            core.queue.join(model.name, now).detached = True
        return
    if retry and model.settings is not None:
        explain.tell_retry(core, model, failure, explain.WITH_MORE_MEMORY)
        if core.queue.get(model.name) is None:
            core.queue.join(model.name, now).detached = True
        return
    model.failure, model.retried, model.tries_without_extra_bufts = failure, False, False
    model.failures += 1
    model.retry_at_s = now + get_backoff_s(model.failures)
    explain.record_ended_badly(
        core,
        JournalEvent.LOAD_FAILED,
        model,
        failure,
        failures=model.failures,
        retry_in_s=get_backoff_s(model.failures),
    )
    _fail_entry(core, model, failure, now)


def _end_crashed(core: Core, model: Model, instance: Instance, failure: LoadFailure, now: float) -> None:
    """The first crash after it served well is forgiven; one that crashes again and again backs off."""
    if now - instance.ready_since_s >= MAX_BACKOFF_S:
        model.failures = 0
    backoff_s = get_backoff_s(model.failures)
    model.failures += 1
    model.failure, model.retry_at_s = failure, now + backoff_s
    explain.record_ended_badly(core, JournalEvent.INSTANCE_CRASHED, model, failure, retry_in_s=backoff_s)
    core.drop_instance(model, State.FAILED)
    entry = core.queue.get(model.name)
    if entry is not None and not entry.detached and backoff_s > 0:
        _fail_entry(core, model, failure, now)


def _fail_entry(core: Core, model: Model, failure: LoadFailure, now: float) -> None:
    entry = core.queue.remove(model.name)
    if entry is not None:
        core.refuse_all(entry.waiters, explain.refuse_failed(model, failure, now))


def get_backoff_s(failures: int) -> float:
    """How long lease requests are refused after so many failures in a row: 1 s, 2, 4 ... 60 s."""
    return min(MAX_BACKOFF_S, 2.0 ** min(failures - 1, 10)) if failures > 0 else 0.0


def refuse_ended(core: Core, model: Model) -> None:
    """A model that is no longer in the configuration, or cannot be used, has nobody wait for it."""
    entry = core.queue.get(model.name)
    if entry is None or (model.instance is not None and model.settings is not None):
        return
    core.queue.remove(model.name)
    refusal = explain.refuse_unknown(core, model.name) if model.removed else explain.refuse_invalid(model)
    core.refuse_all(entry.waiters, refusal)
