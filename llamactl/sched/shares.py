"""Between how many models are the processors shared? llama.cpp's threads wait for each other many times in each step;
where two models that compute at once have a thread for each core, both stand still most of the time.

So each busy model is told how many there are, and takes its part of the cores. Who is idle is not told: it computes
nothing, and hears of it with its next request.
"""

from llamactl.protocol.values import Breakdown, RowKind
from llamactl.sched.core import Core
from llamactl.sched.effects import ShareProcessors
from llamactl.sched.instances import Instance

_HOST_PART = 4
"""A model that has at least one in so many of its bytes in host memory computes on processors for much of its time."""

MAX_SHARERS = 64
"""One more does not matter to anybody: each has one thread, or nearly so."""


def computes_on_processors(effective: Breakdown | None) -> bool:
    """Whether much of the model's weights is in host memory. What nobody knows counts as no."""
    rows = effective.devices if effective is not None else ()
    on_host = sum(row.model for row in rows if row.kind is not RowKind.DEVICE)
    return on_host > 0 and on_host * _HOST_PART >= sum(row.model for row in rows)


def count_sharers(core: Core) -> tuple[list[Instance], int]:
    """The busy instances that compute on processors, and how many they are to know of."""
    running = [model.instance for model in core.running.values() if model.instance is not None]
    busy = [i for i in running if i.leases and i.count_busy() and computes_on_processors(i.effective)]
    return busy, min(len(busy), MAX_SHARERS)


def share_processors(core: Core) -> None:
    """Tell the busy instances how many they are, where that is news to them."""
    busy, sharers = count_sharers(core)
    for instance in busy:
        if instance.connected and instance.sharers != sharers:
            instance.sharers = sharers
            core.emit(ShareProcessors(instance.model, instance.generation, sharers))
