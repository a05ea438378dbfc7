"""What is a lease, and what becomes of a request that asks for one?"""

from dataclasses import dataclass
from typing import Protocol

from llamactl.errors import LlamactlError
from llamactl.protocol.control_socket import LeaseGrant


class Waiter(Protocol):
    """A request that needs a lease. It is told once, unless it leaves before."""

    def on_lease(self, lease: "Lease") -> None:
        """The request is counted on `lease`."""

    def on_refusal(self, error: LlamactlError) -> None:
        """There will be no lease."""


class Lease:
    """Leave to send requests to one instance. `gone`: given back; what runs may end, nothing new may begin."""

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


@dataclass(frozen=True)
class Granted:
    waiter: Waiter
    lease: Lease


@dataclass(frozen=True)
class Refused:
    waiter: Waiter
    error: LlamactlError


Outcome = Granted | Refused
