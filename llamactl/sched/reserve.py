"""How much room does a load that chooses its context leave for other models?

Left alone, automatic context takes all that is free up to its bound, and the next model has to evict it. So it leaves
what is needed, as far as that is known, by models that will want memory: those that wait in the queue, those that
sleep, and those of `load_on_start` that are not loaded. What runs or loads is charged already. For each of them room is
left only if there is enough beside this model's smallest form; to hold back what would not do anyway helps nobody.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from llamactl.protocol.values import State
from llamactl.sched.breakdowns import HOST, add_bytes
from llamactl.sched.core import Core
from llamactl.sched.instances import Model
from llamactl.sched.placement import Option
from llamactl.sched.placement_options import get_needs, list_placement_options

DRIVER_BYTES = 512 << 20
"""A GPU's driver keeps memory for each process, which shows in what is free for a child but not in its figures: with
less than that to spare, fitting would take layers off the device.
"""


@dataclass
class Reserve:
    """Bytes per account, and for whom."""

    sizes: dict[str, int] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)


def reserve_headroom(core: Core, model: Model, option: Option, promised: Mapping[str, int]) -> Reserve:
    """Before `model` is charged. `promised`: what it must leave in any case."""
    reserve, settings = Reserve(), model.get_settings()
    if settings.ctx or not settings.fit:
        return reserve
    ledger = core.ledger
    spare = {
        name: capacity - ledger.held.get(name, 0) - promised.get(name, 0) - option.needs.get(name, 0)
        for name, capacity in ledger.list_capacities({*ledger.accounts, HOST}).items()
    }
    spare = {name: size if name == HOST else size - DRIVER_BYTES for name, size in spare.items()}
    for other in _list_expected(core, model):
        fitting = [theirs for theirs in list_placement_options(core, other) if _is_within(theirs.needs, spare)]
        if not fitting:
            continue
        devices = [name for name in option.needs if name != HOST]
        least = min(fitting, key=lambda theirs: sum(theirs.needs.get(name, 0) for name in devices))
        spare = {name: size - least.needs.get(name, 0) for name, size in spare.items()}
        reserve.sizes = add_bytes([reserve.sizes, dict(least.needs)])
        reserve.models.append(other.name)
    return reserve


def _list_expected(core: Core, model: Model) -> Iterator[Model]:
    """Models with known needs that will want memory; those that somebody waits for first."""
    queued = [entry.model for entry in core.queue]
    for name in dict.fromkeys((*queued, *core.models)):
        other = core.models[name]
        if other is model or other.settings is None or get_needs(other) is None or name == core.head:
            continue
        if other.instance is None:
            if name in queued or other.settings.load_on_start:
                yield other
        elif other.state is State.SLEEPING and other.instance.takedown is None:
            yield other


def _is_within(needs: Mapping[str, int], spare: Mapping[str, int]) -> bool:
    return all(size <= spare[name] for name, size in needs.items() if name in spare)
