"""Is a second copy of a llama.cpp library seen in what a process has mapped, and is it known what a library would
bring?
"""

import shutil
from pathlib import Path

import pytest

from llamactl.chatlib.place import find_llama_cpp
from llamactl.instance.llama import bindings
from llamactl.instance.llama.copies import find_copies, needs_only_what_is_here, read_needed

LINE = "7f3c54000000-7f3c54021000 r-xp 00000000 08:01 1234 {}{}\n"
PACKAGE, _OTHER = "/site/llama_cpp/lib", "/site/lib"


def list_lines(*paths: str) -> list[str]:
    lines = [LINE.format(" " * 20, path) for path in paths]
    return [
        *lines,
        "7ffd1000-7ffd2000 rw-p 00000000 00:00 0    [stack]\n",
        "7ffd3000-7ffd4000 rw-p 00000000 00:00 0 \n",
    ]


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        ([f"{PACKAGE}/libllama.so", f"{_OTHER}/libllama.so.0"], "libllama"),
        ([f"{PACKAGE}/libggml-base.so.0", f"{PACKAGE}/libggml-base.so.0.25.3"], "libggml-base"),
        (["/site/llama_cpp.libs/libllama-1f2e3d4c.so.0.5.0", f"{PACKAGE}/libllama.so"], "libllama"),
        ([f"{PACKAGE}/libmtmd.so", "/a place/libmtmd.so"], "libmtmd"),
    ],
)
def test_two_files_of_one_library_are_copies(paths: list[str], name: str) -> None:
    assert find_copies(list_lines(*paths)) == {name: paths}


def test_one_file_mapped_in_several_parts_is_no_copy() -> None:
    paths = [f"{PACKAGE}/{name}" for name in ("libllama.so", "libggml.so.0", "libggml-base.so.0", "libggml-cpu.so.0")]
    assert find_copies(list_lines(*paths, *paths, f"{_OTHER}/libllama-common.so", "/lib/libc.so.6")) == {}


def test_names_that_only_begin_alike_are_other_libraries() -> None:
    assert find_copies(list_lines("/a/libllamactl-chat.so", "/b/libllamactl-chat.so.txt", "/c/libllama.so.txt")) == {}


def test_needed_libraries_are_read_from_the_file() -> None:
    package = find_llama_cpp()
    assert package is not None
    needed = read_needed(package / "lib" / "libllama.so")
    assert any(name.startswith("libggml-base.so") for name in needed)
    assert "libc.so.6" in needed


def test_library_that_needs_what_is_not_here_would_bring_it(tmp_path: Path) -> None:
    package = find_llama_cpp()
    assert package is not None
    # As a repaired wheel has it: under this name nothing of llama.cpp is loaded.
    data = (package / "lib" / "libllama.so").read_bytes()
    strange = tmp_path / "libllama-common.so"
    strange.write_bytes(data.replace(b"libggml-base.so.0\0", b"libggml-basE.so.0\0"))
    assert not needs_only_what_is_here(strange)


def test_common_library_that_would_bring_a_second_llama_cpp_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = next(bindings.Path(bindings.llama._base_path).parents[1].rglob("libllama-common.so"))
    assert needs_only_what_is_here(common)
    (tmp_path / "libllama-common.so").write_bytes(
        common.read_bytes().replace(b"\0libllama.so.0\0", b"\0libllama.so.9\0")
    )
    monkeypatch.setattr(bindings.ctypes, "CDLL", lambda path, mode=0: pytest.fail("opened") if not mode else _refuse())
    assert bindings._find_common(tmp_path, "any") is None


def _refuse() -> None:
    raise OSError("not loaded")


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(200), b"#!/bin/sh\n" * 20])
def test_file_that_is_no_library_is_never_opened(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    assert not needs_only_what_is_here(path) or read_needed(path) == []


def test_library_without_others_of_llama_cpp_may_be_opened(tmp_path: Path) -> None:
    package = find_llama_cpp()
    assert package is not None
    shutil.copy(package / "lib" / "libggml-base.so", tmp_path / "libx.so")
    assert needs_only_what_is_here(tmp_path / "libx.so")
