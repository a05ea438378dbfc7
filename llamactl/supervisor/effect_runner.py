"""How is each effect of the scheduler carried out?

Effects name models. What their units, connections and sockets are called (slugs) is made of that here, for all of
them. Effects that ask something of an instance do so beside the event loop; each answer is dispatched as an event.
"""

import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from llamactl.names import Role, format_slug
from llamactl.paths import Paths
from llamactl.protocol.control_socket import Failure, LeaseGrant
from llamactl.protocol.report_socket import AnswerResult
from llamactl.sched import effects, events
from llamactl.settings import ModelSettings
from llamactl.supervisor.children import Children
from llamactl.supervisor.control_server import Control
from llamactl.supervisor.counters import Counters
from llamactl.supervisor.history import History
from llamactl.supervisor.measurements import Measurements
from llamactl.supervisor.units import Units
from llamactl.systemd.journal import get_logger
from llamactl.tasks import TaskSet

_log = get_logger()


@dataclass(eq=False)
class EffectRunner:
    """Carries out effects, one after the other; none waits."""

    paths: Paths
    units: Units
    measurements: Measurements
    children: Children
    control: Control
    tasks: TaskSet
    dispatch: Callable[[events.Event], None]
    look_at_files: Callable[[Iterable[ModelSettings]], Coroutine[Any, Any, None]]
    counters: Counters = field(default_factory=Counters)
    history: History = field(default_factory=History)

    def run(self, effect: effects.Effect) -> None:
        """Carry out one effect. What comes of it is dispatched later, never within."""
        match effect:
            case effects.Record():
                self._record(effect)
            case effects.Tell(waiter, message):
                self.control.tell_waiter(waiter, self._complete_failure(message))
            case effects.Notify(holder, message):
                self.control.tell(holder, message)
            case effects.GrantLease():
                self._grant(effect)
            case effects.StartInstance():
                self.units.start_instance(effect)
            case effects.StartMeasure():
                self.measurements.start(effect)
            case effects.StopMeasure(model):
                self.measurements.stop(model)
            case effects.LookAtFiles(settings):
                self.tasks.spawn(self.look_at_files([settings]))
            case effects.ReadDevices():
                self.measurements.read_devices(effect)
            case effects.InstanceEffect():
                self._ask_instance(effect, format_slug(effect.model))

    def _ask_instance(self, effect: effects.InstanceEffect, slug: str) -> None:
        match effect:
            case effects.OrderStop():
                self.tasks.spawn(self._order_stop(effect, slug))
            case effects.OrderSleep():
                self.tasks.spawn(self._order_sleep(effect, slug))
            case effects.OrderWake():
                self.children.order_wake(slug, effect.generation, effect.margins_bytes, effect.host_room_bytes)
            case effects.StopUnit():
                self.units.stop(Role.MODEL, slug, effect.generation)
            case effects.SendNote():
                self.children.send_note(slug, effect.generation, effect.note)
            case effects.ShareProcessors():
                self.children.order_share(slug, effect.generation, effect.sharers)

    async def _order_stop(self, effect: effects.OrderStop, slug: str) -> None:
        answer = await self.children.order_stop(slug, effect.generation)
        stopping, silent = answer is AnswerResult.OK, answer is None
        self.dispatch(events.StopAnswered(effect.model, effect.generation, stopping, silent))

    async def _order_sleep(self, effect: effects.OrderSleep, slug: str) -> None:
        answer = await self.children.order_sleep(slug, effect.generation)
        self.dispatch(events.SleepAnswered(effect.model, effect.generation, answer is AnswerResult.OK))

    def _record(self, effect: effects.Record) -> None:
        self.counters.count(effect)
        self.history.add(effect, time.time())
        getattr(_log, effect.level)(effect.event, model=effect.model or None, **effect.fields)

    def _grant(self, effect: effects.GrantLease) -> None:
        slug = format_slug(effect.model)
        grant = LeaseGrant(
            id=effect.waiter[1],
            model=effect.model,
            slug=slug,
            generation=effect.generation,
            socket=str(self.paths.instance_socket(slug)),
        )
        if not self.control.tell_waiter(effect.waiter, grant):
            # The request left between the decision and now, but its connection holds the lease: it will say how it is.
            self.control.tell(effect.waiter[0], grant)

    def _complete_failure(self, message: msgspec.Struct) -> msgspec.Struct:
        """With the socket of a model that sleeps, where it can be asked without a lease."""
        if not isinstance(message, Failure) or "asleep" not in message.details:
            return message
        socket = str(self.paths.instance_socket(format_slug(message.model)))
        return msgspec.structs.replace(message, details={**message.details, "socket": socket})
