"""Who may touch the llama.cpp context? One thread, which does nothing else: take what came in, one step, hand over
what came out.

The event loop never waits for it and gets one call for a step, or for several short ones, not one per token.
`since_progress_s` is what the watchdog asks: an idle engine makes progress by definition, a working one whenever a step
ends. An exception in a step ends the jobs of that moment, not the engine; one that llama.cpp cannot recover from
(EngineBroken) ends the engine, and `on_broken` the process.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.engine.jobs import Deliveries, FailureEvent, Job, TextEvent
from llamactl.instance.llama.thread import ComputeThread
from llamactl.journal_events import JournalEvent
from llamactl.systemd.journal import get_logger

log = get_logger()


class EngineBroken(Exception):
    """llama.cpp cannot go on in this process. The text says why."""


_QUIET_TURNS = 3
"""Of the event loop, without a new job: one accepts a connection, one reads from it, one runs its handler."""
_MAX_GATHERED = 64
PACE_S = 4e-3
"""Results come to the event loop no more often. To wake it, and through it the front and the client, for each token
costs more than the token where a step takes a tenth of this; where a step takes longer nothing waits.
"""

_DECODE_RESULTS = {
    1: "its cache has no room",
    2: "it was interrupted",
    -1: "the batch is invalid",
    -2: "there is no memory for computing",
    -3: "computing failed",
}
"""Of llama_decode (llama.h, and what llama_context makes of ggml's status)."""


def explain_decode(result: int, n_tokens: int) -> str:
    """Explain what llama_decode's result means for a batch of `n_tokens`."""
    reason = _DECODE_RESULTS.get(result, "for an unknown reason")
    return f"llama.cpp cannot decode {n_tokens} tokens: {reason} (llama_decode returned {result})"


class Worker(Protocol):
    """What the thread runs. All methods are called from that thread."""

    def accept(self, job: Job) -> None:
        """A new job, in order of arrival."""

    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def step(self) -> Deliveries:
        """One decode, or what can be done without one."""

    def use_threads(self, n_threads: int) -> None:
        """So many compute from the next step on."""

    def count_step_tokens(self) -> int:
        """Tokens in the step that runs: the more, the longer it may take."""

    def abandon(self) -> list[Job]:
        """Gives up every job and forgets all that the context holds."""


class Engine:
    """Runs a Worker. `submit`, `wake` and `close` may be called from the event loop."""

    def __init__(
        self,
        worker: Worker,
        loop: asyncio.AbstractEventLoop,
        on_broken: Callable[[str], None],
        thread: ComputeThread | None = None,
        pace_s: float = PACE_S,
    ) -> None:
        """`thread` is the engine's from its start on; None: a new one."""
        self._worker = worker
        self._loop = loop
        self._on_broken = on_broken
        self._inbox: deque[Job] = deque()
        self._is_gathering = False
        self._changed = threading.Condition()
        self._closing = False
        self._n_threads: int | None = None
        """To compute with from the next step on; None: as many as now."""
        self._progress_s = time.monotonic()
        self._working = False
        self._held: Deliveries = []
        """Results that are not handed over yet."""
        self._handed_over_s = float("-inf")
        self._pace_s = pace_s
        self._thread = thread or ComputeThread()

    def start(self) -> None:
        """Begin to work on the thread. What was submitted before is done, too."""
        self._thread.run(self._run)

    def submit(self, job: Job) -> None:
        """Jobs that come together begin together: an idle thread is woken when the event loop has no more of them."""
        with self._changed:
            self._inbox.append(job)
            if self._working or self._is_gathering:
                return
            self._is_gathering = True
        self._loop.call_soon(self._gather, 1, _QUIET_TURNS)

    def _gather(self, n_seen: int, turns: int) -> None:
        n_jobs = len(self._inbox)
        if n_jobs != n_seen:
            turns = _QUIET_TURNS
        if turns and n_jobs < _MAX_GATHERED:
            self._loop.call_soon(self._gather, n_jobs, turns - 1)
            return
        self._is_gathering = False
        with self._changed:
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Its sequence is free before the next step."""
        job.cancelled = True
        with self._changed:
            self._changed.notify()

    def wake(self) -> None:
        """The worker may have work again. From any thread."""
        with self._changed:
            self._changed.notify()

    def use_threads(self, n_threads: int) -> None:
        """So many compute from the next step on."""
        with self._changed:
            self._n_threads = n_threads

    def close_soon(self) -> None:
        """The engine ends after the running step; jobs fail."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self, timeout_s: float | None = None) -> bool:
        """Ends the engine and waits for it. False: the running step took longer than `timeout_s`."""
        self.close_soon()
        return self._thread.end(timeout_s)

    def since_progress_s(self) -> float:
        """How long the running step has taken; 0 when idle."""
        return time.monotonic() - self._progress_s if self._working else 0.0

    def count_inbox(self) -> int:
        """Jobs that the worker has not seen yet."""
        return len(self._inbox)

    def count_step_tokens(self) -> int:
        """Count the tokens of the running step; from any thread."""
        return self._worker.count_step_tokens()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._step()
        except EngineBroken as error:
            self._fail_all(f"the engine has ended: {error}")
            self._call(self._on_broken, str(error))
        self._fail_all("the instance is stopping", ErrorCode.SHUTTING_DOWN)

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (self._closing or self._inbox or self._worker.has_work()):
                self._working = False
                self._changed.wait()
            if self._closing:
                return False
            n_threads, self._n_threads = self._n_threads, None
        self._progress_s = time.monotonic()
        self._working = True
        if n_threads is not None:
            self._worker.use_threads(n_threads)
        if self._inbox:  # their prompts may take long
            self._hand_over()
        while self._inbox:  # and what comes meanwhile
            self._worker.accept(self._inbox.popleft())
        return True

    def _step(self) -> None:
        try:
            deliveries = self._worker.step()
        except EngineBroken:
            raise
        except Exception as error:
            log.exception(JournalEvent.ENGINE_STEP_FAILED)
            self._fail_all(f"the engine failed: {error}")
            return
        if deliveries:
            self._held += deliveries
            now_s = time.monotonic()
            if is_due(deliveries, now_s - self._handed_over_s, self._pace_s) or not self._worker.has_work():
                self._handed_over_s = now_s
                self._hand_over()

    def _hand_over(self) -> None:
        if self._held:
            deliveries, self._held = self._held, []
            self._call(_deliver, deliveries)

    def _fail_all(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        with self._changed:
            jobs = [*self._worker.abandon(), *self._inbox]
            self._inbox.clear()
        self._hand_over()
        error = LlamactlError(code, message)
        if jobs:
            self._call(_deliver, [(job, FailureEvent(error)) for job in jobs])

    def _call(self, function: Callable[..., None], *args: object) -> None:
        # RuntimeError: the loop is closed, the process ends and nobody waits for results any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)


def is_due(deliveries: Deliveries, since_s: float, pace_s: float) -> bool:
    """Whether what a step has made is handed over at once, `since_s` after the last time. Tokens of an answer that runs
    faster than anybody sees wait for each other, for `pace_s` at most; its beginning and its end wait for nothing.
    """
    if since_s >= pace_s:
        return True
    return any(not isinstance(event, TextEvent) or event.is_first for _, event in deliveries)


def _deliver(deliveries: Deliveries) -> None:
    for job, event in deliveries:
        job.push(event)
