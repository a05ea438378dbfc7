"""Who may send requests to an instance?

A lease is granted to a request's connection. All that wait for a model are granted in the moment it becomes ready, and
each counts as busy from then on: that is why nothing is evicted between its load and its first request.
"""

import msgspec

from llamactl.protocol.values import State
from llamactl.sched.core import Core
from llamactl.sched.effects import GrantLease, SendNote
from llamactl.sched.events import Waiter
from llamactl.sched.instances import Instance, Lease, Model
from llamactl.sched.recheck import Scope


def grant_lease(core: Core, instance: Instance, waiter: Waiter, now: float) -> None:
    """The waiter's connection holds a lease; one that it had already turns busy."""
    holder = waiter[0]
    lease = instance.leases.setdefault(holder, Lease(busy=False, busy_since_s=now))
    if not lease.busy:
        lease.busy, lease.busy_since_s = True, now
        if core.is_in_the_way(instance.model):
            core.recheck(Scope.HEAD)
    lease.since_recall = core.recalls
    instance.last_used_s = max(instance.last_used_s, now)
    core.emit(GrantLease(waiter, instance.model, instance.generation))


def serve_waiters(core: Core, model: Model, now: float) -> None:
    """Everybody who waits for a model that is ready gets what they wait for."""
    instance, entry = model.instance, core.queue.get(model.name)
    if instance is None or entry is None or model.state is not State.READY or not instance.is_granting:
        return
    for waiter in core.queue.pop_leases(entry):
        grant_lease(core, instance, waiter, now)
    for waiter, since_s in entry.loads.items():
        core.complete(waiter, model.name, max(0.0, now - since_s))
    core.queue.remove(model.name)
    core.recheck(Scope.HEAD)


def send_note(core: Core, instance: Instance, **news: bool | float | None) -> None:
    """Have the instance keep when it was used last, and `news`, if that is news."""
    note = msgspec.structs.replace(instance.note, last_used_s=instance.last_used_s, **news)
    if note != instance.note:
        instance.note = note
        core.emit(SendNote(instance.model, instance.generation, note))
