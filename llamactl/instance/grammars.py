"""Where are grammars tried, so that one that takes long holds up nobody else?

One at a time, on a thread of its own: the pool that other work shares stays free, and a process that ends does not wait
for the thread. A check cannot be called off. Who waits may leave, but the next check begins only after it, and the
model must not be freed before (`settle`).
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from llamactl.errors import ErrorCode, LlamactlError

PATIENCE_S = 20.0
"""For one's turn, and again for the check itself."""


class GrammarDesk:
    """Of one loaded model; used on the event loop's thread."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, check: Callable[[], None], patience_s: float = PATIENCE_S) -> None:
        """Raises what `check` raises, and LlamactlError when it takes too long."""
        try:
            await asyncio.wait_for(self._turn.acquire(), patience_s)
        except TimeoutError:
            raise _give_up("those of other requests are still being read", patience_s) from None
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[None] = loop.create_future()

        def finish(error: Exception | None) -> None:
            self._turn.release()
            if outcome.done():
                return
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

        def work() -> None:
            error = None
            try:
                check()
            except Exception as caught:
                error = caught
            with suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(finish, error)

        threading.Thread(target=work, name="grammar", daemon=True).start()
        try:
            await asyncio.wait_for(outcome, patience_s)
        except TimeoutError:
            raise _give_up("llama.cpp is still reading it", patience_s) from None

    async def settle(self) -> None:
        """Returns when no check runs."""
        async with self._turn:
            pass


def _give_up(why: str, patience_s: float) -> LlamactlError:
    return LlamactlError(ErrorCode.QUEUE_TIMEOUT, f"cannot check the grammar: {why} after {patience_s:g} s")
