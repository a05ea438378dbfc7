"""Is the instance in use, and does it take new requests?

Requests are counted from their first byte to the last of their answer. The event loop alone reads and writes this, so
an order to stop that finds no request and a request that finds no order cannot both be right.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Activity:
    """Requests in flight or waiting, and whether new ones are refused."""

    n_busy: int = 0
    is_refusing: bool = False
    is_asleep: bool = False
    on_idle: Callable[[], None] = lambda: None
    """Called when the last request has ended."""

    def begin(self) -> None:
        """A request has come that is not refused."""
        self.n_busy += 1

    def end(self) -> None:
        """Its answer is over."""
        self.n_busy -= 1
        if not self.n_busy:
            self.on_idle()

    def describe(self) -> str:
        """Why new requests are refused."""
        return "asleep" if self.is_asleep else "stopping"
