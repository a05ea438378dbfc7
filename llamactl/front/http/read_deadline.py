"""Is a client late with what it has to send?

One timer for each connection, armed for the earliest moment that could matter and looked at only then: a request that
is answered in time costs a store, not a timer. How long the client may take is asked when the timer is set and when it
fires, because settings and phases change in between.
"""

import asyncio
from collections.abc import Callable

from llamactl.front.http.connection_state import Deadline
from llamactl.settings import FrontSettings

DRAIN_IDLE_S = 10.0
"""How long a process that has been replaced keeps a connection for its client's next request."""

# To look a member up in its class takes as long as to call a function, in Python 3.11.
_HEAD, _NEXT = Deadline.HEAD, Deadline.NEXT


def choose_limit_s(deadline: Deadline, settings: FrontSettings, draining: bool, held_back: bool) -> float:
    """Seconds that a client may take; 0: for ever. `held_back`: it cannot send, since we do not read its body."""
    match deadline:
        case Deadline.FIRST | Deadline.HEAD:
            return settings.head_timeout_s
        case Deadline.BODY:
            return 0.0 if held_back else settings.body_timeout_s
        case Deadline.NEXT if draining:
            return min(settings.keepalive_timeout_s or DRAIN_IDLE_S, DRAIN_IDLE_S)
        case Deadline.NEXT:
            return settings.keepalive_timeout_s
        case Deadline.NONE:
            return 0.0


class ReadDeadline:
    """Of one connection."""

    __slots__ = ("_find_limit_s", "_late", "_loop", "_since_s", "_timer", "_what")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, find_limit_s: Callable[[], float], late: Callable[[float], None]
    ) -> None:
        """`find_limit_s`: what choose_limit_s says at present; `late` is called with it when it is over."""
        self._loop = loop
        self._find_limit_s: Callable[[], float] | None = find_limit_s
        self._late = late
        self._what = Deadline.NONE
        self._since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_armed(self) -> bool:
        return self._timer is not None

    def begin(self, what: Deadline) -> None:
        """The client has to send this from now on; or has sent some of it, which counts unless it is a head."""
        if what is not self._what or what is not _HEAD:
            self._what = what
            self._since_s = self._loop.time()
        if what is not _NEXT or self._timer is None:
            self.arm()

    def forget(self) -> None:
        """What the client had to send has come: the next time begins when `begin` is called, whatever it is for."""
        self._what = Deadline.NONE

    def arm(self) -> None:
        """See to it that the timer fires no later than the time is over; the limit may have changed."""
        limit_s = self._find_limit_s() if self._find_limit_s is not None else 0.0
        if limit_s:
            at_s = self._since_s + limit_s
            if self._timer is not None:
                if self._timer.when() <= at_s:
                    return
                self._timer.cancel()
            self._timer = self._loop.call_at(at_s, self.check)

    def check(self) -> None:
        """The timer has fired: what it was set for may have come since."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        limit_s = self._find_limit_s() if self._find_limit_s is not None else 0.0
        if not limit_s:
            return
        if self._loop.time() < self._since_s + limit_s:
            self.arm()
        else:
            self._late(limit_s)

    def close(self) -> None:
        """The connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._find_limit_s = None
