"""Who carries out what the table of leases says? It decides; here are its messages, its time and its waiters.

Messages leave with the turn that caused them, in one write. Two timers: one for idle models, which are told of a
little later, and one for those who wait for a supervisor that is not there.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic

from llamactl.errors import LlamactlError
from llamactl.front.control import Control
from llamactl.front.lease import Asked, Granted, Lease, Outcome, Waiter
from llamactl.front.leases import IDLE_DELAY_S, LeaseMessage, LeaseTable
from llamactl.protocol.control_socket import Progress


class LeaseDriver:
    """The table at work. Implements `ports.Leasing`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, control: Control) -> None:
        self.table = LeaseTable(control.ids)
        self._loop = loop
        self._control = control
        self._idle_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        for timer in (self._idle_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()

    # --- for requests: see ports.Leasing ---

    @property
    def connected(self) -> bool:
        return self.table.queue.connected

    def acquire_warm(self, waiter: Waiter, name: str, passive: bool) -> Lease | None:
        lease = self.table.acquire_warm(waiter, name, passive, monotonic())
        if self.table.outbox:
            self.flush()
        return lease

    def acquire(self, waiter: Waiter, asked: Asked) -> Lease | None:
        try:
            lease = self.table.acquire(waiter, asked, monotonic())
        except LlamactlError as error:
            waiter.on_refusal(error)
            lease = None
        if self.table.outbox:
            self.flush()
        if lease is None and not self.table.queue.connected:
            self._arm_deadline()
        return lease

    def release(
        self, lease: Lease, passive: bool, waiter: Waiter | None = None, keep_alive_s: float | None = None
    ) -> None:
        outcomes = self.table.release(lease, monotonic(), passive, waiter, keep_alive_s)
        if self.table.outbox:
            self.flush()
        if outcomes:
            self._apply(outcomes)
        if self._idle_timer is None and self.table.idle:
            self._idle_timer = self._loop.call_later(IDLE_DELAY_S, self._flush_idle)

    def leave(self, waiter: Waiter) -> None:
        self.table.queue.leave(waiter)
        self.flush()

    def find_progress(self, waiter: Waiter) -> Progress | None:
        return self.table.queue.find_progress(waiter)

    # --- for what the supervisor says ---

    def handle_connected(self) -> None:
        self.table.handle_connected()
        self.flush()

    def handle_lost(self) -> None:
        self._apply(self.table.handle_lost(monotonic()))
        self._arm_deadline()

    def handle(self, message: LeaseMessage) -> None:
        self._apply(self.table.handle(message, monotonic()))

    def flush(self) -> None:
        """Send what the table has to say."""
        outbox = self.table.outbox
        if outbox:
            messages = outbox.copy()
            outbox.clear()
            self._control.send(messages)

    # --- inside ---

    def _flush_idle(self) -> None:
        self._idle_timer = None
        self.table.flush_idle()
        self.flush()

    def _apply(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Granted):
                outcome.waiter.on_lease(outcome.lease)
            else:
                outcome.waiter.on_refusal(outcome.error)

    def _arm_deadline(self) -> None:
        if self._deadline_timer is None:
            deadline_s = self.table.queue.next_deadline_s()
            if deadline_s is not None:
                delay_s = max(0.0, deadline_s - monotonic())
                self._deadline_timer = self._loop.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._deadline_timer = None
        self._apply(self.table.queue.expire(monotonic()))
        self._arm_deadline()
