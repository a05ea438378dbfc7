"""What may happen on a client's connection, and what follows from where it is? Everything that changes a connection's
phase is in this file, and so is all that is decided by the phase alone.

A connection is an automaton of the reading side: its phase says how much of the present request has been read, and
whether the request has been handed over, that is, given to whoever answers it. The two overlap only for a large body,
which is handed over while it is still coming; everything else is read to its end first. Answers are complete when
whoever answers says so, in the order of requests, because the next request is not begun before.

    a connection begins as NEW; nothing has come

    NEW, IDLE ---> HEAD --------> BODY ---------------> ANSWERING ---> IDLE: the answer is complete
        part of a head   whole head   |  whole request  ^        |
                                      |                 |        +---> TUNNEL: the protocols were changed
                                      +-> STREAMING_BODY         |
                          handed over while it comes             +---> LINGERING or CLOSED

A head that comes at once makes no stop at HEAD, a request that comes at once and looks like the last one none at BODY.

LINGERING: the last answer has been sent, and the client has sent, or may still send, bytes that nobody wants. To close
would reset the connection and take the answer with it, so only the sending side is shut down, and reading goes on for a
moment. Whatever cannot be answered any more goes to CLOSED, where nothing leaves; bytes that were sent before may still
be on their way then.

What a client does against these rules (garbage, a body too large, a deadline missed) is `LAST_SENT`: it is told so, and
its connection ends. What we do against them is an IllegalTransition, and a bug.
"""

from dataclasses import dataclass
from enum import StrEnum, auto


class Phase(StrEnum):
    NEW = auto()
    """Nothing has come yet."""
    IDLE = auto()
    """Between two requests: nothing of the next one has come."""
    HEAD = auto()
    """Bytes of a request have come, but not all of its head."""
    BODY = auto()
    """A head has been read, its body is coming, and the request has not been handed over."""
    STREAMING_BODY = auto()
    """The request has been handed over, its body is still coming."""
    ANSWERING = auto()
    """The request has been read to its end and handed over."""
    TUNNEL = auto()
    """Client and instance speak another protocol through us."""
    LINGERING = auto()
    """The last answer has been sent, what the client still sends is dropped."""
    CLOSED = auto()


class Event(StrEnum):
    PART_OF_HEAD = auto()
    """Bytes have come that do not make a whole head."""
    HEAD_READ = auto()
    HANDED_OVER = auto()
    """Before the end of its body."""
    REQUEST_READ = auto()
    """To its end; it is handed over now if it has not been before."""
    SWITCHED = auto()
    """The instance has agreed to another protocol."""
    ANSWERED = auto()
    """The answer is complete, and another request may follow it."""
    LAST_SENT = auto()
    """What has been sent was the last answer, and there may be bytes of the client that nobody has read."""
    ENDED = auto()
    """The connection is closed, by either side, or will be when what was sent is out."""


_BEFORE_BODY = {
    Event.PART_OF_HEAD: Phase.HEAD,
    Event.HEAD_READ: Phase.BODY,
    Event.LAST_SENT: Phase.LINGERING,
    Event.ENDED: Phase.CLOSED,
}

TRANSITIONS: dict[Phase, dict[Event, Phase]] = {
    Phase.NEW: _BEFORE_BODY,
    Phase.IDLE: {**_BEFORE_BODY, Event.REQUEST_READ: Phase.ANSWERING},
    Phase.HEAD: _BEFORE_BODY,
    Phase.BODY: {
        Event.HANDED_OVER: Phase.STREAMING_BODY,
        Event.REQUEST_READ: Phase.ANSWERING,
        Event.LAST_SENT: Phase.LINGERING,
        Event.ENDED: Phase.CLOSED,
    },
    Phase.STREAMING_BODY: {
        Event.REQUEST_READ: Phase.ANSWERING,
        Event.LAST_SENT: Phase.LINGERING,
        Event.ENDED: Phase.CLOSED,
    },
    Phase.ANSWERING: {
        Event.ANSWERED: Phase.IDLE,
        Event.SWITCHED: Phase.TUNNEL,
        Event.LAST_SENT: Phase.LINGERING,
        Event.ENDED: Phase.CLOSED,
    },
    Phase.TUNNEL: {Event.LAST_SENT: Phase.LINGERING, Event.ENDED: Phase.CLOSED},
    Phase.LINGERING: {Event.ENDED: Phase.CLOSED},
    Phase.CLOSED: {Event.ENDED: Phase.CLOSED},
}


class Reads(StrEnum):
    """What is done with bytes that come."""

    REQUESTS = auto()
    """They are read as requests."""
    AHEAD = auto()
    """They belong to later requests, and are kept as they are."""
    THROUGH = auto()
    """They go through to the instance as they are."""
    NOTHING = auto()
    """They are dropped."""


class Deadline(StrEnum):
    """Until when the client has to send on."""

    NONE = auto()
    FIRST = auto()
    """Its first byte."""
    NEXT = auto()
    """The first byte of its next request."""
    HEAD = auto()
    """The whole head: each byte of it does not count as going on."""
    BODY = auto()
    """The next piece of the body."""


@dataclass(frozen=True)
class Rules:
    """What a phase decides."""

    reads: Reads = Reads.NOTHING
    deadline: Deadline = Deadline.NONE
    may_stop: bool = False
    """Nothing would be lost: a process that stops may close the connection."""

    @property
    def holds(self) -> bool:
        """Bytes that cannot be read yet are kept, and the client is not read on if these are many."""
        return self.reads in (Reads.REQUESTS, Reads.AHEAD)

    @property
    def is_told(self) -> bool:
        """A client that misses the deadline gets an answer that says so: it has begun a request."""
        return self.deadline in (Deadline.HEAD, Deadline.BODY)


RULES: dict[Phase, Rules] = {
    Phase.NEW: Rules(Reads.REQUESTS, Deadline.FIRST, may_stop=True),
    Phase.IDLE: Rules(Reads.REQUESTS, Deadline.NEXT, may_stop=True),
    Phase.HEAD: Rules(Reads.REQUESTS, Deadline.HEAD),
    Phase.BODY: Rules(Reads.REQUESTS, Deadline.BODY),
    Phase.STREAMING_BODY: Rules(Reads.REQUESTS, Deadline.BODY),
    Phase.ANSWERING: Rules(Reads.AHEAD),
    Phase.TUNNEL: Rules(Reads.THROUGH),
    Phase.LINGERING: Rules(Reads.NOTHING),
    Phase.CLOSED: Rules(Reads.NOTHING, may_stop=True),
}


class IllegalTransition(Exception):
    """Something was done with a connection that its phase does not allow: a bug."""


def step(phase: Phase, event: Event) -> Phase:
    """The phase after `event`. Raises IllegalTransition where the table has none."""
    try:
        return TRANSITIONS[phase][event]
    except KeyError:
        raise IllegalTransition(f"cannot take {event.name} on a connection that is {phase.name}") from None
