"""Who watches the models, and what has changed since they were last told?

A watcher gets all models once and from then on each model that has changed, as a whole, not as a difference.
Changes are gathered for at most INTERVAL_S: a load that reports progress often makes no more notices than that.
What a watcher was told is the same for all, so one picture serves them all; the first watcher starts it, the last
one ends it.
"""

import asyncio
from collections.abc import Callable

from llamactl.protocol import ModelNotice, ModelRemoved, ModelStatus
from llamactl.sched.events import Holder

INTERVAL_S = 0.1


def list_changes(before: dict[str, ModelStatus], after: dict[str, ModelStatus]) -> list[ModelNotice | ModelRemoved]:
    """What must be said so that who knows `before` knows `after`. Order: models that went, then those that changed."""
    gone: list[ModelNotice | ModelRemoved] = [ModelRemoved(model=name) for name in before if name not in after]
    return gone + [ModelNotice(model=model) for name, model in after.items() if before.get(name) != model]


class Watchers:
    """The watching clients. `acquire_models` gives the present picture, `tell` sends one client one notice."""

    def __init__(
        self,
        acquire_models: Callable[[], tuple[ModelStatus, ...]],
        tell: Callable[[Holder, ModelNotice | ModelRemoved], None],
    ) -> None:
        self._acquire_models = acquire_models
        self._tell = tell
        self._holders: set[Holder] = set()
        self._known: dict[str, ModelStatus] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, holder: Holder) -> tuple[ModelStatus, ...]:
        """From now on `holder` is told; the picture to start from."""
        if self._timer is not None:
            self._flush()
        models = self._acquire_models()
        self._known = {model.name: model for model in models}
        self._holders.add(holder)
        return models

    def remove(self, holder: Holder) -> None:
        self._holders.discard(holder)

    def touch(self) -> None:
        """Something may have changed."""
        if self._holders and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._flush)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._holders.clear()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        models = {model.name: model for model in self._acquire_models()}
        changes, self._known = list_changes(self._known, models), models
        for notice in changes:
            for holder in self._holders:
                self._tell(holder, notice)
