"""How do many requests share one context? Continuous batching: each step decodes one token of every running sequence
and a chunk of waiting prompts.

A sequence is its tokens and how many of them the context holds (`n_past`). What is missing is pending: one token
while it generates, many at the start and after it was put back. That makes putting back cheap to write and safe: the
tokens, the sampler and the text so far stay, only the cells go. When the shared cache is full, idle prefixes lose their
tokens first, then the newest sequence is put back; it comes in again after another has ended, not before, or it would
push itself out in turns.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.engine.cache import PrefixCache
from llamactl.instance.engine.ends import is_at_end, is_at_limit
from llamactl.instance.engine.engine import EngineBroken, explain_decode
from llamactl.instance.engine.filling import fill_batch
from llamactl.instance.engine.grammars import GrammarError
from llamactl.instance.engine.jobs import (
    Deliveries,
    FailureEvent,
    FinishEvent,
    FinishReason,
    GenerationRequest,
    Job,
    TextEvent,
)
from llamactl.instance.engine.media_steps import MediaSteps
from llamactl.instance.engine.places import count_positions, find_chunk_start, keep_text
from llamactl.instance.engine.prefixes import Prefix
from llamactl.instance.engine.probabilities import Probabilities
from llamactl.instance.engine.sampling import SamplerChain, TokenProbs
from llamactl.instance.engine.sequence import Sequence
from llamactl.instance.engine.shift import ContextShift
from llamactl.instance.engine.stats import Load, Stats
from llamactl.instance.engine.text import TextStream
from llamactl.instance.llama.batch import Batch
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.model import Vocabulary
from llamactl.instance.llama.params import ModelTraits

_DECODED, _NO_ROOM = 0, 1
_INVALID_BATCH = -1


@dataclass
class Generator:
    """The Worker for models that generate text. Owns what the context holds, not the context."""

    context: Any
    vocabulary: Vocabulary
    traits: ModelTraits
    n_parallel: int
    n_ctx: int
    n_batch: int
    media: MediaSteps | None = None
    """None: the model reads text alone."""
    shift: ContextShift | None = None
    """None: an answer ends where its context is full."""
    patience: int | None = None
    """With what is idle, as by `choose_patience`; None: without end."""
    _waiting: deque[Sequence] = field(default_factory=deque)
    _running: list[Sequence] = field(default_factory=list)
    """In order of arrival."""
    _n_ended: int = 0
    _n_failed: int = 0
    _stuck_at: int | None = None
    """All that is left waits until something more is encoded than this; None: it does not."""

    def __post_init__(self) -> None:
        self.stats = Stats()
        self.last_jobs: dict[int, Job] = {}
        """Of each slot the one that it served last, or serves."""
        self._news: Deliveries = []
        """What is to be told before the next decode."""
        self.cache = PrefixCache(self.context, self.traits, self.n_parallel, self.patience)
        self._probabilities = Probabilities(self.vocabulary)
        self._batch = Batch(max(self.n_batch, self.n_parallel))

    # --- Worker -----------------------------------------------------------------------------------

    def accept(self, job: Job) -> None:
        request = job.request
        if not isinstance(request, GenerationRequest):
            raise TypeError("not a generation")
        try:
            prompt = keep_text(request.prompt) if request.media else request.prompt
            chain = SamplerChain(
                *(request.sampling, self.vocabulary, self.n_ctx, prompt), request.rules, request.shown_tokens
            )
        except GrammarError as error:
            refusal = LlamactlError(ErrorCode.INVALID_REQUEST, f"cannot use the grammar: {error}")
            self._news.append((job, FailureEvent(refusal)))
            return
        stream = TextStream(request.stops, request.min_indent)
        sequence = Sequence(job, request, list(request.prompt), stream, chain)
        if request.wants_prompt_probs:
            sequence.prompt_infos.append(self._probabilities.describe(TokenProbs(request.prompt[0], None, [])))
        self._waiting.append(sequence)
        self._stuck_at = None

    def has_work(self) -> bool:
        if self.media is not None and self._stuck_at == self.media.n_encoded:
            return any(sequence.job.cancelled for sequence in (*self._running, *self._waiting))
        return bool(self._waiting or self._running or self._news)

    def read_load(self) -> Load:
        """Read how many sequences run, and how many wait for a slot."""
        return Load(len(self._running), len(self._waiting))

    def list_running(self) -> list[Sequence]:
        """From any thread: a copy, each of whose sequences may change or end meanwhile."""
        return list(self._running)

    def use_threads(self, n_threads: int) -> None:
        llama.llama_set_n_threads(self.context, n_threads, n_threads)

    def count_step_tokens(self) -> int:
        return self._batch.n_tokens

    def step(self) -> Deliveries:
        self._stuck_at = None
        self._drop_cancelled()
        self._admit()
        if self._news:
            news, self._news = self._news, []
            return news
        n_encoded = 0 if self.media is None else self.media.n_encoded
        if self.shift is not None:
            self.shift.apply(self._running, self.cache)
        self._make_room()
        # Before the text of the same step: only after that logits are read.
        is_media_decoded, failed = self._decode_media()
        if failed:
            return failed
        fill_batch(self._batch, self._running, self.cache)
        if not self._batch.n_tokens:
            if not is_media_decoded:
                self._stuck_at = n_encoded
            return []
        failures = self._check(llama.llama_decode(self.context, self._batch.struct), self._batch.n_tokens)
        if failures is not None:
            return failures
        self.stats.n_decodes += 1
        self.stats.n_busy += len(self._running)
        return self._sample()

    def abandon(self) -> list[Job]:
        sequences = [*self._running, *self._waiting]
        for sequence in sequences:
            sequence.chain.close()
            if self.media is not None:
                self.media.leave(sequence)
        refused = [job for job, event in self._news if isinstance(event, FailureEvent)]
        self._news = []
        self._running.clear()
        self._waiting.clear()
        self.cache.clear()
        return [*(sequence.job for sequence in sequences), *refused]

    # --- the parts of a step ----------------------------------------------------------------------

    def _drop_cancelled(self) -> None:
        for sequence in [s for s in self._running if s.job.cancelled]:
            self._end(sequence)
        for sequence in [s for s in self._waiting if s.job.cancelled]:
            self._waiting.remove(sequence)
            sequence.chain.close()

    def _admit(self) -> None:
        """Waiting requests into free slots, strictly in order of arrival. Only choices of a prompt that is under way
        let others pass: they take it over when it is decoded.
        """
        while (sequence := self._find_next()) is not None:
            if self._running and sequence.waits_for_end == self._n_ended:
                return
            reserved = sum(len(running.tokens) for running in self._running)
            if self._running and reserved + len(sequence.tokens) >= self.n_ctx:
                return
            request = sequence.request
            prefix = self.cache.enter(sequence.tokens, use_cache=request.cache_prompt, slot=request.slot)
            if prefix is None:
                return
            self._waiting.remove(sequence)
            self._enter(sequence, prefix)

    def _find_next(self) -> Sequence | None:
        return next((sequence for sequence in self._waiting if self._may_enter(sequence)), None)

    def _may_enter(self, sequence: Sequence) -> bool:
        """Not while its slot is busy, or its prompt is decoded for another one."""
        wanted = sequence.request.slot
        if wanted is not None and any(running.slot == wanted for running in self._running):
            return False
        return not self._is_underway(sequence)

    def _is_underway(self, sequence: Sequence) -> bool:
        """Whether another choice of the same request is about to have its prompt in memory."""
        if not self.traits.prefix_is_cuttable or not sequence.request.cache_prompt:
            return False
        prompt = sequence.request.prompt
        return any(running.n_pending > 1 and running.request.prompt is prompt for running in self._running)

    def _enter(self, sequence: Sequence, prefix: Prefix) -> None:
        sequence.prefix, sequence.n_past = prefix, len(prefix.tokens)
        if sequence.request.media:
            sequence.n_spared = sequence.n_past - count_positions(prefix.tokens, sequence.n_past)
        self.last_jobs[prefix.id] = sequence.job
        if not sequence.started_s:
            sequence.started_s = time.monotonic()
            sequence.n_cached = sequence.n_past
            if sequence.request.wants_progress:
                self._news.append((sequence.job, sequence.measure_progress(sequence.started_s)))
        self._running.append(sequence)

    def _make_room(self) -> None:
        """Frees cells for what the next batch will add."""
        while True:
            n_new = self._count_next_tokens()
            n_missing = self.cache.n_used + n_new - self.n_ctx
            if n_missing <= 0:
                return
            if not self.cache.free(n_missing):
                if len(self._running) <= 1:
                    return
                self._put_back(self._running[-1])

    def _count_next_tokens(self) -> int:
        n_text = min(self._batch.capacity, sum(sequence.n_pending for sequence in self._running))
        step = None if self.media is None else self.media.choose(self._running)
        return n_text if step is None else n_text + step.n_tokens

    def _put_back(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._leave(sequence, n_kept=0)
        sequence.n_past, sequence.waits_for_end = 0, self._n_ended
        self._waiting.appendleft(sequence)

    def _leave(self, sequence: Sequence, n_kept: int | None = None) -> None:
        """Out of its slot. Of its tokens `n_kept` stay in memory, or all."""
        prefix = sequence.prefix
        if prefix is not None:
            if n_kept is None and sequence.request.media:  # no half of a picture
                n_kept = find_chunk_start(sequence.tokens, len(prefix.tokens))
            if n_kept is not None:
                self.cache.cut(prefix, n_kept)
            self.cache.leave(prefix)
        sequence.prefix = None
        if self.media is not None:
            self.media.leave(sequence)

    def _decode_media(self) -> tuple[bool, Deliveries]:
        """Whether a part of something seen or heard was decoded, and what to tell those whose requests ended."""
        if self.media is None:
            return False, []
        failed: Deliveries = []
        for sequence, span in self.media.find_failed(self._running):
            message = f"cannot encode item {span.chunk.item} of the request: {span.error}"
            failed.append((sequence.job, FailureEvent(LlamactlError(ErrorCode.INTERNAL, message))))
            self._end(sequence)
        step = self.media.choose(self._running)
        if step is None or failed:
            return False, failed
        self.stats.n_decodes += 1
        failures = self._check(self.media.decode(step, self.cache), step.n_tokens)
        return failures is None, failures or []

    def _check(self, result: int, n_tokens: int) -> Deliveries | None:
        """Of a decode. None: done. Else what to tell those whose requests ended with it."""
        if result == _DECODED:
            self._n_failed = 0
            return None
        if result == _NO_ROOM and len(self._running) > 1:
            # Cells are counted above; models with several caches can still run out in one of them.
            self._put_back_all_but_oldest()
            return []
        message = explain_decode(result, n_tokens)
        if result < _INVALID_BATCH:
            self._n_failed += 1
            if self._n_failed > 1:
                raise EngineBroken(message)
        return self._fail_running(LlamactlError(ErrorCode.INTERNAL, message))

    def _fail_running(self, error: LlamactlError) -> Deliveries:
        """What the context holds after a failed decode is unknown: all of it goes, the waiting requests stay."""
        failed = list(self._running)
        for sequence in failed:
            self._end(sequence)
        self.cache.clear()
        return [(sequence.job, FailureEvent(error)) for sequence in failed]

    def _put_back_all_but_oldest(self) -> None:
        for sequence in reversed(self._running[1:]):
            self._put_back(sequence)
        oldest = self._running[0]
        assert oldest.prefix is not None
        self.cache.cut(oldest.prefix, 0)
        oldest.n_past = oldest.n_spared = 0
        while self.cache.free(self.n_ctx):
            pass

    def _sample(self) -> Deliveries:
        deliveries: Deliveries = []
        now_s = time.monotonic()
        for sequence in self._running:
            if sequence.request.wants_progress and not sequence.n_generated:
                deliveries.append((sequence.job, sequence.measure_progress(now_s)))
            if sequence.probe_index >= 0:
                self._probabilities.probe(self.context, sequence)
        for sequence in [s for s in self._running if s.output_index >= 0]:
            if not sequence.n_generated:
                sequence.first_token_s = sequence.first_token_s or now_s
                if sequence.prompt_infos:
                    deliveries.append((sequence.job, TextEvent("", 0, infos=tuple(sequence.prompt_infos))))
            if sequence.request.max_tokens == 0:
                self._finish(sequence, FinishReason.LENGTH, "", deliveries)
                continue
            if sequence.chain.is_plain:
                token = sequence.chain.sample(self.context, sequence.output_index)
            else:
                sampled = self._sample_closely(sequence, deliveries)
                if sampled is None:
                    continue
                token = sampled
            sequence.n_generated += 1
            if self.vocabulary.is_end(token):
                self._finish(sequence, FinishReason.STOP, "", deliveries, self.vocabulary.text_of(token))
                continue
            sequence.tokens.append(token)
            sequence.generated.append(token)
            sequence.held_tokens.append(token)
            text = sequence.text.feed(self._read_piece(sequence, token))
            if sequence.text.stopped_by is not None:
                self._finish(sequence, FinishReason.STOP, text, deliveries)
            elif is_at_limit(sequence, text, now_s, self.n_ctx, self.shift):
                self._finish(sequence, FinishReason.LENGTH, text, deliveries)
            elif text:
                deliveries.append((sequence.job, sequence.pop_text(text, now_s)))
        return deliveries

    def _read_piece(self, sequence: Sequence, token: int) -> bytes:
        request = sequence.request
        return self.vocabulary.piece(token, special=request.special_text or token in request.shown_tokens)

    def _sample_closely(self, sequence: Sequence, deliveries: Deliveries) -> int | None:
        """The next token of a request with a grammar or with probabilities. None: the sequence has ended."""
        sampled = sequence.chain.sample_closely(self.context, sequence.output_index, self._probabilities.candidates)
        if sampled.token is None:
            if sampled.is_complete:
                self._finish(sequence, FinishReason.STOP, "", deliveries)
            else:
                error = LlamactlError(ErrorCode.INVALID_REQUEST, "cannot continue: no token fits the grammar")
                deliveries.append((sequence.job, FailureEvent(error)))
                self._end(sequence)
            return None
        if sampled.probs is not None and not self.vocabulary.is_end(sampled.token):
            sequence.held_infos.append(self._probabilities.describe(sampled.probs))
        return sampled.token

    def _finish(
        self, sequence: Sequence, reason: FinishReason, text: str, deliveries: Deliveries, end_text: str = ""
    ) -> None:
        if not sequence.text.has_ended:
            text += sequence.text.finish()
        else:
            sequence.drop_stopped_tokens(text, self._read_piece)
        now_s = time.monotonic()
        if text or sequence.held_tokens:
            deliveries.append((sequence.job, sequence.pop_text(text, now_s)))
        event = FinishEvent(
            reason,
            len(sequence.request.prompt),
            sequence.n_generated,
            sequence.n_cached,
            sequence.measure_timings(now_s),
            sequence.text.stopped_by,
            sequence.slot,
            sequence.is_shifted or (reason is FinishReason.LENGTH and is_at_end(sequence, self.n_ctx, self.shift)),
            end_text,
        )
        deliveries.append((sequence.job, event))
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        """Frees the slot; what was read and written stays for the next prompt that begins alike."""
        self._running.remove(sequence)
        sequence.chain.close()
        self._leave(sequence)
        self._n_ended += 1
        sequence.add_to(self.stats, time.monotonic())
