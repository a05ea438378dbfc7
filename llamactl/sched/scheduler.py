"""What follows from an event? `Scheduler.handle(event, now) -> effects`: the whole decision core behind one method.

It knows no clock, no socket and no log: the time comes as an argument, facts come as events, and what shall happen goes
out as effects. Each event is handled by one function of the module that its question belongs to; then everything that
waits is decided again until nothing changes. The same events with the same times give the same effects.
"""

from collections.abc import Callable
from typing import Any

from llamactl.protocol.descriptions import DeviceStatus, LoadPlan, ModelStatus
from llamactl.protocol.values import State
from llamactl.sched import (
    commands,
    configure,
    device_accounts,
    events,
    explain,
    file_changes,
    granting,
    invariants,
    leaving,
    lifecycle,
    load_plan,
    measuring,
    requests,
    status,
    takedown,
)
from llamactl.sched.admission import admit_head, admit_loads, admit_new
from llamactl.sched.core import Core
from llamactl.sched.effects import Effect
from llamactl.sched.instances import Lease, Model, StopReason
from llamactl.sched.recheck import Agenda, Scope
from llamactl.sched.shares import share_processors

MAX_ROUNDS = 1000
"""Of deciding after one event. Each round starts, stops or refuses something, so that this is never reached."""


class Scheduler:
    """The decision core. One owner, one caller: `handle` is not re-entrant."""

    def __init__(self) -> None:
        self._core = Core()
        self._deadline_s: float | None = None

    def handle(self, event: events.Event, now: float) -> list[Effect]:
        """Take a fact, and say what shall be done. Late and senseless events change nothing.

        An error leaves nothing undecided: what follows from events that were handled comes with the next one.
        """
        try:
            return self._handle(event, now)
        except Exception:
            self._core.recheck(Scope.ALL)
            raise

    def _handle(self, event: events.Event, now: float) -> list[Effect]:
        core = self._core
        _HANDLERS[type(event)](core, event, now)
        if self._deadline_s is not None and now >= self._deadline_s:
            _expire(core, now)
        for _ in range(MAX_ROUNDS):
            if not core.agenda:
                break
            _decide(core, now)
        else:
            raise AssertionError("the scheduler does not come to an end")
        share_processors(core)
        effects, core.effects = core.effects, []
        self._deadline_s = _find_deadline(core, now)
        return effects

    def next_deadline(self) -> float | None:
        """When a Tick is due at the latest, on the clock of `now`; None: only events can change anything."""
        return self._deadline_s

    # --- views ---

    def pop_passed(self) -> dict[str, tuple[State, ...]]:
        """The states that models have come to since the last call, in order."""
        passed = {name: tuple(model.passed) for name, model in self._core.models.items() if model.passed}
        for name in passed:
            self._core.models[name].passed.clear()
        return passed

    def list_models(self, now: float) -> tuple[ModelStatus, ...]:
        """All models, by name."""
        return status.list_models(self._core)

    def model_status(self, name: str) -> ModelStatus | None:
        """One model by name or alias; None where there is none."""
        model = self._core.models.get(self._core.names.get(name, name))
        return status.describe_model(self._core, model) if model is not None else None

    def explain_load(self, name: str, now: float) -> LoadPlan | None:
        """What would happen if the model, by name or alias, were loaded now; None where there is none."""
        model = self._core.models.get(self._core.names.get(name, name))
        return load_plan.explain_load(self._core, model, now) if model is not None else None

    def list_files(self) -> dict[str, str]:
        """By model, which files it had when somebody looked last; empty where that is not known."""
        return {name: model.files or "" for name, model in self._core.models.items()}

    def list_instances(self) -> list[tuple[str, str]]:
        """Each model that has an instance, with its generation."""
        return [(model.name, instance.generation) for model, instance in self._core.list_running()]

    def list_serving(self) -> frozenset[str]:
        """Models that answer requests, or are about to."""
        running = self._core.list_running()
        return frozenset(model.name for model, _ in running if model.state in (State.LOADING, State.READY))

    def hint_unknown(self, name: str) -> str:
        """What to do about a name that no model has."""
        return explain.hint_unknown(self._core, name)

    def list_devices(self) -> tuple[DeviceStatus, ...]:
        """The account of each device, and the host's."""
        return self._core.ledger.format_status()

    def list_unreported(self) -> list[str]:
        """Instances found at the start that have not said yet what they do."""
        return self._core.list_unreported()

    def queue_names(self) -> tuple[str, ...]:
        """Models whose loads wait, in order."""
        return status.list_waiting(self._core)

    def decide_again(self, now: float) -> list[Effect]:
        """For tests: decide everything again though nothing has happened. Must want nothing."""
        self._core.recheck(Scope.ALL)
        return self.handle(events.Tick(), now)

    def check_invariants(self) -> None:
        """For tests. Raises AssertionError, with what is wrong."""
        invariants.check_invariants(self._core)


def _decide(core: Core, now: float) -> None:
    """Decide again what may have changed."""
    due, core.agenda = core.agenda, Agenda()
    if not core.started:
        return
    configure.end_recovery(core, now)
    if Scope.ALL in due or not core.head:
        admit_loads(core, now)
    else:
        if Scope.HEAD in due:
            admit_head(core, now)
        admit_new(core, due.new, now)
    measuring.start_measure(core)


def _find_deadline(core: Core, now: float) -> float | None:
    deadlines: list[float] = []
    if core.recovery is not None:
        deadlines.append(core.recovery.deadline_s)
    if core.overdue_s is not None:
        deadlines.append(core.overdue_s)
    for model, instance in core.list_running():
        if instance.takedown is not None:
            deadlines += takedown.list_takedown_deadlines(instance)
        if instance.suspect_until_s:
            deadlines.append(instance.suspect_until_s)
        if instance.assumed_busy_until_s and len(core.queue):
            deadlines.append(instance.assumed_busy_until_s)
        if core.recovery is None and model.name not in core.queue:  # one that is wanted does not go by itself
            deadlines += [at for at in (model.get_idle_deadline(), model.get_sleep_deadline()) if at is not None]
        fresh_until_s = instance.ready_since_s + core.settings.min_resident_s
        if model.state is State.READY and len(core.queue) and now < fresh_until_s:
            deadlines.append(fresh_until_s)
    return min(deadlines, default=None)


def _expire(core: Core, now: float) -> None:
    """Everything whose time has come."""
    if len(core.queue):
        core.recheck(Scope.HEAD)
    if core.recovery is not None and now >= core.recovery.deadline_s:
        core.recheck(Scope.ALL)
    for model, instance in core.list_running():
        takedown.expire_takedown(core, model, now)
        requests.expire_suspicion(core, model, now)
        if instance.assumed_busy_until_s and now >= instance.assumed_busy_until_s:
            instance.assumed_busy_until_s = 0.0
            core.recheck(Scope.HEAD)
        if core.recovery is None and model.name not in core.queue:
            _end_idleness(core, model, now)


def _end_idleness(core: Core, model: Model, now: float) -> None:
    """Unload, or put to sleep, what nobody has used for long enough."""
    for at_s, reason in ((model.get_idle_deadline(), StopReason.IDLE), (model.get_sleep_deadline(), StopReason.SLEEP)):
        if at_s is not None and now >= at_s:
            takedown.begin_takedown(core, model, reason, now)
            return


def _handle_lease_busy(core: Core, event: events.LeaseBusy, now: float) -> None:
    found = core.find(event.model, event.generation)
    if found is None:
        return
    model, instance = found
    if model.state is State.SLEEPING:  # its lease was revoked when that was found out, and the two have crossed
        core.notify(event.holder, instance.make_lease_gone("it sleeps"))
        return
    # A holder that we did not know of knows better: a front says so only of a lease that it has.
    lease = instance.leases.setdefault(event.holder, Lease(busy=False, busy_since_s=now))
    takedown.mark_busy(lease, now, event.since_s)
    instance.last_used_s = max(instance.last_used_s, now)
    takedown.handle_busy_lease(core, model, "serves a request", now)


def _handle_lease_idle(core: Core, event: events.LeaseIdle, now: float) -> None:
    found = core.find(event.model, event.generation)
    lease = found[1].leases.get(event.holder) if found is not None else None
    if found is None or lease is None:
        return
    lease.busy, lease.last_used_s = False, event.last_used_s
    instance = found[1]
    instance.forget_assumed_busy()
    takedown.note_use(instance, event.last_used_s, now)
    if event.keep_alive_s is not None:
        granting.send_note(core, instance, keep_alive_s=event.keep_alive_s)
    elif not instance.count_busy():
        granting.send_note(core, instance)
    if core.is_in_the_way(event.model):
        core.recheck(Scope.HEAD)


def _handle_waiter_gone(core: Core, event: events.WaiterGone, now: float) -> None:
    leaving.handle_waiter_gone(core, event.waiter)


def _handle_connection_gone(core: Core, event: events.ConnectionGone, now: float) -> None:
    leaving.handle_connection_gone(core, event.holder, now)


def _handle_host_read(core: Core, event: events.HostRead, now: float) -> None:
    measuring.calibrate_host(core, event.total, event.available)


def _handle_tick(core: Core, event: events.Tick, now: float) -> None:
    """All that a tick does is done after each event."""


_HANDLERS: dict[type, Callable[[Core, Any, float], None]] = {
    events.Configured: configure.handle_configured,
    events.InstanceFound: configure.handle_instance_found,
    events.RecoveryBegan: configure.handle_recovery_began,
    events.FrontAnnounced: configure.handle_front_announced,
    events.LeaseAnnounced: configure.handle_lease_announced,
    events.InstanceReported: lifecycle.handle_instance_reported,
    events.InstanceDisconnected: lifecycle.handle_instance_disconnected,
    events.InstanceEnded: lifecycle.handle_instance_ended,
    events.StopAnswered: takedown.handle_stop_answered,
    events.SleepAnswered: takedown.handle_sleep_answered,
    events.RecallAnswered: takedown.handle_recall_answered,
    events.MeasureReported: measuring.handle_measure_reported,
    events.MeasureEnded: measuring.handle_measure_ended,
    events.LeaseRequested: requests.handle_lease_requested,
    events.LoadRequested: requests.handle_load_requested,
    events.UnloadRequested: commands.handle_unload_requested,
    events.PinRequested: commands.handle_pin_requested,
    events.MeasureRequested: commands.handle_measure_requested,
    events.WaiterGone: _handle_waiter_gone,
    events.ConnectionGone: _handle_connection_gone,
    events.LeaseBusy: _handle_lease_busy,
    events.LeaseIdle: _handle_lease_idle,
    events.FilesSeen: file_changes.handle_files_seen,
    events.HostRead: _handle_host_read,
    events.DevicesRead: device_accounts.handle_devices_read,
    events.DevicesReadEnded: device_accounts.handle_devices_read_ended,
    events.Tick: _handle_tick,
}
