"""How does a model load while Python still imports what will serve it? On the thread that will compute, with what the
preload has done already.

Importing the event loop, the log and the server takes as long as loading a small model, and most of the load is C code
that runs beside it. Who wants to hear of the load attaches later; before its warm-up the load waits for that.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from llamactl.child.orders import ChildEnvironment
from llamactl.instance.llama.thread import ComputeThread

if TYPE_CHECKING:
    from llamactl.instance.llama.loading import Loaded
    from llamactl.instance.llama.model import LoadedModel
    from llamactl.instance.llama.preload import Preload


class BackgroundLoad:
    """One load, from its construction on."""

    def __init__(self, environment: ChildEnvironment, preload: "Preload | None" = None) -> None:
        self.thread = preload.thread if preload is not None else ComputeThread()
        self._preload = preload
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
        self.thread.run(self._run)

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

    # --- on its thread ---

    def _run(self) -> None:
        try:
            from llamactl.instance.llama.loading import load

            self._loaded = load(
                self._environment,
                self._report_stage,
                self._report_progress,
                lambda: self._is_cancelled,
                self._report_model,
                self._preload,
            )
        except BaseException as error:
            self._error = error
        finally:
            self._preload = None
            self._is_done.set()

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
