"""Which events does `GET /models/sse` tell, in which order, and what does a client get that comes back?

llama-server's router sends `{"model", "event", "data"}` as unnamed events, a change of state sometimes as
`model_status` and sometimes as `status_change`; clients know one or the other, so each change is told under both
names. Progress of a load is told at most every PROGRESS_INTERVAL_S for each model, the last state of it never lost.
An id names this front's process besides the event: a client that comes back to another process, or too late, cannot
be told what it missed and gets the whole picture again, as `snapshot`.
"""

from collections import deque
from typing import Any

import msgspec

from llamactl.event_stream import format_event
from llamactl.front.listing import format_info, format_model, format_status
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.values import State, format_memory

PROGRESS_INTERVAL_S = 0.2
HISTORY = 1024
"""Events that a client may have missed."""

_RUNNING = (State.READY, State.SLEEPING)


class EventLog:
    """What subscribers are told, from what the supervisor tells. `epoch` names this process."""

    def __init__(self, epoch: str) -> None:
        self.number = 0
        """Of the last event."""
        self.known: dict[str, ModelStatus] | None = None
        """All models that lists show; None: nobody has told us yet."""
        self._epoch = epoch
        self._events: deque[tuple[int, bytes]] = deque(maxlen=HISTORY)
        self._told_s: dict[str, float] = {}
        self._due_s: dict[str, float] = {}

    # --- what the supervisor says ---

    def on_models(self, models: tuple[ModelStatus, ...], now_s: float) -> None:
        """All models. The first time nothing is told of them; later, what has changed meanwhile."""
        listed = {model.name: model for model in models if not model.unlisted}
        if self.known is None:
            self.known = listed
            return
        for name in [name for name in self.known if name not in listed]:
            self.on_removed(name)
        for model in listed.values():
            self.on_model(model, now_s)

    def on_model(self, model: ModelStatus, now_s: float) -> None:
        """Log what has changed of a model since it was told last; one that is unlisted counts as removed."""
        if self.known is None:
            return
        if model.unlisted:
            self.on_removed(model.name)
            return
        before = self.known.get(model.name)
        self.known[model.name] = model
        if before is None or _describe(before) != _describe(model):
            self._tell_status(model, now_s)
        elif model.state is State.LOADING and format_status(before) != format_status(model):
            self._plan_progress(model, now_s)
        if before is not None and before.memory != model.memory:
            self._append(model.name, "model_memory", {"memory": format_memory(model.memory)})

    def on_removed(self, name: str) -> None:
        """Log that a model is gone from the lists; nothing for one that was never in them."""
        if self.known is not None and self.known.pop(name, None) is not None:
            self._told_s.pop(name, None)
            self._due_s.pop(name, None)
            self._append(name, "model_remove", {})

    def on_reload(self) -> None:
        """The configuration was read again."""
        if self.known is not None:
            self._append("*", "models_reload", {})

    # --- time ---

    def next_due_s(self) -> float | None:
        """The moment at which progress that was held back may be told; None: there is none."""
        return min(self._due_s.values(), default=None)

    def tell_due(self, now_s: float) -> None:
        """Tell the progress that was put off until now."""
        for name in [name for name, due_s in self._due_s.items() if due_s <= now_s]:
            if self.known is not None:
                self._tell_status(self.known[name], now_s)

    # --- what a client gets ---

    def format_since(self, number: int) -> bytes | None:
        """All events after `number`; None: some of them are not there any more."""
        missing = self.number - number
        if missing == 0:
            return b""
        if not 0 < missing <= len(self._events):
            return None
        return b"".join([event for _, event in list(self._events)[-missing:]])

    def format_snapshot(self) -> bytes:
        """All models, as lists show them. Its id is that of the last event."""
        models = [format_model(model) for model in (self.known or {}).values()]
        return self._format(self.number, {"model": "*", "event": "snapshot", "data": {"models": models}})

    def parse_id(self, last_event_id: bytes | None) -> int | None:
        """Behind which event a client goes on; None: it must begin again."""
        epoch, _, number = (last_event_id or b"").decode("latin-1").rpartition("-")
        if epoch != self._epoch or not (number.isascii() and number.isdecimal() and len(number) < 16):
            return None
        return int(number)

    # --- inside ---

    def _plan_progress(self, model: ModelStatus, now_s: float) -> None:
        due_s = self._told_s.get(model.name, 0.0) + PROGRESS_INTERVAL_S
        if due_s <= now_s:
            self._tell_status(model, now_s)
        else:
            self._due_s[model.name] = due_s

    def _tell_status(self, model: ModelStatus, now_s: float) -> None:
        self._due_s.pop(model.name, None)
        self._told_s[model.name] = now_s
        data = format_status(model)
        data.pop("args")
        data = {"status": data.pop("value"), **data}
        if model.state in _RUNNING:
            data["info"] = format_info(model)
        if data["status"] == "unloaded":
            data.setdefault("exit_code", model.exit_code)
        for event in ("model_status", "status_change"):
            self._append(model.name, event, data)

    def _append(self, model: str, event: str, data: dict[str, Any]) -> None:
        self.number += 1
        self._events.append((self.number, self._format(self.number, {"model": model, "event": event, "data": data})))

    def _format(self, number: int, content: dict[str, Any]) -> bytes:
        return format_event(msgspec.json.encode(content), event_id=b"%b-%d" % (self._epoch.encode(), number))


def _describe(model: ModelStatus) -> dict[str, Any]:
    """A state without its progress."""
    status = format_status(model)
    for passing in ("progress", "waiting_for", "args"):
        status.pop(passing, None)
    return status
