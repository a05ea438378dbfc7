"""Who watches the models, and what has changed since they were last told?

A watcher gets all models once and from then on each model that has changed, as a whole, not as a difference.
Each state that a model comes to is told, in order and at once, also one that it has left already: who follows events
has no other way to hear of a load that was followed by an unload. All other changes are gathered for at most
INTERVAL_S: a load that reports progress often makes no more notices than that.
What a watcher was told is the same for all, so one picture serves them all; the first watcher starts it, the last
one ends it.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from llamactl.protocol.control_socket import ModelNotice, ModelRemoved
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.values import State
from llamactl.sched.events import Holder

INTERVAL_S = 0.1


_WITH_INSTANCE = (State.READY, State.SLEEPING, State.STOPPING)


def list_changes(
    before: dict[str, ModelStatus], after: dict[str, ModelStatus], passed: Mapping[str, Sequence[State]]
) -> list[ModelNotice | ModelRemoved]:
    """What must be said so that who knows `before` knows `after` and which states were `passed` between the two.
    Order: models that went, then those that changed.
    """
    changes: list[ModelNotice | ModelRemoved] = [ModelRemoved(model=name) for name in before if name not in after]
    for name, model in after.items():
        known = before.get(name)
        left = [ModelNotice(model=state) for state in _list_left(known, model, passed.get(name, ()))]
        changes += left
        if left or known != model:
            changes.append(ModelNotice(model=model))
    return changes


def _list_left(known: ModelStatus | None, model: ModelStatus, passed: Sequence[State]) -> Iterator[ModelStatus]:
    """The model in the states that it has come to and left again, each once."""
    told = known.state if known is not None else None
    if passed and passed[-1] is model.state:
        passed = passed[:-1]
    for state in passed:
        if state is not told:
            before, told = told, state
            # What was true of an instance that is gone is what was said of it last.
            of = known if known is not None and state in _WITH_INSTANCE and not model.generation else model
            stopped_from = before if state is State.STOPPING else None
            yield msgspec.structs.replace(
                of, state=state, stage=None, progress=None, waiting_for=(), stopped_from=stopped_from
            )


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
        """`holder` is told nothing any longer."""
        self._holders.discard(holder)

    def touch(self, passed: Mapping[str, Sequence[State]]) -> None:
        """Something may have changed. `passed`: the states that models have come to since the last call."""
        if passed and self._holders:
            self._flush(passed)
        elif self._holders and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._flush)

    def close(self) -> None:
        """Nobody is told anything any longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._holders.clear()

    def _flush(self, passed: Mapping[str, Sequence[State]] = MappingProxyType({})) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        models = {model.name: model for model in self._acquire_models()}
        changes, self._known = list_changes(self._known, models, passed), models
        for notice in changes:
            for holder in self._holders:
                self._tell(holder, notice)
