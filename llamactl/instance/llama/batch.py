"""How do tokens of several sequences get into one llama_decode? Through arrays that are filled in place and never
allocated again.

Slices of ctypes arrays are assigned in C: a prompt of 512 tokens costs some microseconds, where element by element it
would cost a millisecond.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from llamactl.instance.llama.library import llama


class Batch:
    """A llama_batch of up to `capacity` tokens, each in one sequence."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._tokens = (llama.llama_token * capacity)()
        self._positions = (llama.llama_pos * capacity)()
        self._ids = (llama.llama_seq_id * capacity)()
        self._outputs = (ctypes.c_int8 * capacity)()
        self._ones = (ctypes.c_int32 * capacity)(*([1] * capacity))
        id_pointer = ctypes.POINTER(llama.llama_seq_id)
        size = ctypes.sizeof(llama.llama_seq_id)
        self._id_pointers = (id_pointer * capacity)(
            *(ctypes.cast(ctypes.byref(self._ids, index * size), id_pointer) for index in range(capacity))
        )
        self.struct: Any = llama.llama_batch()
        self.struct.token = self._tokens
        self.struct.pos = self._positions
        self.struct.n_seq_id = self._ones
        self.struct.seq_id = self._id_pointers
        self.struct.logits = self._outputs

    @property
    def n_tokens(self) -> int:
        return int(self.struct.n_tokens)

    @property
    def room(self) -> int:
        """How many tokens it takes besides those that it has."""
        return self.capacity - self.n_tokens

    def clear(self) -> None:
        """Forget all tokens; the memory stays."""
        self.struct.n_tokens = 0

    def add(
        self, seq_id: int, tokens: Sequence[int], position: int, *, output_last: bool, output_all: bool = False
    ) -> int:
        """Appends tokens of one sequence from `position` on. Returns the index of the last one, by which its logits
        are asked for.
        """
        start = self.n_tokens
        end = start + len(tokens)
        if end > self.capacity:
            raise ValueError(f"{len(tokens)} tokens for a batch with room for {self.room}")
        self._tokens[start:end] = tokens
        self._positions[start:end] = range(position, position + len(tokens))
        self._ids[start:end] = [seq_id] * len(tokens)
        self._outputs[start:end] = [int(output_all)] * len(tokens)
        if output_last:
            self._outputs[end - 1] = 1
        self.struct.n_tokens = end
        return end - 1
