"""How often was each model loaded, and how did it go?

Counted from the journal's own lines (`Record`), so that what metrics say and what the journal tells cannot
differ. Since this supervisor's start: a counter that falls back to zero is what Prometheus expects of a restart.
"""

from dataclasses import dataclass, field

from llamactl.journal_events import JournalEvent
from llamactl.protocol.descriptions import ModelCounters
from llamactl.sched.effects import Record


@dataclass
class _Counts:
    loads: int = 0
    load_seconds: float = 0.0
    load_failures: int = 0
    crashes: int = 0
    unloads: dict[str, int] = field(default_factory=dict)


class Counters:
    """What happened to each model, by its name."""

    def __init__(self) -> None:
        self._models: dict[str, _Counts] = {}

    def count(self, record: Record) -> None:
        """Count a line of the journal, where it is one that counts."""
        if not record.model:
            return
        counts = self._models.setdefault(record.model, _Counts())
        match record.event:
            case JournalEvent.INSTANCE_READY:
                counts.loads += 1
                counts.load_seconds += float(record.fields.get("load_s", 0.0))
            case JournalEvent.LOAD_FAILED:
                counts.load_failures += 1
            case JournalEvent.INSTANCE_CRASHED:
                counts.crashes += 1
            case JournalEvent.MODEL_UNLOADED:
                reason = str(record.fields.get("reason", "unknown"))
                counts.unloads[reason] = counts.unloads.get(reason, 0) + 1

    def list_models(self) -> dict[str, ModelCounters]:
        """By model, since this supervisor's start."""
        return {
            name: ModelCounters(
                loads=counts.loads,
                load_seconds=round(counts.load_seconds, 3),
                load_failures=counts.load_failures,
                crashes=counts.crashes,
                unloads=dict(counts.unloads),
            )
            for name, counts in self._models.items()
        }
