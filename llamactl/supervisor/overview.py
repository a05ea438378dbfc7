"""What do clients see of the models, the machine and the supervisor?

The scheduler describes models and devices; units, processes, counters and endings are added here.
"""

import os
import time
from dataclasses import dataclass, field

import msgspec

from llamactl import __version__
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.names import Role, format_unit
from llamactl.protocol.control_socket import MachineStatus, ModelList, Welcome
from llamactl.protocol.descriptions import LoadPlan, ModelStatus
from llamactl.protocol.lines import VERSION
from llamactl.protocol.values import State
from llamactl.sched.scheduler import Scheduler
from llamactl.supervisor.configuration import Configuration
from llamactl.supervisor.counters import Counters
from llamactl.supervisor.history import History
from llamactl.supervisor.units import Units


@dataclass(eq=False)
class Overview:
    """Answers to those who only look; nothing is changed by them."""

    scheduler: Scheduler
    units: Units
    configuration: Configuration
    counters: Counters
    history: History
    since_s: float = field(default_factory=time.monotonic)

    def welcome(self) -> Welcome:
        """The answer to a greeting."""
        return Welcome(
            version=VERSION,
            llamactl=__version__,
            pid=os.getpid(),
            stop_timeout_s=self.configuration.current.settings.stop_timeout_s,
            front=self.configuration.make_front_settings(),
        )

    def list_models(self, name: str = "") -> ModelList:
        """All models, or one by name or alias. Raises LlamactlError (unknown_model)."""
        if not name:
            return self.make_list(self.list_statuses())
        status = self.scheduler.model_status(name)
        if status is None:
            raise self._make_unknown(name)
        return self.make_list((self._complete(status),))

    def list_statuses(self) -> tuple[ModelStatus, ...]:
        """All models, as lists show them."""
        return tuple(self._complete(status) for status in self.scheduler.list_models(time.monotonic()))

    def make_list(self, models: tuple[ModelStatus, ...]) -> ModelList:
        """The answer to a list; `id` is for whoever sends it."""
        return ModelList(id=0, now_s=time.monotonic(), models=models)

    def explain_load(self, name: str) -> LoadPlan:
        """What would happen if the model were loaded now. Raises LlamactlError (unknown_model)."""
        found = self.scheduler.explain_load(name, time.monotonic())
        if found is None:
            raise self._make_unknown(name)
        return found

    def machine_status(self) -> MachineStatus:
        """The machine, its accounts and what was decided last."""
        models = self.scheduler.list_models(time.monotonic())
        return MachineStatus(
            id=0,
            llamactl=__version__,
            pid=os.getpid(),
            since_s=self.since_s,
            now_s=time.monotonic(),
            devices=self.scheduler.list_devices(),
            loaded=sum(model.state in (State.READY, State.SLEEPING) for model in models),
            max_loaded=self.configuration.current.settings.max_loaded,
            build=next((model.facts.build for model in models if model.facts is not None and model.facts.build), ""),
            queue=self.scheduler.queue_names(),
            controllers=self.units.manager.controllers,
            corrections=self.units.corrections,
            problems=(*self._list_own_problems(), *self.configuration.list_problems()),
            counters=self.counters.list_models(),
            decisions=self.history.list_decisions(),
        )

    def _list_own_problems(self) -> tuple[str, ...]:
        if not self.units.installation.is_replaced():
            return ()
        cure = "`systemctl restart llamactl.service` and `systemctl reload llamactl-front.service` take the new one"
        return (f"llamactl: replaced since this supervisor was started: {cure}; models run on",)

    def format_status(self) -> str:
        """The one line that `systemctl status` shows of the supervisor."""
        states = [model.state for model in self.scheduler.list_models(time.monotonic())]
        return f"{len(states)} models, {states.count(State.READY)} loaded, {states.count(State.LOADING)} loading"

    def _complete(self, status: ModelStatus) -> ModelStatus:
        """A model's status with what the scheduler does not know."""
        run = self.units.find(Role.MODEL, status.slug)
        return msgspec.structs.replace(
            status,
            unit=format_unit(Role.MODEL, status.slug),
            pid=run.pid if run is not None else 0,
            ended=self.history.find_ending(status.name),
            created=self.configuration.current.created.get(status.name, 0),
        )

    def _make_unknown(self, name: str) -> LlamactlError:
        hint = self.scheduler.hint_unknown(name)
        return LlamactlError(ErrorCode.UNKNOWN_MODEL, f"cannot find model {name!r}", hint=hint, model=name)
