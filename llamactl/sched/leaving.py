"""What happens when a client leaves, or a whole connection? Its requests are forgotten, its leases come back, and a
load for which nobody waits any longer is cancelled.
"""

from llamactl.journal_events import JournalEvent
from llamactl.protocol.values import State
from llamactl.sched.core import Core
from llamactl.sched.events import Holder, Waiter
from llamactl.sched.instances import StopReason
from llamactl.sched.queue import Entry
from llamactl.sched.recheck import Scope
from llamactl.sched.takedown import advance_takedown, stop_unit


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
