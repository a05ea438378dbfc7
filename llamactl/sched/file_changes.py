"""Are a model's files still those that its figures were made of?

A file can be replaced at any time: renamed over, written in place, one shard of several. So they are looked at before
each load is decided, and the scheduler compares what was seen then with what was seen when the model was measured. What
differs drops the figures, and the load waits for new ones, as for a model that was never measured. An identity is any
text that another file would not have; empty: nobody could look, and what is known holds.

When somebody looks is `readings`' question.
"""

from llamactl.journal_events import JournalEvent
from llamactl.protocol.values import MemoryStatus, State
from llamactl.sched.core import Core
from llamactl.sched.events import FilesSeen
from llamactl.sched.instances import Model, StopReason
from llamactl.sched.measuring import drop_measurement, queue_unmeasured
from llamactl.sched.queue import Entry
from llamactl.sched.recheck import Scope
from llamactl.sched.takedown import begin_takedown


def handle_files_seen(core: Core, event: FilesSeen, now: float) -> None:
    """Take over which files a model has; figures of others are void, unless nothing is known of either."""
    model, entry = core.models.get(event.model), core.queue.get(event.model)
    if model is None:
        return
    model.is_looked_at = False
    # Who could not look has looked: nobody waits twice for it.
    model.files_seen_s = max(model.files_seen_s, event.since_s if event.files else now)
    if entry is not None:
        core.recheck(Scope.ALL)
    known, model.files = model.files, event.files or model.files or ""
    if known is not None and known != model.files and model.settings is not None:
        _drop_figures(core, model, entry, event)
    instance = model.instance
    asleep = model.state is State.SLEEPING and instance is not None and instance.takedown is None
    if entry is not None and asleep and model.has_other_files():
        begin_takedown(core, model, StopReason.ASLEEP, now, drain=True)


def _drop_figures(core: Core, model: Model, entry: Entry | None, event: FilesSeen) -> None:
    assert model.settings is not None
    core.record(JournalEvent.MODEL_FILES_REPLACED, model.name, path=model.settings.path)
    if entry is not None:
        entry.replaced += 1
    model.facts = None
    model.forget_failure()
    if event.measuring and core.measuring.is_current(model.name):
        model.min = model.max = None
        model.memory = MemoryStatus.MEASURING
    else:
        drop_measurement(core, model)
        queue_unmeasured(core, model)
    core.recheck(Scope.ALL)


def must_load_again(model: Model) -> bool:
    """Whether a sleeping instance is of no use any more: the configuration says something else now, or its files are
    others.
    """
    instance, settings = model.instance, model.settings
    if instance is None or settings is None:
        return True
    return model.has_other_files() or not model.has_same_form() or settings.extra != instance.settings.extra
