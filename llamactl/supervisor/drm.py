"""How much memory of AMD's GPUs is in use, by the kernel's own count?

The amdgpu driver shows it in sysfs, to anyone, without a context on the device: it is read before each decision. A
card is found by its bus address, which llama.cpp reports for its devices. A figure is used only where the kernel's
total agrees with llama.cpp's: on integrated GPUs the two may mean different memory.
"""

from collections.abc import Mapping
from pathlib import Path

from llamactl.protocol.values import Row, RowKind

DRM = Path("/sys/class/drm")
TOLERANCE = 0.05
"""By how much the totals may differ; drivers keep a little for themselves."""


def acquire_vram(drm: Path = DRM) -> dict[str, tuple[int, int]]:
    """Total and used bytes of each card that tells, by bus address."""
    found = {}
    for card in sorted(drm.glob("card*")):
        device = card / "device"
        try:
            total = int((device / "mem_info_vram_total").read_text())
            used = int((device / "mem_info_vram_used").read_text())
        except (OSError, ValueError):  # another driver's, or an output of a card
            continue
        found[device.resolve().name.lower()] = (total, used)
    return found


def match_vram(
    devices: Mapping[str, Row], ids: Mapping[str, str], vram: Mapping[str, tuple[int, int]]
) -> tuple[Row, ...]:
    """What is free now on those of `devices` that the kernel counts. `ids`: their bus addresses by name."""
    rows = []
    for name, row in devices.items():
        total, used = vram.get(ids.get(name, "").lower(), (0, 0))
        if row.total and total and abs(total - row.total) <= TOLERANCE * row.total:
            rows.append(Row(kind=RowKind.DEVICE, name=name, free=max(0, row.total - used)))
    return tuple(rows)
