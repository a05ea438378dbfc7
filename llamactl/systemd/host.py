"""Which groups of this machine own its GPUs?

They are named only where they exist: a unit with an unknown supplementary group does not start (216/GROUP).
"""

import grp

GPU_GROUPS = ("video", "render")


def acquire_gpu_groups() -> list[str]:
    """Those of the groups that own GPU devices which this machine has."""
    present = {group.gr_name for group in grp.getgrall()}
    return [name for name in GPU_GROUPS if name in present]
