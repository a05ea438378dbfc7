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

from llamactl.errors import LlamactlError
from llamactl.front.lease import Asked, Granted, Lease, Outcome, Refused, Waiter
from llamactl.front.lease_queue import LeaseQueue
from llamactl.protocol.control_socket import (
    BusyNotice,
    ClientMessage,
    Failure,
    HeldLease,
    IdleNotice,
    LeaseGone,
    LeaseGrant,
    Recall,
    RecallAnswer,
    RecallCancelled,
)
from llamactl.protocol.failures import parse_failure

IDLE_DELAY_S = 0.02
SINCE_INTERVAL_S = 1.0
"""How often a supervisor is told that another request is a lease's oldest."""

LeaseMessage = LeaseGrant | Failure | Recall | RecallCancelled | LeaseGone
"""What the supervisor says of leases."""


class LeaseTable:
    """All leases of this front, and the queue of those who wait for one."""

    def __init__(self, ids: Iterator[int]) -> None:
        self.outbox: list[ClientMessage] = []
        self.queue = LeaseQueue(ids, self.outbox)
        self._leases: dict[str, Lease] = {}
        self._aliases: dict[str, Lease] = {}
        self.idle: list[Lease] = []
        """What flush_idle is to tell of, IDLE_DELAY_S from now."""

    # --- requests ---

    def acquire(self, waiter: Waiter, asked: Asked, now_s: float) -> Lease | None:
        """The lease, with this request counted on it; None: wait for an Outcome. Raises LlamactlError (queue_full)."""
        lease = self._leases.get(asked.name) or self._aliases.get(asked.name)
        if lease is None:
            self.queue.add(waiter, asked, now_s)
            return None
        if asked.stale == lease.generation:
            self._remove(lease, now_s)
            self.queue.add(waiter, asked, now_s)
            return None
        if lease.draining:
            self.queue.hold_back(waiter, asked, lease)
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
            if not lease.told_busy and self.queue.connected:
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
        if self.queue.connected:
            if lease.wanted:
                self._tell_idle(lease)
            elif lease.told_busy and lease not in self.idle:
                self.idle.append(lease)
        return []

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
        self.queue.handle_connected()
        for lease in self.leases():
            busy = lease.in_flight > 0
            if busy and not lease.told_busy:
                lease.told_busy = True
                self._tell_busy(lease, self.queue.lost_s)
            elif lease.told_busy and not busy:
                self._tell_idle(lease)
        self.queue.ask_all()

    def handle_lost(self, now_s: float) -> list[Outcome]:
        """No supervisor: the leases are kept, recalls are void, requests wait on."""
        self.queue.handle_lost(now_s)
        self.outbox.clear()
        self.idle.clear()
        outcomes: list[Outcome] = []
        for lease in self.leases():
            lease.wanted = False
            outcomes += self._end_drain(lease, now_s)
        return outcomes

    # --- time ---

    def flush_idle(self) -> None:
        """Tell of the models that went idle and stayed so."""
        idle, self.idle = self.idle, []
        for lease in idle:
            if not lease.in_flight and not lease.gone and lease.told_busy:
                self._tell_idle(lease)

    # --- facts ---

    def leases(self) -> list[Lease]:
        """All leases that are held now."""
        return list(self._leases.values())

    # --- inside ---

    def _find(self, model: str, generation: str) -> Lease | None:
        lease = self._leases.get(model)
        return lease if lease is not None and lease.generation == generation else None

    def _count(self, lease: Lease, waiters: Iterable[Waiter], passive: bool, now_s: float) -> None:
        for waiter in waiters:
            lease.in_flight += 1
            if not passive:
                lease.started[waiter] = now_s
        if not passive and not lease.told_busy and self.queue.connected:
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
        if was_oldest and started and lease.told_busy and not lease.gone and self.queue.connected:
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

    def _handle_grant(self, grant: LeaseGrant, now_s: float) -> list[Outcome]:
        pending = self.queue.pop_pending(grant.id)
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
        if not lease.in_flight:
            self._tell_idle(lease)  # all who asked have left meanwhile
        return [Granted(waiter, lease) for waiter in waiters]

    def _handle_failure(self, failure: Failure) -> list[Outcome]:
        pending = self.queue.pop_pending(failure.id)
        if pending is None:
            return []
        error = parse_failure(failure)
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
        # A drain may end here while the supervisor calls it off and grants again: the recall's id tells it that this is
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
        outcomes: list[Outcome] = []
        for waiter, asked in self.queue.pop_held_back(lease).items():
            try:
                again = self.acquire(waiter, asked, now_s)
            except LlamactlError as error:
                outcomes.append(Refused(waiter, error))
                continue
            if again is not None:
                outcomes.append(Granted(waiter, again))
        return outcomes
