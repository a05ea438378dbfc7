"""Which part of a picture or sound is decoded next? In each step of the engine one part of one sequence's, no longer
than a chunk of a prompt, so that no picture delays the text of others by more than that.

Only embeddings that attend to each other in both directions are decoded all at once: such a chunk is checked to be no
longer than a step when its prompt is read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llamactl.instance.engine.cache import PrefixCache
from llamactl.instance.engine.media import Encoder, Span
from llamactl.instance.engine.sequence import Sequence
from llamactl.instance.llama.embedding_batch import EmbeddingBatch
from llamactl.instance.llama.library import llama


@dataclass(frozen=True)
class MediaStep:
    """So many embeddings of a span, from where its sequence is."""

    sequence: Sequence
    span: Span
    n_tokens: int


class MediaSteps:
    """Of one context. On the engine's thread."""

    def __init__(self, context: Any, encoder: Encoder, n_step: int) -> None:
        self._context = context
        self._encoder = encoder
        self._n_step = n_step

    @property
    def n_encoded(self) -> int:
        """How often something has been encoded, or could not be: what waits for that may go on when this changes."""
        return self._encoder.n_finished

    def choose(self, running: Iterable[Sequence]) -> MediaStep | None:
        """The oldest sequence's that is at the place of something encoded. Whatever they come to next is encoded
        meanwhile.
        """
        chosen = None
        for sequence in running:
            span = sequence.next_span
            if span is None:
                continue
            self._encoder.want(span)
            if chosen is None and span.embeddings is not None and span.start <= sequence.n_past:
                left = span.end - sequence.n_past
                whole = self._encoder.projector.is_noncausal(span.chunk)
                chosen = MediaStep(sequence, span, left if whole else min(left, self._n_step))
        return chosen

    def find_failed(self, running: Iterable[Sequence]) -> list[tuple[Sequence, Span]]:
        """Those that are at the place of something that cannot be encoded."""
        found = []
        for sequence in running:
            span = sequence.next_span
            if span is not None and span.error and span.start <= sequence.n_past:
                found.append((sequence, span))
        return found

    def decode(self, step: MediaStep, cache: PrefixCache) -> int:
        """llama_decode's result."""
        sequence, span, projector = step.sequence, step.span, self._encoder.projector
        assert sequence.prefix is not None
        first = sequence.n_past - span.start
        positions = projector.list_positions(span.chunk, span.start - sequence.n_spared)
        taken = [section[first : first + step.n_tokens] for section in positions]
        batch = EmbeddingBatch(sequence.prefix.id, span.embeddings, projector.n_embd, taken, first)
        cache.extend(sequence.prefix, sequence.tokens[sequence.n_past : sequence.n_past + step.n_tokens])
        sequence.n_past += step.n_tokens
        noncausal = projector.is_noncausal(span.chunk)
        if noncausal:
            llama.llama_set_causal_attn(self._context, False)
        result = int(llama.llama_decode(self._context, batch.struct))
        if noncausal:
            llama.llama_set_causal_attn(self._context, True)
        if sequence.n_past == span.end:
            sequence.n_spared += span.chunk.n_tokens - span.chunk.n_positions
            span.embeddings = None
        return result

    def leave(self, sequence: Sequence) -> None:
        """It ends, or is put back."""
        for span in sequence.request.media.values():
            self._encoder.leave(span)
