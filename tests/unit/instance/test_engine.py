"""Does the engine's thread hand over what a worker makes, survive what a worker throws, and end when nothing can go
on?
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from llamactl.errors import ErrorCode
from llamactl.instance.engine.engine import Engine, EngineBroken
from llamactl.instance.engine.jobs import Deliveries, EmbeddingEvent, EmbeddingRequest, Event, FailureEvent, Job

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
