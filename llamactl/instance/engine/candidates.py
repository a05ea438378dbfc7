"""Which tokens could come next, and how likely are they? llama.cpp's array of candidates, filled and read without a
Python loop over the vocabulary.

`llama_sampler_sample` does the same inside of llama.cpp and is what runs for most tokens: this array is for the rest,
that is for grammars and for requests that ask for probabilities. Samplers sort, shorten and replace the array, so it is
filled again for each use.
"""

import ctypes
import math
from array import array
from typing import Any

from llamactl.instance.llama.library import llama

_ENTRY_WORDS = 3  # id, logit, p: four bytes each
_NEVER = float("-inf")


class Candidates:
    """The candidates of one position. One object serves all sequences, one after the other."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._entries = (llama.llama_token_data * n_vocab)()
        entry = memoryview(self._entries).cast("B")
        entry.cast("i")[0::_ENTRY_WORDS] = memoryview(array("i", range(n_vocab)))
        self._blank = bytes(entry)
        self._logits_in_place = entry.cast("f")[1::_ENTRY_WORDS]
        self._list: Any = llama.llama_token_data_array()
        self._probability = llama.llama_sampler_init_dist(0)

    def fill(self, context: Any, index: int) -> None:
        """With the logits of the batch's token `index`."""
        pointer = llama.llama_get_logits_ith(context, index)
        logits = (ctypes.c_float * self._n_vocab).from_address(ctypes.addressof(pointer.contents))
        ctypes.memmove(self._entries, self._blank, len(self._blank))
        self._logits_in_place[:] = memoryview(logits).cast("B").cast("f")
        self._reset(self._n_vocab)

    def bar(self, tokens: list[int]) -> None:
        """Makes tokens impossible. Only between `fill` and the first sampler that sorts."""
        for token in tokens:
            self._entries[token].logit = _NEVER

    def apply(self, sampler: Any) -> None:
        """Have one of llama.cpp's samplers change the list, or select from it."""
        llama.llama_sampler_apply(sampler, ctypes.byref(self._list))

    @property
    def selected(self) -> int:
        """The token that the last sampler of a chain chose."""
        return int(self._list.data[self._list.selected].id)

    @property
    def selected_is_possible(self) -> bool:
        """Whether the token that was selected is one that no sampler has ruled out."""
        return float(self._list.data[self._list.selected].logit) != _NEVER

    def read_logprobs(self, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """Natural logarithms of the probabilities after `fill`: the token's, and the likeliest `n_top` tokens'."""
        chosen_logit = float(self._entries[token].logit)
        self.apply(self._probability)
        n_top = min(n_top, self._n_vocab)
        self._sort(max(n_top, 1))
        best = self._list.data[0]
        # From the best one: of unlikely tokens the probability itself may be 0 in 32 bits.
        log_total = best.logit - (math.log(best.p) if best.p > 0 else 0.0)
        top = [(int(entry.id), entry.logit - log_total) for entry in self._list.data[:n_top]]
        return chosen_logit - log_total, top

    def read_probabilities(self, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """What the samplers of a chain have left, after `apply`."""
        entries = [(int(entry.id), float(entry.p)) for entry in self._list.data[: self._list.size]]
        chosen = next((p for other, p in entries if other == token), 0.0)
        entries.sort(key=lambda entry: -entry[1])
        return chosen, [(other, p) for other, p in entries[:n_top] if p > 0]

    def _sort(self, n_top: int) -> None:
        sampler = llama.llama_sampler_init_top_k(n_top)
        try:
            self.apply(sampler)
        finally:
            llama.llama_sampler_free(sampler)

    def _reset(self, size: int) -> None:
        self._list.data = self._entries
        self._list.size, self._list.selected, self._list.sorted = size, -1, False
