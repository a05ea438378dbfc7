"""How do embeddings of pictures and sounds get into llama_decode? Without being copied: the batch points into the
array that they were encoded to.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from llamactl.instance.llama.library import llama


class EmbeddingBatch:
    """A llama_batch of embeddings of one sequence, newly made for each decode: these are few."""

    def __init__(
        self, seq_id: int, embeddings: Any, n_embd: int, positions: Sequence[Sequence[int]], first: int
    ) -> None:
        """`embeddings`: an array of floats, of which rows of `n_embd` are taken from `first` on; `positions`: one list
        for each section of a position, each with the positions of the rows that are taken.
        """
        self._embeddings = embeddings
        self.n_tokens = n_tokens = len(positions[0])
        flat = [position for section in positions for position in section]
        # Sections one after the other (llama-batch.cpp: llama_batch_compat).
        self._positions = (llama.llama_pos * len(flat))(*flat)
        self._id = llama.llama_seq_id(seq_id)
        self._ones = (ctypes.c_int32 * n_tokens)(*([1] * n_tokens))
        self._ids = (ctypes.POINTER(llama.llama_seq_id) * n_tokens)(*([ctypes.pointer(self._id)] * n_tokens))
        self._outputs = (ctypes.c_int8 * n_tokens)()
        start = ctypes.byref(embeddings, first * n_embd * ctypes.sizeof(ctypes.c_float))
        self.struct: Any = llama.llama_batch()
        self.struct.n_tokens = n_tokens
        self.struct.embd = ctypes.cast(start, ctypes.POINTER(ctypes.c_float))
        self.struct.pos = self._positions
        self.struct.n_seq_id = self._ones
        self.struct.seq_id = self._ids
        self.struct.logits = self._outputs
