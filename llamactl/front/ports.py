"""What does one part of the front need of another? The seams between them, so that each can be tested alone."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from llamactl.errors import LlamactlError
from llamactl.front.control import Reply
from llamactl.front.http.upstream import UpstreamPool
from llamactl.front.lease import Asked, Lease, Waiter
from llamactl.protocol.control_socket import ClientMessage, Progress
from llamactl.settings import FrontSettings


class Leasing(Protocol):
    """Where leave comes from to send requests to an instance."""

    @property
    def connected(self) -> bool:
        """Whether there is a supervisor to ask."""

    def acquire_warm(self, waiter: Waiter, name: str, passive: bool) -> Lease | None:
        """The lease, with this request counted on it, if it is here and can be had. None: nothing has been done."""

    def acquire(self, waiter: Waiter, asked: Asked) -> Lease | None:
        """The lease, with this request counted on it; None: the waiter is told, now or later."""

    def release(
        self, lease: Lease, passive: bool, waiter: Waiter | None = None, keep_alive_s: float | None = None
    ) -> None:
        """The request of `waiter` on this lease has ended."""

    def leave(self, waiter: Waiter) -> None:
        """A request that waited is gone."""

    def find_progress(self, waiter: Waiter) -> Progress | None:
        """How far the model is that this request waits for, where anybody has said so."""


class Questions(Protocol):
    """Where questions to the supervisor go."""

    @property
    def connected(self) -> bool: ...

    def ask(self, make: Callable[[int], ClientMessage], then: Callable[[Reply | LlamactlError], None]) -> int:
        """Ask a question; `then` gets the answer or the error. Returns what `forget` takes."""

    def forget(self, number: int) -> None:
        """Nobody wants the answer any more."""


class RelayHost(Protocol):
    """The process, for those who send requests to instances."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def log(self) -> Any: ...
    @property
    def settings(self) -> FrontSettings: ...
    @property
    def leasing(self) -> Leasing: ...
    @property
    def pool(self) -> UpstreamPool: ...

    def note_unknown(self, name: str) -> None:
        """The supervisor knows no model of this name: the default one stands in, without asking again."""
