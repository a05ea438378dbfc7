"""Is what a model said what llama.cpp says? Every batch that the engine hands over is kept, and played once more to
llama.cpp alone, in another context.

Floating point sums depend on the size of a batch, so a sequence among others may end up with another word than alone,
in llama-server too. What must hold is that each token that the engine took is the one that llama.cpp gives for these
batches.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from llamactl.instance.llama.library import llama


@dataclass(frozen=True)
class Decode:
    """One batch: a row of (token, position, sequence, whether its logits are asked for) per token."""

    rows: tuple[tuple[int, int, int, bool], ...]


Apply = Callable[[Any], None]
"""A change of what a context's memory holds, on any memory."""


@dataclass
class Tape:
    """Decodes and changes of the memory, in order."""

    events: list[Decode | Apply] = field(default_factory=list)

    @property
    def n_decoded(self) -> int:
        return sum(len(event.rows) for event in self.events if isinstance(event, Decode))


@contextmanager
def record(context: Any) -> Iterator[Tape]:
    """Everything that is decoded in `context` meanwhile."""
    tape = Tape()
    decode, remove, clear = llama.llama_decode, llama.llama_memory_seq_rm, llama.llama_memory_clear
    copy = llama.llama_memory_seq_cp

    def record_decode(target: Any, batch: Any) -> int:
        result = int(decode(target, batch))
        if result == 0:
            rows = [
                (batch.token[i], batch.pos[i], batch.seq_id[i][0], bool(batch.logits[i])) for i in range(batch.n_tokens)
            ]
            tape.events.append(Decode(tuple(rows)))
        return result

    def record_remove(memory: Any, *arguments: Any) -> Any:
        tape.events.append(lambda other: remove(other, *arguments))
        return remove(memory, *arguments)

    def record_clear(memory: Any, *arguments: Any) -> None:
        tape.events.append(lambda other: clear(other, *arguments))
        clear(memory, *arguments)

    def record_copy(memory: Any, *arguments: Any) -> None:
        tape.events.append(lambda other: copy(other, *arguments))
        copy(memory, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama, "llama_decode", record_decode)
        patch.setattr(llama, "llama_memory_seq_rm", record_remove)
        patch.setattr(llama, "llama_memory_clear", record_clear)
        patch.setattr(llama, "llama_memory_seq_cp", record_copy)
        yield tape


def check(tape: Tape, context: Any, n_vocab: int) -> int:
    """Plays the tape in an empty context: each token that follows an output is the likeliest one of that output.
    Returns how many did.
    """
    memory = llama.llama_get_memory(context)
    llama.llama_memory_clear(memory, True)
    expected: dict[tuple[int, int], int] = {}
    n_checked = 0
    for event in tape.events:
        if not isinstance(event, Decode):
            event(memory)
            expected.clear()
            continue
        for token, position, sequence, _ in event.rows:
            likeliest = expected.pop((sequence, position), token)
            assert token == likeliest, f"token {token} in sequence {sequence} at {position}; llama.cpp says {likeliest}"
            n_checked += 1
        expected.update(decode_rows(context, event.rows, n_vocab))
    return n_checked


def decode_rows(context: Any, rows: tuple[tuple[int, int, int, bool], ...], n_vocab: int) -> dict[tuple[int, int], int]:
    """One llama_decode. The likeliest token after each output, by the sequence and position where it belongs."""
    batch = llama.llama_batch_init(len(rows), 0, 1)
    try:
        batch.n_tokens = len(rows)
        for index, (token, position, sequence, output) in enumerate(rows):
            batch.token[index], batch.pos[index], batch.logits[index] = token, position, output
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
        assert llama.llama_decode(context, batch) == 0
    finally:
        llama.llama_batch_free(batch)
    return {
        (sequence, position + 1): choose_likeliest(context, index, n_vocab)
        for index, (_, position, sequence, output) in enumerate(rows)
        if output
    }


def choose_likeliest(context: Any, index: int, n_vocab: int) -> int:
    return int(np.ctypeslib.as_array(llama.llama_get_logits_ith(context, index), (n_vocab,)).argmax())
