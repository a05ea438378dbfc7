"""What happens with a request for a lease or for a load?

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
from llamactl.protocol.values import Stage, State
from llamactl.sched import explain
from llamactl.sched.core import Core
from llamactl.sched.events import LeaseRequested, LoadRequested, Waiter
from llamactl.sched.file_changes import must_load_again
from llamactl.sched.granting import grant_lease, serve_waiters
from llamactl.sched.instances import RECALL_S, Model, StopReason
from llamactl.sched.queue import Entry
from llamactl.sched.recheck import Scope
from llamactl.sched.takedown import begin_takedown


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


def expire_suspicion(core: Core, model: Model, now: float) -> None:
    """An instance that was said to be gone and has not ended after all is believed to live."""
    instance = model.instance
    if instance is not None and instance.suspect_until_s and now >= instance.suspect_until_s:
        instance.suspect_until_s = 0.0
        serve_waiters(core, model, now)
