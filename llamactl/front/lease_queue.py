"""Which requests wait for a lease, and for what does each one wait?

For the supervisor's answer, with all others that have asked the same: they share one question, so that how many may
wait is decided here. Or behind a lease that is being drained, until that is over. Without a supervisor the questions
stay; they are sent when it is back, or refused after CONTROL_WAIT_S.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from llamactl.front import refusals
from llamactl.front.lease import Asked, Lease, Refused, Waiter
from llamactl.protocol.control_socket import CancelRequest, ClientMessage, LeaseRequest, Progress

CONTROL_WAIT_S = 10.0
"""How long a request that needs a lease waits for the supervisor to come back."""


@dataclass
class Pending:
    """One LeaseRequest and all who wait for it. `id` 0: not sent, there is no supervisor."""

    asked: Asked
    id: int = 0
    waiters: dict[Waiter, float] = field(default_factory=dict)
    """Who waits, and since when."""
    progress: Progress | None = None
    """What the supervisor said last."""


class LeaseQueue:
    """All requests that wait. What there is to say to the supervisor goes to `outbox`."""

    def __init__(self, ids: Iterator[int], outbox: list[ClientMessage]) -> None:
        self.connected = False
        """Whether there is a supervisor to ask."""
        self.lost_s = 0.0
        """Since when there is none."""
        self.max_queue = self.max_queue_total = 0
        """Requests that may wait for one model, and in all; 0: any number."""
        self._ids = ids
        self._outbox = outbox
        self._pending: dict[Asked, Pending] = {}
        self._sent: dict[int, Pending] = {}
        self._places: dict[Waiter, Pending | Lease] = {}

    # --- coming and going ---

    def add(self, waiter: Waiter, asked: Asked, now_s: float) -> None:
        """Wait for the supervisor's answer. Raises LlamactlError (queue_full)."""
        self._check_room(asked)
        pending = self._pending.get(asked)
        if pending is None:
            pending = self._pending[asked] = Pending(asked)
            if self.connected:
                self._send(pending)
        pending.waiters[waiter] = now_s
        self._places[waiter] = pending

    def hold_back(self, waiter: Waiter, asked: Asked, lease: Lease) -> None:
        """Wait until `lease` is drained, or no longer to be. Raises LlamactlError (queue_full)."""
        self._check_room(asked, lease)
        lease.held_back[waiter] = asked
        self._places[waiter] = lease

    def leave(self, waiter: Waiter) -> None:
        """The request is gone, whatever it waited for, if it did."""
        place = self._places.pop(waiter, None)
        if isinstance(place, Lease):
            del place.held_back[waiter]
        elif place is not None:
            del place.waiters[waiter]
            if not place.waiters:
                self._pending.pop(place.asked, None)
                if place.id and self.connected:
                    self._outbox.append(CancelRequest(id=place.id))

    def pop_held_back(self, lease: Lease) -> dict[Waiter, Asked]:
        """Those who wait behind `lease`, in order: they wait no longer."""
        held_back, lease.held_back = lease.held_back, {}
        for waiter in held_back:
            del self._places[waiter]
        return held_back

    def pop_pending(self, request_id: int) -> Pending | None:
        """The question that was answered, with its waiters: they wait no longer. None: nobody waits for this."""
        pending = self._sent.pop(request_id, None)
        if pending is None:
            return None
        if self._pending.get(pending.asked) is pending:
            del self._pending[pending.asked]
        for waiter in pending.waiters:
            del self._places[waiter]
        return pending

    # --- the supervisor ---

    def handle_connected(self) -> None:
        self.connected = True

    def ask_all(self) -> None:
        """Send all questions: there is a supervisor again, which knows none of them."""
        for pending in self._pending.values():
            self._send(pending)

    def handle_lost(self, now_s: float) -> None:
        self.connected = False
        self.lost_s = now_s
        self._sent.clear()
        for pending in self._pending.values():
            pending.id = 0

    def note_progress(self, progress: Progress) -> None:
        """Note how far the load is for which a request waits."""
        pending = self._sent.get(progress.id)
        if pending is not None:
            pending.progress = progress

    # --- time ---

    def next_deadline_s(self) -> float | None:
        """When the next request has waited long enough for an absent supervisor; None: nobody waits, or it is there."""
        if self.connected:
            return None
        since = [since_s for pending in self._pending.values() for since_s in pending.waiters.values()]
        return max(min(since), self.lost_s) + CONTROL_WAIT_S if since else None

    def expire(self, now_s: float) -> list[Refused]:
        """Refuse those who have waited too long for a supervisor."""
        if self.connected:
            return []
        refused: list[Refused] = []
        for pending in list(self._pending.values()):
            for waiter, since_s in list(pending.waiters.items()):
                if max(since_s, self.lost_s) + CONTROL_WAIT_S <= now_s:
                    self.leave(waiter)
                    refused.append(Refused(waiter, refusals.make_no_supervisor(pending.asked.name, CONTROL_WAIT_S)))
        return refused

    # --- facts ---

    def __len__(self) -> int:
        return len(self._places)

    def find_progress(self, waiter: Waiter) -> Progress | None:
        """How far the model is that this request waits for, where anybody has said so."""
        place = self._places.get(waiter)
        return place.progress if isinstance(place, Pending) else None

    def count_by_name(self) -> dict[str, int]:
        """Requests that wait, by the name that they ask for."""
        waiting: dict[str, int] = {}
        for place in self._places.values():
            name = place.model if isinstance(place, Lease) else place.asked.name
            waiting[name] = waiting.get(name, 0) + 1
        return waiting

    # --- inside ---

    def _check_room(self, asked: Asked, lease: Lease | None = None) -> None:
        """Refuse one more who would wait."""
        if asked.passive:
            return
        waiting = len(lease.held_back) if lease is not None else 0
        waiting += sum(len(pending.waiters) for other, pending in self._pending.items() if other.name == asked.name)
        if self.max_queue and waiting >= self.max_queue:
            raise refusals.make_queue_full(asked.name, waiting, "max_queue")
        if self.max_queue_total and len(self._places) >= self.max_queue_total:
            raise refusals.make_queue_full(asked.name, len(self._places), "max_queue_total")

    def _send(self, pending: Pending) -> None:
        pending.id = next(self._ids)
        self._sent[pending.id] = pending
        asked = pending.asked
        self._outbox.append(
            LeaseRequest(
                id=pending.id,
                model=asked.name,
                autoload=asked.autoload,
                stale_generation=asked.stale,
                passive=asked.passive,
            )
        )
