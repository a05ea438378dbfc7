"""Does a measurement of an earlier run hold exactly as long as nothing has changed that it depends on?"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llamactl.protocol.values import Breakdown, Facts, Row, RowKind
from llamactl.settings import ModelSettings
from llamactl.supervisor.measurement_cache import (
    Entry,
    MeasurementCache,
    acquire_key_parts,
    acquire_libraries,
    acquire_llama_version,
    format_key,
    match_devices,
)

RPC0 = "RPC0[127.0.0.1:1]"


@pytest.fixture
def settings(tmp_path: Path) -> ModelSettings:
    files = tuple(str(tmp_path / f"m-0000{number}-of-00002.gguf") for number in (1, 2))
    for file in files:
        Path(file).write_bytes(b"GGUF")
    companion = tmp_path / "mmproj.gguf"
    companion.write_bytes(b"GGUF")
    return ModelSettings(name="m", path=files[0], files=files, mmproj=str(companion))


def make_key(settings: ModelSettings, extra_bufts: bool = True) -> str:
    return format_key(acquire_key_parts(settings, extra_bufts))


def make_entry(**totals: int) -> Entry:
    rows = tuple(Row(kind=RowKind.DEVICE, name=name, model=1, total=total, free=0) for name, total in totals.items())
    breakdown = Breakdown(n_ctx=1, devices=(*rows, Row(kind=RowKind.HOST, name="Host", context=5)))
    return Entry(min=breakdown, max=breakdown, facts=Facts(architecture="llama"))


def test_nothing_changed_means_the_same_key(settings: ModelSettings) -> None:
    assert make_key(settings) == make_key(settings)


def test_settings_that_do_not_count_for_memory_do_not_count_here(settings: ModelSettings) -> None:
    same: dict[str, Any] = {"name": "other", "pin": True, "aliases": ("x",), "priority": 5, "source": "/etc/x.toml"}
    for name, value in same.items():
        assert make_key(msgspec.structs.replace(settings, **{name: value})) == make_key(settings)


@pytest.mark.parametrize(
    "change",
    [
        {"ctx": 512},
        {"parallel": 1},
        {"n_gpu_layers": 0},
        {"devices": ("CUDA0",)},
        {"tensor_split": (1.0, 2.0)},
        {"rpc": ("127.0.0.1:1",)},
        {"batch": 64},
        {"ubatch": 64},
        {"cache_type_k": "q8_0"},
        {"cache_type_v": "q8_0"},
        {"flash_attn": "on"},
        {"repack": False},
        {"fit": False},
        {"fit_ctx": 512},
        {"pooling": "mean"},
        {"mmap": False},
        {"env": {"GGML_X": "1"}},
        {"mmproj": ""},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_setting_that_counts_changes_the_key(settings: ModelSettings, change: dict[str, Any]) -> None:
    assert make_key(msgspec.structs.replace(settings, **change)) != make_key(settings)


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def grow(path: Path) -> None:
    status = path.stat()
    path.write_bytes(b"GGUF+")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    """Another file of the same size and time: only the inode tells."""
    status = path.stat()
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)


@pytest.mark.parametrize("change", [touch, grow, replace])
@pytest.mark.parametrize("which", ["first", "shard", "mmproj"])
def test_each_file_that_changes_changes_the_key(
    settings: ModelSettings, change: Callable[[Path], None], which: str
) -> None:
    before = make_key(settings)
    change(Path({"first": settings.files[0], "shard": settings.files[1], "mmproj": settings.mmproj}[which]))
    assert make_key(settings) != before


def test_other_libraries_change_the_key(settings: ModelSettings, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libllama.so"
    library.write_bytes(b"elf")
    own = msgspec.structs.replace(settings, env={"LLAMA_CPP_LIB_PATH": str(tmp_path / "lib")})
    before = make_key(own)
    touch(library)
    assert make_key(own) != before


def test_extra_buffer_types_change_the_key_unless_the_model_uses_none(settings: ModelSettings) -> None:
    assert make_key(settings, True) != make_key(settings, False)
    plain = msgspec.structs.replace(settings, repack=False)
    assert make_key(plain, True) == make_key(plain, False)


def test_version_and_libraries_are_found_without_importing_llama_cpp() -> None:
    assert acquire_llama_version()[0].isdigit()
    assert any("libllama" in library.path for library in acquire_libraries(""))


def test_missing_file_is_no_key(settings: ModelSettings) -> None:
    Path(settings.files[1]).unlink()
    with pytest.raises(FileNotFoundError):
        make_key(settings)


@pytest.mark.parametrize(
    ("then", "now", "more", "expected"),
    [
        ({}, {}, {}, True),
        ({"CUDA0": 9}, {"CUDA0": 9}, {}, True),
        ({"CUDA0": 9}, {"CUDA0": 8}, {}, False),
        ({"CUDA0": 9}, {}, {}, False),
        ({"CUDA0": 9}, {"CUDA0": 9, "CUDA1": 9}, {}, False),
        ({"CUDA0": 9}, {"CUDA0": 9, "CUDA1": 9}, {"devices": ("CUDA0",)}, True),
        ({}, {"CUDA0": 9}, {"devices": ("none",)}, True),
        ({}, {RPC0: 9}, {}, True),
        ({}, {RPC0: 9}, {"rpc": ("127.0.0.1:1",)}, False),
        ({RPC0: 9}, {RPC0: 9, "RPC0[127.0.0.2:1]": 9}, {"rpc": ("127.0.0.1:1",)}, True),
    ],
)
def test_entry_holds_for_the_devices_that_the_model_would_find(
    then: dict[str, int], now: dict[str, int], more: dict[str, Any], expected: bool
) -> None:
    devices = {name: Row(kind=RowKind.DEVICE, name=name, total=total, free=1) for name, total in now.items()}
    settings = ModelSettings(name="m", path="/m", **more)
    assert match_devices(make_entry(**then), settings, devices) is expected


def test_devices_of_a_server_that_has_another_client_are_taken_to_be_as_they_were() -> None:
    settings = ModelSettings(name="m", path="/m", rpc=("127.0.0.1:1", "127.0.0.2:1"))
    entry = make_entry(**{RPC0: 9, "RPC0[127.0.0.2:1]": 9})
    seen = {RPC0: Row(kind=RowKind.DEVICE, name=RPC0, total=9, free=1)}
    assert match_devices(entry, settings, seen, {"127.0.0.2:1"})
    assert not match_devices(entry, settings, seen)
    assert not match_devices(entry, settings, {}, {"127.0.0.2:1"})


def test_entries_outlive_the_process_and_are_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "measurements.json"
    MeasurementCache(path).load()
    cache = MeasurementCache(path)
    cache.store("k", make_entry(CUDA0=7))
    again = MeasurementCache(path)
    again.load()
    assert again.find("k") == make_entry(CUDA0=7)
    assert again.find("other") is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"format":1,"entries":{"k":{}}}', b"[" * 100_000])
def test_corrupt_cache_is_dropped_with_one_warning(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "measurements.json"
    path.write_bytes(content)
    cache = MeasurementCache(path)
    cache.load()
    assert capsys.readouterr().out.count("measurement cache dropped") == 1
    assert cache.find("k") is None
    MeasurementCache(path).load()
    assert "dropped" not in capsys.readouterr().out
    cache.store("k", make_entry())
    assert cache.find("k") == make_entry()


def test_cache_of_another_format_is_left_unread(tmp_path: Path) -> None:
    path = tmp_path / "measurements.json"
    path.write_bytes(b'{"format":99,"entries":{}}')
    MeasurementCache(path).load()
    assert path.exists()


def test_cache_that_cannot_be_written_still_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    cache = MeasurementCache(tmp_path / "file" / "measurements.json")
    cache.store("k", make_entry())
    assert cache.find("k") == make_entry()
    assert "not written" in capsys.readouterr().out
