"""How is an instance taken down without cutting a request?

1. Each lease is recalled. An idle front gives it back; a busy one says so, which calls the takedown off, unless it
drains.
2. When no lease is left, the instance is asked to stop if it is idle; it knows of requests that no lease covers.
3. When it agrees, its state is `stopping` and its unit is stopped; its memory is free when the unit has ended. Until
step 2 an eviction can be called off. Silence of five seconds counts as busy. Stops by command, and of models that are
no longer in the configuration, drain: they wait for running requests, keep new ones back, and ask again when the
instance refuses. One that does not answer at all hangs: where a command wants it gone, its unit is stopped, since no
lease is left that it could serve. Going to sleep is the same way with another order at its end; a model that sleeps has
no lease.
"""

from llamactl.journal_events import JournalEvent
from llamactl.protocol.control_socket import Progress, Recall, RecallCancelled
from llamactl.protocol.values import Stage, State
from llamactl.sched.core import Core
from llamactl.sched.effects import OrderSleep, OrderStop, StopUnit
from llamactl.sched.events import Holder, RecallAnswered, SleepAnswered, StopAnswered
from llamactl.sched.granting import send_note, serve_waiters
from llamactl.sched.instances import RECALL_S, Instance, Lease, Model, StopReason, Takedown
from llamactl.sched.recheck import Scope


def begin_takedown(
    core: Core, model: Model, reason: StopReason, now: float, for_model: str = "", drain: bool = False
) -> None:
    """Start, or turn a takedown that could be called off into this one."""
    instance = model.instance
    if instance is None or model.state not in (State.READY, State.SLEEPING):
        return
    before = instance.takedown
    takedown = Takedown(reason, drain, for_model)
    if before is not None:
        takedown.ordered, takedown.unanswered = before.ordered, before.unanswered
    instance.takedown = takedown
    core.recheck(Scope.HEAD)
    for holder in instance.leases:
        _recall(core, instance, takedown, holder, now)  # 1
    advance_takedown(core, model, now)


def _recall(core: Core, instance: Instance, takedown: Takedown, holder: Holder, now: float) -> None:
    takedown.unanswered[holder] = now + RECALL_S
    core.recalls += 1
    recall = Recall(model=instance.model, generation=instance.generation, drain=takedown.drain, id=core.recalls)
    core.notify(holder, recall)


def advance_takedown(core: Core, model: Model, now: float) -> None:
    """Ask the instance to stop once no lease is left."""
    instance = model.instance
    if instance is None or instance.takedown is None or model.state not in (State.READY, State.SLEEPING):
        return
    takedown = instance.takedown
    if (
        instance.leases
        or takedown.ordered
        or instance.sleep_ordered
        or (takedown.retry_s is not None and now < takedown.retry_s)
    ):
        return
    takedown.retry_s = None
    if instance.connected and takedown.reason is StopReason.SLEEP:
        instance.sleep_ordered = True
        core.emit(OrderSleep(model.name, instance.generation))
    elif instance.connected:  # 2
        takedown.ordered = True
        core.emit(OrderStop(model.name, instance.generation))
    elif takedown.can_be_called_off:
        call_off_takedown(core, model, "its report connection is down", now)
    elif takedown.reason in (StopReason.COMMAND, StopReason.REMOVED):
        # Nobody can ask it, and nobody holds a lease: what the operator wants is done.
        stop_unit(core, model, takedown.reason)


def call_off_takedown(core: Core, model: Model, why: str, now: float) -> None:
    """Everything as before: requests that were kept back go on."""
    instance = model.instance
    if instance is None or instance.takedown is None:
        return
    takedown, instance.takedown = instance.takedown, None
    for holder in instance.leases:
        core.notify(holder, RecallCancelled(model=model.name, generation=instance.generation))
    core.record(
        JournalEvent.VICTIM_SPARED,
        model.name,
        why=why,
        **({"for_model": takedown.for_model} if takedown.for_model else {}),
    )
    core.recheck(Scope.HEAD)
    serve_waiters(core, model, now)


def pursue_departure(core: Core, model: Model, now: float) -> None:
    """Take down what an operator wants gone: by command, or because it is no longer in the configuration. What it does
    must be known first: a model that was found running may be serving."""
    instance = model.instance
    if instance is None or model.state is State.STOPPING or instance.is_unknown:
        return
    if instance.unwanted:
        reason = StopReason.COMMAND
    elif model.removed and core.started and core.recovery is None:
        reason = StopReason.REMOVED
    else:
        return
    if model.state is State.LOADING:
        stop_unit(core, model, reason)
    elif instance.takedown is None or instance.takedown.reason not in (StopReason.COMMAND, StopReason.REMOVED):
        begin_takedown(core, model, reason, now, drain=True)


def stop_unit(core: Core, model: Model, reason: StopReason, for_model: str = "") -> None:
    """The unit shall stop, whatever it does."""
    instance = model.instance
    if instance is None or model.state is State.STOPPING:
        return
    if instance.takedown is None or instance.takedown.reason is not reason:
        instance.takedown = Takedown(reason, drain=False, for_model=for_model)
    model.change_state(State.STOPPING)  # 3
    core.emit(StopUnit(model.name, instance.generation))
    core.recheck(Scope.HEAD)
    tell_unloaders(core, model)


def tell_unloaders(core: Core, model: Model, warning: str = "") -> None:
    """What those who wait for the model's end wait for."""
    instance, name = model.instance, (model.name,)
    if instance is None:
        return
    going = name if model.state is State.STOPPING or warning else ()
    busy = name if not going and (instance.count_busy() or instance.assumed_busy_until_s) else ()
    progress = Progress(id=0, stage=Stage.WAITING, waiting_for=name, busy=busy, going=going, warning=warning)
    for waiter in instance.unloaders:
        core.tell_progress(waiter, progress)


# --- answers ---


def handle_recall_answered(core: Core, event: RecallAnswered, now: float) -> None:
    """The lease came back, or is in use: the takedown goes on, is called off, or waits under a drain."""
    found = core.find(event.model, event.generation)
    if found is None:
        return
    model, instance = found
    holder = event.holder
    lease = instance.leases.get(holder)
    if event.returned:
        note_use(instance, event.last_used_s, now)
    if lease is not None and event.recall and event.recall <= lease.since_recall:
        return  # about the lease that the holder had before this one
    if instance.takedown is not None:
        instance.takedown.unanswered.pop(holder, None)
    if event.returned:
        instance.leases.pop(holder, None)
        core.recheck(Scope.HEAD)
        if not instance.count_busy():
            send_note(core, instance)
        advance_takedown(core, model, now)
    elif lease is not None:
        mark_busy(lease, now, event.since_s)
        handle_busy_lease(core, model, "serves a request", now)
        tell_unloaders(core, model)


def handle_stop_answered(core: Core, event: StopAnswered, now: float) -> None:
    """It stops, so its unit does; or it is busy, which calls an eviction off and has a drain ask again."""
    found = core.find(event.model, event.generation)
    if found is None:
        return
    model, instance = found
    takedown = instance.takedown
    if event.stopping:
        # Also when nobody waits for the answer any more: the instance has agreed and takes no request from now on.
        if model.state in (State.READY, State.SLEEPING):
            stop_unit(core, model, takedown.reason if takedown is not None else StopReason.EVICTED)
        return
    if takedown is None or not takedown.ordered or model.state is State.STOPPING:
        return
    takedown.ordered = False
    if event.silent and instance.unwanted and not instance.leases:
        why = "it does not answer the order to stop"
        core.record(JournalEvent.INSTANCE_UNRESPONSIVE, model.name, "warning", why=why, next="its unit is stopped")
        how = f"systemd stops it, and kills it after {core.settings.stop_timeout_s:g} s"
        tell_unloaders(core, model, f"{why}: {how}")
        stop_unit(core, model, StopReason.COMMAND)
        return
    instance.assumed_busy_until_s = now + RECALL_S
    tell_unloaders(core, model)
    if takedown.drain:
        takedown.retry_s = now + RECALL_S
        core.recheck(Scope.HEAD)
        if not instance.connected:
            takedown.retry_s = None
            advance_takedown(core, model, now)
    else:
        call_off_takedown(core, model, "serves a request", now)


def handle_sleep_answered(core: Core, event: SleepAnswered, now: float) -> None:
    """A refusal; whoever agrees says that it sleeps by a report."""
    found = core.find(event.model, event.generation)
    if found is None or event.sleeping or not found[1].sleep_ordered:
        return
    model, instance = found
    if instance.connected:  # else it may have fallen asleep unheard, and says so when it is back
        end_sleep_order(core, model, "serves a request", now)


def end_sleep_order(core: Core, model: Model, why: str, now: float) -> None:
    """The instance is awake and stays so: leases on it are granted again."""
    instance = model.instance
    assert instance is not None
    instance.sleep_ordered = False
    instance.assumed_busy_until_s = now + RECALL_S
    if instance.takedown is not None and instance.takedown.reason is StopReason.SLEEP:
        call_off_takedown(core, model, why, now)
    elif instance.takedown is not None:
        advance_takedown(core, model, now)
    else:
        core.recheck(Scope.HEAD)
        serve_waiters(core, model, now)


# --- what leases say ---


def mark_busy(lease: Lease, now: float, since_s: float = 0.0) -> None:
    """`since_s`: start of its oldest request; 0: nobody says."""
    if not lease.busy:
        lease.busy, lease.busy_since_s = True, now
    if since_s:
        lease.busy_since_s = min(since_s, now)


def note_use(instance: Instance, last_used_s: float, now: float) -> None:
    """Last use as a front says it; a moment in the future is nonsense."""
    instance.last_used_s = max(instance.last_used_s, min(last_used_s, now))


def handle_busy_lease(core: Core, model: Model, why: str, now: float) -> None:
    """A lease of this model is in use: whatever could be called off is."""
    instance = model.instance
    takedown = instance.takedown if instance is not None else None
    if takedown is not None and not takedown.drain and not takedown.ordered and model.state is not State.STOPPING:
        call_off_takedown(core, model, why, now)
    core.recheck(Scope.HEAD)


def recall_announced(core: Core, model: Model, holder: Holder, now: float) -> None:
    """A front has announced a lease on an instance that is being taken down."""
    instance = model.instance
    if instance is not None and instance.takedown is not None and model.state is not State.STOPPING:
        _recall(core, instance, instance.takedown, holder, now)


# --- time ---


def list_takedown_deadlines(instance: Instance) -> list[float]:
    """Moments at which silence counts as an answer, or an instance is asked again."""
    takedown = instance.takedown
    if takedown is None or takedown.ordered or instance.sleep_ordered:
        return []
    deadlines = list(takedown.unanswered.values())
    if takedown.retry_s is not None:
        deadlines.append(takedown.retry_s)
    return deadlines


def expire_takedown(core: Core, model: Model, now: float) -> None:
    """Silence counts as busy; a refused stop is asked for again."""
    instance = model.instance
    takedown = instance.takedown if instance is not None else None
    if instance is None or takedown is None or model.state is State.STOPPING:
        return
    silent = [holder for holder, deadline in takedown.unanswered.items() if now >= deadline]
    for holder in silent:
        del takedown.unanswered[holder]
        lease = instance.leases.get(holder)
        if lease is not None:
            mark_busy(lease, now)
    if silent:
        core.recheck(Scope.HEAD)
    if silent and not takedown.drain:
        handle_busy_lease(core, model, "a front did not answer", now)
        return
    advance_takedown(core, model, now)
