"""How do texts become vectors? As many inputs as fit are decoded together, each in a sequence of its own, and read by
the model's pooling.

Nothing is kept between inputs: the memory is cleared before each batch. Vectors have length 1, as OpenAI's do; what a
reranker makes is its score, and left as it is.
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

_INVALID_BATCH = -1


@dataclass(eq=False)
class _Task:
    job: Job
    inputs: deque[list[int]]
    normalized: bool
    vectors: list[list[float]] = field(default_factory=list)


@dataclass
class Embedder:
    """The Worker for models that make embeddings."""

    context: Any
    n_values: int
    """That the model makes of each input: the dimensions, or the scores of a reranker."""
    n_parallel: int
    n_batch: int
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
        self._tasks.append(_Task(job, deque(request.inputs), request.normalized))

    def has_work(self) -> bool:
        return bool(self._tasks)

    def read_load(self) -> Load:
        n_tasks = len(self._tasks)
        return Load(min(n_tasks, 1), max(0, n_tasks - 1))

    def use_threads(self, n_threads: int) -> None:
        llama.llama_set_n_threads(self.context, n_threads, n_threads)

    def count_step_tokens(self) -> int:
        return self._batch.n_tokens

    def step(self) -> Deliveries:
        self._tasks = deque(task for task in self._tasks if not task.job.cancelled)
        owners = self._fill()
        if owners:
            self._clear_memory()
            started_s = time.monotonic()
            result = llama.llama_decode(self.context, self._batch.struct)
            if result != 0:
                return self._fail(result)
            self._n_failed = 0
            for seq_id, task in enumerate(owners):
                task.vectors.append(self._read_vector(seq_id, task.normalized))
            self.stats.n_decodes += 1
            self.stats.n_busy += len(owners)
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

    def _fill(self) -> list[_Task]:
        """Inputs in order of arrival while they fit. Returns the owner of each sequence."""
        self._batch.clear()
        owners: list[_Task] = []
        for task in self._tasks:
            while task.inputs:
                if len(owners) == self.n_parallel or len(task.inputs[0]) > self._batch.room:
                    return owners
                self._batch.add(len(owners), task.inputs.popleft(), 0, output_last=True, output_all=True)
                owners.append(task)
        return owners

    def _read_vector(self, seq_id: int, normalized: bool) -> list[float]:
        pointer = llama.llama_get_embeddings_seq(self.context, seq_id)
        if not pointer:
            raise RuntimeError("llama.cpp has made no embedding")
        vector: list[float] = pointer[: self.n_values]
        return normalize(vector) if normalized else vector

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


def normalize(vector: list[float]) -> list[float]:
    length = math.sqrt(math.fsum(value * value for value in vector))
    return [value / length for value in vector] if length > 0 else vector
