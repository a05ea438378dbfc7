"""Does the engine's thread hand over what a worker makes, survive what a worker throws, and end when nothing can go
on?
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.engine.engine import PACE_S, Engine, EngineBroken, is_due
from llamactl.instance.engine.jobs import (
    Deliveries,
    EmbeddingEvent,
    EmbeddingRequest,
    Event,
    FailureEvent,
    FinishEvent,
    FinishReason,
    Job,
    TextEvent,
    Timings,
)

TIMEOUT_S = 10.0


class ScriptedWorker:
    """Ends each job in one step, with what `answer` says of it."""

    def __init__(self, answer: Callable[[Job], Event]) -> None:
        self._answer = answer
        self._jobs: list[Job] = []
        self.n_threads = 8

    def accept(self, job: Job) -> None:
        self._jobs.append(job)

    def has_work(self) -> bool:
        return bool(self._jobs)

    def step(self) -> Deliveries:
        job = self._jobs[0]
        event = self._answer(job)
        self._jobs.pop(0)
        return [(job, event)]

    def use_threads(self, n_threads: int) -> None:
        self.n_threads = n_threads

    def count_step_tokens(self) -> int:
        return 1

    def abandon(self) -> list[Job]:
        jobs, self._jobs = self._jobs, []
        return jobs


def make_job() -> Job:
    return Job(EmbeddingRequest([[1]]))


async def receive(job: Job) -> Event:
    (event,) = await asyncio.wait_for(job.receive(), TIMEOUT_S)
    return event


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def test_events_reach_their_jobs_on_the_event_loop() -> None:
    async def body() -> None:
        engine = Engine(
            ScriptedWorker(lambda job: EmbeddingEvent([[1.0]])), asyncio.get_running_loop(), lambda reason: None
        )
        engine.start()
        jobs = [make_job() for _ in range(20)]
        for job in jobs:
            engine.submit(job)
        assert [await receive(job) for job in jobs] == [EmbeddingEvent([[1.0]])] * 20
        assert engine.close(TIMEOUT_S)

    run(body)


class GatheringWorker(ScriptedWorker):
    """Ends all jobs at hand in one step, and keeps how many these were."""

    def __init__(self) -> None:
        super().__init__(lambda job: EmbeddingEvent([[1.0]]))
        self.steps: list[int] = []
        self.is_idle = threading.Event()

    def has_work(self) -> bool:
        # Asked under the lock that whoever submits takes: the thread waits by then.
        if not super().has_work():
            self.is_idle.set()
        return super().has_work()

    def step(self) -> Deliveries:
        jobs = self.abandon()
        self.steps.append(len(jobs))
        return [(job, EmbeddingEvent([[1.0]])) for job in jobs]


def test_jobs_that_come_in_turns_of_the_event_loop_begin_together() -> None:
    async def body() -> None:
        worker = GatheringWorker()
        engine = Engine(worker, asyncio.get_running_loop(), lambda reason: None)
        engine.start()
        assert await asyncio.to_thread(worker.is_idle.wait, TIMEOUT_S)
        jobs = [make_job() for _ in range(8)]
        for job in jobs:
            engine.submit(job)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        for job in jobs:
            await receive(job)
        assert engine.close(TIMEOUT_S)
        assert worker.steps == [8]

    run(body)


def test_arrivals_without_a_pause_do_not_hold_up_those_before_them() -> None:
    async def body() -> None:
        worker = GatheringWorker()
        engine = Engine(worker, asyncio.get_running_loop(), lambda reason: None)
        engine.start()
        first = make_job()
        engine.submit(first)
        answered = asyncio.ensure_future(receive(first))
        jobs = []
        while not answered.done():
            jobs.append(make_job())
            engine.submit(jobs[-1])
            await asyncio.sleep(0)
        for job in jobs:
            await receive(job)
        assert engine.close(TIMEOUT_S)

    run(body)


FIRST, SECOND, THIRD = (TextEvent(text, number, (number,)) for number, text in enumerate("abc", 1))
FINISH = FinishEvent(FinishReason.STOP, 1, 3, 0, Timings(0, 1, 1.0, 3, 1.0))


def test_beginning_and_end_of_an_answer_are_due_at_once_and_what_is_between_after_a_while() -> None:
    job = make_job()
    for event, since_s, due in (
        (FIRST, 0.0, True),
        (SECOND, PACE_S / 2, False),
        (SECOND, PACE_S, True),
        (FINISH, 0.0, True),
        (FailureEvent(LlamactlError(ErrorCode.INTERNAL, "it went wrong")), 0.0, True),
    ):
        assert is_due([(job, event)], since_s, PACE_S) is due
    assert is_due([(job, SECOND), (make_job(), FIRST)], 0.0, PACE_S)


class TalkingWorker(ScriptedWorker):
    """Makes an event of a script each time that it may; further jobs end at once."""

    def __init__(self, script: list[Event]) -> None:
        super().__init__(lambda job: EmbeddingEvent([]))
        self._script = script
        self.may_step = threading.Semaphore(0)
        self.has_entered = threading.Semaphore(0)

    def step(self) -> Deliveries:
        self.has_entered.release()
        assert self.may_step.acquire(timeout=TIMEOUT_S)
        if len(self._jobs) > 1:
            return [(self._jobs.pop(), EmbeddingEvent([]))]
        event = self._script.pop(0)
        if isinstance(event, FailureEvent):
            raise RuntimeError("it went wrong")
        return [(self._jobs.pop() if isinstance(event, FinishEvent) else self._jobs[0], event)]


def start_talking(script: list[Event]) -> tuple[TalkingWorker, Engine, Job]:
    """With an engine whose results wait for each other for ever."""
    worker = TalkingWorker(script)
    engine = Engine(worker, asyncio.get_running_loop(), lambda reason: None, pace_s=float("inf"))
    engine.start()
    job = make_job()
    engine.submit(job)
    return worker, engine, job


def test_tokens_that_come_fast_arrive_together_with_the_end() -> None:
    async def body() -> None:
        worker, engine, job = start_talking([FIRST, SECOND, THIRD, FINISH])
        worker.may_step.release()
        assert await receive(job) == FIRST
        worker.may_step.release(3)
        assert await asyncio.wait_for(job.receive(), TIMEOUT_S) == [SECOND, THIRD, FINISH]
        assert engine.close(TIMEOUT_S)

    run(body)


def test_tokens_do_not_wait_for_the_prompt_of_a_new_job() -> None:
    async def body() -> None:
        worker, engine, job = start_talking([FIRST, SECOND, FINISH])
        worker.may_step.release()
        assert await receive(job) == FIRST
        for _ in range(2):
            assert await asyncio.to_thread(worker.has_entered.acquire, timeout=TIMEOUT_S)
        late = make_job()
        engine.submit(late)
        worker.may_step.release()  # of the second step; the third one, with the new job, never ends by itself
        assert await receive(job) == SECOND
        worker.may_step.release(2)
        assert await receive(late) == EmbeddingEvent([])
        assert await receive(job) == FINISH
        assert engine.close(TIMEOUT_S)

    run(body)


def test_tokens_that_waited_come_before_the_failure_that_ends_them() -> None:
    async def body() -> None:
        failure = FailureEvent(LlamactlError(ErrorCode.INTERNAL, "it went wrong"))
        worker, engine, job = start_talking([FIRST, SECOND, failure])
        worker.may_step.release(3)
        events: list[Event] = []
        while not any(isinstance(event, FailureEvent) for event in events):
            events += await asyncio.wait_for(job.receive(), TIMEOUT_S)
        assert events[:-1] == [FIRST, SECOND]
        assert engine.close(TIMEOUT_S)

    run(body)


def test_step_that_throws_fails_its_jobs_and_the_next_ones_run() -> None:
    async def body() -> None:
        bad, good = make_job(), make_job()

        def answer(job: Job) -> Event:
            if job is bad:
                raise RuntimeError("it went wrong")
            return EmbeddingEvent([])

        engine = Engine(ScriptedWorker(answer), asyncio.get_running_loop(), lambda reason: None)
        engine.start()
        engine.submit(bad)
        event = await receive(bad)
        assert isinstance(event, FailureEvent)
        assert "it went wrong" in str(event.error)
        engine.submit(good)
        assert await receive(good) == EmbeddingEvent([])
        assert engine.close(TIMEOUT_S)

    run(body)


def test_change_of_threads_holds_from_the_next_step_on() -> None:
    async def body() -> None:
        seen: list[int] = []

        def answer(job: Job) -> Event:
            seen.append(worker.n_threads)
            if len(seen) == 1:  # while a step runs
                engine.use_threads(3)
                assert worker.n_threads == 8
            return EmbeddingEvent([])

        worker = ScriptedWorker(answer)
        engine = Engine(worker, asyncio.get_running_loop(), lambda reason: None)
        engine.start()
        for _ in range(3):
            job = make_job()
            engine.submit(job)
            await receive(job)
        engine.use_threads(2)
        last = make_job()
        engine.submit(last)
        await receive(last)
        assert seen == [8, 3, 3, 2]
        assert engine.close(TIMEOUT_S)

    run(body)


def test_broken_engine_fails_everything_and_says_so_once() -> None:
    async def body() -> None:
        reasons: asyncio.Queue[str] = asyncio.Queue()

        def answer(job: Job) -> Event:
            raise EngineBroken("device lost")

        engine = Engine(ScriptedWorker(answer), asyncio.get_running_loop(), reasons.put_nowait)
        engine.start()
        jobs = [make_job() for _ in range(3)]
        for job in jobs:
            engine.submit(job)
        for job in jobs:
            event = await receive(job)
            assert isinstance(event, FailureEvent)
            assert "device lost" in str(event.error)
        assert await asyncio.wait_for(reasons.get(), TIMEOUT_S) == "device lost"
        assert reasons.empty()

    run(body)


def test_closing_fails_what_is_queued_as_shutting_down() -> None:
    async def body() -> None:
        engine = Engine(ScriptedWorker(lambda job: EmbeddingEvent([])), asyncio.get_running_loop(), lambda reason: None)
        job = make_job()
        engine.submit(job)
        engine.close_soon()
        engine.start()
        event = await receive(job)
        assert isinstance(event, FailureEvent)
        assert event.error.code is ErrorCode.SHUTTING_DOWN
        assert engine.close(TIMEOUT_S)

    run(body)


def test_idle_engine_is_never_late() -> None:
    async def body() -> None:
        engine = Engine(ScriptedWorker(lambda job: EmbeddingEvent([])), asyncio.get_running_loop(), lambda reason: None)
        engine.start()
        assert engine.since_progress_s() == 0.0
        assert engine.close(TIMEOUT_S)

    run(body)
