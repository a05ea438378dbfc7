"""Whose report was being handled when a supervisor died?

A report that hangs or kills the process that judges it is repeated to the next one. So whose report is in hand stands
in a small file beside the sockets while it is handled, and only then: what a supervisor finds there at its start is
what its predecessor died with. Once may be chance (somebody killed it in that moment); a child with whose report two
in a row have died is not heard again. Measure children are known by their unit, whichever start of it. Without that
file (no space, no right to write) everything works, and nothing is remembered.
"""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from llamactl.names import Role, parse_unit

SIZE = 1024
MAX_DEATHS = 2
"""Supervisors that died with reports of the same child, one after the other."""


@dataclass(frozen=True)
class Suspect:
    """A start of a unit, and how many supervisors in a row have died while they handled what it reported."""

    unit: str
    generation: str
    deaths: int

    def is_same(self, unit: str, generation: str) -> bool:
        """Whether this is the child in question."""
        role = parse_unit(unit)
        any_start = role is not None and role[0] is Role.MEASURE
        return self.unit == unit and (any_start or self.generation == generation)


class Suspects:
    """The file, mapped: to note a report costs a microsecond."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self._found: Suspect | None = None
        """What a predecessor left."""

    def open(self) -> None:
        """Read what a predecessor left, and take the file over. Raises OSError: nothing will be remembered."""
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Not a hole: writing to one when there is no space left is a SIGBUS.
            os.posix_fallocate(descriptor, 0, SIZE)
            self._map = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        self._found = parse_suspect(self._map[:])

    def is_guilty(self, unit: str, generation: str) -> bool:
        """Whether this child is not to be heard."""
        found = self._found
        return found is not None and found.deaths >= MAX_DEATHS and found.is_same(unit, generation)

    def begin(self, unit: str, generation: str) -> None:
        """This child's report is in hand from now on."""
        if self._map is None:
            return
        found = self._found
        deaths = found.deaths if found is not None and found.is_same(unit, generation) else 0
        text = format_suspect(Suspect(unit, generation, deaths + 1))
        self._map[: len(text)] = text

    def end(self) -> None:
        """It is handled."""
        if self._map is not None:
            self._map[0] = 0
        self._found = None if self._found is not None and self._found.deaths < MAX_DEATHS else self._found


def format_suspect(suspect: Suspect) -> bytes:
    """As the file has it: fields between zeros, and at most SIZE of it."""
    return b"\0".join((str(suspect.deaths).encode(), suspect.unit.encode(), suspect.generation.encode(), b""))[:SIZE]


def parse_suspect(content: bytes) -> Suspect | None:
    """None where no report was in hand, or the file says nothing that can be understood."""
    fields = content.split(b"\0")
    if len(fields) < 4 or not fields[0].isdigit():
        return None
    return Suspect(fields[1].decode(errors="replace"), fields[2].decode(errors="replace"), int(fields[0][:9]))
