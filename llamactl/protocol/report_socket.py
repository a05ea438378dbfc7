"""What do children and the supervisor say to each other, on `report.sock`?

Children tell their state; the supervisor acknowledges and gives orders.
"""

from enum import StrEnum

from llamactl.protocol.lines import ErrorNotice, Message
from llamactl.protocol.values import Breakdown, DeviceList, Facts, Fraction, Note, Text, Whole

# --- child -> supervisor ----------------------------------------------------------------------------------------------


class ChildRole(StrEnum):
    """What a child is there for: to serve a model, or to measure one."""

    SERVE = "serve"
    MEASURE = "measure"


class ChildHello(Message, frozen=True, kw_only=True, tag="hello"):
    """First message of a child. Who it is follows from its cgroup; `generation` says which start of the unit it
    belongs to.
    """

    version: Whole
    role: ChildRole
    model: Text
    generation: Text
    pid: Whole
    llama_cpp: Text = ""


class ChildState(StrEnum):
    """What a child says of itself; the supervisor makes the model's state of it."""

    LOADING = "loading"
    READY = "ready"
    SLEEPING = "sleeping"
    STOPPING = "stopping"
    MEASURED = "measured"
    FAILED = "failed"


class Report(Message, frozen=True, kw_only=True, tag="report"):
    """The whole state of a child, not a difference: the last one is repeated after each new connection.

    Measure children fill `min`, `max` and `listing`, or `listing` alone when devices are all that they are asked for;
    instances fill `effective`. `progress` is 0 to 1 within `stage` (`starting`, `model`, `context`, `warmup`).
    """

    seq: Whole
    state: ChildState
    stage: Text = ""
    progress: Fraction | None = None
    min: Breakdown | None = None
    max: Breakdown | None = None
    effective: Breakdown | None = None
    listing: DeviceList | None = None
    busy: Whole = 0
    """Requests in flight or waiting at the instance."""
    error: Text = ""
    facts: Facts | None = None
    note: Note | None = None


class AnswerResult(StrEnum):
    """What became of an order."""

    OK = "ok"
    BUSY = "busy"
    UNSUPPORTED = "unsupported"


class Answer(Message, frozen=True, kw_only=True, tag="answer"):
    """To one order. `busy`: requests are in flight, nothing was done."""

    id: Whole
    result: AnswerResult
    message: Text = ""


ChildMessage = ChildHello | Report | Answer


# --- supervisor -> child ----------------------------------------------------------------------------------------------


class ChildWelcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """The greeting was accepted."""

    version: int


class Ack(Message, frozen=True, kw_only=True, tag="ack"):
    """A report was taken. A child that means to exit waits for it: a connection whose peer is gone cannot be
    identified.
    """

    seq: int


class OrderKind(StrEnum):
    """What an instance is told to do."""

    STOP = "stop"
    SLEEP = "sleep"
    WAKE = "wake"
    NOTE = "note"
    SHARE = "share"


class Order(Message, frozen=True, kw_only=True, tag="order"):
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


OrderMessage = ChildWelcome | Ack | Order | ErrorNotice
