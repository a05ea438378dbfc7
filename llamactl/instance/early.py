"""How can a model load while Python still imports what will serve it? On a thread that starts as soon as it can.

Importing the event loop, the log and the server takes as long as loading a small model, and most of the load is C code
that runs beside it. Who wants to hear of the load attaches later; before its warm-up the load waits for that.

The thread goes on as the engine's. One that has computed keeps a team of OpenMP workers as long as it lives, and with
more of these than cores libgomp no longer spins at its barriers: a warm-up on another thread that stayed made each
later decode of a small model a third slower. A new team, on the other hand, may find itself on one core at first, and
the first request would pay for that.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from llamactl.instance.environ import ChildEnvironment

if TYPE_CHECKING:
    from llamactl.instance.loading import Loaded
    from llamactl.instance.model import LoadedModel


class EarlyLoad:
    """One load, from its construction on."""

    def __init__(self, environment: ChildEnvironment) -> None:
        self._environment = environment
        self._changed = threading.Condition()
        self._stage = ""
        self._on_stage: Callable[[str], None] | None = None
        self._on_progress: Callable[[float], None] | None = None
        self._on_model: Callable[[LoadedModel], None] | None = None
        self._is_cancelled = False
        self._loaded: Loaded | None = None
        self._error: BaseException | None = None
        self._is_done = threading.Event()
        self._next: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def attach(
        self,
        on_stage: Callable[[str], None],
        on_progress: Callable[[float], None],
        on_model: "Callable[[LoadedModel], None] | None" = None,
    ) -> None:
        """All are called on the load's thread, at once for a stage that has begun. `on_stage` may take its time.
        `on_model` gets what has no context yet, unless that was there before.
        """
        with self._changed:
            self._on_stage, self._on_progress, self._on_model = on_stage, on_progress, on_model
            self._changed.notify()
            if self._stage and self._stage != "warmup":
                on_stage(self._stage)

    def cancel(self) -> None:
        """The load ends at its next step with Cancelled."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify()

    def wait(self) -> "Loaded":
        """Blocks until the model is loaded. Raises what `load` raised."""
        self._is_done.wait()
        if self._error is not None:
            raise self._error
        assert self._loaded is not None
        return self._loaded

    def go_on(self, run: Callable[[], None]) -> threading.Thread:
        """Runs `run` on the load's thread, which ends with it."""
        with self._changed:
            self._next = run
            self._changed.notify()
        return self._thread

    # --- on its thread ---

    def _run(self) -> None:
        try:
            from llamactl.instance.loading import load

            self._loaded = load(
                self._environment,
                self._report_stage,
                self._report_progress,
                lambda: self._is_cancelled,
                self._report_model,
            )
        except BaseException as error:
            self._error = error
            return
        finally:
            self._is_done.set()
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None)
            run = self._next
        assert run is not None
        run()

    def _report_stage(self, stage: str) -> None:
        with self._changed:
            self._stage = stage
            if stage == "warmup":
                self._changed.wait_for(lambda: self._on_stage is not None or self._is_cancelled)
            on_stage = self._on_stage
        if on_stage is not None:
            on_stage(stage)

    def _report_progress(self, fraction: float) -> None:
        if self._on_progress is not None:
            self._on_progress(fraction)

    def _report_model(self, model: "LoadedModel") -> None:
        if self._on_model is not None:
            self._on_model(model)
