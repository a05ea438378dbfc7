"""How many threads should compute? As many as there are processor cores that this process may use at full speed.

As llama.cpp's own programs count: the threads of one core share its arithmetic units, and on processors with cores of
two kinds the slower kind would hold up the faster at every layer. Then what llama.cpp does not look at: the affinity,
and the quota of the control group (CPUQuota= of the unit, or of a container around it), beyond which threads would
only wait for each other's time slices.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_FAST_CPUS = Path("/sys/devices/cpu_core/cpus")
"""Of processors with two kinds of cores, as Linux lists the faster ones of Intel's."""
_CGROUPS = Path("/sys/fs/cgroup")


def count_compute_threads() -> int:
    """For this process, now."""
    allowed = os.sched_getaffinity(0)
    return choose_threads(allowed, {cpu: _read_core(cpu) for cpu in allowed}, _read_fast_cpus(), _read_quotas())


def choose_threads(
    allowed: Collection[int], cores: Mapping[int, str], fast: Collection[int], quotas: Iterable[float]
) -> int:
    """`cores`: of each CPU, the core that it is a thread of; empty or left out where nobody knows. `fast`: empty where
    all are alike. `quotas`: in CPUs.
    """
    cpus = [cpu for cpu in allowed if cpu in fast] or allowed
    n_cores = len({cores.get(cpu) or str(cpu) for cpu in cpus})
    return max(1, int(min((n_cores, *quotas))))


def parse_cpu_list(text: str) -> frozenset[int]:
    """The kernel's form, as in "0-3,8"; empty for anything else."""
    cpus: set[int] = set()
    try:
        for part in text.strip().split(","):
            first, dash, last = part.partition("-")
            cpus.update(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        return frozenset()
    return frozenset(cpus)


def parse_quota(text: str) -> float | None:
    """Of a `cpu.max`: "200000 100000" is 2.0 CPUs, "max 100000" is no limit."""
    quota, _, period = text.strip().partition(" ")
    try:
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None


# How a processor is built does not change; each context that is measured asks for it.


@cache
def _read_core(cpu: int) -> str:
    """Empty: unknown."""
    return _read(_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").strip()


@cache
def _read_fast_cpus() -> frozenset[int]:
    return parse_cpu_list(_read(_FAST_CPUS))


def _read_quotas() -> list[float]:
    """Of this process's control group and all above it."""
    own = next((line[3:] for line in _read(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")), "/")
    group = _CGROUPS / own.lstrip("/")
    levels = [group, *(parent for parent in group.parents if parent.is_relative_to(_CGROUPS))]
    quotas = [parse_quota(_read(level / "cpu.max")) for level in levels]
    return [quota for quota in quotas if quota is not None]


def _read(path: Path) -> str:
    """Empty where there is none: no guess depends on it."""
    try:
        return path.read_text()
    except OSError:
        return ""
