"""What can happen to the scheduler? The vocabulary that `Scheduler.handle(event, now) -> effects` understands.

Events are facts that the supervisor has learnt. `generation` names one start of a model's instance: facts about another
generation than the present one are late news and change nothing. `holder` is one front's connection, `waiter` one
request of one connection.
"""

from dataclasses import dataclass

from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import Breakdown, Facts, LoadFailure, Note, Row
from llamactl.settings import Config, ModelSettings

Holder = int
Waiter = tuple[int, int]
"""Connection, id of the request there."""


@dataclass(frozen=True)
class Configured:
    """The configuration was read, for the first time or again."""

    config: Config


@dataclass(frozen=True)
class InstanceFound:
    """Coldplug: a unit of this model runs already. Comes after the first Configured, before RecoveryBegan."""

    model: str
    generation: str
    settings: ModelSettings


@dataclass(frozen=True)
class RecoveryBegan:
    """All units found were told. Until `deadline_s`, nothing is stopped before every instance found has reported."""

    deadline_s: float
    fronts_expected: int


@dataclass(frozen=True)
class FrontAnnounced:
    """A front has said all the leases that it holds (each by LeaseAnnounced before)."""

    holder: Holder


@dataclass(frozen=True)
class InstanceReported:
    """A report of the instance; everything that it says holds from now on."""

    model: str
    generation: str
    state: ChildState
    stage: str = ""
    progress: float | None = None
    effective: Breakdown | None = None
    busy: int = 0
    error: str = ""
    facts: Facts | None = None
    note: Note | None = None


@dataclass(frozen=True)
class InstanceDisconnected:
    """The report connection of the instance is down. It is no victim until it reports again."""

    model: str
    generation: str


@dataclass(frozen=True)
class InstanceEnded:
    """The unit is gone and its name is free. `failure` None: it ended well."""

    model: str
    generation: str
    failure: LoadFailure | None = None


@dataclass(frozen=True)
class StopAnswered:
    """Answer to OrderStop. `stopping` False: the instance is busy (or did not answer in time) and stays."""

    model: str
    generation: str
    stopping: bool
    silent: bool = False
    """It did not answer, though it is connected."""


@dataclass(frozen=True)
class SleepAnswered:
    """Answer to OrderSleep. `sleeping` False: the instance is busy (or did not answer in time) and stays awake. When it
    sleeps, it reports so.
    """

    model: str
    generation: str
    sleeping: bool


@dataclass(frozen=True)
class MeasureReported:
    """Figures of a model have come, from its measure child or from the cache."""

    model: str
    min: Breakdown
    max: Breakdown
    facts: Facts | None = None
    cached: bool = False
    """From the cache on disk: such figures never calibrate."""


@dataclass(frozen=True)
class MeasureEnded:
    """The measure child's unit is gone. `error` is empty when it has reported."""

    model: str
    error: str = ""
    untried: bool = False
    """systemd did not start it, or somebody stopped it: that says nothing about the model."""


@dataclass(frozen=True)
class LeaseRequested:
    """A front wants to send requests to a model."""

    waiter: Waiter
    model: str
    autoload: bool = True
    stale_generation: str = ""
    passive: bool = False
    """Granted at once or not at all."""


@dataclass(frozen=True)
class LoadRequested:
    """By command or API: goes on without its waiter."""

    waiter: Waiter
    model: str


@dataclass(frozen=True)
class UnloadRequested:
    """Unload by command or API."""

    waiter: Waiter
    model: str
    now: bool = False
    wait: bool = True
    """Who asks wants to hear of the end; else only that it begins, so that one which has begun is refused."""


@dataclass(frozen=True)
class PinRequested:
    """`pinned` False: it may go again, whatever the configuration says. Until its instance ends."""

    waiter: Waiter
    model: str
    pinned: bool


@dataclass(frozen=True)
class MeasureRequested:
    """Measure by command; figures that are known do not count as an answer."""

    waiter: Waiter
    model: str


@dataclass(frozen=True)
class WaiterGone:
    """The client of one request has left, or its front has cancelled it."""

    waiter: Waiter


@dataclass(frozen=True)
class LeaseAnnounced:
    """A front holds this lease since before the supervisor started."""

    holder: Holder
    model: str
    generation: str
    busy: bool
    last_used_s: float
    since_s: float = 0.0


@dataclass(frozen=True)
class LeaseBusy:
    """Also of a lease that is busy already: its oldest request is another one now."""

    holder: Holder
    model: str
    generation: str
    since_s: float = 0.0
    """Start of its oldest request that runs; 0: now."""


@dataclass(frozen=True)
class LeaseIdle:
    """The last request on a lease has ended."""

    holder: Holder
    model: str
    generation: str
    last_used_s: float
    keep_alive_s: float | None = None
    """What a request asked for: seconds until the model is unloaded, negative for never. None: nothing."""


@dataclass(frozen=True)
class RecallAnswered:
    """A holder gives its lease back, or says that it is in use."""

    holder: Holder
    model: str
    generation: str
    returned: bool
    last_used_s: float = 0.0
    recall: int = 0
    """The `id` of the Recall that it answers; 0: it does not say."""
    since_s: float = 0.0
    """Where it is busy: start of its oldest request that runs."""


@dataclass(frozen=True)
class ConnectionGone:
    """A connection of `control.sock` has ended: its leases are returned, its waiters have left."""

    holder: Holder


@dataclass(frozen=True)
class FilesSeen:
    """Which files a model has at this moment."""

    model: str
    files: str
    """The same text as long as they are the same; empty: they could not be looked at."""
    since_s: float
    """When the look began."""
    measuring: bool = False
    """They are what the measurement that begins now is made of."""


@dataclass(frozen=True)
class HostRead:
    """Host memory as the kernel, or the slice's limit, gives it, in bytes."""

    total: int
    available: int


@dataclass(frozen=True)
class DevicesRead:
    """Free memory of devices at this moment, seen by somebody who uses none of it. A row without `total` is about a
    device that is known.
    """

    rows: tuple[Row, ...]
    complete: bool = False
    """These are all devices of this machine, and of the RPC servers in `rpc`: what is not among them is gone."""
    rpc: tuple[str, ...] = ()
    cheap: bool = False
    """It costs next to nothing, so that it may be asked again before each decision."""
    by_model: bool = False
    """By a child that also reads a model, and so may have become that file's."""


@dataclass(frozen=True)
class DevicesReadEnded:
    """Nobody reads devices for a ReadDevices any more. `error` is empty when they were read."""

    error: str = ""


@dataclass(frozen=True)
class Tick:
    """The time that `Scheduler.next_deadline` named has come."""


Event = (
    Configured
    | InstanceFound
    | RecoveryBegan
    | FrontAnnounced
    | InstanceReported
    | InstanceDisconnected
    | InstanceEnded
    | StopAnswered
    | SleepAnswered
    | MeasureReported
    | MeasureEnded
    | LeaseRequested
    | LoadRequested
    | UnloadRequested
    | PinRequested
    | MeasureRequested
    | WaiterGone
    | LeaseAnnounced
    | LeaseBusy
    | LeaseIdle
    | RecallAnswered
    | ConnectionGone
    | FilesSeen
    | HostRead
    | DevicesRead
    | DevicesReadEnded
    | Tick
)
