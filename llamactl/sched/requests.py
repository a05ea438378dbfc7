"""What happens with each request of a client, and when its client leaves?

Each waiter gets exactly one of GrantLease, Done, MeasureResult and Failure, unless it leaves first. A lease request:
1. Unknown or invalid model: refused.
2. Ready, and nothing is taking it down: granted at once.
3. `stale_generation` is the one that we think is alive: the front was faster than systemd; it waits for news of that
instance.
4. It is passive: refused, since looking at a model must neither wake it nor wait for its load.
5. It must not cause a load, the model backs off after a failure, or too many wait already, for this model or in all:
refused.
6. Asleep, loading, on its way out, or not loaded: it joins the model's entry.
"""

from llamactl.journal_events import JournalEvent
from llamactl.protocol.control_socket import Progress
from llamactl.protocol.values import MemoryStatus, Stage, State
from llamactl.sched import explain
from llamactl.sched.core import Core
from llamactl.sched.events import (
    Holder,
    LeaseRequested,
    LoadRequested,
    MeasureRequested,
    PinRequested,
    UnloadRequested,
    Waiter,
)
from llamactl.sched.file_changes import must_load_again
from llamactl.sched.granting import grant_lease, send_note, serve_waiters
from llamactl.sched.instances import RECALL_S, Model, StopReason
from llamactl.sched.queue import Entry
from llamactl.sched.recheck import Scope
from llamactl.sched.takedown import (
    advance_takedown,
    begin_takedown,
    call_off_takedown,
    pursue_departure,
    stop_unit,
    tell_unloaders,
)


def resolve_model(core: Core, waiter: Waiter, name: str) -> Model | None:
    """The model that a name or alias means; None after a refusal."""
    model = core.models.get(core.names.get(name, ""))
    if model is None:
        core.refuse_all([waiter], explain.refuse_unknown(core, name))
    return model


def is_known_waiter(core: Core, waiter: Waiter) -> bool:
    """Whether an answer is due to this request already: a second one with its id is nonsense."""
    return (
        core.queue.has_waiter(waiter)
        or waiter in core.measuring.waiters
        or any(waiter in instance.unloaders for _, instance in core.list_running())
    )


def handle_lease_requested(core: Core, event: LeaseRequested, now: float) -> None:
    """Grant, refuse or queue, by the numbers above."""
    waiter = event.waiter
    if is_known_waiter(core, waiter):
        return
    model = resolve_model(core, waiter, event.model)
    if model is None:  # 1
        return
    instance = model.instance
    if model.state is State.READY and instance is not None:
        if event.stale_generation == instance.generation and not instance.suspect_until_s:  # 3
            instance.suspect_until_s = now + RECALL_S
            core.record(JournalEvent.INSTANCE_DOUBTED, model.name, "warning", why="a front cannot connect to it")
        if instance.is_granting:  # 2
            grant_lease(core, instance, waiter, now)
            return
    if event.passive:  # 4
        core.refuse_all([waiter], explain.refuse_passive(model))
        return
    if model.settings is None:  # 1
        core.refuse_all([waiter], explain.refuse_invalid(model))
        return
    entry = core.queue.get(model.name)
    if entry is None and not event.autoload and model.state is not State.LOADING:  # 5, and the next three
        core.refuse_all([waiter], explain.refuse_not_loaded(model, "use"))
        return
    if entry is None and model.state is State.FAILED and model.failure is not None and now < model.retry_at_s:
        core.refuse_all([waiter], explain.refuse_failed(model, model.failure, now))
        return
    if entry is not None and core.settings.max_queue > 0 and len(entry.leases) >= core.settings.max_queue:
        core.refuse_all([waiter], explain.refuse_queue_full(model, len(entry.leases), "max_queue"))
        return
    if core.settings.max_queue_total > 0 and core.queue.waiting >= core.settings.max_queue_total:
        core.refuse_all([waiter], explain.refuse_queue_full(model, core.queue.waiting, "max_queue_total"))
        return
    _join(core, model, core.queue.add_lease(model.name, waiter, now), waiter, now)  # 6, and 3


def handle_load_requested(core: Core, event: LoadRequested, now: float) -> None:
    """Load by command: at once done where it is loaded, else it joins the queue."""
    waiter = event.waiter
    if is_known_waiter(core, waiter):
        return
    model = resolve_model(core, waiter, event.model)
    if model is None:
        return
    if model.state is State.READY and model.instance is not None and model.instance.is_granting:
        core.complete(waiter, model.name)
        return
    if model.settings is None:
        core.refuse_all([waiter], explain.refuse_invalid(model))
        return
    _join(core, model, core.queue.add_load(model.name, waiter, now), waiter, now)


def want_load(core: Core, model: Model, now: float) -> None:
    """A load that is its own waiter."""
    entry = core.queue.join(model.name, now)
    entry.detached = True
    _join(core, model, entry, None, now)


def _join(core: Core, model: Model, entry: Entry, waiter: Waiter | None, now: float) -> None:
    """What a new waiter of an entry must hear, and what its coming causes."""
    instance = model.instance
    if instance is not None and model.state is State.LOADING:
        if instance.adopted:
            # Whoever wanted it before the restart may still want it.
            entry.detached = True
        if entry.stage is Stage.QUEUED:
            entry.stage, entry.fraction = Stage.LOADING, instance.progress
    if waiter is not None:
        core.tell_progress(waiter, entry.describe())
    asleep = model.state is State.SLEEPING and instance is not None and instance.takedown is None
    if asleep and must_load_again(model):
        begin_takedown(core, model, StopReason.ASLEEP, now, drain=True)
    elif asleep and entry.stage is Stage.QUEUED and not entry.waiting_for:
        core.recheck(Scope.NEW, model.name)
    if instance is not None:
        if core.is_in_the_way(model.name):
            core.recheck(Scope.HEAD)
    elif entry.stage is Stage.QUEUED and not entry.waiting_for:
        core.recheck(Scope.NEW, model.name)


# --- unload ---


def handle_unload_requested(core: Core, event: UnloadRequested, now: float) -> None:
    """Cancel a load that waits; take an instance down, with running requests (`now`) or after them."""
    waiter = event.waiter
    if is_known_waiter(core, waiter):
        return
    model = core.models.get(core.names.get(event.model, event.model))
    if model is None:
        core.refuse_all([waiter], explain.refuse_unknown(core, event.model))
        return
    entry = core.queue.remove(model.name)
    if entry is not None:
        core.refuse_all(entry.waiters, explain.refuse_cancelled(model, "it was unloaded by command"))
    instance = model.instance
    if instance is None:
        if entry is None:
            core.refuse_all([waiter], explain.refuse_not_loaded(model, "unload"))
        else:
            core.record(JournalEvent.LOAD_CANCELLED, model.name, reason=str(StopReason.COMMAND))
            core.complete(waiter, model.name)
        return
    if model.state is State.STOPPING and not event.wait:
        core.refuse_all([waiter], explain.refuse_not_loaded(model, "unload", "it is stopping already"))
        return
    if event.wait:
        instance.unloaders[waiter] = now
    instance.unwanted = True
    if model.state is State.STOPPING or (instance.count_busy() and not event.now):
        tell_unloaders(core, model)
    if not event.now:
        pursue_departure(core, model, now)
    else:
        stop_unit(core, model, StopReason.COMMAND)
        for holder in instance.leases:
            core.notify(holder, instance.make_lease_gone("unloaded by command"))
        instance.leases.clear()


# --- pin ---


def handle_pin_requested(core: Core, event: PinRequested, now: float) -> None:
    """For as long as the instance lives: it keeps the note, so that a new supervisor knows."""
    if is_known_waiter(core, event.waiter):
        return
    model = core.models.get(core.names.get(event.model, event.model))
    if model is None:
        core.refuse_all([event.waiter], explain.refuse_unknown(core, event.model))
        return
    instance = model.instance
    if instance is None or model.state is State.STOPPING:
        core.refuse_all([event.waiter], explain.refuse_not_loaded(model, "pin" if event.pinned else "unpin"))
        return
    send_note(core, instance, pinned=event.pinned)
    keep_if_pinned(core, model, now)
    core.record(JournalEvent.MODEL_PINNED if event.pinned else JournalEvent.MODEL_UNPINNED, model.name)
    core.complete(event.waiter, model.name)
    core.recheck(Scope.ALL)


def keep_if_pinned(core: Core, model: Model, now: float) -> None:
    """A model that is pinned now is no victim any more."""
    instance = model.instance
    takedown = instance.takedown if instance is not None else None
    if instance is None or takedown is None or instance.sleep_ordered or model.state is State.STOPPING:
        return
    if model.is_pinned() and takedown.can_be_called_off:
        call_off_takedown(core, model, "it is pinned now", now)


# --- measure ---


def handle_measure_requested(core: Core, event: MeasureRequested, now: float) -> None:
    """Measure it next, also where figures are known."""
    if is_known_waiter(core, event.waiter):
        return
    model = resolve_model(core, event.waiter, event.model)
    if model is None:
        return
    if model.settings is None:
        core.refuse_all([event.waiter], explain.refuse_invalid(model, "measure"))
        return
    core.measuring.waiters[event.waiter] = model.name
    core.tell_progress(event.waiter, Progress(id=0, stage=Stage.MEASURING))
    if not core.measuring.is_current(model.name) or core.measuring.reported:
        core.measuring.add(model.name, first=True)
        if model.memory is MemoryStatus.FAILED:
            model.memory = MemoryStatus.UNMEASURED
    core.recheck(Scope.ALL)


# --- clients leave ---


def handle_waiter_gone(core: Core, waiter: Waiter) -> None:
    """Forget a request; a load for which nobody else waits is cancelled."""
    core.measuring.waiters.pop(waiter, None)
    for _, instance in core.list_running():
        instance.unloaders.pop(waiter, None)
    entry = core.queue.remove_waiter(waiter)
    if entry is not None and not entry.is_wanted:
        cancel_entry(core, entry)


def cancel_entry(core: Core, entry: Entry) -> None:
    """Nobody waits for this load any more."""
    core.queue.remove(entry.model)
    model = core.models[entry.model]
    core.record(JournalEvent.LOAD_CANCELLED, model.name, reason=str(StopReason.UNWANTED))
    if model.state is State.LOADING:
        stop_unit(core, model, StopReason.UNWANTED)


def handle_connection_gone(core: Core, holder: Holder, now: float) -> None:
    """All leases of the connection are returned, and all its requests have left."""
    for waiter in core.queue.list_waiters_of(holder):
        handle_waiter_gone(core, waiter)
    for waiter in [waiter for waiter in core.measuring.waiters if waiter[0] == holder]:
        handle_waiter_gone(core, waiter)
    for model, instance in core.list_running():
        for waiter in [waiter for waiter in instance.unloaders if waiter[0] == holder]:
            del instance.unloaders[waiter]
        lease = instance.leases.pop(holder, None)
        if lease is not None:
            instance.last_used_s = now if lease.busy else instance.last_used_s
            instance.forget_assumed_busy()
        if instance.takedown is not None:
            instance.takedown.unanswered.pop(holder, None)
            advance_takedown(core, model, now)
        if lease is not None:
            core.recheck(Scope.HEAD)


# --- time ---


def expire_suspicion(core: Core, model: Model, now: float) -> None:
    """An instance that was said to be gone and has not ended after all is believed to live."""
    instance = model.instance
    if instance is not None and instance.suspect_until_s and now >= instance.suspect_until_s:
        instance.suspect_until_s = 0.0
        serve_waiters(core, model, now)
