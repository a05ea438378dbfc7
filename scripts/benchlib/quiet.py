"""Was the machine ours while we measured? Processor time of others spoils a figure more than it seems: workers that
wait for each other at every layer all wait for the one that was preempted.

Neighbours that are wanted are children of this process, and no others.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchlib.processes import stop_process

QUIET_SHARE = 0.03
"""What others may have used of all processors."""

_HZ = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def run_neighbours(count: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    with contextlib.ExitStack() as running:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            running.callback(stop_process, process)
        yield


class OthersWatch:
    """From its creation on: what did processes other than these, this one and its children use?"""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids = {os.getpid(), *pids, *acquire_children()}
        self._begin_s = time.monotonic()
        self._others_s = self._acquire_others_s()

    def compute_share(self) -> float:
        """Of the time of all processors, 0 to 1. Ticks are 10 ms: short measurements are judged roughly."""
        elapsed_s = (time.monotonic() - self._begin_s) * (os.cpu_count() or 1)
        return max(0.0, self._acquire_others_s() - self._others_s) / elapsed_s

    def _acquire_others_s(self) -> float:
        user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        )
        busy = user + nice + system + irq + softirq + steal
        return (busy - sum(_acquire_ticks(pid) for pid in self.pids)) / _HZ


def acquire_children() -> list[int]:
    """Process IDs, of this process's."""
    return [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]


def _acquire_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
