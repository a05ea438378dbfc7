"""What do llamactl's processes say to each other? Every message of both sockets, defined once.

Both sockets carry JSON objects, one a line, each with a `type`. On `report.sock` children tell their state and
the supervisor acknowledges and gives orders; on `control.sock` the command line and the front ask and the
supervisor answers by `id`, with notices in between. A line that is too long, is no JSON or is no message of its
direction ends that connection with an `error` message: JunkError says why. The version rises with any change that
an older peer would misread; peers of other versions are refused in the greeting. Times named `_s` with a moment
(`last_used_s`) are seconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20


class State(StrEnum):
    """Of a model, in the words of llama-server's router where it has them (it says `loaded` for `ready`)."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    SLEEPING = "sleeping"
    STOPPING = "stopping"
    FAILED = "failed"


class MemoryStatus(StrEnum):
    """Of what is known about a model's memory."""

    UNMEASURED = "unmeasured"
    MEASURING = "measuring"
    MEASURED = "measured"
    FAILED = "failed"


class RowKind(StrEnum):
    DEVICE = "device"
    HOST = "host"
    BUFFER_TYPE = "buffer_type"


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """A part of messages."""


class Row(_Value, frozen=True, kw_only=True):
    """Bytes on one device, on the host, or in one other buffer type. `total` and `free` are known for devices only."""

    kind: RowKind
    name: str
    description: str = ""
    model: int = 0
    context: int = 0
    compute: int = 0
    total: int | None = None
    free: int | None = None

    @property
    def used(self) -> int:
        return self.model + self.context + self.compute


class Breakdown(_Value, frozen=True, kw_only=True):
    """What a model takes at one context size, in bytes per row. llama.cpp's llama_get_memory_breakdown is the
    source.
    """

    n_ctx: int
    devices: tuple[Row, ...] = ()


class DeviceList(_Value, frozen=True, kw_only=True):
    """The devices that a child can see, whether its model uses them or not. Rows have no bytes of a model."""

    rows: tuple[Row, ...] = ()
    ids: dict[str, str] = {}
    """Bus addresses by name, where known: "0000:01:00.0"."""
    busy: tuple[str, ...] = ()
    """RPC servers that have another client now: their devices are not among the rows, and not gone either."""
    cheap: bool = False
    """Asked without a GPU context: only `free` is known then, and only of the devices asked for."""


class ModelMemory(_Value, frozen=True, kw_only=True):
    """All that is known of a model's memory; None where there is no figure."""

    status: MemoryStatus = MemoryStatus.UNMEASURED
    error: str = ""
    """Why it was not measured."""
    min: Breakdown | None = None
    max: Breakdown | None = None
    effective: Breakdown | None = None


def format_memory(memory: ModelMemory) -> dict[str, Any]:
    """As JSON shows it to people and programs: without `error` where there is none, without `total` and `free` in rows
    that have none.
    """
    plain: dict[str, Any] = msgspec.to_builtins(memory)
    if not memory.error:
        del plain["error"]
    for breakdown in (plain["min"], plain["max"], plain["effective"]):
        if breakdown is not None:
            breakdown["devices"] = [
                {key: value for key, value in row.items() if value is not None} for row in breakdown["devices"]
            ]
    return plain


class Facts(_Value, frozen=True, kw_only=True):
    """What a child read from the model file."""

    architecture: str = ""
    description: str = ""
    n_ctx: int = 0
    n_ctx_train: int = 0
    n_embd: int = 0
    n_vocab: int = 0
    n_params: int = 0
    size_bytes: int = 0
    ftype: str = ""
    """How the weights are quantized, in llama.cpp's words (`Q4_K - Medium`)."""
    vocab_type: int = 0
    """Number of llama.cpp's kind of vocabulary (llama.h: llama_vocab_type)."""
    build: str = ""
    """llama.cpp's build, as it says it itself: `b` and a number, `-` and a commit."""
    extra_bufts: bool = True
    """False: this instance runs without llama.cpp's extra buffer types."""
    input_modalities: tuple[str, ...] = ("text",)
    """What requests may carry: `text`, `image`, `audio`."""


class Note(_Value, frozen=True, kw_only=True):
    """What the supervisor alone knows of an instance. The instance keeps it and returns it with every report."""

    last_used_s: float = 0.0
    ready_since_s: float = 0.0
    pinned: bool | None = None
    keep_alive_s: float | None = None
    files: str = ""
    """Which files the instance was loaded from."""


# --- report.sock: child -> supervisor ---------------------------------------------------------------------------------


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A message: its `type` is the tag of its class."""


class ChildRole(StrEnum):
    SERVE = "serve"
    MEASURE = "measure"


class ChildHello(_Message, frozen=True, kw_only=True, tag="hello"):
    """First message of a child. Who it is follows from its cgroup; `generation` says which start of the unit it
    belongs to.
    """

    version: int
    role: ChildRole
    model: str
    generation: str
    pid: int
    llama_cpp: str = ""


class ChildState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    SLEEPING = "sleeping"
    STOPPING = "stopping"
    MEASURED = "measured"
    FAILED = "failed"


class Report(_Message, frozen=True, kw_only=True, tag="report"):
    """The whole state of a child, not a difference: the last one is repeated after each new connection.

    Measure children fill `min`, `max` and `listing`, or `listing` alone when devices are all that they are asked for;
    instances fill `effective`. `progress` is 0 to 1 within `stage` (`starting`, `model`, `context`, `warmup`).
    """

    seq: int
    state: ChildState
    stage: str = ""
    progress: float | None = None
    min: Breakdown | None = None
    max: Breakdown | None = None
    effective: Breakdown | None = None
    listing: DeviceList | None = None
    busy: int = 0
    """Requests in flight or waiting at the instance."""
    error: str = ""
    facts: Facts | None = None
    note: Note | None = None


class AnswerResult(StrEnum):
    OK = "ok"
    BUSY = "busy"
    UNSUPPORTED = "unsupported"


class Answer(_Message, frozen=True, kw_only=True, tag="answer"):
    """To one order. `busy`: requests are in flight, nothing was done."""

    id: int
    result: AnswerResult
    message: str = ""


ChildMessage = ChildHello | Report | Answer


# --- report.sock: supervisor -> child ---------------------------------------------------------------------------------


class ChildWelcome(_Message, frozen=True, kw_only=True, tag="welcome"):
    version: int


class Ack(_Message, frozen=True, kw_only=True, tag="ack"):
    """A report was taken. A child that means to exit waits for it: a connection whose peer is gone cannot be
    identified.
    """

    seq: int


class OrderKind(StrEnum):
    STOP = "stop"
    SLEEP = "sleep"
    WAKE = "wake"
    NOTE = "note"
    SHARE = "share"


class Order(_Message, frozen=True, kw_only=True, tag="order"):
    """`stop` with `if_idle`: only when no request is in flight; after `ok` the instance takes no new one, and
    exits 0.
    """

    id: int
    order: OrderKind
    if_idle: bool = True
    note: Note | None = None
    margins_bytes: dict[str, int] = {}
    """With `wake`: what fitting must leave free per device; "" is for all devices not named."""
    host_room_bytes: int | None = None
    """With `wake`: what fitting may take of host memory; None: no limit but the machine's."""
    sharers: int = 1
    """With `share`: models that compute on the processors now, this one among them."""


class JunkNotice(_Message, frozen=True, kw_only=True, tag="error"):
    """Last message before the connection ends: what was wrong with what came."""

    message: str


OrderMessage = ChildWelcome | Ack | Order | JunkNotice


# --- control.sock: client -> supervisor -------------------------------------------------------------------------------


class ClientRole(StrEnum):
    FRONT = "front"
    CLI = "cli"


class HeldLease(_Value, frozen=True, kw_only=True):
    """A lease that a front holds from before the supervisor's restart."""

    model: str
    generation: str
    busy: bool
    last_used_s: float
    since_s: float = 0.0
    """Start of the oldest request in flight."""


class ClientHello(_Message, frozen=True, kw_only=True, tag="hello"):
    """First message of a client. A front that connects again announces every lease that it holds."""

    version: int
    role: ClientRole
    leases: tuple[HeldLease, ...] = ()


class LeaseRequest(_Message, frozen=True, kw_only=True, tag="lease"):
    """May I send requests to this model? Answered by Progress (any number), then LeaseGrant or Failure.

    `stale_generation`: the generation that turned out to be gone when the front connected to it.
    """

    id: int
    model: str
    autoload: bool = True
    stale_generation: str = ""
    look: bool = False
    """It only looks: granted when the model is ready, else refused at once, also while the model loads. Of a model that
    sleeps the refusal's details are `asleep`, its generation, and `socket`, where it can be asked without a lease.
    """


class CancelRequest(_Message, frozen=True, kw_only=True, tag="cancel"):
    """The client of request `id` is gone: it leaves the queue. Not answered; the request itself fails with
    `cancelled`.
    """

    id: int


class LoadRequest(_Message, frozen=True, kw_only=True, tag="load"):
    """Load by command. Goes on when the client leaves. Answered by Progress, then Done or Failure."""

    id: int
    model: str
    wait: bool = True
    """False: Done as soon as the load is queued."""


class UnloadRequest(_Message, frozen=True, kw_only=True, tag="unload"):
    """Drain and stop; with `now`, cut running requests. Done when the unit is gone (or with `wait` false, when it
    is under way).
    """

    id: int
    model: str
    now: bool = False
    wait: bool = True


class PinRequest(_Message, frozen=True, kw_only=True, tag="pin"):
    """Never evict this instance; with `pinned` false, it may be evicted again. For as long as it lives. Answered by
    Done or Failure.
    """

    id: int
    model: str
    pinned: bool = True


class PlanRequest(_Message, frozen=True, kw_only=True, tag="plan"):
    """What would happen if this model were loaded now? Nothing is done. Answered by PlanResult or Failure."""

    id: int
    model: str


class MeasureRequest(_Message, frozen=True, kw_only=True, tag="measure"):
    """Measure (again). Answered by MeasureResult or Failure."""

    id: int
    model: str


class ListRequest(_Message, frozen=True, kw_only=True, tag="list"):
    """All models, or one by name or alias. Answered by ModelList or Failure."""

    id: int
    model: str = ""


class StatusRequest(_Message, frozen=True, kw_only=True, tag="status"):
    """The supervisor and its accounts. Answered by MachineStatus."""

    id: int


class ReloadRequest(_Message, frozen=True, kw_only=True, tag="reload"):
    """Read the configuration again. Answered by ReloadResult or Failure."""

    id: int


class SubscribeRequest(_Message, frozen=True, kw_only=True, tag="subscribe"):
    """Tell me of every change of a model from now on. Answered by ModelList, then ModelNotice and ModelRemoved come."""

    id: int


class BusyNotice(_Message, frozen=True, kw_only=True, tag="busy"):
    """The first request in flight on a lease that was idle; or, on a busy one, the oldest request has ended and another
    one is the oldest now (told at most once a second).
    """

    model: str
    generation: str
    since_s: float = 0.0
    """Start of the oldest request in flight; 0: now."""


class IdleNotice(_Message, frozen=True, kw_only=True, tag="idle"):
    """The last request in flight on a lease has ended."""

    model: str
    generation: str
    last_used_s: float
    keep_alive_s: float | None = None
    """What the last request with a `keep_alive` asked for: unload after so many seconds without a request; negative:
    never. None: none has asked since the lease was granted or told idle last.
    """


class RecallAnswer(_Message, frozen=True, kw_only=True, tag="recalled"):
    """To a Recall. `returned` false: busy, the lease is kept (under `drain`: it comes back later, with a second
    answer). `recall` is the Recall's `id`: a lease that was granted after that Recall is another one, which this answer
    does not return. 0: an older front, that does not say.
    """

    model: str
    generation: str
    returned: bool
    last_used_s: float = 0.0
    recall: int = 0
    since_s: float = 0.0
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


# --- control.sock: supervisor -> client -------------------------------------------------------------------------------


class Stage(StrEnum):
    """Where a load is."""

    QUEUED = "queued"
    MEASURING = "measuring"
    WAITING = "waiting"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"


BY_SIGNAL = ("signal", "core-dump")
"""systemd's words for an end by a signal; the exit code is its number then."""


class LoadFailure(_Value, frozen=True, kw_only=True):
    """How a model's last unit ended when it did not end well. `result` is systemd's word (`exit-code`, `signal`,
    `oom-kill`, `timeout`, `watchdog` ...).
    """

    result: str
    exit_code: int
    message: str
    """The last lines that it logged, or what is known else."""


class Ending(_Value, frozen=True, kw_only=True):
    """How a model ended last, in the journal's words: `event` is `model unloaded`, `load failed`, `load
    refused` or `instance crashed`.
    """

    event: str
    time_s: float
    """Of CLOCK_REALTIME: it is shown as a date."""
    reason: str = ""
    for_model: str = ""
    """The model that needed the room."""


class Decision(_Value, frozen=True, kw_only=True):
    """What the supervisor has decided, in the journal's words (`load decided`, `victim chosen` ...)."""

    event: str
    time_s: float
    """Of CLOCK_REALTIME."""
    model: str = ""
    for_model: str = ""
    why: str = ""


class ModelStatus(_Value, frozen=True, kw_only=True):
    """One model, as lists show it."""

    name: str
    state: State
    aliases: tuple[str, ...] = ()
    slug: str = ""
    unit: str = ""
    path: str = ""
    invalid: str = ""
    """Why the configuration of this model cannot be used; empty when it can."""
    stage: Stage | None = None
    progress: float | None = None
    waiting_for: tuple[str, ...] = ()
    pid: int = 0
    generation: str = ""
    busy: int = 0
    """Leases in use, or requests at the instance, whichever is known to be larger."""
    queued: int = 0
    pinned: bool = False
    unlisted: bool = False
    found: bool = False
    """Found in a directory, not named by a file of the configuration."""
    tags: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    """What is set for this model, as llama-server's arguments would say it."""
    ctx: int = 0
    """Context that is configured; 0: what fits."""
    created: int = 0
    """When its file was written, in seconds since 1970; 0: nobody knows."""
    waiting_settings: tuple[str, ...] = ()
    """Keys that were changed since the instance was started, and count from its next load on."""
    last_used_s: float = 0.0
    ready_since_s: float = 0.0
    memory: ModelMemory = ModelMemory()
    facts: Facts | None = None
    failure: LoadFailure | None = None
    failures: int = 0
    """Loads and runs that failed in a row."""
    exit_code: int = 0
    """Of its unit's last end, or the number of the signal that it died of."""
    stopped_from: State | None = None
    """What it was before it was `stopping`."""
    retry_at_s: float = 0.0
    """Until then requests do not cause a load; 0: they do."""
    keep_alive_s: float | None = None
    """What a request asked for: seconds without a request until it is unloaded, negative for never."""
    devices: tuple[str, ...] = ()
    """Where the instance was placed, if that was llamactl's choice."""
    parallel: int = 1
    ended: Ending | None = None
    """How it ended last, since the supervisor's start."""

    @property
    def context_length(self) -> int:
        """Tokens that it has room for, or that a load would give it room for; 0: nothing is known. What was measured
        comes before what is configured: llama.cpp rounds that up, and an encoder has no more than it was trained for.
        """
        known = self.memory.effective or self.memory.max
        if known is not None:
            return known.n_ctx
        return self.ctx or (self.facts.n_ctx or self.facts.n_ctx_train if self.facts is not None else 0)


class PlanDevice(_Value, frozen=True, kw_only=True):
    """One account in a plan, in bytes. `limit` false: as much as you like fits there."""

    name: str
    needs: int
    total: int = 0
    external: int = 0
    held: int = 0
    available: int = 0
    margin: int = 0
    missing: int = 0
    """Beside what is held now."""
    limit: bool = True


class PlanInstance(_Value, frozen=True, kw_only=True):
    """What would become of one instance, and why, in words. `frees`: what it holds, in bytes per account."""

    model: str
    goes: bool
    why: str
    idle_s: float = 0.0
    frees: dict[str, int] = {}


class LoadPlan(_Value, frozen=True, kw_only=True):
    """A decision about one load, explained. `outcome` is one word: `loaded`, `loading`, `measure`, `blind`, `fits`,
    `evict`, `wait`, `pinned`, `refused`, `invalid`; `words` say the same as a sentence.
    """

    model: str
    outcome: str
    words: str
    placement: tuple[str, ...] = ()
    """Devices that are chosen; empty: as the model's settings say."""
    victims: tuple[str, ...] = ()
    waiting_for: tuple[str, ...] = ()
    loaded: int = 0
    max_loaded: int = 0
    devices: tuple[PlanDevice, ...] = ()
    instances: tuple[PlanInstance, ...] = ()


class DeviceStatus(_Value, frozen=True, kw_only=True):
    """The account of one device (or of `Host`), in bytes. `total` 0: not known yet."""

    name: str
    description: str
    total: int
    external: int
    held: int
    available: int
    margin: int
    holders: dict[str, int] = {}
    """What each model is charged here."""


class FrontSettings(_Value, frozen=True, kw_only=True):
    """What a front must know of the settings: it never reads the configuration itself."""

    max_body_bytes: int = 64 << 20
    head_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    send_timeout_s: float = 60.0
    keepalive_timeout_s: float = 120.0
    queue_timeout_s: float = 0.0
    max_queue: int = 256
    max_queue_total: int = 4096
    autoload: bool = True
    default_model: str = ""
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    access_log: str = "info"


class Welcome(_Message, frozen=True, kw_only=True, tag="welcome"):
    """Answer to a greeting."""

    version: int
    llamactl: str
    pid: int
    stop_timeout_s: float = 30.0
    front: FrontSettings = FrontSettings()


class Progress(_Message, frozen=True, kw_only=True, tag="progress"):
    """How far the load behind request `id` is."""

    id: int
    stage: Stage
    fraction: float | None = None
    waiting_for: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    """Of those, the ones that serve requests."""
    going: tuple[str, ...] = ()
    """Of those, the ones that are being unloaded."""
    warning: str = ""
    """Something that whoever waits should know, whatever comes of it."""


class LeaseGrant(_Message, frozen=True, kw_only=True, tag="granted"):
    """The front may send requests for `model` (the model's own name) to `socket`, until it gives the lease back.
    It counts as busy from now on.
    """

    id: int
    model: str
    slug: str
    generation: str
    socket: str


class Done(_Message, frozen=True, kw_only=True, tag="done"):
    id: int
    model: str = ""
    seconds: float = 0.0


class MeasureResult(_Message, frozen=True, kw_only=True, tag="measured"):
    id: int
    model: str
    memory: ModelMemory


class PlanResult(_Message, frozen=True, kw_only=True, tag="planned"):
    id: int
    plan: LoadPlan


class ModelList(_Message, frozen=True, kw_only=True, tag="models"):
    id: int
    now_s: float
    models: tuple[ModelStatus, ...]


class ModelCounters(_Value, frozen=True, kw_only=True):
    """What happened to a model since the supervisor's start."""

    loads: int = 0
    load_seconds: float = 0.0
    """In all loads together."""
    load_failures: int = 0
    crashes: int = 0
    unloads: dict[str, int] = {}
    """By reason, in the journal's words: `evicted`, `by command`, `idle timeout` ..."""


class MachineStatus(_Message, frozen=True, kw_only=True, tag="machine"):
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
    counters: dict[str, ModelCounters] = {}
    """By model."""
    decisions: tuple[Decision, ...] = ()
    """The last five since the supervisor's start, the latest first."""


class ReloadResult(_Message, frozen=True, kw_only=True, tag="reloaded"):
    id: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """What is different for the machine: `host_budget: 24 GiB -> 300 MiB`."""
    invalid: tuple[str, ...] = ()
    """Models that cannot be used now, and could be or were not there before."""
    replaced: tuple[str, ...] = ()
    """Models whose settings are the same and whose files are others: they are measured anew."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    """Of directories in which something else is found now: names of models, by the directory below that has them."""
    problems: tuple[str, ...] = ()
    fatal: int = 0
    """So many problems keep something from working."""


class Failure(_Message, frozen=True, kw_only=True, tag="failure"):
    """Request `id` has failed: a code of `llamactl.errors`, its message, and figures."""

    id: int
    code: str
    message: str
    hint: str = ""
    model: str = ""
    details: dict[str, Any] = {}


class Recall(_Message, frozen=True, kw_only=True, tag="recall"):
    """Give the lease back if it is idle. `drain`: keep new requests back and return it when the running ones have
    ended. `id` rises with every Recall; the answers repeat it.
    """

    model: str
    generation: str
    drain: bool = False
    id: int = 0


class RecallCancelled(_Message, frozen=True, kw_only=True, tag="recall_cancelled"):
    """The drain is off: requests may go on."""

    model: str
    generation: str


class LeaseGone(_Message, frozen=True, kw_only=True, tag="lease_gone"):
    """The instance behind the lease has ended."""

    model: str
    generation: str
    reason: str = ""


class ModelsChanged(_Message, frozen=True, kw_only=True, tag="models_changed"):
    """The configuration was read again: names and aliases that a front remembers may be wrong now, and these are the
    settings that it goes by from now on.
    """

    front: FrontSettings = FrontSettings()


class ModelNotice(_Message, frozen=True, kw_only=True, tag="model"):
    """To a subscriber: all of a model that has changed. Several changes within a tenth of a second are one."""

    model: ModelStatus


class ModelRemoved(_Message, frozen=True, kw_only=True, tag="model_removed"):
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
    | JunkNotice
)


# --- the wire ---------------------------------------------------------------------------------------------------------


class JunkError(Exception):
    """A line that is no message of its direction. The text says what is wrong and is safe to show.

    `before` holds the messages that the same bytes completed before it.
    """

    def __init__(self, reason: str, before: Sequence[Any] = ()) -> None:
        super().__init__(reason)
        self.before = before


_SURROGATES = re.compile("[\ud800-\udfff]")
_encoder = msgspec.json.Encoder()
Message = TypeVar("Message")


def encode_message(message: msgspec.Struct) -> bytes:
    """One line, newline included. What is no Unicode, as names of files may be, comes out with U+FFFD in its place."""
    try:
        return _encoder.encode(message) + b"\n"
    except UnicodeEncodeError:
        return _encoder.encode(_replace_surrogates(msgspec.to_builtins(message))) + b"\n"


def _replace_surrogates(value: Any) -> Any:
    match value:
        case str():
            return _SURROGATES.sub("\ufffd", value)
        case dict():
            return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [_replace_surrogates(item) for item in value]
        case _:
            return value


class LineReader:
    """Bytes in, messages of one direction out. Does no I/O: feed it what was received, in pieces of any size."""

    def __init__(self, message_type: Any, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(message_type)
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Messages completed by `data`, in order. Raises JunkError; the reader is of no use after that."""
        start = len(self._buffer)
        self._buffer += data
        messages: list[Any] = []
        while (end := self._buffer.find(b"\n", start)) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            start = 0
            if len(line) > self._max_bytes:
                raise JunkError(f"message of {len(line)} bytes, at most {self._max_bytes} are taken", messages)
            try:
                messages.append(self._decoder.decode(line))
            except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
                raise JunkError(f"not a message: {error}", messages) from None
        if len(self._buffer) > self._max_bytes:
            raise JunkError(f"message of more than {self._max_bytes} bytes", messages)
        return messages
