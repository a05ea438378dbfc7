"""What changes with the configuration, and when is everything known after a start?

Settings of a running instance are those that it was started with; what only concerns decisions (pin, priority, idle
time-out, aliases) counts at once. A model that is removed, or renamed, while it runs ends its requests, gets no new
lease and goes first. Figures are dropped where a setting changed that they depend on, a failed measurement where one
changed that may have been its cause.

After a start nothing is stopped, and nothing that would evict is started, until each instance found has reported and
the fronts have announced their leases, or the time for that is over; from then on what stays silent is no victim.
"""

from llamactl.journal_events import JournalEvent
from llamactl.protocol.control_socket import LeaseGone
from llamactl.protocol.values import MemoryStatus, State
from llamactl.sched import explain
from llamactl.sched.breakdowns import get_rpc_server, strip_harmless, strip_unmeasured, sum_per_account
from llamactl.sched.commands import keep_if_pinned
from llamactl.sched.core import Core, Recovery
from llamactl.sched.events import Configured, FrontAnnounced, InstanceFound, LeaseAnnounced, RecoveryBegan
from llamactl.sched.instances import Instance, Lease, Model, StopReason
from llamactl.sched.lifecycle import refuse_ended
from llamactl.sched.measuring import drop_measurement, queue_unmeasured
from llamactl.sched.recheck import Scope
from llamactl.sched.requests import want_load
from llamactl.sched.takedown import call_off_takedown, note_use, pursue_departure, recall_announced
from llamactl.settings import ModelSettings, list_files


def handle_configured(core: Core, event: Configured, now: float) -> None:
    """Take over what was read: models that came, went or changed, and what of their figures and waiters that voids."""
    config, timeout_before_s = event.config, core.settings.measure_timeout_s
    core.config = config
    core.ledger.settings = config.settings
    core.names = {alias: name for name, model in config.models.items() for alias in model.aliases}
    core.names |= {name: name for name in (*config.invalid, *config.models)}
    for model in list(core.models.values()):
        if model.name not in config.models and model.name not in config.invalid and not model.removed:
            _remove(core, model, now)
    for name, invalid in config.invalid.items():
        if name not in config.models:
            _handle_invalid(core, name, invalid.reason)
    for name, settings in config.models.items():
        model = core.models.setdefault(name, Model(name, None))
        before, model.settings, model.invalid = model.settings, settings, ""
        came_back, model.removed = model.removed, False
        if came_back and model.instance is not None:
            _keep_after_all(core, model, now)
        other_timeout = config.settings.measure_timeout_s != timeout_before_s
        if before is None or _is_outdated(model, before, settings, other_timeout):
            drop_measurement(core, model)
        if before is not None and before != settings:
            model.forget_failure()
        if before is None or list_files(before) != list_files(settings):
            model.files = None
        if before is not None and before.files != settings.files:
            model.facts = None
        queue_unmeasured(core, model)
        keep_if_pinned(core, model, now)
    _forget_servers(core)
    core.configured = True
    core.recheck(Scope.ALL)


def _forget_servers(core: Core) -> None:
    """Devices behind RPC servers that no model names any longer are nobody's."""
    servers = {server for model in core.config.models.values() for server in model.rpc}
    for name, account in core.ledger.accounts.items():
        account.present = account.present and get_rpc_server(name) in ("", *servers)
    core.ledger.drop_unused()


def _is_outdated(model: Model, before: ModelSettings, settings: ModelSettings, other_timeout: bool) -> bool:
    """Whether its figures would be others now; or, where there are none, whether a measurement that has failed or still
    runs may come out otherwise.
    """
    if strip_unmeasured(before) != strip_unmeasured(settings):
        return True
    if model.min is not None or model.memory not in (MemoryStatus.FAILED, MemoryStatus.MEASURING):
        return False
    return strip_harmless(before) != strip_harmless(settings) or (other_timeout and model.memory is MemoryStatus.FAILED)


def _remove(core: Core, model: Model, now: float) -> None:
    model.removed, model.settings, model.invalid = True, None, ""
    _refuse_measurements(core, model)
    drop_measurement(core, model)
    refuse_ended(core, model)
    if model.instance is None:
        del core.models[model.name]
        return
    pursue_departure(core, model, now)


def _keep_after_all(core: Core, model: Model, now: float) -> None:
    """A model that was removed and is back before its instance was gone."""
    instance = model.instance
    takedown = instance.takedown if instance is not None else None
    if takedown is None or takedown.reason is not StopReason.REMOVED or takedown.ordered:
        return
    if model.state is not State.STOPPING:
        call_off_takedown(core, model, "it is in the configuration again", now)


def _handle_invalid(core: Core, name: str, reason: str) -> None:
    model = core.models.setdefault(name, Model(name, None))
    model.invalid, model.settings, model.removed, model.facts = reason, None, False, None
    _refuse_measurements(core, model)
    drop_measurement(core, model)
    if model.instance is None or model.state in (State.STOPPING, State.SLEEPING):
        refuse_ended(core, model)
    model.forget_failure()


def _refuse_measurements(core: Core, model: Model) -> None:
    waiters = core.measuring.pop_waiters(model.name)
    refusal = explain.refuse_unknown(core, model.name) if model.removed else explain.refuse_invalid(model, "measure")
    core.refuse_all(waiters, refusal)


# --- after a start ---


def handle_instance_found(core: Core, event: InstanceFound, now: float) -> None:
    """Charge a unit that was found running, until it reports, as if it had been started for its model."""
    model = core.models.get(event.model)
    if model is None:
        model = core.models[event.model] = Model(event.model, None, removed=True)
    if model.instance is not None:
        return
    configured = model.settings.devices if model.settings is not None else event.settings.devices
    placement = event.settings.devices if configured != event.settings.devices else ()
    instance = Instance(
        event.model, event.generation, event.settings, now, adopted=True, placement=placement, sharers=0
    )
    core.add_instance(model, instance)
    if model.min is not None:
        core.ledger.charge(model.name, instance.place(sum_per_account(model.min)))
    else:
        instance.uncharged = True


def handle_recovery_began(core: Core, event: RecoveryBegan, now: float) -> None:
    """From now on decisions are made, but nothing is stopped before all that was found is known."""
    core.started = True
    core.recovery = Recovery(event.deadline_s, event.fronts_expected)
    core.recheck(Scope.ALL)
    end_recovery(core, now)


def handle_front_announced(core: Core, event: FrontAnnounced, now: float) -> None:
    """One front has told all its leases; the last one that is waited for may end the recovery."""
    if core.recovery is not None:
        core.recovery.fronts.add(event.holder)
        end_recovery(core, now)


def handle_lease_announced(core: Core, event: LeaseAnnounced, now: float) -> None:
    """Count a lease from before the start of this supervisor, or tell its holder that it is worth nothing."""
    found = core.find(event.model, event.generation)
    if found is None or found[0].state in (State.STOPPING, State.SLEEPING):
        gone = LeaseGone(model=event.model, generation=event.generation, reason="its instance is gone")
        core.notify(event.holder, gone)
        return
    model, instance = found
    instance.leases[event.holder] = Lease(event.busy, (min(event.since_s, now) or now) if event.busy else 0.0)
    note_use(instance, event.last_used_s, now)
    recall_announced(core, model, event.holder, now)
    core.recheck(Scope.ALL)


def end_recovery(core: Core, now: float) -> None:
    """Close the time after a start, when all is known or it is over."""
    recovery = core.recovery
    if recovery is None:
        return
    silent = core.list_unreported()
    if now < recovery.deadline_s and (silent or len(recovery.fronts) < recovery.fronts_expected):
        return
    core.recovery = None
    core.recheck(Scope.ALL)
    if core.running:
        core.record(
            JournalEvent.INSTANCES_RECOVERED, count=len(core.running), fronts=len(recovery.fronts), silent=silent
        )
    for model, _ in core.list_running():
        pursue_departure(core, model, now)
    for model in list(core.models.values()):
        if model.settings is not None and model.settings.load_on_start and model.instance is None:
            want_load(core, model, now)
