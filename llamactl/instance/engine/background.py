"""What uses the model beside the engine, and may go on when nobody waits for it any more? Reading of long texts and of
grammars: on threads of their own, counted, because the model must not be freed under them.

Such work cannot be called off. The pool that other work shares stays free of it, and the end of the process does not
wait. Each has a thread of its own, however many there are; a few threads are kept for the next.
"""

import asyncio
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")


class BackgroundWork:
    """Work on one loaded model. Belongs to the event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()

    def start(self, work: Callable[[], _T], turn: asyncio.Lock | None = None) -> "asyncio.Future[_T]":
        """The outcome of `work`. Wait for it behind a shield: it is done when the work is, and only then the `turn`,
        which the caller has acquired, is the next one's.
        """
        outcome = _run_on_thread(work)
        self._running.add(outcome)
        outcome.add_done_callback(self._running.discard)
        if turn is not None:
            outcome.add_done_callback(lambda _: turn.release())
        return outcome

    async def run(self, work: Callable[[], _T], turn: asyncio.Lock | None = None) -> _T:
        """The same for who waits at once, first for the turn, and may be cancelled."""
        if turn is not None:
            await turn.acquire()
        return await asyncio.shield(self.start(work, turn))

    async def settle(self) -> None:
        """Returns when nothing runs. Nothing new may be started meanwhile."""
        while self._running:
            await asyncio.wait(self._running)


_MAX_IDLE = 4
_idle: list["SimpleQueue[Callable[[], Callable[[], None]]]"] = []
"""Of threads that wait for work: to start one takes as long as a short chat's prompt."""
_idle_lock = threading.Lock()


def _run_on_thread(work: Callable[[], _T]) -> "asyncio.Future[_T]":
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_T] = loop.create_future()

    def run() -> Callable[[], None]:
        try:
            result = work()
        except Exception as error:
            return partial(report, _fail, outcome, error)
        return partial(report, outcome.set_result, result)

    def report(function: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(function, *args)

    with _idle_lock:
        queue = _idle.pop() if _idle else None
    if queue is None:
        queue = SimpleQueue()
        threading.Thread(target=_serve, args=(queue,), name="background", daemon=True).start()
    queue.put(run)
    return outcome


def _serve(queue: "SimpleQueue[Callable[[], Callable[[], None]]]") -> None:
    """Before an outcome is told the thread is idle: who asks for more with it in hand finds it."""
    is_kept = True
    while is_kept:
        tell = queue.get()()
        with _idle_lock:
            is_kept = len(_idle) < _MAX_IDLE
            if is_kept:
                _idle.append(queue)
        tell()
        del tell  # and what was told with it


def _fail(outcome: "asyncio.Future[Any]", error: Exception) -> None:
    outcome.set_exception(error)
    outcome.exception()  # known, also where nobody waits any more


def trim_memory() -> None:
    """The heap's free pages go back to the kernel."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not need it
    if trim is not None:
        trim(0)
