"""Is a file that is not whole told from one that is, wherever it was cut? And what is not understood left alone?"""

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.config.gguf import Head, acquire_head, acquire_text, find_fault
from llamactl.config.permissions import inspect_file
from tests.models import write_model, write_projector


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_model(path)
    return path.read_bytes()


def judge(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return find_fault(path)


def test_whole_file_has_no_fault(tmp_path: Path, whole: bytes) -> None:
    assert judge(tmp_path / "m.gguf", whole) == ""


def test_file_that_is_cut_anywhere_before_its_last_tensor_is_told_so(tmp_path: Path, whole: bytes) -> None:
    for length in [4, 5, 8, 23, 24, *range(100, len(whole) - 70_000, 997)]:
        fault = judge(tmp_path / "m.gguf", whole[:length])
        assert fault.startswith("it is cut"), length
        assert f"{length:,} bytes" in fault


@pytest.mark.parametrize(
    ("version", "fault"),
    [
        (b"\1\0\0\0", "it is of GGUF version 1"),
        (b"\x09\0\0\0", "it is of GGUF version 9"),
        (b"\0\0\0\3", "it is for machines with the other order of bytes"),
        (b"\2\0\0\0", ""),
    ],
)
def test_version_decides_whether_it_is_read(tmp_path: Path, whole: bytes, version: bytes, fault: str) -> None:
    found = judge(tmp_path / "m.gguf", whole[:4] + version + whole[8:])
    assert found.startswith(fault)
    assert bool(found) == bool(fault)


def test_value_of_an_unknown_kind_is_left_to_llama_cpp(tmp_path: Path) -> None:
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 77)
    assert judge(tmp_path / "m.gguf", head) == ""


@given(place=st.integers(4, 3000), junk=st.binary(min_size=1, max_size=16))
def test_junk_in_the_head_ends_in_words(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, place: int, junk: bytes
) -> None:
    found = judge(tmp_path_factory.getbasetemp() / "junk.gguf", whole[:place] + junk + whole[place + len(junk) :])
    assert isinstance(found, str)


@given(place=st.integers(4, 3000), junk=st.binary(min_size=1, max_size=16))
def test_head_of_junk_is_a_head_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, place: int, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("junk") / "m.gguf"
    path.write_bytes(whole[:place] + junk + whole[place + len(junk) :])
    assert isinstance(acquire_head(path), Head | None)


def test_width_of_a_projector_is_its_tensor_s_where_converters_write_another(tmp_path: Path) -> None:
    for projector in ("mlp", "gemma3"):
        head = acquire_head(write_projector(tmp_path / "p.gguf", projector=projector, width=96, hidden=32))
        assert head is not None
        assert (head.architecture, head.projectors, head.projector_widths) == ("clip", (projector,), (96,))


def format_pair(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    "pair",
    [
        format_pair(b"general.name", 8, struct.pack("<Q", 1 << 32)),
        struct.pack("<Q", 1 << 33),
        format_pair(b"a", 9, struct.pack("<IQ", 8, 1 << 40)),
        format_pair(b"a", 9, struct.pack("<IQ", 8, 30_000_000)),
    ],
    ids=["text", "key", "endless texts", "many texts"],
)
def test_head_that_claims_to_be_huge_is_left_alone_at_once(tmp_path: Path, pair: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + pair)
    os.truncate(path, 16 << 30)  # sparse: all of it can be read
    tracemalloc.start()
    try:
        assert acquire_head(path) is None
        assert acquire_text(str(path), "general.name") is None
        assert find_fault(path) == ""
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "m.gguf"
    os.mkfifo(fifo)
    for read in (acquire_head, find_fault, lambda path: acquire_text(str(path), "general.name")):
        with pytest.raises(OSError, match="no regular file"):
            read(fifo)
    assert inspect_file(str(fifo)) == "it is no regular file"
