"""Is an error in a task ever lost?"""

import asyncio

from llamactl.tasks import TaskSet, raise_in_loop


def test_task_that_fails_is_told_and_costs_no_other() -> None:
    async def fail() -> None:
        raise ValueError("spoilt")

    async def test() -> None:
        told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        done = asyncio.Event()

        async def work() -> None:
            await told
            done.set()

        tasks = TaskSet(told.set_result)
        tasks.spawn(work())
        tasks.spawn(fail())
        await done.wait()
        assert str(told.result()) == "spoilt"

    asyncio.run(test())


def test_tasks_that_end_or_are_cancelled_are_no_failures() -> None:
    failures: list[BaseException] = []

    async def test() -> None:
        tasks = TaskSet(failures.append)
        started = asyncio.Event()

        async def start() -> None:
            started.set()

        async def wait() -> None:
            await asyncio.Event().wait()

        tasks.spawn(wait())
        tasks.spawn(start())
        await started.wait()
        tasks.cancel()

    asyncio.run(test())
    assert failures == []


def test_whoever_waits_does_so_until_the_last_task_has_ended() -> None:
    ended: list[str] = []

    async def test() -> None:
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append("cancelled")

        tasks = TaskSet(raise_in_loop)
        tasks.spawn(work())
        await begun.wait()
        tasks.cancel()
        await tasks.wait()
        assert ended == ["cancelled"]

    asyncio.run(test())


def test_failure_that_is_a_bug_reaches_the_loop() -> None:
    async def fail() -> None:
        raise ValueError("spoilt")

    async def test() -> None:
        told: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.set_result(context))
        TaskSet(raise_in_loop).spawn(fail())
        assert str((await told)["exception"]) == "spoilt"

    asyncio.run(test())
