"""What must a unit be shown of this machine so that our interpreter runs in it, and its GPUs are open to it?

The interpreter may live anywhere, below root's home too, and a virtual environment's `python` is a chain of links:
each link's directory must be visible, beside the prefixes and our own package (sys.path is no help: it may name a
whole home). Groups are named only where they exist, since a unit with an unknown group does not start.
"""

import grp
import os
import sys
from pathlib import Path

import llamactl

GPU_GROUPS = ("video", "render")


def acquire_python_paths(executable: str = sys.executable) -> list[str]:
    """Directories that the interpreter of this process, its packages and llamactl need, outermost ones only."""
    wanted = {Path(sys.prefix), Path(sys.base_prefix), Path(llamactl.__file__).parent}
    link = Path(executable)
    for _ in range(40):  # the kernel's own limit of links
        wanted.add(link.parent)
        if not link.is_symlink():
            break
        link = link.parent / link.readlink()
    spellings = {os.path.normpath(path) for path in wanted} | {os.path.realpath(path) for path in wanted}
    outer = [
        path for path in spellings if not any(other != path and Path(path).is_relative_to(other) for other in spellings)
    ]
    return sorted(outer)


def acquire_gpu_groups() -> list[str]:
    """Those of the groups that own GPU devices which this machine has."""
    present = {group.gr_name for group in grp.getgrall()}
    return [name for name in GPU_GROUPS if name in present]
