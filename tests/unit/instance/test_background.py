"""Has work beside the engine a thread of its own, and is that not a new one each time?"""

import asyncio
import threading

import pytest

from llamactl.instance.engine import background as background_module
from llamactl.instance.engine.background import BackgroundWork

TIMEOUT_S = 30


def test_next_work_has_the_thread_of_the_last() -> None:
    async def run() -> None:
        background = BackgroundWork()
        first = await background.run(threading.get_native_id)
        assert await background.run(threading.get_native_id) == first != threading.get_native_id()

    asyncio.run(run())


def test_thread_goes_on_after_an_error() -> None:
    async def run() -> None:
        background, threads = BackgroundWork(), []

        def fail() -> None:
            threads.append(threading.get_native_id())
            raise ValueError("word")

        with pytest.raises(ValueError, match="word"):
            await background.run(fail)
        assert await background.run(threading.get_native_id) == threads[0]

    asyncio.run(run())


def test_work_never_waits_for_other_work() -> None:
    async def run() -> None:
        background, met = BackgroundWork(), threading.Barrier(40)
        for _ in range(2):
            await asyncio.gather(*(background.run(lambda: met.wait(TIMEOUT_S)) for _ in range(40)))

    asyncio.run(run())


def test_few_idle_threads_are_kept() -> None:
    async def run() -> None:
        background, met = BackgroundWork(), threading.Barrier(40)
        await asyncio.gather(*(background.run(lambda: met.wait(TIMEOUT_S)) for _ in range(40)))
        assert 1 <= len(background_module._idle) <= 4

    asyncio.run(run())
