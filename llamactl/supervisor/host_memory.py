"""How much memory does the host have, and how much of it is free?

The kernel's MemAvailable counts what can be reclaimed, so a page cache full of model files does not look like
memory in use. A limit of the models' slice, where there is one, narrows both figures.
"""

from pathlib import Path

from llamactl.names import MODEL_SLICE

MEMINFO = Path("/proc/meminfo")
SLICE_CGROUP = Path("/sys/fs/cgroup/llamactl.slice") / MODEL_SLICE


def parse_meminfo(text: str) -> tuple[int, int]:
    """Total and available bytes of /proc/meminfo's text (proc(5); its kB are KiB). Raises ValueError when a line
    is missing.
    """
    fields = {line.partition(":")[0]: line.partition(":")[2].split() for line in text.splitlines()}
    try:
        return int(fields["MemTotal"][0]) << 10, int(fields["MemAvailable"][0]) << 10
    except (KeyError, IndexError) as error:
        raise ValueError(f"no {error} in meminfo") from None


def acquire_host_memory(meminfo: Path = MEMINFO, cgroup: Path = SLICE_CGROUP) -> tuple[int, int]:
    """Total and available bytes of the host, as far as the models' slice may use them. Raises OSError or ValueError."""
    total, available = parse_meminfo(meminfo.read_text())
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):  # no controller, no slice yet, or "max"
        return total, available
    return min(total, limit), max(0, min(available, limit - used))
