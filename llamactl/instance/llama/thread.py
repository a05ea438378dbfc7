"""Which thread computes? One, from the first byte of a model to its last token.

A thread that has computed keeps a team of OpenMP workers as long as it lives, and with more of these than cores libgomp
no longer spins at its barriers: a warm-up on another thread that stayed made each later decode of a small model a third
slower. A new team, on the other hand, may find itself on one core at first, and the first request would pay for that.
"""

import threading
from collections.abc import Callable


class ComputeThread:
    """Runs what it is given, in order."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: list[Callable[[], None]] = []
        self._is_ending = False
        # The end of the process does not wait for it: llama.cpp may hold it for minutes.
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def run(self, task: Callable[[], None]) -> None:
        """`task` must not raise."""
        with self._changed:
            self._tasks.append(task)
            self._changed.notify()

    def end(self, timeout_s: float | None = None) -> bool:
        """Ends it when all is done. False: that took longer than `timeout_s`."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._tasks or self._is_ending):
                    self._changed.wait()
                if not self._tasks:
                    return
                task = self._tasks.pop(0)
            task()
