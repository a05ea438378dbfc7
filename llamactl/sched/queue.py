"""Which loads and measurements are wanted, in which order, and who waits for each?

First in, first out, one entry per model: all requests for a model share one load. An entry lives from the first request
until its model is ready or its load has failed, also while it loads. A request that goes away leaves its entry; an
entry without waiters is cancelled by the scheduler, unless it is `own`: loads by command, by API or at the start are
their own waiters.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from llamactl.protocol.control_socket import Progress
from llamactl.protocol.values import Stage
from llamactl.sched.events import Holder, Waiter

MAX_LOGGED = 16
"""Lines about one load's decisions and waits, at most."""


@dataclass
class Entry:
    """One wanted load."""

    model: str
    since_s: float
    detached: bool = False
    leases: dict[Waiter, float] = field(default_factory=dict)
    """Requests that want a lease, since when."""
    loads: dict[Waiter, float] = field(default_factory=dict)
    """Those that only want it loaded."""
    stage: Stage = Stage.QUEUED
    busy: tuple[str, ...] = ()
    """Of those in `waiting_for`, the ones that serve requests."""
    going: tuple[str, ...] = ()
    """Of those in `waiting_for`, the ones that are being unloaded."""
    fraction: float | None = None
    waiting_for: tuple[str, ...] = ()
    why: str = ""
    """What it waits for them for, as of when that was told last."""
    placement: tuple[str, ...] | None = None
    """Devices for which others are being taken down; None: for none yet."""
    logged: set[object] = field(default_factory=set)
    """Decisions, and what it waits for, as the journal was told: each once, however often they take turns."""
    replaced: int = 0
    """How often its files turned out to be others than those that were measured."""

    @property
    def waiters(self) -> list[Waiter]:
        """All that wait for this load, those for a lease first."""
        return [*self.leases, *self.loads]

    @property
    def is_wanted(self) -> bool:
        """Whether anybody would miss it, were it cancelled."""
        return self.detached or bool(self.leases or self.loads)

    def is_news(self, what: object) -> bool:
        """Whether the journal has not been told this of the load; it is told so much, and `status` tells the rest."""
        if what in self.logged or len(self.logged) >= MAX_LOGGED:
            return False
        self.logged.add(what)
        return True

    def describe(self) -> Progress:
        """Where it is, as its waiters are told; without the id of a request."""
        return Progress(
            id=0,
            stage=self.stage,
            fraction=self.fraction,
            waiting_for=self.waiting_for,
            busy=self.busy,
            going=self.going,
            why=self.why,
        )


class LoadQueue:
    """Entries in order, and where each waiter is.

    `on_remove` is called when an entry has left: what was kept for it may serve another one.
    """

    def __init__(self, on_remove: Callable[[], None] = lambda: None) -> None:
        self._on_remove = on_remove
        self._entries: dict[str, Entry] = {}
        self._waiters: dict[Waiter, str] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))

    def __contains__(self, model: object) -> bool:
        return model in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, model: str) -> Entry | None:
        """The entry of a model; None where no load of it is wanted."""
        return self._entries.get(model)

    @property
    def waiting(self) -> int:
        """Requests that wait, for whichever model."""
        return len(self._waiters)

    def has_waiter(self, waiter: Waiter) -> bool:
        """Whether this request waits in some entry."""
        return waiter in self._waiters

    def join(self, model: str, now: float) -> Entry:
        """The model's entry, a new one at the end where it has none."""
        return self._entries.setdefault(model, Entry(model, now))

    def add_lease(self, model: str, waiter: Waiter, now: float) -> Entry:
        """Have a request wait for a lease on the model; its entry."""
        entry = self.join(model, now)
        entry.leases[waiter] = now
        self._waiters[waiter] = model
        return entry

    def add_load(self, model: str, waiter: Waiter, now: float) -> Entry:
        """Have a request wait for the model to be loaded; its entry."""
        entry = self.join(model, now)
        entry.loads[waiter] = now
        entry.detached = True
        self._waiters[waiter] = model
        return entry

    def remove(self, model: str) -> Entry | None:
        """Take an entry out with all its waiters; it is the caller's to answer them."""
        entry = self._entries.pop(model, None)
        if entry is not None:
            for waiter in entry.waiters:
                self._waiters.pop(waiter, None)
            self._on_remove()
        return entry

    def pop_leases(self, entry: Entry) -> list[Waiter]:
        """The requests that want a lease leave the entry, to be granted."""
        waiters = list(entry.leases)
        entry.leases.clear()
        for waiter in waiters:
            self._waiters.pop(waiter, None)
        return waiters

    def remove_waiter(self, waiter: Waiter) -> Entry | None:
        """The entry that the waiter has left; None where it was in none."""
        model = self._waiters.pop(waiter, None)
        entry = self._entries.get(model) if model is not None else None
        if entry is not None:
            entry.leases.pop(waiter, None)
            entry.loads.pop(waiter, None)
        return entry

    def list_waiters_of(self, holder: Holder) -> list[Waiter]:
        """All that wait on this connection."""
        return [waiter for waiter in self._waiters if waiter[0] == holder]


@dataclass
class MeasureQueue:
    """Names in order, and the one child that runs."""

    pending: dict[str, None] = field(default_factory=dict)
    current: str = ""
    dropped: bool = False
    """The child that runs measures what nobody wants to know any more."""
    reported: bool = False
    untried: set[str] = field(default_factory=set)
    """Those whose child was not let run: measured when a load waits for them."""
    waiters: dict[Waiter, str] = field(default_factory=dict)

    def add(self, model: str, first: bool = False) -> None:
        """Queue a model, once; `first` moves it to the front."""
        if first:
            self.pending = {model: None, **{name: None for name in self.pending if name != model}}
        else:
            self.pending.setdefault(model, None)

    def remove(self, model: str) -> None:
        """It need not be measured now; nothing happens where it was not queued."""
        self.pending.pop(model, None)

    def is_current(self, model: str) -> bool:
        """Whether the child that runs measures this model, and as it is configured now."""
        return self.current == model and not self.dropped

    def pop_waiters(self, model: str) -> list[Waiter]:
        """Those who asked for this model's measurement; they wait no longer."""
        taken = [waiter for waiter, name in self.waiters.items() if name == model]
        for waiter in taken:
            del self.waiters[waiter]
        return taken
