"""What do the command line, the front and the supervisor say to each other, on `control.sock`?

Clients ask and the supervisor answers by `id`, with notices in between.
"""

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from llamactl.protocol.descriptions import Decision, DeviceStatus, LoadPlan, ModelCounters, ModelStatus
from llamactl.protocol.lines import ErrorNotice, Message
from llamactl.protocol.values import Keep, ModelMemory, Seconds, Stage, Text, Value, Whole
from llamactl.settings import FrontSettings

# --- client -> supervisor ---------------------------------------------------------------------------------------------


MAX_LEASES = 1 << 14


class ClientRole(StrEnum):
    """What a client is there for; only fronts hold leases."""

    FRONT = "front"
    CLI = "cli"


class HeldLease(Value, frozen=True, kw_only=True):
    """A lease that a front holds from before the supervisor's restart."""

    model: Text
    generation: Text
    busy: bool
    last_used_s: Seconds
    since_s: Seconds = 0.0
    """Start of the oldest request in flight."""


class ClientHello(Message, frozen=True, kw_only=True, tag="hello"):
    """First message of a client. A front that connects again announces every lease that it holds."""

    version: Whole
    role: ClientRole
    leases: Annotated[tuple[HeldLease, ...], msgspec.Meta(max_length=MAX_LEASES)] = ()


class LeaseRequest(Message, frozen=True, kw_only=True, tag="lease"):
    """May I send requests to this model? Answered by Progress (any number), then LeaseGrant or Failure.

    `stale_generation`: the generation that turned out to be gone when the front connected to it.
    """

    id: Whole
    model: Text
    autoload: bool = True
    stale_generation: Text = ""
    passive: bool = msgspec.field(default=False, name="look")
    """It only looks: granted when the model is ready, else refused at once, also while the model loads. Of a model that
    sleeps the refusal's details are `asleep`, its generation, and `socket`, where it can be asked without a lease.
    """


class CancelRequest(Message, frozen=True, kw_only=True, tag="cancel"):
    """The client of request `id` is gone: it leaves the queue. Not answered; the request itself fails with
    `cancelled`.
    """

    id: Whole


class LoadRequest(Message, frozen=True, kw_only=True, tag="load"):
    """Load by command. Goes on when the client leaves. Answered by Progress, then Done or Failure."""

    id: Whole
    model: Text
    wait: bool = True
    """False: Done as soon as the load is queued."""


class UnloadRequest(Message, frozen=True, kw_only=True, tag="unload"):
    """Drain and stop; with `now`, cut running requests. Done when the unit is gone (or with `wait` false, when it
    is under way).
    """

    id: Whole
    model: Text
    now: bool = False
    wait: bool = True


class PinRequest(Message, frozen=True, kw_only=True, tag="pin"):
    """Never evict this instance; with `pinned` false, it may be evicted again. For as long as it lives. Answered by
    Done or Failure.
    """

    id: Whole
    model: Text
    pinned: bool = True


class PlanRequest(Message, frozen=True, kw_only=True, tag="plan"):
    """What would happen if this model were loaded now? Nothing is done. Answered by PlanResult or Failure."""

    id: Whole
    model: Text


class MeasureRequest(Message, frozen=True, kw_only=True, tag="measure"):
    """Measure (again). Answered by MeasureResult or Failure."""

    id: Whole
    model: Text


class ListRequest(Message, frozen=True, kw_only=True, tag="list"):
    """All models, or one by name or alias. Answered by ModelList or Failure."""

    id: Whole
    model: Text = ""


class StatusRequest(Message, frozen=True, kw_only=True, tag="status"):
    """The supervisor and its accounts. Answered by MachineStatus."""

    id: Whole


class ReloadRequest(Message, frozen=True, kw_only=True, tag="reload"):
    """Read the configuration again. Answered by ReloadResult or Failure."""

    id: Whole


class SubscribeRequest(Message, frozen=True, kw_only=True, tag="subscribe"):
    """Tell me of every change of a model from now on. Answered by ModelList, then ModelNotice and ModelRemoved come."""

    id: Whole


class BusyNotice(Message, frozen=True, kw_only=True, tag="busy"):
    """The first request in flight on a lease that was idle; or, on a busy one, the oldest request has ended and another
    one is the oldest now (told at most once a second).
    """

    model: Text
    generation: Text
    since_s: Seconds = 0.0
    """Start of the oldest request in flight; 0: now."""


class IdleNotice(Message, frozen=True, kw_only=True, tag="idle"):
    """The last request in flight on a lease has ended."""

    model: Text
    generation: Text
    last_used_s: Seconds
    keep_alive_s: Keep | None = None
    """What the last request with a `keep_alive` asked for: unload after so many seconds without a request; negative:
    never. None: none has asked since the lease was granted or told idle last.
    """


class RecallAnswer(Message, frozen=True, kw_only=True, tag="recalled"):
    """To a Recall. `returned` false: busy, the lease is kept (under `drain`: it comes back later, with a second
    answer). `recall` is the Recall's `id`: a lease that was granted after that Recall is another one, which this answer
    does not return. 0: an older front, that does not say.
    """

    model: Text
    generation: Text
    returned: bool
    last_used_s: Seconds = 0.0
    recall: Whole = 0
    since_s: Seconds = 0.0
    """Start of the oldest request in flight."""


ClientMessage = (
    ClientHello
    | LeaseRequest
    | CancelRequest
    | LoadRequest
    | UnloadRequest
    | PinRequest
    | PlanRequest
    | MeasureRequest
    | ListRequest
    | StatusRequest
    | ReloadRequest
    | SubscribeRequest
    | BusyNotice
    | IdleNotice
    | RecallAnswer
)


# --- supervisor -> client ---------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Answer to a greeting."""

    version: int
    llamactl: str
    pid: int
    stop_timeout_s: float = 30.0
    front: FrontSettings = FrontSettings()


class Progress(Message, frozen=True, kw_only=True, tag="progress"):
    """How far the load behind request `id` is."""

    id: int
    stage: Stage
    fraction: float | None = None
    waiting_for: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    """Of those, the ones that serve requests."""
    going: tuple[str, ...] = ()
    """Of those, the ones that are being unloaded."""
    why: str = ""
    """What it waits for them for, as the journal has it."""
    warning: str = ""
    """Something that whoever waits should know, whatever comes of it."""


class LeaseGrant(Message, frozen=True, kw_only=True, tag="granted"):
    """The front may send requests for `model` (the model's own name) to `socket`, until it gives the lease back.
    It counts as busy from now on.
    """

    id: int
    model: str
    slug: str
    generation: str
    socket: str


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """Request `id` is done."""

    id: int
    model: str = ""
    seconds: float = 0.0


class MeasureResult(Message, frozen=True, kw_only=True, tag="measured"):
    """What a measurement has come to."""

    id: int
    model: str
    memory: ModelMemory


class PlanResult(Message, frozen=True, kw_only=True, tag="planned"):
    """What a load would do."""

    id: int
    plan: LoadPlan


class ModelList(Message, frozen=True, kw_only=True, tag="models"):
    """Models by name, at the moment `now_s`."""

    id: int
    now_s: float
    models: tuple[ModelStatus, ...]


class MachineStatus(Message, frozen=True, kw_only=True, tag="machine"):
    """The supervisor, its accounts, its queue, and what it has counted and decided."""

    id: int
    llamactl: str
    pid: int
    since_s: float
    now_s: float
    devices: tuple[DeviceStatus, ...]
    loaded: int
    max_loaded: int
    build: str = ""
    """llama.cpp's, as a child has told it; empty: none has."""
    queue: tuple[str, ...] = ()
    """Models whose loads wait, in order."""
    controllers: tuple[str, ...] = ()
    """cgroup controllers that this systemd has; limits of others are not applied."""
    problems: tuple[str, ...] = ()
    corrections: int = 0
    """How often the supervisor has known something else of a unit than systemd."""
    counters: dict[str, ModelCounters] = {}
    """By model."""
    decisions: tuple[Decision, ...] = ()
    """The last five since the supervisor's start, the latest first."""


class ReloadResult(Message, frozen=True, kw_only=True, tag="reloaded"):
    """What is different since the configuration was read before."""

    id: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """What is different for the machine: `host_budget: 24 GiB -> 300 MiB`."""
    invalid: tuple[str, ...] = ()
    """Models that cannot be used now, and could be or were not there before."""
    kept: tuple[str, ...] = ()
    """Of these, those that run: they go on as they were loaded."""
    mended: tuple[str, ...] = ()
    """Models that can be used, and could not before."""
    replaced: tuple[str, ...] = ()
    """Models whose settings are the same and whose files are others: they are measured again."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    """Of directories in which something else is found now: names of models, by the directory below that has them."""
    problems: tuple[str, ...] = ()
    fatal: int = 0
    """So many problems keep something from working."""


class Failure(Message, frozen=True, kw_only=True, tag="failure"):
    """Request `id` has failed: a code of `llamactl.errors`, its message, and figures."""

    id: int
    code: str
    message: str
    hint: str = ""
    model: str = ""
    details: dict[str, Any] = {}


class Recall(Message, frozen=True, kw_only=True, tag="recall"):
    """Give the lease back if it is idle. `drain`: keep new requests back and return it when the running ones have
    ended. `id` rises with every Recall; the answers repeat it.
    """

    model: str
    generation: str
    drain: bool = False
    id: int = 0


class RecallCancelled(Message, frozen=True, kw_only=True, tag="recall_cancelled"):
    """The drain is off: requests may go on."""

    model: str
    generation: str


class LeaseGone(Message, frozen=True, kw_only=True, tag="lease_gone"):
    """The instance behind the lease has ended."""

    model: str
    generation: str
    reason: str = ""


class ModelsChanged(Message, frozen=True, kw_only=True, tag="models_changed"):
    """The configuration was read again: names and aliases that a front remembers may be wrong now, and these are the
    settings that it goes by from now on.
    """

    front: FrontSettings = FrontSettings()


class ModelNotice(Message, frozen=True, kw_only=True, tag="model"):
    """To a subscriber: all of a model that has changed. Several changes within a tenth of a second are one."""

    model: ModelStatus


class ModelRemoved(Message, frozen=True, kw_only=True, tag="model_removed"):
    """To a subscriber: the model is gone from the configuration, and its instance has ended."""

    model: str


ServerMessage = (
    Welcome
    | Progress
    | LeaseGrant
    | Done
    | MeasureResult
    | PlanResult
    | ModelList
    | MachineStatus
    | ReloadResult
    | Failure
    | Recall
    | RecallCancelled
    | LeaseGone
    | ModelsChanged
    | ModelNotice
    | ModelRemoved
    | ErrorNotice
)
