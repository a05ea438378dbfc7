"""What can happen to the scheduler, and what can it ask for? The two vocabularies of `Scheduler.handle(event,
now) -> effects`.

Events are facts that the supervisor has learnt, effects are orders that it carries out; each failure of an effect
comes back as an event. An effect is never a callback; it names models, never their units, and what clients are told is
carried as the protocol's own message. `generation` names one start of a model's instance: facts
about another generation than the present one are late news and change nothing. `holder` is one front's
connection, `waiter` one request of one connection.
"""

from dataclasses import dataclass, field
from typing import Any

from llamactl.journal_events import JournalEvent
from llamactl.protocol.control_socket import Done, Failure, LeaseGone, MeasureResult, Progress, Recall, RecallCancelled
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import Breakdown, Facts, LoadFailure, Note, Row
from llamactl.settings import Config, ModelSettings

Holder = int
Waiter = tuple[int, int]
"""Connection, id of the request there."""


# --- events -----------------------------------------------------------------------------------------------------------


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


# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InstanceEffect:
    """What is asked of one instance that runs."""

    model: str
    generation: str


@dataclass(frozen=True)
class StartInstance:
    """Start the model's unit. `extra_bufts` False: without llama.cpp's extra buffer types, because a warm-up died
    of them.
    """

    settings: ModelSettings
    generation: str
    margins_bytes: dict[str, int] = field(default_factory=dict)
    """What fitting must leave free per device: the margin, and what others have been promised. Key "" is for all
    devices not named.
    """
    extra_bufts: bool = True
    host_room_bytes: int | None = None
    """What fitting may take of host memory; None: no limit but the machine's."""
    measured: Breakdown | None = None
    """What the model took at the largest context that fitted when it was measured: saves measuring it once more."""


@dataclass(frozen=True)
class OrderStop(InstanceEffect):
    """Ask the instance to stop if it is idle. Answered by StopAnswered, at the latest after 5 s."""


@dataclass(frozen=True)
class OrderSleep(InstanceEffect):
    """Ask the instance to free its model and to keep its process, if it is idle. Answered by SleepAnswered, at the
    latest after 5 s.
    """


@dataclass(frozen=True)
class OrderWake(InstanceEffect):
    """Have a sleeping instance load again. Its reports tell how that goes. The margins are StartInstance's."""

    margins_bytes: dict[str, int] = field(default_factory=dict)
    host_room_bytes: int | None = None


@dataclass(frozen=True)
class StopUnit(InstanceEffect):
    """Stop the unit, whatever it does. Answered by InstanceEnded."""


@dataclass(frozen=True)
class StartMeasure:
    """Find out what the model needs. Answered by MeasureReported, where there are figures, and MeasureEnded."""

    settings: ModelSettings
    margins_bytes: dict[str, int] = field(default_factory=dict)
    extra_bufts: bool = True
    host_room_bytes: int | None = None
    ignores_cache: bool = False
    """Somebody asked for it: what was measured before does not count."""


@dataclass(frozen=True)
class StopMeasure:
    """The figures are not wanted any more. Answered by MeasureEnded."""

    model: str


@dataclass(frozen=True)
class LookAtFiles:
    """Answered by FilesSeen, at the latest after some seconds."""

    settings: ModelSettings


@dataclass(frozen=True)
class ReadDevices:
    """Read the free memory of devices again, of these at least. Answered by DevicesRead, where it can be read, and
    DevicesReadEnded.
    """

    names: tuple[str, ...]


@dataclass(frozen=True)
class Tell:
    """To who waits for something: how far it is, or how it ended, once. The message's `id` is the waiter's request."""

    waiter: Waiter
    message: Progress | Done | MeasureResult | Failure


@dataclass(frozen=True)
class Notify:
    """To who holds a lease: it is wanted back, may be kept after all, or is worth nothing any longer."""

    holder: Holder
    message: Recall | RecallCancelled | LeaseGone


@dataclass(frozen=True)
class GrantLease:
    """`waiter` holds a lease from now on (its connection is the holder), and it counts as busy. Where the instance's
    socket is, the supervisor knows.
    """

    waiter: Waiter
    model: str
    generation: str


@dataclass(frozen=True)
class SendNote(InstanceEffect):
    """What the instance shall keep for us."""

    note: Note


@dataclass(frozen=True)
class ShareProcessors(InstanceEffect):
    """So many models compute on the processors now, the instance's among them."""

    sharers: int


@dataclass(frozen=True)
class Record:
    """One line for the journal: facts are fields, bytes are integers."""

    event: JournalEvent
    model: str = ""
    level: str = "info"
    fields: dict[str, Any] = field(default_factory=dict)


Effect = (
    StartInstance
    | OrderStop
    | OrderSleep
    | OrderWake
    | StopUnit
    | StartMeasure
    | StopMeasure
    | LookAtFiles
    | ReadDevices
    | Tell
    | Notify
    | GrantLease
    | SendNote
    | ShareProcessors
    | Record
)
