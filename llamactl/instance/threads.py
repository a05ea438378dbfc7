"""How does something long run beside the event loop? On a thread that ends with it.

asyncio.to_thread would do, but for OpenMP: each thread that has computed keeps its team of workers, and with more of
them than cores libgomp no longer spins at its barriers. The threads of asyncio's pool live on, so a warm-up on one of
them made each later decode of a small model a third slower.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Value = TypeVar("Value")


def start_thread(function: Callable[[], Value], name: str) -> "asyncio.Future[Value]":
    """Runs `function` on a thread of its own; the future has its result on the running loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Value] = loop.create_future()

    def finish(outcome: Callable[[], None]) -> None:
        # RuntimeError: the loop is closed, and nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if future.done() else outcome())

    def run() -> None:
        try:
            value = function()
        except BaseException as error:
            failure = error
            finish(lambda: future.set_exception(failure))
        else:
            finish(lambda: future.set_result(value))

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
