"""Where are grammars tried, so that one that takes long holds up nobody else?

One at a time. A check cannot be called off: who waits may leave, but the next check begins only after it.
"""

import asyncio
from collections.abc import Callable

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.engine.background import BackgroundWork

PATIENCE_S = 20.0
"""For one's turn, and again for the check itself."""


class GrammarChecker:
    """Of one loaded model; used on the event loop's thread."""

    def __init__(self, background: BackgroundWork) -> None:
        self._background = background
        self._turn = asyncio.Lock()

    async def run(self, check: Callable[[], None], patience_s: float = PATIENCE_S) -> None:
        """Raises what `check` raises, and LlamactlError when it takes too long."""
        try:
            await asyncio.wait_for(self._turn.acquire(), patience_s)
        except TimeoutError:
            raise _give_up("those of other requests are still being read", patience_s) from None
        outcome = self._background.start(check, self._turn)
        try:
            await asyncio.wait_for(asyncio.shield(outcome), patience_s)
        except TimeoutError:
            raise _give_up("llama.cpp is still reading it", patience_s) from None


def _give_up(why: str, patience_s: float) -> LlamactlError:
    return LlamactlError(ErrorCode.QUEUE_TIMEOUT, f"cannot check the grammar: {why} after {patience_s:g} s")
