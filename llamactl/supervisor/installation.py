"""Are the files whole that children are started from, and are they those that this process was started from?

pip takes the old files away before it writes the new ones, and a list of them (RECORD) last of all. A child that is
started in between does not find its modules: so starts wait for that list, and a child that has died in that moment is
no failure of its model. Where nothing lists the files (a checkout, a distribution's package) the modules themselves
must do.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import llamactl

FIRST_S = 0.1
LONGEST_S = 1.0
PACKAGE = Path(llamactl.__file__).parent
MODULES = ("__init__.py", "instance/__main__.py", "instance/serve.py")
"""Of those without which no child runs."""
LIST = "llamactl_systemd-*.dist-info/RECORD"

Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Files:
    """What lies there at one moment."""

    stamp: Stamp
    """Other files have another one."""
    is_listed: bool
    has_modules: bool


def acquire_files(package: Path = PACKAGE) -> Files:
    """What lies there now."""
    found: list[tuple[str, int, int]] = []
    lists = sorted(package.parent.glob(LIST))
    for path in (*(package / name for name in MODULES), *lists):
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((str(path), status.st_ino, status.st_mtime_ns))
    n_lists = sum(name.endswith("RECORD") for name, _, _ in found)
    return Files(tuple(found), n_lists > 0, len(found) - n_lists == len(MODULES))


class Installation:
    """The files of this process's package, as they were when it was started."""

    def __init__(self, package: Path = PACKAGE) -> None:
        self._package = package
        self._first = acquire_files(package)

    @property
    def stamp(self) -> Stamp:
        """Of the files that are there now."""
        return acquire_files(self._package).stamp

    def is_whole(self) -> bool:
        """Whether a child would find what it needs."""
        now = acquire_files(self._package)
        return now.has_modules and (now.is_listed or not self._first.is_listed)

    def is_replaced(self) -> bool:
        """Whether others lie there than this process was started from."""
        return self.stamp != self._first.stamp

    async def wait_whole(self) -> None:
        """Wait until a child would find what it needs; nothing tells when, so it is looked again, ever more rarely."""
        delay_s = FIRST_S
        while not self.is_whole():
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_S)
