"""How many connections may be open on a socket of the supervisor's, and how much may they have begun to say?

Pure. Descriptors and memory are the supervisor's, and whoever connects takes of both before it has said anything. So a
unit may have so many connections, and all of them together so many bytes of lines that are not complete; beyond, the
connection that holds most of these goes. A unit is known by the kernel: one that floods the socket shuts out nobody
but itself.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

MAX_CONNECTIONS = 2048
"""Far below the descriptors that the supervisor may have."""
MAX_UNFINISHED_BYTES = 16 << 20

C = TypeVar("C", bound=Hashable)


class ConnectionLimits(Generic[C]):
    """The connections of one socket."""

    def __init__(
        self, per_unit: int, at_all: int = MAX_CONNECTIONS, max_unfinished_bytes: int = MAX_UNFINISHED_BYTES
    ) -> None:
        self._per_unit = per_unit
        self._at_all = at_all
        self._max_unfinished_bytes = max_unfinished_bytes
        self._units: dict[C, str] = {}
        self._counts: Counter[str] = Counter()
        self._unfinished: dict[C, int] = {}
        self._sum_bytes = 0

    def admit(self, connection: C, unit: str) -> str:
        """Count a new connection of a unit. Why there may be no more of it; empty: it may stay."""
        self._units[connection] = unit
        self._counts[unit] += 1
        if self._counts[unit] > self._per_unit:
            return f"too many connections: {unit or 'processes in no unit'} may have {self._per_unit}"
        return f"too many connections: there may be {self._at_all}" if len(self._units) > self._at_all else ""

    def forget(self, connection: C) -> None:
        """It has ended."""
        unit = self._units.pop(connection, None)
        if unit is not None:
            self._counts[unit] -= 1
            if not self._counts[unit]:
                del self._counts[unit]
        self._sum_bytes -= self._unfinished.pop(connection, 0)

    def note_unfinished(self, connection: C, size: int) -> C | None:
        """So many bytes of a line have come. Which connection has to go, where all of them together are too many."""
        self._sum_bytes += size - self._unfinished.get(connection, 0)
        self._unfinished[connection] = size
        if self._sum_bytes <= self._max_unfinished_bytes:
            return None
        return max(self._unfinished, key=self._unfinished.__getitem__)
