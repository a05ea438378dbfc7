"""Which of the context's sequences does a request get, and what is given up when the cache is full?

A slot is one llama.cpp sequence id and the tokens that its memory holds. After a request its tokens stay: the next
request with the same beginning decodes only the rest. All slots share one pool of cells, so what idle slots keep is
the first thing to go.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Slot:
    """One llama.cpp sequence."""

    id: int
    tokens: list[int] = field(default_factory=list)
    """In the memory of the context, in order."""
    busy: bool = False
    last_used: int = 0
    """Step number of its last use."""


def count_common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    for index in range(length):
        if left[index] != right[index]:
            return index
    return length


def choose_slot(slots: Iterable[Slot], prompt: Sequence[int]) -> Slot | None:
    """The free slot that shares most with the prompt; among equals the least recently used. None: all are busy."""
    free = [slot for slot in slots if not slot.busy]
    if not free:
        return None
    return max(free, key=lambda slot: (count_common_prefix(slot.tokens, prompt), -slot.last_used, -slot.id))


def choose_purges(slots: Iterable[Slot], n_missing: int, spare: Slot | None = None) -> list[Slot]:
    """Idle slots to empty, least recently used first, until `n_missing` cells are free. Fewer where they do not
    suffice.
    """
    purges = []
    for slot in sorted(
        (slot for slot in slots if not slot.busy and slot.tokens and slot is not spare), key=lambda s: s.last_used
    ):
        if n_missing <= 0:
            break
        purges.append(slot)
        n_missing -= len(slot.tokens)
    return purges


def count_cells(slots: Iterable[Slot]) -> int:
    return sum(len(slot.tokens) for slot in slots)
