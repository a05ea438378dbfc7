"""Is the kernel's count of AMD's memory found, and taken for the right device? With a scripted /sys."""

from pathlib import Path

import pytest

from llamactl.protocol.values import Row, RowKind
from llamactl.supervisor.drm import acquire_vram, match_vram

GIB = 1 << 30


def add_card(tree: Path, name: str, address: str, total: int, used: int) -> None:
    """As amdgpu makes it: a link to the PCI device, which has the figures."""
    device = tree / "devices/pci0000:00" / address
    device.mkdir(parents=True)
    (device / "mem_info_vram_total").write_text(f"{total}\n")
    (device / "mem_info_vram_used").write_text(f"{used}\n")
    (tree / "drm" / name).mkdir(parents=True)
    (tree / "drm" / name / "device").symlink_to(device)


def make_device(total: int) -> Row:
    return Row(kind=RowKind.DEVICE, name="ROCm0", total=total, free=1)


def test_cards_are_found_by_bus_address_and_others_are_passed_over(tmp_path: Path) -> None:
    add_card(tmp_path, "card0", "0000:03:00.0", 16 * GIB, 2 * GIB)
    add_card(tmp_path, "card1", "0000:43:00.0", 24 * GIB, 0)
    (tmp_path / "drm/card2/device").mkdir(parents=True)
    (tmp_path / "drm/card0-DP-1").mkdir()
    (tmp_path / "drm/version").write_text("drm 1.1.0\n")
    assert acquire_vram(tmp_path / "drm") == {"0000:03:00.0": (16 * GIB, 2 * GIB), "0000:43:00.0": (24 * GIB, 0)}


def test_machine_without_cards_has_no_figures(tmp_path: Path) -> None:
    assert acquire_vram(tmp_path / "drm") == {}


@pytest.mark.parametrize("text", ["", "many\n"])
def test_figure_that_is_no_number_is_no_figure(tmp_path: Path, text: str) -> None:
    add_card(tmp_path, "card0", "0000:03:00.0", GIB, 0)
    (tmp_path / "drm/card0/device/mem_info_vram_used").write_text(text)
    assert acquire_vram(tmp_path / "drm") == {}


def test_what_is_not_used_is_free_of_the_total_that_llama_cpp_knows() -> None:
    vram = {"0000:03:00.0": (16 * GIB + (64 << 20), 3 * GIB)}
    (row,) = match_vram({"ROCm0": make_device(16 * GIB)}, {"ROCm0": "0000:03:00.0"}, vram)
    assert (row.name, row.free, row.total) == ("ROCm0", 13 * GIB, None)


def test_other_memory_than_llama_cpps_is_not_taken_for_it() -> None:
    vram = {"0000:03:00.0": (GIB // 2, 0)}
    assert match_vram({"ROCm0": make_device(16 * GIB)}, {"ROCm0": "0000:03:00.0"}, vram) == ()
    assert match_vram({"ROCm0": make_device(GIB // 2)}, {}, vram) == ()
    assert match_vram({"ROCm0": make_device(GIB // 2)}, {"ROCm0": "0000:04:00.0"}, vram) == ()
