"""Which models may we send requests to, and who waits for one? The front's half of the lease protocol, without I/O.

A lease counts a request from the moment it is granted, not from its first byte: between the two lies a connect, and a
lease that looked idle then would be given back under the request. So `acquire` counts at once, and a grant counts
every request that waited for it before anybody runs. Telling that a model went idle is put off for IDLE_DELAY_S, or a
client that asks again and again would cost two messages a request; once the supervisor has asked for the lease in
vain it is told at once. All requests for a model share one question to the supervisor, so that how many may wait is
decided here. Calls return what became of waiting requests; messages for the supervisor collect in
`outbox`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.protocol.control_socket import (
    BusyNotice,
    CancelRequest,
    ClientMessage,
    Failure,
    HeldLease,
    IdleNotice,
    LeaseGone,
    LeaseGrant,
    LeaseRequest,
    Progress,
    Recall,
    RecallAnswer,
    RecallCancelled,
)

IDLE_DELAY_S = 0.02
RETRY_AFTER_S = 5
SINCE_INTERVAL_S = 1.0
"""How often a supervisor is told that another request is a lease's oldest."""
CONTROL_WAIT_S = 10.0
"""How long a request that needs a lease waits for the supervisor to come back."""

LeaseMessage = LeaseGrant | Failure | Recall | RecallCancelled | LeaseGone
"""What the supervisor says of leases."""


class Waiter(Protocol):
    """A request that needs a lease. It is told once, unless it leaves before."""

    def on_lease(self, lease: "Lease") -> None:
        """The request is counted on `lease`."""

    def on_refusal(self, error: LlamactlError) -> None:
        """There will be no lease."""


class Lease:
    """Leave to send requests to one instance. `gone`: no more; what runs on it may end, nothing new may begin."""

    __slots__ = (
        "draining",
        "generation",
        "gone",
        "held_back",
        "in_flight",
        "keep_alive_s",
        "key",
        "last_used_s",
        "model",
        "recall",
        "socket",
        "started",
        "told_busy",
        "told_since_s",
        "wanted",
    )

    def __init__(self, grant: LeaseGrant) -> None:
        self.model = grant.model
        self.generation = grant.generation
        self.socket = grant.socket
        self.key = f"{grant.model} {grant.generation}"
        """Names the instance among connections."""
        self.in_flight = 0
        self.started: dict[Waiter, float] = {}
        """Requests in flight that are a use of the model, oldest first, and when each began."""
        self.told_since_s = 0.0
        """When the supervisor was last told of the oldest."""
        self.keep_alive_s: float | None = None
        """What a request has asked for since the supervisor was last told."""
        self.last_used_s = 0.0
        self.told_busy = True
        self.wanted = False
        """A recall was answered with "busy": the supervisor waits for this model to go idle."""
        self.recall = 0
        """The last Recall of this lease."""
        self.draining = False
        self.held_back: dict[Waiter, Asked] = {}
        self.gone = False

    def find_oldest_s(self) -> float:
        """Start of the oldest request in flight; 0 where there is none."""
        return next(iter(self.started.values()), 0.0)


@dataclass(frozen=True)
class Asked:
    """What one request needs: a lease on `name`, not of `stale` generation."""

    name: str
    autoload: bool = True
    stale: str = ""
    passive: bool = False
    """It is no use of the model, and is not told as one; it never loads it."""


@dataclass
class Pending:
    """One LeaseRequest and all who wait for it. `id` 0: not sent, there is no supervisor."""

    asked: Asked
    id: int = 0
    waiters: dict[Waiter, float] = field(default_factory=dict)
    """Who waits, and since when."""
    progress: Progress | None = None
    """What the supervisor said last."""


@dataclass(frozen=True)
class Granted:
    waiter: Waiter
    lease: Lease


@dataclass(frozen=True)
class Refused:
    waiter: Waiter
    error: LlamactlError


Outcome = Granted | Refused


class LeaseTable:
    """All leases of this front, and all requests that wait for one."""

    def __init__(self, ids: Iterator[int]) -> None:
        self.outbox: list[ClientMessage] = []
        self._ids = ids
        self._connected = False
        self._lost_s = 0.0
        self._leases: dict[str, Lease] = {}
        self._aliases: dict[str, Lease] = {}
        self._pending: dict[Asked, Pending] = {}
        self._sent: dict[int, Pending] = {}
        self._places: dict[Waiter, Pending | Lease] = {}
        self.idle: list[Lease] = []
        """What flush_idle is to tell of, IDLE_DELAY_S from now."""
        self.max_queue = self.max_queue_total = 0
        """Requests that may wait for one model, and in all; 0: any number."""

    # --- requests ---

    def acquire(self, waiter: Waiter, asked: Asked, now_s: float) -> Lease | None:
        """The lease, with this request counted on it; None: wait for an Outcome. Raises LlamactlError (queue_full)."""
        lease = self._leases.get(asked.name) or self._aliases.get(asked.name)
        if lease is None:
            self._enqueue(waiter, asked, now_s)
            return None
        if asked.stale == lease.generation:
            self._remove(lease, now_s)
            self._enqueue(waiter, asked, now_s)
            return None
        if lease.draining:
            self._check_room(asked, lease)
            lease.held_back[waiter] = asked
            self._places[waiter] = lease
            return None
        self._count(lease, (waiter,), asked.passive, now_s)
        return lease

    def acquire_warm(self, waiter: Waiter, name: str, passive: bool, now_s: float) -> Lease | None:
        """As acquire, for the usual case: the lease is here, whatever its generation. None: nothing has been done."""
        lease = self._leases.get(name) or self._aliases.get(name)
        if lease is None or lease.draining:
            return None
        lease.in_flight += 1
        if not passive:
            lease.started[waiter] = now_s
            if not lease.told_busy and self._connected:
                self._tell_busy(lease, now_s)
        return lease

    def release(
        self,
        lease: Lease,
        now_s: float,
        passive: bool = False,
        waiter: Waiter | None = None,
        keep_alive_s: float | None = None,
    ) -> list[Outcome]:
        """The request of `waiter` on this lease has ended. `passive`: as in what it asked."""
        lease.in_flight -= 1
        if not passive:
            lease.last_used_s = now_s
            if keep_alive_s is not None:
                lease.keep_alive_s = keep_alive_s
        if waiter is not None:
            self._end_request(lease, waiter, now_s)
        if lease.in_flight or lease.gone:
            return []
        if lease.draining:
            return self._give_back(lease, now_s)
        if self._connected:
            if lease.wanted:
                self._tell_idle(lease)
            elif lease.told_busy and lease not in self.idle:
                self.idle.append(lease)
        return []

    def leave(self, waiter: Waiter) -> None:
        """A request that waited is gone."""
        place = self._places.pop(waiter, None)
        if isinstance(place, Lease):
            del place.held_back[waiter]
        elif place is not None:
            del place.waiters[waiter]
            if not place.waiters:
                self._pending.pop(place.asked, None)
                if place.id and self._connected:
                    self.outbox.append(CancelRequest(id=place.id))

    # --- what the supervisor says ---

    def handle(self, message: LeaseMessage, now_s: float) -> list[Outcome]:
        match message:
            case LeaseGrant():
                return self._handle_grant(message, now_s)
            case Failure():
                return self._handle_failure(message)
            case Recall():
                return self._handle_recall(message, now_s)
            case RecallCancelled():
                lease = self._find(message.model, message.generation)
                return self._end_drain(lease, now_s) if lease else []
            case LeaseGone():
                lease = self._find(message.model, message.generation)
                return self._remove(lease, now_s) if lease else []

    def note_progress(self, progress: Progress) -> None:
        pending = self._sent.get(progress.id)
        if pending is not None:
            pending.progress = progress

    def find_progress(self, waiter: Waiter) -> Progress | None:
        """How far the model is that this request waits for, where anybody has said so."""
        place = self._places.get(waiter)
        return place.progress if isinstance(place, Pending) else None

    def forget_aliases(self) -> None:
        """The configuration has changed: other names than a model's own may mean another model now."""
        self._aliases.clear()

    # --- the connection to the supervisor ---

    def announce(self) -> tuple[HeldLease, ...]:
        """All leases, as the greeting of a new connection tells them."""
        held = []
        for lease in self.leases():
            lease.told_busy = lease.in_flight > 0
            held.append(
                HeldLease(
                    model=lease.model,
                    generation=lease.generation,
                    busy=lease.told_busy,
                    last_used_s=lease.last_used_s,
                    since_s=lease.find_oldest_s(),
                )
            )
        return tuple(held)

    def handle_connected(self) -> None:
        """The supervisor has answered the greeting: what changed meanwhile is told, and who waited is asked for."""
        self._connected = True
        for lease in self.leases():
            busy = lease.in_flight > 0
            if busy and not lease.told_busy:
                lease.told_busy = True
                self._tell_busy(lease, self._lost_s)
            elif lease.told_busy and not busy:
                self._tell_idle(lease)
        for pending in self._pending.values():
            self._send(pending)

    def handle_lost(self, now_s: float) -> list[Outcome]:
        """No supervisor: the leases are kept, recalls are void, requests wait on."""
        self._connected = False
        self._lost_s = now_s
        self.outbox.clear()
        self.idle.clear()
        self._sent.clear()
        for pending in self._pending.values():
            pending.id = 0
        outcomes: list[Outcome] = []
        for lease in self.leases():
            lease.wanted = False
            outcomes += self._end_drain(lease, now_s)
        return outcomes

    # --- time ---

    def next_deadline_s(self) -> float | None:
        """When the next request has waited long enough for an absent supervisor; None: nobody waits, or it is there."""
        if self._connected:
            return None
        since = [since_s for pending in self._pending.values() for since_s in pending.waiters.values()]
        return max(min(since), self._lost_s) + CONTROL_WAIT_S if since else None

    def expire(self, now_s: float) -> list[Outcome]:
        """Refuse those who have waited too long for a supervisor."""
        if self._connected:
            return []
        outcomes: list[Outcome] = []
        for pending in list(self._pending.values()):
            for waiter, since_s in list(pending.waiters.items()):
                if max(since_s, self._lost_s) + CONTROL_WAIT_S <= now_s:
                    self.leave(waiter)
                    outcomes.append(Refused(waiter, _format_no_supervisor(pending.asked.name)))
        return outcomes

    def flush_idle(self) -> None:
        """Tell of the models that went idle and stayed so."""
        idle, self.idle = self.idle, []
        for lease in idle:
            if not lease.in_flight and not lease.gone and lease.told_busy:
                self._tell_idle(lease)

    # --- facts ---

    def leases(self) -> list[Lease]:
        return list(self._leases.values())

    @property
    def connected(self) -> bool:
        return self._connected

    def count_waiting(self) -> dict[str, int]:
        """Requests that wait for a lease, by the name that they ask for."""
        waiting: dict[str, int] = {}
        for place in self._places.values():
            name = place.model if isinstance(place, Lease) else place.asked.name
            waiting[name] = waiting.get(name, 0) + 1
        return waiting

    @property
    def waiting(self) -> int:
        """Requests that wait for a lease."""
        return len(self._places)

    # --- inside ---

    def _find(self, model: str, generation: str) -> Lease | None:
        lease = self._leases.get(model)
        return lease if lease is not None and lease.generation == generation else None

    def _count(self, lease: Lease, waiters: Iterable[Waiter], passive: bool, now_s: float) -> None:
        for waiter in waiters:
            lease.in_flight += 1
            if not passive:
                lease.started[waiter] = now_s
        if not passive and not lease.told_busy and self._connected:
            self._tell_busy(lease, now_s)

    def _end_request(self, lease: Lease, waiter: Waiter, now_s: float) -> None:
        """Who is drained for others is decided by how long its oldest request has run: that may be another one now."""
        started = lease.started
        if waiter not in started:
            return
        if now_s - lease.told_since_s < SINCE_INTERVAL_S:
            del started[waiter]
            return
        was_oldest = next(iter(started)) == waiter
        del started[waiter]
        if was_oldest and started and lease.told_busy and not lease.gone and self._connected:
            self._tell_busy(lease, now_s)

    def _tell_busy(self, lease: Lease, now_s: float) -> None:
        lease.told_busy, lease.told_since_s = True, now_s
        since_s = lease.find_oldest_s()
        self.outbox.append(BusyNotice(model=lease.model, generation=lease.generation, since_s=since_s))

    def _tell_idle(self, lease: Lease) -> None:
        lease.told_busy = lease.wanted = False
        notice = IdleNotice(
            model=lease.model,
            generation=lease.generation,
            last_used_s=lease.last_used_s,
            keep_alive_s=lease.keep_alive_s,
        )
        lease.keep_alive_s = None
        self.outbox.append(notice)

    def _check_room(self, asked: Asked, lease: Lease | None = None) -> None:
        """Refuse one more who would wait."""
        if asked.passive:
            return
        waiting = len(lease.held_back) if lease is not None else 0
        waiting += sum(len(pending.waiters) for other, pending in self._pending.items() if other.name == asked.name)
        if self.max_queue and waiting >= self.max_queue:
            raise _make_queue_full(asked.name, waiting, "max_queue")
        if self.max_queue_total and len(self._places) >= self.max_queue_total:
            raise _make_queue_full(asked.name, len(self._places), "max_queue_total")

    def _enqueue(self, waiter: Waiter, asked: Asked, now_s: float) -> None:
        self._check_room(asked)
        pending = self._pending.get(asked)
        if pending is None:
            pending = self._pending[asked] = Pending(asked)
            if self._connected:
                self._send(pending)
        pending.waiters[waiter] = now_s
        self._places[waiter] = pending

    def _send(self, pending: Pending) -> None:
        pending.id = next(self._ids)
        self._sent[pending.id] = pending
        asked = pending.asked
        self.outbox.append(
            LeaseRequest(
                id=pending.id,
                model=asked.name,
                autoload=asked.autoload,
                stale_generation=asked.stale,
                look=asked.passive,
            )
        )

    def _pop_pending(self, request_id: int) -> Pending | None:
        pending = self._sent.pop(request_id, None)
        if pending is not None and self._pending.get(pending.asked) is pending:
            del self._pending[pending.asked]
        return pending

    def _handle_grant(self, grant: LeaseGrant, now_s: float) -> list[Outcome]:
        pending = self._pop_pending(grant.id)
        lease = self._leases.get(grant.model)
        if lease is not None and lease.generation != grant.generation:
            self._remove(lease, now_s)
            lease = None
        if lease is None:
            lease = self._leases[grant.model] = Lease(grant)
        lease.told_busy = True
        waiters = pending.waiters if pending else {}
        if pending and pending.asked.name != grant.model:
            self._aliases[pending.asked.name] = lease
        self._count(lease, waiters, passive=False, now_s=now_s)
        for waiter in waiters:
            del self._places[waiter]
        if not lease.in_flight:
            self._tell_idle(lease)  # all who asked have left meanwhile
        return [Granted(waiter, lease) for waiter in waiters]

    def _handle_failure(self, failure: Failure) -> list[Outcome]:
        pending = self._pop_pending(failure.id)
        if pending is None:
            return []
        error = parse_failure(failure)
        for waiter in pending.waiters:
            del self._places[waiter]
        return [Refused(waiter, error) for waiter in pending.waiters]

    def _handle_recall(self, recall: Recall, now_s: float) -> list[Outcome]:
        lease = self._find(recall.model, recall.generation)
        if lease is None:
            self.outbox.append(
                RecallAnswer(model=recall.model, generation=recall.generation, returned=True, recall=recall.id)
            )
            return []
        lease.recall = recall.id
        if not lease.in_flight:
            return self._give_back(lease, now_s)
        lease.wanted = True
        lease.draining = lease.draining or recall.drain
        self._answer_recall(lease, returned=False)
        return []

    def _answer_recall(self, lease: Lease, returned: bool) -> None:
        answer = RecallAnswer(
            model=lease.model,
            generation=lease.generation,
            returned=returned,
            last_used_s=lease.last_used_s,
            recall=lease.recall,
            since_s=0.0 if returned else lease.find_oldest_s(),
        )
        self.outbox.append(answer)

    def _give_back(self, lease: Lease, now_s: float) -> list[Outcome]:
        # A drain may end here while the supervisor calls it off and grants anew: the recall's id tells it that this is
        # about the lease from before.
        self._answer_recall(lease, returned=True)
        return self._remove(lease, now_s)

    def _end_drain(self, lease: Lease, now_s: float) -> list[Outcome]:
        lease.draining = False
        return self._release_held_back(lease, now_s)

    def _remove(self, lease: Lease, now_s: float) -> list[Outcome]:
        """Take a lease out of the table. Who was held back on it waits for the next one: nothing is granted here."""
        lease.gone = True
        del self._leases[lease.model]
        self._aliases = {alias: other for alias, other in self._aliases.items() if other is not lease}
        return self._release_held_back(lease, now_s)

    def _release_held_back(self, lease: Lease, now_s: float) -> list[Outcome]:
        held_back, lease.held_back = lease.held_back, {}
        outcomes: list[Outcome] = []
        for waiter, asked in held_back.items():
            del self._places[waiter]
            try:
                again = self.acquire(waiter, asked, now_s)
            except LlamactlError as error:
                outcomes.append(Refused(waiter, error))
                continue
            if again is not None:
                outcomes.append(Granted(waiter, again))
        return outcomes


def parse_failure(failure: Failure) -> LlamactlError:
    """The error that a Failure carries; a code that we do not know is an internal one."""
    try:
        code = ErrorCode(failure.code)
    except ValueError:
        code = ErrorCode.INTERNAL
    return LlamactlError(code, failure.message, hint=failure.hint, model=failure.model, details=failure.details)


def _make_queue_full(name: str, waiting: int, limit: str) -> LlamactlError:
    return LlamactlError(
        ErrorCode.QUEUE_FULL,
        f"cannot queue another request for '{name}': {waiting} are waiting already, `{limit}` is the limit",
        hint="try again later",
        model=name,
        details={"retry_after_s": RETRY_AFTER_S},
    )


def _format_no_supervisor(name: str) -> LlamactlError:
    return LlamactlError(
        ErrorCode.NO_SUPERVISOR,
        f"cannot reach the supervisor for '{name}': it has not answered for {CONTROL_WAIT_S:.0f} s",
        hint="`systemctl status llamactl` says more",
        model=name,
    )
