"""In which order do events reach the scheduler, and who pays when one cannot be handled?

One at a time: events that an effect causes at once are queued behind it, so that the scheduler is never entered twice.
What a child or a client has sent and nobody can handle costs the sender, not this process: within `blame` it is the
sender who is told of an error. Each effect of an event is carried out whatever becomes of the others, and what was
being decided is decided again. Errors that nobody has sent, and those that come again without the sender, end the
supervisor: its state cannot be trusted, and a new one finds all it needs in systemd.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator

from llamactl.sched import effects, events
from llamactl.sched.scheduler import Scheduler

Sender = Callable[[Exception], None]
"""Told of what was wrong with what it sent: ends it, or its connection."""


class Dispatcher:
    """The one way to the scheduler. `look` gives facts that are to be told before an event, `run` carries out an
    effect, `on_settled(acted)` is called when no event is left, `fail` for errors that are nobody's.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        look: Callable[[events.Event], Iterator[events.Event]],
        run: Callable[[effects.Effect], None],
        on_handled: Callable[[], None],
        on_settled: Callable[[bool], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._scheduler = scheduler
        self._look = look
        self._run = run
        self._on_handled = on_handled
        self._on_settled = on_settled
        self._fail = fail
        self._events: deque[tuple[events.Event, Sender | None]] = deque()
        self._sender: Sender | None = None
        self._dispatching = False
        self._closed = False

    def close(self) -> None:
        """Nothing is handled from now on."""
        self._closed = True

    @contextlib.contextmanager
    def blame(self, sender: Sender) -> Iterator[None]:
        """Errors in here, and in events that are dispatched in here, are the sender's."""
        before, self._sender = self._sender, sender
        try:
            yield
        except Exception as error:
            sender(error)
        finally:
            self._sender = before

    def dispatch(self, event: events.Event) -> None:
        """Have the scheduler handle an event, and everything that follows from it at once."""
        if self._closed:
            return
        self._events.append((event, self._sender))
        if self._dispatching:
            return
        self._dispatching = True
        acted = False
        try:
            while self._events:
                event, sender = self._events.popleft()
                try:
                    acted = self._handle(event) or acted
                except Exception as error:
                    if sender is None:
                        self._fail(error)
                        return
                    # In place of what was not handled: it decides again, and says whether that works without it.
                    self._events.appendleft((events.Tick(), None))
                    sender(error)
        finally:
            self._dispatching = False
        self._on_settled(acted)

    def _handle(self, event: events.Event) -> bool:
        """Whether there was anything to do. Raises the first error of all that followed."""
        failure: Exception | None = None
        acted = False
        for fact in (*self._look(event), event):
            wanted = self._scheduler.handle(fact, time.monotonic())
            acted = acted or (fact is event and bool(wanted))
            for effect in wanted:
                try:
                    self._run(effect)
                except Exception as error:
                    failure = failure or error
        self._on_handled()
        if failure is not None:
            raise failure
        return acted
