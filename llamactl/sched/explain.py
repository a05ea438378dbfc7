"""How does the scheduler say what it decided, and why it refuses?

Texts only: refusals that a user reads, and the fields of journal lines. Numbers stay integers in fields and become
readable in messages.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from llamactl.errors import RETRY_AFTER_S, ErrorCode
from llamactl.escape import escape_text
from llamactl.journal_events import JournalEvent
from llamactl.names import format_command, quote_name, suggest_names
from llamactl.protocol.control_socket import Failure, Progress
from llamactl.protocol.values import Breakdown, LoadFailure, RowKind, Stage, State
from llamactl.quantities import format_bytes
from llamactl.sched.breakdowns import sum_per_account
from llamactl.sched.core import Core
from llamactl.sched.evict import Plan
from llamactl.sched.instances import Model


def list_names(names: tuple[str, ...], limit: int = 4) -> str:
    """`'a', 'b' and 3 more`."""
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


# --- refusals: the id is filled in by who sends them ---


def _fail(code: ErrorCode, message: str, hint: str, model: str, details: dict[str, Any] | None = None) -> Failure:
    return Failure(id=0, code=code, message=message, hint=hint, model=model, details=details or {})


def hint_unknown(core: Core, name: str) -> str:
    """What to do about a name that no model has."""
    if core.config.unread:
        return f"it may stand in {core.config.unread[0]}, which cannot be read: `llamactl check` says why"
    return suggest_names(name, core.names) or "`llamactl list` shows all models"


def refuse_unknown(core: Core, name: str) -> Failure:
    """No model has this name, or a file that could not be read may hide it."""
    if core.config.unread:
        message = f"cannot find model {quote_name(name)}: it may stand in {core.config.unread[0]}, which cannot be read"
        return _fail(ErrorCode.INVALID_CONFIG, message, "`llamactl check` says why", name)
    shown = core.models.get(core.names.get(escape_text(name), ""))
    if shown is not None and shown.settings is None:
        return refuse_invalid(shown)
    return _fail(ErrorCode.UNKNOWN_MODEL, f"cannot find model {quote_name(name)}", hint_unknown(core, name), name)


def refuse_invalid(model: Model, doing: str = "start") -> Failure:
    """The configuration of this model cannot be used. `doing`: what was asked for, as a verb."""
    message = f"cannot {doing} {quote_name(model.name)}: its configuration is invalid: {model.invalid}"
    hint = "`llamactl check` shows all problems; once they are mended, `llamactl reload`"
    return _fail(ErrorCode.INVALID_MODEL, message, hint, model.name)


def refuse_not_loaded(model: Model, doing: str, why: str = "it is not loaded") -> Failure:
    """It has no instance for which this could be done. `doing`: what was asked for, as a verb."""
    hint = f"`{format_command('load', model.name)}` loads it" if doing == "use" else ""
    return _fail(ErrorCode.NOT_LOADED, f"cannot {doing} {quote_name(model.name)}: {why}", hint, model.name)


def refuse_passive(model: Model) -> Failure:
    """One that sleeps can be asked how it was, without a lease: it does nothing for that."""
    refusal = refuse_not_loaded(model, "use")
    if model.state is not State.SLEEPING or model.instance is None:
        return refusal
    return msgspec.structs.replace(refusal, details={"asleep": model.instance.generation})


def refuse_cancelled(model: Model, why: str) -> Failure:
    """Its load was wanted and is not any longer."""
    return _fail(ErrorCode.CANCELLED, f"cannot start {quote_name(model.name)}: {why}", "", model.name)


def refuse_queue_full(model: Model, waiting: int, limit: str) -> Failure:
    """Too many wait already, by the limit of that name."""
    name = quote_name(model.name)
    message = f"cannot queue another request for {name}: {waiting} are waiting already, `{limit}` is the limit"
    return _fail(ErrorCode.QUEUE_FULL, message, "try again later", model.name, {"retry_after_s": RETRY_AFTER_S})


def refuse_failed(model: Model, failure: LoadFailure, now: float) -> Failure:
    """After a failed load, and during the back-off that follows it."""
    wait_s = max(0.0, model.retry_at_s - now)
    details: dict[str, Any] = {
        "result": failure.result,
        "exit_code": failure.exit_code,
        "failures": model.failures,
        "retry_after_s": round(wait_s, 1),
    }
    how = f"{failure.result} {failure.exit_code}" if failure.exit_code else failure.result
    message = f"cannot start {quote_name(model.name)}: {failure.message or 'its unit ended'} ({how})"
    at_once = format_command("load", model.name)
    hint = f"requests may try again in {math.ceil(wait_s)} s; `{at_once}` tries at once" if wait_s else ""
    return _fail(ErrorCode.LOAD_FAILED, message, hint, model.name, details)


def refuse_measure_failed(model: Model) -> Failure:
    """Its measure child has ended without figures."""
    message = f"cannot measure {quote_name(model.name)}: {model.measure_error}"
    hint = f"`{format_command('logs', model.name)}` shows more"
    return _fail(ErrorCode.MEASURE_FAILED, message, hint, model.name)


def refuse_pinned(core: Core, model: Model, plan: Plan, needs: Mapping[str, int]) -> Failure:
    """It would fit if pinned models went; the details name them, with the bytes that are missing."""
    message = (
        f"cannot start {quote_name(model.name)}: {format_lack(core, plan, needs)}, and only pinned models could go: "
    )
    message += list_names(plan.waiting_for)
    details = {"pinned": list(plan.waiting_for), "shortages_bytes": dict(plan.shortages)}
    return _fail(ErrorCode.PINNED, message, "unload or unpin one of them", model.name, details)


def refuse_hopeless(core: Core, model: Model, plan: Plan, needs: Mapping[str, int]) -> Failure:
    """It would not fit even alone, and `strict` is set; the details have the bytes that are missing."""
    message = f"cannot start {quote_name(model.name)}: {format_hopeless(plan, needs)}"
    details = {"hopeless_bytes": dict(plan.hopeless), "needs_bytes": {name: needs[name] for name in plan.hopeless}}
    return _fail(ErrorCode.DOES_NOT_FIT, message, "a smaller `ctx` or other devices may fit", model.name, details)


def format_hopeless(plan: Plan, needs: Mapping[str, int]) -> str:
    """What a model lacks even alone."""
    return "; ".join(
        f"needs {format_bytes(needs[name])} on {name}, "
        f"{format_bytes(max(0, needs[name] - missing))} there with everything unloaded"
        for name, missing in sorted(plan.hopeless.items())
    )


def format_lack(core: Core, plan: Plan, needs: Mapping[str, int]) -> str:
    """What a model lacks, as half a sentence."""
    parts = [
        f"it needs {format_bytes(needs[name])} on {name}, {format_bytes(max(0, needs[name] - missing))} free"
        for name, missing in sorted(plan.shortages.items())
    ]
    if plan.slots_short:
        parts.append(f"{len(core.running)} models are loaded, `max_loaded` is {core.settings.max_loaded}")
    return "; ".join(parts) or "there is no room"


# --- journal ---


def record_measured(core: Core, model: Model, cached: bool) -> None:
    """Have the journal say what was measured, per account."""
    assert model.min is not None
    assert model.max is not None
    core.record(
        JournalEvent.MODEL_MEASURED,
        model.name,
        min_bytes=sum(row.used for row in model.min.devices),
        max_bytes=sum(row.used for row in model.max.devices),
        min_ctx=model.min.n_ctx,
        max_ctx=model.max.n_ctx,
        cached=cached,
        **_list_rows("min", model.min),
        **_list_rows("max", model.max),
    )


def _list_rows(prefix: str, breakdown: Breakdown) -> dict[str, int]:
    """One field per device and one for the host: `min_cuda0_bytes`."""
    return {f"{prefix}_{name.lower()}_bytes": size for name, size in sorted(sum_per_account(breakdown).items())}


def record_load_decided(core: Core, model: Model, needs: Mapping[str, int] | None) -> None:
    """One line per device that the model needs; `needs` None: nobody knows."""
    if needs is None:
        core.record(JournalEvent.LOAD_DECIDED, model.name, "warning", reason="without memory checks: not measured")
        return
    for name, size in sorted(needs.items()):
        capacity = core.ledger.get_capacity(name)
        if capacity is None:
            core.record(JournalEvent.LOAD_DECIDED, model.name, device=name, needs_bytes=size, limit="none")
            continue
        margin = core.ledger.get_margin(name)
        available = capacity - core.ledger.held.get(name, 0) + margin
        core.record(
            JournalEvent.LOAD_DECIDED,
            model.name,
            device=name,
            needs_bytes=size,
            available_bytes=available,
            margin_bytes=margin,
        )


def record_victim(core: Core, victim: Model, for_model: str, plan: Plan, now: float) -> None:
    """Have the journal say why this instance goes, and how much that frees."""
    instance = victim.instance
    assert instance is not None
    holds = core.ledger.holds.get(victim.name, {})
    short = {name: holds[name] for name in plan.shortages if holds.get(name)}
    idle_s = max(0.0, now - max(instance.last_used_s, instance.ready_since_s))
    helps = " and ".join(f"holds {format_bytes(size)} on {name}" for name, size in sorted(short.items()))
    core.record(
        JournalEvent.VICTIM_CHOSEN,
        victim.name,
        for_model=for_model,
        why=f"idle for {idle_s:.0f} s, least recently used; {helps or 'holds a place that `max_loaded` counts'}",
        last_used_ago_s=round(idle_s, 1),
        frees_bytes=sum(short.values()) or sum(holds.values()),
        **({"device": next(iter(sorted(short)))} if short else {}),
    )


def record_ended_badly(core: Core, event: JournalEvent, model: Model, failure: LoadFailure, **fields: object) -> None:
    """Have the journal say how a unit failed; an error, since somebody should look."""
    core.record(
        event, model.name, "error", result=failure.result, exit_code=failure.exit_code, reason=failure.message, **fields
    )


WITHOUT_EXTRA_BUFTS = (
    "this processor cannot run llama.cpp's code for extra buffer types (AMX, repacked weights): it is loaded again "
    "without them, and so are all others; `repack = false` saves the first try"
)
WITH_MORE_MEMORY = "idle models are unloaded, and it is tried once more"
"""What happens next to a load that has failed and is not given up."""


def tell_retry(core: Core, model: Model, failure: LoadFailure, next_step: str) -> None:
    """Tell those who wait for a load that it has failed, why, and what happens next."""
    entry = core.queue.get(model.name)
    for waiter in entry.waiters if entry is not None else ():
        warning = f"the load failed ({failure.message or failure.result}): {next_step}"
        core.tell_progress(waiter, Progress(id=0, stage=Stage.QUEUED, warning=warning))


def format_rows(breakdown: Breakdown | None) -> dict[str, int]:
    """Bytes in all, and on each device and the host, for the line of an instance that is ready."""
    if breakdown is None:
        return {}
    total = sum(row.used for row in breakdown.devices if row.kind in RowKind)
    return {"effective_bytes": total, **_list_rows("effective", breakdown)}
