"""On which device does a model go that may choose?

Where the configuration pins nothing (`devices`, `tensor_split`, `n_gpu_layers = 0`), a model may go on each device
alone, or on all of them as it was measured. It goes where it fits without stopping anything, on the device that it
fills best; else where the fewest bytes must go. What it needs on one device alone is taken to be the sum of its rows
on all devices: a little too much, since each device has buffers of its own, and never too little.

A choice that has begun (victims are being recalled for it) is kept as long as it can still be carried out, or two
devices would take turns in losing their models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llamactl.protocol.values import Breakdown
from llamactl.sched.breakdowns import HOST, list_device_rows
from llamactl.sched.evict import Demand, Outcome, Plan
from llamactl.settings import ModelSettings


@dataclass(frozen=True)
class Option:
    """One way to load a model. `devices` empty: as its settings say."""

    needs: Mapping[str, int]
    """Bytes per account."""
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """An option with what must happen for it."""

    option: Option
    demand: Demand
    plan: Plan
    conflicts: tuple[str, ...] = ()
    """Loads that must end first."""
    watched: frozenset[str] = frozenset()
    """Accounts that are short in this way or another, and "" for places: who goes there may change the choice."""
    left: int = 0
    """Bytes that stay free on its devices beside it, the margins not counted. Means something where it fits."""


def may_choose(settings: ModelSettings) -> bool:
    """Whether the configuration leaves open on which devices the model goes."""
    return not settings.devices and not settings.tensor_split and settings.n_gpu_layers != 0


def list_options(
    settings: ModelSettings, breakdown: Breakdown | None, needs: Mapping[str, int], present: Sequence[str]
) -> tuple[Option, ...]:
    """All ways to load a model that needs `needs`; the first is as it was measured. `present`: devices of which the
    size is known, and that are there.
    """
    whole = Option(needs)
    if breakdown is None or not may_choose(settings):
        return (whole,)
    names = [row.name for row in list_device_rows(breakdown) if row.name in present]
    size = sum(size for name, size in needs.items() if name != HOST)
    if len(names) < 2 or not size:
        return (whole,)
    rest = {HOST: needs[HOST]} if needs.get(HOST) else {}
    return (whole, *(Option({name: size, **rest}, (name,)) for name in sorted(names)))


def choose_placement(choices: Sequence[Choice], kept: tuple[str, ...] | None = None) -> Choice:
    """The best of at least one choice. `kept`: the devices for which victims are being recalled."""
    return min(choices, key=lambda choice: _rank(choice, kept))


def _rank(choice: Choice, kept: tuple[str, ...] | None) -> tuple[object, ...]:
    plan, devices = choice.plan, choice.option.devices
    if plan.hopeless:  # then on all of them: fitting has most to choose from
        return (9, bool(devices), devices)
    if plan.outcome is Outcome.FITS:
        # One device is better than several: nothing has to cross between them.
        return (0, bool(choice.conflicts), not devices, choice.left, devices)
    if devices == kept and (plan.outcome is Outcome.EVICT or plan.is_under_way):
        return (1,)
    match plan.outcome:
        case Outcome.EVICT:
            order = 3
        case Outcome.WAIT:
            order = 2 if plan.is_under_way else 4
        case _:
            order = 5
    return (order, plan.frees, len(plan.victims), len(plan.waiting_for), not devices, devices)
