"""A load has failed. Was it for lack of memory, and what is learnt from that?

Known by systemd's result `oom-kill`, or by what llama.cpp logged: "failed to allocate CUDA0 buffer of size N",
"cudaMalloc failed: out of memory". Then the model needs more than what was free: that, and the buffer that did not fit
where its size is known, is its need from now on, so that the next try finds idle models in its way and has them
unloaded. There is one next try, and none where nothing of ours holds memory there: it would end like the first.
"""

import re

from llamactl.journal_events import JournalEvent
from llamactl.protocol.values import LoadFailure
from llamactl.sched import explain
from llamactl.sched.breakdowns import HOST
from llamactl.sched.core import Core
from llamactl.sched.instances import Instance, Model

_WORDS = re.compile(
    r"out of memory|failed to allocate|unable to allocate|cannot allocate memory|std::bad_alloc|"
    r"outofdevicememory|outofhostmemory|insufficient memory",
    re.IGNORECASE,
)
_BUFFER = re.compile(r"(?:failed|unable) to allocate (\S+) buffer(?: of size (\d+))?", re.IGNORECASE)


def lacked_memory(failure: LoadFailure) -> bool:
    """Whether a unit ended for lack of memory, by systemd's word or by what it logged last."""
    return failure.result == "oom-kill" or bool(_WORDS.search(failure.message))


def find_buffers(message: str) -> dict[str, int]:
    """Bytes of the largest buffer that could not be allocated, by the name of its type (CUDA0, CPU ...); 0: it does not
    say.
    """
    buffers: dict[str, int] = {}
    for name, size in _BUFFER.findall(message):
        buffers[name] = max(buffers.get(name, 0), int(size or 0))
    return buffers


def learn_from_failure(core: Core, model: Model, instance: Instance, failure: LoadFailure) -> bool:
    """Raise what the model is known to need, while its instance is charged. Whether it is to be tried once more."""
    if not lacked_memory(failure) or model.retried or model.get_needs() is None:
        return False
    needs, others = instance.place(model.get_needs() or {}), dict(core.ledger.held)
    for name, size in core.ledger.holds.get(model.name, {}).items():
        others[name] = others.get(name, 0) - size
    buffers = find_buffers(failure.message)
    named = {name if name in core.ledger.accounts else HOST: size for name, size in buffers.items()}
    if failure.result == "oom-kill":
        named = {HOST: 0}
    short = {name: size for name, size in (named or dict.fromkeys(needs, 0)).items() if others.get(name, 0) > 0}
    for name, size in short.items():
        capacity = core.ledger.get_capacity(name)
        headroom = capacity - others[name] if capacity is not None else needs.get(name, 0)
        learnt = max(needs.get(name, 0), headroom) + max(size, 1)
        model.learnt[name] = max(model.learnt.get(name, 0), learnt)
    if not short:
        return False
    model.retried = True
    core.record(
        JournalEvent.MEMORY_NEED_RAISED,
        model.name,
        "warning",
        reason=failure.message,
        result=failure.result,
        next=explain.WITH_MORE_MEMORY,
        **{f"needs_{name.lower()}_bytes": model.learnt[name] for name in sorted(short)},
    )
    return True


def learn_from_success(model: Model, instance: Instance) -> None:
    """What was learnt from a failure ends where a load shows what it really takes."""
    if instance.effective is not None:
        model.learnt = {}
