"""Which limits can this machine apply? Those whose control group controllers it has.

systemd takes a limit whose controller is not there (in a container, under cgroup v1), and applies nothing.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path

LIMITS = {"memory": "MemoryMax", "cpu": "CPUQuota", "cpuset": "AllowedCPUs", "pids": "TasksMax", "io": "IOWeight"}
"""The controllers that limits of units need, each with the best known of its limits."""


def acquire_controllers(root: Path = Path("/sys/fs/cgroup")) -> tuple[str, ...]:
    """The cgroup v2 controllers at the root of the hierarchy that this process sees; none where v1 holds them all."""
    for directory in (root, root / "unified"):  # the second one: systemd's hybrid layout
        with contextlib.suppress(OSError):
            return tuple((directory / "cgroup.controllers").read_text().split())
    return ()


def list_missing(controllers: Iterable[str]) -> list[str]:
    """Controllers of limits that are not there."""
    there = set(controllers)
    return [name for name in LIMITS if name not in there]


def describe_missing(controllers: Iterable[str]) -> str:
    """Which controllers are not there, and what that means; empty where all are."""
    missing = list_missing(controllers)
    if not missing:
        return ""
    limits = ", ".join(LIMITS[name] for name in missing)
    return f"no {', '.join(missing)} controller here; {limits} and their like are not applied"
