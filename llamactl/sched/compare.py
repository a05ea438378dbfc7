"""Has an instance taken what was measured for it?

Both are llama.cpp's own figures and should agree to the byte, but for a last device of several. Where an instance took
more, whatever the reason (a file replaced in the moment of its load, a library that measures otherwise than it
allocates), later loads are decided by what was taken, until the model's files or settings change.

Fitting chooses a context, so the measured figure is first brought to the instance's own: memory is close to linear in
the context, and `min` and `max` are two points of that line. Where fitting has moved weights to other devices than
measuring had them on, nothing can be said.
"""

from collections.abc import Mapping

from llamactl.journal_events import JournalEvent
from llamactl.protocol.values import Breakdown, RowKind
from llamactl.sched.breakdowns import HOST, sum_per_account
from llamactl.sched.core import Core
from llamactl.sched.instances import Instance, Model

TOLERANCE = 0.02
"""A difference of this share of the measured figure is worth a line."""


def compare_effective(core: Core, model: Model) -> None:
    """Say where what an instance took differs from what was measured, and remember where it is more."""
    instance = model.instance
    if instance is None or instance.effective is None or model.min is None or model.max is None:
        return
    if model.has_other_files() or not model.has_same_form():
        return
    found = find_differences(model.min, model.max, instance.effective, instance)
    if found is None:
        return
    least = instance.place(sum_per_account(model.min))
    # What is known of a model is where it was measured; what it took on a device chosen for it is not.
    if not instance.placement:
        model.taken = {name: least.get(name, 0) + more for name, more in found.items() if more > 0}
    expected = {name: sum_per_account(instance.effective).get(name, 0) - more for name, more in found.items()}
    notable = {name: more for name, more in found.items() if abs(more) > TOLERANCE * max(expected[name], 1)}
    if not notable:
        return
    fields: dict[str, int] = {}
    for name in sorted(notable):
        fields[f"measured_{name.lower()}_bytes"] = expected[name]
        fields[f"effective_{name.lower()}_bytes"] = expected[name] + found[name]
    if any(more > 0 for more in notable.values()):
        why = "it took more than was measured; later loads are decided by what it took"
        core.record(JournalEvent.MEASUREMENT_EXCEEDED, model.name, "warning", why=why, **fields)
    else:
        core.record(JournalEvent.MEASUREMENT_NOT_REACHED, model.name, why="it took less than was measured", **fields)


def find_differences(
    least: Breakdown, most: Breakdown, effective: Breakdown, instance: Instance
) -> dict[str, int] | None:
    """Bytes per account that an instance took more (or, below 0, less) than measurements say of its context. None: they
    say nothing of this form.
    """
    taken = sum_per_account(effective)
    low, high = instance.place(sum_per_account(least)), instance.place(sum_per_account(most))
    weights = instance.place(_sum_weights(least))
    if _has_moved(weights, _sum_weights(effective)):
        return None
    if effective.n_ctx == least.n_ctx:
        expected = low
    elif most.n_ctx > least.n_ctx and not _has_moved(weights, instance.place(_sum_weights(most))):
        share = (effective.n_ctx - least.n_ctx) / (most.n_ctx - least.n_ctx)
        names = (*low, *(name for name in high if name not in low))
        expected = {name: low.get(name, 0) + _scale(high.get(name, 0) - low.get(name, 0), share) for name in names}
    else:
        return None
    names = (*expected, *(name for name in taken if name not in expected))
    return {name: taken.get(name, 0) - expected.get(name, 0) for name in names}


def _scale(growth: int, share: float) -> int:
    return round(growth * share)


def _sum_weights(breakdown: Breakdown) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in breakdown.devices:
        if row.model:
            name = row.name if row.kind is RowKind.DEVICE else HOST
            sums[name] = sums.get(name, 0) + row.model
    return sums


def _has_moved(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Whether the same weights lie on other devices."""
    total = max(sum(before.values()), 1)
    if abs(sum(after.values()) - total) > TOLERANCE * total:
        return False  # they are not the same
    return any(abs(after.get(name, 0) - before.get(name, 0)) > TOLERANCE * total for name in (*before, *after))
