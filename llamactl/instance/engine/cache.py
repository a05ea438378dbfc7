"""How is what a prefix should hold brought about in llama.cpp's memory?

The decisions are those of `prefixes`; here they are carried out, and the books kept. llama.cpp decodes for sequences
below `n_seq_max`, each of which costs memory for its logits; but its unified cache knows sequences up to LLAMA_MAX_SEQ,
and to copy one only notes that the cells are the other's too. So a prefix works under the number of a slot, and while
it is idle it is parked under a number beyond all slots, where it costs nothing but its cells.

Models with a sliding window or a recurrent state hold no more than the end of what they have read. Theirs cannot be
cut anywhere or copied: they stay in their slots.
"""

from collections.abc import Sequence
from typing import Any

from llamactl.instance.engine.places import count_positions
from llamactl.instance.engine.prefixes import Cells, Prefix, choose_cut, choose_place, list_expired
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.params import ModelTraits

MAX_PREFIXES = 64
PREFIXES_PER_SLOT = 4
MIN_PREFIXES = 32
MAX_SEQUENCES = 256
"""llama-cparams.h: LLAMA_MAX_SEQ."""


def list_homes(n_parallel: int, traits: ModelTraits) -> list[int]:
    """The sequences in which prefixes are idle, for up to `n_parallel` requests at a time."""
    if not traits.prefix_is_cuttable:
        return list(range(n_parallel))
    n_prefixes = max(n_parallel, min(MAX_PREFIXES, max(MIN_PREFIXES, PREFIXES_PER_SLOT * n_parallel)))
    return list(range(n_parallel, min(n_parallel + n_prefixes, MAX_SEQUENCES)))


class PrefixCache:
    """What the context holds."""

    def __init__(self, context: Any, traits: ModelTraits, n_parallel: int, patience: int | None = None) -> None:
        """`patience`: as by `choose_patience`."""
        self._memory = llama.llama_get_memory(context)
        self._traits = traits
        self._cells = Cells(list_homes(n_parallel, traits))
        self._n_requests = 0
        self._patience = patience
        self._n_decoded = 0
        """Tokens, since the beginning."""
        self._next_look: int | None = None
        """When so many are decoded, something idle may have cost enough; None: nothing is idle."""
        self.slots: list[Prefix | None] = [None] * n_parallel
        """What the request in each slot uses, or the last one that was there did."""

    @property
    def prefixes(self) -> list[Prefix]:
        """What each sequence holds, by its number."""
        return self._cells.prefixes

    @property
    def n_used(self) -> int:
        """Cells."""
        return self._cells.n_used

    def enter(self, tokens: Sequence[int], *, use_cache: bool = True, slot: int | None = None) -> Prefix | None:
        """A prefix in a slot for a request that reads these tokens, with as many of them in its memory as could be had;
        it is busy until it is left. Without `use_cache` it is empty. `slot`: no other one will do. None: it must wait.
        """
        free = self._list_free_slots()
        if not free or slot not in (None, *free):
            return None
        is_parked = self._traits.prefix_is_cuttable
        place = choose_place(
            [prefix for prefix in self.prefixes if is_parked or slot in (None, prefix.id)],
            tokens if use_cache else (),
            self._n_requests + 1,
            can_copy=is_parked,
            count_kept=self._count_kept,
        )
        if place is None:
            return None
        self._n_requests += 1
        prefix = place.prefix
        prefix.busy, prefix.n_prompt = True, len(tokens)
        self.cut(prefix, place.n_kept)
        if is_parked:
            self._move(prefix, free[0] if slot is None else slot)
        if place.donor is not None:
            end = self._count_positions(place.donor, place.n_copied)
            llama.llama_memory_seq_cp(self._memory, place.donor.id, prefix.id, 0, end)
            self._cells.copy(place.donor, prefix, place.n_copied)
        self.slots[prefix.id] = prefix
        return prefix

    def leave(self, prefix: Prefix) -> None:
        """What it holds stays for the next request that begins alike, but for what has been moved."""
        if prefix.moved_from is not None:
            self.cut(prefix, prefix.moved_from if self._traits.prefix_is_cuttable else 0)
        prefix.busy = False
        prefix.idle_since = self._n_decoded
        if self._patience is not None and self._next_look is None:
            self._next_look = self._n_decoded + self._patience
        self._move(prefix, prefix.home)

    def _list_free_slots(self) -> list[int]:
        busy = {prefix.id for prefix in self.prefixes if prefix.busy}
        return [slot for slot in range(len(self.slots)) if slot not in busy]

    def _move(self, prefix: Prefix, sequence: int) -> None:
        if prefix.id != sequence:
            llama.llama_memory_seq_cp(self._memory, prefix.id, sequence, -1, -1)
            llama.llama_memory_seq_rm(self._memory, prefix.id, -1, -1)
            prefix.id = sequence

    def extend(self, prefix: Prefix, tokens: Sequence[int]) -> None:
        """These are decoded behind what it holds."""
        self._cells.extend(prefix, tokens)
        prefix.last_used = self._n_requests
        self._n_decoded += len(tokens)
        if self._next_look is not None and self._n_decoded >= self._next_look:
            self._give_up_expired()

    def _give_up_expired(self) -> None:
        assert self._patience is not None
        for prefix in list_expired(self.prefixes, self._n_decoded, self._patience):
            self.cut(prefix, 0)
        idle_since = [
            max(prefix.idle_since, self._n_decoded - self._patience + 1)  # it may have cells of its own by then
            for prefix in self.prefixes
            if prefix.tokens and not prefix.busy
        ]
        self._next_look = min(idle_since) + self._patience if idle_since else None

    def cut(self, prefix: Prefix, length: int) -> None:
        """Shortens what a prefix holds; to nothing where llama.cpp cannot do it otherwise."""
        if len(prefix.tokens) == length:
            return
        if not llama.llama_memory_seq_rm(self._memory, prefix.id, self._count_positions(prefix, length), -1):
            llama.llama_memory_seq_rm(self._memory, prefix.id, -1, -1)
            length = 0
        self._cells.cut(prefix, length)

    def shift(self, prefix: Prefix, n_keep: int, n_discard: int) -> None:
        """Gives up the `n_discard` tokens behind the first `n_keep` and moves up those behind them.

        A cell that is moved is moved for all that hold it: idle ones give up what they hold there. If a busy one holds
        any, or llama.cpp cannot do it, no more than the first `n_keep` stay.
        """
        end = n_keep + n_discard
        sharers = self._cells.list_sharers(prefix, end)
        if any(other.busy for other in sharers):
            self.cut(prefix, n_keep)
            return
        for other in sharers:
            self.cut(other, end)
        if not llama.llama_memory_seq_rm(self._memory, prefix.id, n_keep, end):
            self.cut(prefix, 0)
            return
        llama.llama_memory_seq_add(self._memory, prefix.id, end, -1, -n_discard)
        self._cells.shift(prefix, n_keep, n_discard)

    def _count_positions(self, prefix: Prefix, length: int) -> int:
        """Of its first `length` tokens; but for pictures with M-RoPE, each has one."""
        return count_positions(prefix.tokens, length) if self._traits.uses_mrope else length

    def free(self, n_cells: int) -> bool:
        """Gives up something that is idle for so many cells; whether they suffice is seen then. False: there is nothing
        to give up.
        """
        cut = choose_cut(self.prefixes, n_cells, can_cut=self._traits.prefix_is_cuttable)
        if cut is None:
            return False
        self.cut(cut.prefix, cut.n_kept)
        return True

    def clear(self) -> None:
        """Nothing is held, and nothing is busy."""
        llama.llama_memory_clear(self._memory, True)
        self._cells.clear()

    def _count_kept(self, prefix: Prefix, n_common: int) -> int:
        """Models with a sliding window have forgotten the far past: what is left behind a cut may not be whole."""
        if n_common in (0, len(prefix.tokens)) or self._traits.prefix_is_cuttable:
            return n_common
        if self._traits.recurrent:
            return 0
        first = llama.llama_memory_seq_pos_min(self._memory, prefix.id)
        return n_common if first <= max(0, n_common - self._traits.n_swa - 1) else 0
