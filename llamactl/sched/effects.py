"""What can the scheduler ask for? The vocabulary that `Scheduler.handle(event, now) -> effects` answers in.

Effects are orders that the supervisor carries out; each failure of one comes back as an event. An effect is never a
callback; it names models, never their units, and what clients are told is carried as the protocol's own message.
"""

from dataclasses import dataclass, field
from typing import Any

from llamactl.journal_events import JournalEvent
from llamactl.protocol.control_socket import Done, Failure, LeaseGone, MeasureResult, Progress, Recall, RecallCancelled
from llamactl.protocol.values import Breakdown, Note
from llamactl.sched.events import Holder, Waiter
from llamactl.settings import ModelSettings


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
