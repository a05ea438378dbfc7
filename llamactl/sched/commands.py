"""What happens with a request to unload, to pin or to measure a model? Loads by command are `requests`' matter: they
wait in the same queue as requests for leases.
"""

from llamactl.journal_events import JournalEvent
from llamactl.protocol.control_socket import Progress
from llamactl.protocol.values import MemoryStatus, Stage, State
from llamactl.sched import explain
from llamactl.sched.core import Core
from llamactl.sched.events import MeasureRequested, PinRequested, UnloadRequested
from llamactl.sched.granting import send_note
from llamactl.sched.instances import Model, StopReason
from llamactl.sched.recheck import Scope
from llamactl.sched.requests import is_known_waiter, resolve_model
from llamactl.sched.takedown import call_off_takedown, pursue_departure, stop_unit, tell_unloaders


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
