"""How do texts become vectors? As many inputs as fit are decoded together, each in a sequence of its own, and read by
the model's pooling.

An encoder sees an input as a whole: its batch is as large as its context. Where a token sees only those before it, a
longer input is decoded in pieces, alone, and pooled from what llama.cpp makes of each piece by itself. For the same
reason no sequence is computed in two parts without that: a step is never larger than llama.cpp's own.

Nothing is kept between inputs: the memory is cleared before each. Vectors are given the norm that their request says;
what a reranker makes is its score, and left as it is. Without pooling each token has a vector, and that is left as it
is, too.
"""

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.engine.engine import EngineBroken, explain_decode
from llamactl.instance.engine.jobs import Deliveries, EmbeddingEvent, EmbeddingRequest, FailureEvent, Job
from llamactl.instance.engine.stats import Load, Stats
from llamactl.instance.llama.batch import Batch
from llamactl.instance.llama.library import llama

NO_NORM = -1
_INVALID_BATCH = -1


@dataclass(eq=False)
class _Task:
    job: Job
    inputs: deque[list[int]]
    norm: int
    vectors: list[list[float]] = field(default_factory=list)
    n_decoded: int = 0
    """Of the first input, where it is decoded in pieces."""
    pooled: list[float] = field(default_factory=list)
    """Of these."""


@dataclass(frozen=True)
class _Part:
    """A sequence of one step: an input, or a piece of one."""

    task: _Task
    n_tokens: int
    is_last: bool = True


@dataclass
class Embedder:
    """The Worker for models that make embeddings."""

    context: Any
    n_values: int
    """That the model makes of each input: the dimensions, or the scores of a reranker."""
    n_parallel: int
    n_batch: int
    """Tokens that are computed at once. A model that cannot be given an input in pieces gets none that is longer."""
    pooling: str
    """In the settings' words."""
    _tasks: deque[_Task] = field(default_factory=deque)
    _n_failed: int = 0

    def __post_init__(self) -> None:
        self._batch = Batch(self.n_batch)
        self._memory = llama.llama_get_memory(self.context)
        self.stats = Stats()

    def accept(self, job: Job) -> None:
        request = job.request
        if not isinstance(request, EmbeddingRequest):
            raise TypeError("not an embedding")
        self._tasks.append(_Task(job, deque(request.inputs), request.norm))

    def has_work(self) -> bool:
        return bool(self._tasks)

    def read_load(self) -> Load:
        """Read how many jobs run, at most one, and how many wait for it."""
        n_tasks = len(self._tasks)
        return Load(min(n_tasks, 1), max(0, n_tasks - 1))

    def use_threads(self, n_threads: int) -> None:
        llama.llama_set_n_threads(self.context, n_threads, n_threads)

    def count_step_tokens(self) -> int:
        return self._batch.n_tokens

    def step(self) -> Deliveries:
        self._tasks = deque(task for task in self._tasks if not task.job.cancelled)
        parts = self._fill()
        if parts:
            if not parts[0].task.n_decoded:
                self._clear_memory()
            started_s = time.monotonic()
            result = llama.llama_decode(self.context, self._batch.struct)
            if result != 0:
                return self._fail(result)
            self._n_failed = 0
            self._read_vectors(parts)
            self.stats.n_decodes += 1
            self.stats.n_busy += len(parts)
            self.stats.n_prompt += self._batch.n_tokens
            self.stats.prompt_s += time.monotonic() - started_s
        deliveries: Deliveries = []
        while self._tasks and not self._tasks[0].inputs:
            task = self._tasks.popleft()
            deliveries.append((task.job, EmbeddingEvent(task.vectors)))
        return deliveries

    def abandon(self) -> list[Job]:
        jobs = [task.job for task in self._tasks]
        self._tasks.clear()
        self._clear_memory()
        return jobs

    def _fill(self) -> list[_Part]:
        """Inputs in order of arrival while they fit, or a piece of one that never does."""
        self._batch.clear()
        parts: list[_Part] = []
        for task in self._tasks:
            while task.inputs:
                tokens = task.inputs[0]
                if not parts and len(tokens) > self.n_batch:
                    return [self._add_piece(task, tokens)]
                if len(parts) == self.n_parallel or len(tokens) > self._batch.room:
                    return parts
                self._batch.add(len(parts), task.inputs.popleft(), 0, output_last=True, output_all=True)
                parts.append(_Part(task, len(tokens)))
        return parts

    def _add_piece(self, task: _Task, tokens: list[int]) -> _Part:
        piece = tokens[task.n_decoded : task.n_decoded + self.n_batch]
        self._batch.add(0, piece, task.n_decoded, output_last=True, output_all=True)
        is_last = task.n_decoded + len(piece) == len(tokens)
        if is_last:
            task.inputs.popleft()
        return _Part(task, len(piece), is_last)

    def _read_vectors(self, parts: list[_Part]) -> None:
        n_before = 0
        for seq_id, part in enumerate(parts):
            if self.pooling == "none":
                self._read_token_vectors(n_before, part)
            else:
                self._read_vector(seq_id, part)
            n_before += part.n_tokens

    def _read_token_vectors(self, n_before: int, part: _Part) -> None:
        """Those of its tokens, as the model makes them. `n_before`: tokens of the step that stand before them."""
        for index in range(n_before, n_before + part.n_tokens):
            pointer = llama.llama_get_embeddings_ith(self.context, index)
            if not pointer:
                raise RuntimeError("llama.cpp has made no embedding")
            part.task.vectors.append(pointer[: self.n_values])
        part.task.n_decoded = 0 if part.is_last else part.task.n_decoded + part.n_tokens

    def _read_vector(self, seq_id: int, part: _Part) -> None:
        pointer = llama.llama_get_embeddings_seq(self.context, seq_id)
        if not pointer:
            raise RuntimeError("llama.cpp has made no embedding")
        task, vector = part.task, pointer[: self.n_values]
        if task.n_decoded:
            vector = pool_pieces(self.pooling, task.pooled, task.n_decoded, vector, part.n_tokens)
        if not part.is_last:
            task.pooled, task.n_decoded = vector, task.n_decoded + part.n_tokens
            return
        task.pooled, task.n_decoded = [], 0
        task.vectors.append(normalize_as(vector, task.norm))

    def _fail(self, result: int) -> Deliveries:
        message = explain_decode(result, self._batch.n_tokens)
        if result < _INVALID_BATCH:
            self._n_failed += 1
            if self._n_failed > 1:
                raise EngineBroken(message)
        error = LlamactlError(ErrorCode.INTERNAL, message)
        return [(job, FailureEvent(error)) for job in self.abandon()]

    def _clear_memory(self) -> None:
        if self._memory:
            llama.llama_memory_clear(self._memory, True)


def pool_pieces(pooling: str, before: list[float], n_before: int, piece: list[float], n_tokens: int) -> list[float]:
    """The vector of an input so far: `before` is that of its first `n_before` tokens, `piece` of those that follow."""
    match pooling:
        case "cls":  # the first token's
            return before
        case "mean":
            share = n_tokens / (n_before + n_tokens)
            return [old + (new - old) * share for old, new in zip(before, piece, strict=True)]
        case _:  # the last token's; so is a score, where a token sees only those before it
            return piece


def normalize_as(vector: list[float], norm: int) -> list[float]:
    """As llama-server's `embd_normalize` has it.

    -1: not at all, 0: to the range of 16 bits, else to length 1 by that norm (2: the Euclidean one).
    """
    largest = max(map(abs, vector), default=0.0)
    if norm < 0 or not largest:
        return vector
    if norm == 2:
        return normalize(vector)
    if norm == 0:
        length = largest / 32760.0
    else:  # in parts of the largest value, whose power may be too small or too large for a number
        length = largest * math.fsum((abs(value) / largest) ** norm for value in vector) ** (1 / norm)
    return [value / length for value in vector]


def normalize(vector: list[float]) -> list[float]:
    """Scale a vector to length one (Euclidean); one of zeros stays as it is."""
    length = math.sqrt(math.fsum(value * value for value in vector))
    return [value / length for value in vector] if length > 0 else vector
