"""What would happen if this model were loaded now, and why? For `llamactl plan`, and for the journal when it is real.

Asks what a real load asks (`ways`), and does nothing. An instance's line says what its going would free and why it goes
or stays, in the words of `evict.Why`; the plan as a whole says in a sentence what a user would see happen.
"""

from llamactl.journal_events import JournalEvent
from llamactl.protocol.descriptions import LoadPlan, PlanDevice, PlanInstance
from llamactl.protocol.values import State
from llamactl.sched import explain
from llamactl.sched.breakdowns import HOST
from llamactl.sched.core import Core
from llamactl.sched.evict import Outcome, Plan, VictimVerdict
from llamactl.sched.instances import Model
from llamactl.sched.placement import Choice
from llamactl.sched.placement_options import choose_placement_option, get_needs
from llamactl.sched.queue import Entry

MAX_INSTANCES = 64
"""In a line of the journal."""


def explain_load(core: Core, model: Model, now: float) -> LoadPlan:
    """The whole decision about a load of this model at this moment."""
    entry = core.queue.get(model.name)
    if model.state in (State.READY, State.LOADING, State.STOPPING):
        return _explain_running(core, model)
    if model.settings is None:
        return _make(
            core, model, "invalid", f"it cannot be loaded: {model.invalid or 'it is no longer in the configuration'}"
        )
    choice = choose_placement_option(core, model, entry, now)
    if model.min is None and model.memory.value != "failed":
        words = "it would be measured first: nobody knows yet what it needs"
        return _make(core, model, "measure", words, choice, now)
    if get_needs(model) is None and model.instance is None:
        words = "it would be loaded without memory checks, alone, because measuring it has failed"
        if choice.plan.outcome is Outcome.FITS:
            return _make(core, model, "blind", words, choice, now)
    return describe_choice(core, model, entry, choice, now)


def describe_choice(core: Core, model: Model, entry: Entry | None, choice: Choice, now: float) -> LoadPlan:
    """A choice as `llamactl plan` shows it."""
    outcome, words = _format_outcome(core, model, entry, choice)
    return _make(core, model, outcome, words, choice, now)


def _explain_running(core: Core, model: Model) -> LoadPlan:
    words = {
        State.READY: "it is loaded already: requests go to it at once",
        State.LOADING: "it is loading already",
        State.STOPPING: "it is stopping; then it can be loaded again",
    }
    outcome = "loaded" if model.state is State.READY else "loading" if model.state is State.LOADING else "wait"
    return _make(core, model, outcome, words[model.state])


def _format_outcome(core: Core, model: Model, entry: Entry | None, choice: Choice) -> tuple[str, str]:
    plan, needs = choice.plan, choice.option.needs
    where = f" on {' and '.join(choice.option.devices)}" if choice.option.devices else ""
    verb = "woken" if model.instance is not None else "loaded"
    if choice.conflicts:
        return "wait", f"it would wait until {explain.list_names(choice.conflicts)} has loaded: both take what is free"
    if plan.hopeless and core.settings.strict:
        return "refused", f"it would be refused (`strict`): {explain.refuse_hopeless(core, model, plan, needs).message}"
    beyond = ", and tried though it needs more than there is" if plan.hopeless else ""
    head = core.models.get(core.head)
    if head is not None and head is not model and plan.outcome is not Outcome.FITS:
        return "wait", f"it would wait behind {head.name!r}, which is first in the queue"
    match plan.outcome:
        case Outcome.FITS:
            return "fits", f"it would be {verb} at once{where}{beyond}"
        case Outcome.EVICT:
            goes = explain.list_names(plan.victims)
            return "evict", f"it would be {verb}{where} after {goes} would have been unloaded{beyond}"
        case Outcome.WAIT:
            lack = explain.format_lack(core, plan, needs)
            return "wait", f"it would wait for {explain.list_names(plan.waiting_for)}: {lack}"
        case Outcome.PINNED:
            lack = explain.format_lack(core, plan, needs)
            return (
                "pinned",
                f"it would be refused: {lack}, and {explain.list_names(plan.waiting_for)} cannot go: pinned",
            )


def _make(
    core: Core, model: Model, outcome: str, words: str, choice: Choice | None = None, now: float = 0.0
) -> LoadPlan:
    return LoadPlan(
        model=model.name,
        outcome=outcome,
        words=words,
        placement=choice.option.devices if choice is not None else (),
        victims=choice.plan.victims if choice is not None else (),
        waiting_for=(choice.conflicts or choice.plan.waiting_for) if choice is not None else (),
        loaded=len(core.running),
        max_loaded=core.settings.max_loaded,
        devices=_list_devices(core, choice) if choice is not None else (),
        instances=_list_instances(core, choice.plan, now) if choice is not None else (),
    )


def _list_devices(core: Core, choice: Choice) -> tuple[PlanDevice, ...]:
    needs, plan = choice.option.needs, choice.plan
    accounts = {account.name: account for account in core.ledger.format_status()}
    devices = []
    for name in sorted(needs, key=lambda name: (name == HOST, name)):
        account = accounts.get(name)
        limit = core.ledger.get_capacity(name) is not None
        if account is None or not limit:
            held = core.ledger.held.get(name, 0)
            devices.append(PlanDevice(name=name, needs=needs[name], held=held, limit=limit))
            continue
        devices.append(
            PlanDevice(
                name=name,
                needs=needs[name],
                total=account.total,
                external=account.external,
                held=account.held,
                available=account.available,
                margin=account.margin,
                missing=plan.shortages.get(name, 0),
            )
        )
    return tuple(devices)


def _list_instances(core: Core, plan: Plan, now: float) -> tuple[PlanInstance, ...]:
    """Who goes first, then by name."""
    found = []
    for name, why in plan.reasons.items():
        running = core.running.get(name)
        instance = running.instance if running is not None else None
        if instance is None:
            continue
        used_s = max(instance.last_used_s, instance.ready_since_s)
        idle_s = max(0.0, now - used_s) if used_s and not instance.count_busy() else 0.0
        holds = dict(core.ledger.holds.get(name, {}))
        found.append(
            PlanInstance(
                model=name,
                goes=why is VictimVerdict.CHOSEN,
                why=_format_why(why, idle_s, plan),
                idle_s=round(idle_s, 1),
                frees=holds,
            )
        )
    return tuple(sorted(found, key=lambda one: (not one.goes, one.model)))


def _format_why(why: VictimVerdict, idle_s: float, plan: Plan) -> str:
    match why:
        case VictimVerdict.CHOSEN:
            return f"idle for {idle_s:.0f} s, least recently used of those that help"
        case VictimVerdict.NOT_NEEDED if plan.outcome is not Outcome.EVICT:
            return "it could go, but that would not be enough: nothing is stopped in vain"
        case VictimVerdict.NOT_NEEDED:
            return "not needed: enough others go before it"
        case _:
            return why.value


def record_plan(core: Core, model: Model, entry: Entry, choice: Choice, now: float) -> None:
    """The same for the journal, once for each decision."""
    plan = choice.plan
    decided = (choice.option.devices, plan.outcome, plan.victims, frozenset(plan.waiting_for), choice.conflicts)
    if not entry.is_news(decided):
        return
    record = describe_choice(core, model, entry, choice, now)
    whys = {one.model: one.why for one in record.instances[:MAX_INSTANCES]}
    fields: dict[str, object] = {}
    for device in record.devices:
        name = device.name.lower()
        fields[f"needs_{name}_bytes"] = device.needs
        if device.limit:
            fields |= {
                f"held_{name}_bytes": device.held,
                f"external_{name}_bytes": device.external,
                f"available_{name}_bytes": device.available,
                f"margin_{name}_bytes": device.margin,
            }
    core.record(
        JournalEvent.LOAD_PLANNED,
        model.name,
        outcome=record.outcome,
        why=record.words,
        devices=list(record.placement),
        victims=list(record.victims),
        waiting_for=list(record.waiting_for),
        instances=whys,
        **fields,
    )
