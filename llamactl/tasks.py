"""Who notices when something that runs beside the event loop fails? Whoever made the set of tasks that it is in.

An exception in a task that nobody awaits is lost: what the task was to do never happens, and all that waits for it
waits for ever. So every task that nobody awaits is in such a set.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class TaskSet:
    """Tasks that are kept until they are done. `on_failure` is told each exception that ends one."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run it from the next turn of the loop on."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """End all of them; none of these ends counts as a failure."""
        for task in list(self._tasks):
            task.cancel()

    async def wait(self) -> None:
        """Return when none is left, however each of them has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)


def raise_in_loop(error: BaseException) -> None:
    """For a set whose failures are bugs: the loop's own handler is told, as of a callback that raised."""
    what = {"message": "a task in the background has failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(what)
