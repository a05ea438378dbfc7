"""What has been decided last, and why is a model not loaded any more?

Taken from the journal's own lines (`Record`), as the counters are, so that what `status` shows and what the journal
tells cannot differ. Bounded, and lost with the supervisor: the journal has all of it, and more.

Times are of the day (CLOCK_REALTIME), since they are shown as such, and the monotonic clock stands still while the
machine sleeps.
"""

from collections import deque

import msgspec

from llamactl.journal_events import JournalEvent
from llamactl.protocol.descriptions import Decision, Ending
from llamactl.quantities import format_bytes
from llamactl.sched.effects import Record
from llamactl.sched.instances import StopReason

MAX_DECISIONS = 5
MAX_ENDINGS = 1024
"""Models whose last end is known; the one that ended first is forgotten."""

_ENDINGS = (
    JournalEvent.MODEL_UNLOADED,
    JournalEvent.LOAD_FAILED,
    JournalEvent.LOAD_REFUSED,
    JournalEvent.INSTANCE_CRASHED,
)
_DECISIONS = (
    JournalEvent.LOAD_WAITS,
    JournalEvent.LOAD_REFUSED,
    JournalEvent.LOAD_CANCELLED,
    JournalEvent.VICTIM_CHOSEN,
    JournalEvent.VICTIM_DRAINED,
    JournalEvent.VICTIM_SPARED,
    JournalEvent.INSTANCE_ASLEEP,
    JournalEvent.MODEL_UNLOADED,
)
_BEGINNINGS = (JournalEvent.INSTANCE_SPAWNED, JournalEvent.INSTANCE_WOKEN)


class History:
    """The last decisions, and how each model ended last."""

    def __init__(self) -> None:
        self._decisions: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        self._endings: dict[str, Ending] = {}
        self._needs: list[str] = []
        """What the load that is being decided needs on each device: its lines come one by one."""

    def add(self, record: Record, time_s: float) -> None:
        """Remember what is worth it. `time_s`: now."""
        if record.event == JournalEvent.LOAD_DECIDED:
            self._needs.append(_describe_need(record))
        elif record.event in _BEGINNINGS:
            self._decide(record, JournalEvent.LOAD_DECIDED, time_s, "; ".join(self._needs))
            self._needs = []
        elif (
            record.event in _DECISIONS and record.fields.get("reason") != StopReason.EVICTED
        ):  # which a victim was before
            self._decide(record, record.event, time_s, _get_why(record))
        if record.event in _ENDINGS:
            self._endings.pop(record.model, None)
            self._endings[record.model] = Ending(
                event=record.event, time_s=time_s, reason=_describe_end(record), for_model=_get_for_model(record)
            )
            if len(self._endings) > MAX_ENDINGS:
                del self._endings[next(iter(self._endings))]

    def list_decisions(self) -> tuple[Decision, ...]:
        """The last decisions, the latest first."""
        return tuple(reversed(self._decisions))

    def find_ending(self, model: str) -> Ending | None:
        """How the model ended last; None: it has not, or others have pushed it out."""
        return self._endings.get(model)

    def _decide(self, record: Record, event: str, time_s: float, why: str) -> None:
        decision = Decision(event=event, model=record.model, for_model=_get_for_model(record), why=why, time_s=time_s)
        last = self._decisions[-1] if self._decisions else None
        if last is not None and msgspec.structs.replace(last, why=why, time_s=time_s) == decision:
            self._decisions.pop()  # the same with other figures: a load that still waits
        self._decisions.append(decision)


def _get_for_model(record: Record) -> str:
    return str(record.fields.get("for_model", ""))


def _get_why(record: Record) -> str:
    fields = record.fields
    why = str(fields.get("why") or fields.get("reason") or "")
    waiting_for = fields.get("waiting_for")
    return f"for {', '.join(waiting_for)}: {why}" if waiting_for else why


def _describe_need(record: Record) -> str:
    """One device of a load: what it needs there, and what there is."""
    fields = record.fields
    if "device" not in fields:
        return str(fields.get("reason", ""))
    available = f", {format_bytes(fields['available_bytes'])} available" if "available_bytes" in fields else ""
    return f"needs {format_bytes(fields['needs_bytes'])} on {fields['device']}{available}"


def _describe_end(record: Record) -> str:
    fields = record.fields
    reason = str(fields.get("reason", ""))
    if record.event == JournalEvent.MODEL_UNLOADED and "result" in fields:
        return f"{reason}; its unit ended with {fields['result']} {fields['exit_code']}"
    return reason or str(fields.get("why") or fields.get("result", ""))
