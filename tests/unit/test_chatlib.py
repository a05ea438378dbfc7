"""Is the chat layer's library built, kept and put in place as `setup-chat` says, and is each thing that may be missing
named? With a compiler that compiles nothing: the real one takes minutes, and `scripts/setup` runs it.
"""

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from llamactl.chatlib import build, recipe
from llamactl.chatlib.build import BuildError, Wanted
from llamactl.chatlib.place import compute_source_id, find_llama_cpp, place_library
from llamactl.cli.main import main

CMAKE = """project("llama.cpp" C CXX)
set(LLAMA_VERSION_MAJOR 0)
set(LLAMA_VERSION_MINOR 5)
set(LLAMA_VERSION_PATCH 2)
option(LLAMA_BUILD_IS_DEV "llama: dev build" ON)
"""
COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; case "$1" in *.cpp) source=$1 ;; esac; shift; done
echo "${source##*/}" >> LOG
case "$out" in
    *.so) cp LIBRARY "$out" ;;
    *) case "$source" in */BROKEN) echo "$source:7: error: broken" >&2; exit 1 ;; esac; : > "$out" ;;
esac
"""


def find_library() -> Path:
    package = find_llama_cpp()
    assert package is not None
    return place_library(package)


def write_sdist(path: Path, leave_out: str = "nothing", cmake: str = CMAKE) -> Path:
    names = [f"common/{name}" for name in recipe.COMMON] + ["common/parsers/qwen.cpp", "common/chat.h"]
    names += ["include/llama.h", "ggml/include/ggml.h", "src/llama.cpp", "common/../../../escape.h", "models/x.gguf"]
    with tarfile.open(path, "w:gz") as archive:
        for name in [*names, "CMakeLists.txt"]:
            if leave_out not in name:
                content = cmake.encode() if name == "CMakeLists.txt" else b"// x\n"
                member = tarfile.TarInfo(f"llama_cpp_python-9/vendor/llama.cpp/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def wanted(tmp_path: Path) -> Wanted:
    return Wanted("9", tmp_path / "site" / "llamactl_chat" / "lib.so", tmp_path / "cache")


@pytest.fixture
def compile_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """The compiler is a script; its log has the names of the sources."""

    def prepare(library: Path | None = None, broken: str = "none.cpp") -> Path:
        text = COMPILER.replace("LOG", str(tmp_path / "log")).replace("BROKEN", broken)
        compiler = tmp_path / "c++"
        compiler.write_text(text.replace("LIBRARY", str(library or find_library())))
        compiler.chmod(0o755)
        monkeypatch.setenv("CXX", str(compiler))
        return tmp_path / "log"

    return prepare


def refuse(what: str) -> None:
    raise AssertionError(what)


def test_library_is_built_kept_and_put_in_place(
    wanted: Wanted, tmp_path: Path, compile_with: Callable[..., Path]
) -> None:
    log = compile_with()
    said: list[str] = []
    counts: list[tuple[int, int]] = []
    sdist = write_sdist(tmp_path / "sdist.tar.gz")
    (tmp_path / "site").mkdir()
    old = os.umask(0o077)
    try:
        build.set_up(wanted, said.append, lambda done, total: counts.append((done, total)), sdist)
    finally:
        os.umask(old)
    assert wanted.target.read_bytes() == wanted.kept.read_bytes() == find_library().read_bytes()
    assert stat.S_IMODE(wanted.target.stat().st_mode) == 0o644
    assert stat.S_IMODE(wanted.target.parent.stat().st_mode) == 0o755
    compiled = [line for line in log.read_text().splitlines() if line]
    assert sorted(compiled) == sorted([*(Path(name).name for name in recipe.COMMON), "qwen.cpp", *recipe.OURS])
    assert counts[0][0] == 0
    assert counts[-1] == (len(compiled), len(compiled))
    assert said[-1] == f"installed {wanted.target}"

    log.unlink()
    lock = wanted.cache / "chat.lock"
    lock.unlink()
    lock.mkdir()  # as in a cache that can only be read
    build.set_up(wanted, said.append, lambda *_: refuse("compiled again"))
    lock.rmdir()
    assert said[-1] == f"llama.cpp's chat layer for llama-cpp-python 9 is there: {wanted.target}"
    wanted.target.unlink()
    build.set_up(wanted, said.append, lambda *_: refuse("compiled again"))
    assert wanted.target.exists()
    assert not log.exists()


def test_library_that_does_not_work_here_is_not_put_in_place(
    wanted: Wanted, tmp_path: Path, compile_with: Callable[..., Path]
) -> None:
    package = find_llama_cpp()
    assert package is not None
    compile_with(library=package / "lib" / "libggml-base.so")
    (tmp_path / "site").mkdir()
    with pytest.raises(BuildError, match=r"cannot use .* as it was built: .* lacks llamactl_chat_free"):
        build.set_up(wanted, lambda _: None, lambda *_: None, write_sdist(tmp_path / "sdist.tar.gz"))
    assert not wanted.target.exists()
    assert not wanted.kept.exists()


def test_library_that_crashes_is_told_by_its_signal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(build, "CHECK_MODULE", "crash")
    assert build._find_fault(tmp_path / "lib.so") == "its check was ended by signal 11"


def test_what_does_not_compile_is_named_with_the_compilers_reason(
    wanted: Wanted, tmp_path: Path, compile_with: Callable[..., Path]
) -> None:
    compile_with(broken="json.cpp")
    (tmp_path / "site").mkdir()
    with pytest.raises(BuildError, match=r"json\.cpp does not compile:\n.*:7: error: broken"):
        build.set_up(wanted, lambda _: None, lambda *_: None, write_sdist(tmp_path / "sdist.tar.gz"))


def test_sources_of_a_version_that_is_not_known_are_refused(
    wanted: Wanted, tmp_path: Path, compile_with: Callable[..., Path]
) -> None:
    compile_with()
    (tmp_path / "site").mkdir()
    with pytest.raises(BuildError, match=r"peg-parser\.cpp: llama-cpp-python 9 is none that this llamactl knows"):
        build.set_up(
            wanted, lambda _: None, lambda *_: None, write_sdist(tmp_path / "sdist.tar.gz", "common/peg-parser.cpp")
        )


def test_only_what_is_needed_is_extracted_and_nothing_outside(tmp_path: Path) -> None:
    root = build.extract_sources(write_sdist(tmp_path / "sdist.tar.gz"), tmp_path / "a" / "b" / "c")
    assert (root / "common" / "jinja" / "caps.cpp").is_file()
    assert not (root / "src").exists()
    assert not (root / "models").exists()
    assert not list(tmp_path.rglob("escape.h"))
    assert build.read_llama_version(root) == "0.5.2-dev"


def test_release_has_no_suffix(tmp_path: Path) -> None:
    sdist = write_sdist(tmp_path / "sdist.tar.gz", cmake=CMAKE.replace(" ON)", " OFF)"))
    assert build.read_llama_version(build.extract_sources(sdist, tmp_path / "x")) == "0.5.2"


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "cannot read"), (b"no archive" * 99, "cannot read"), (None, "has no llama.cpp")]
)
def test_file_that_is_no_sdist_is_refused(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "sdist.tar.gz"
    if content is None:
        write_sdist(path, "common/")
    else:
        path.write_bytes(content)
    with pytest.raises(BuildError, match=reason):
        build.extract_sources(path, tmp_path / "x")


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match=r"there is no C\+\+ compiler; install g\+\+"):
        build.find_compiler()
    monkeypatch.setenv("CXX", "g++-99 -m64")
    with pytest.raises(BuildError, match=r"CXX=g\+\+-99 is not there"):
        build.find_compiler()


def test_download_that_fails_tells_why_and_what_else_to_do(wanted: Wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        BuildError, match=r"(?s)cannot download .*: ERROR: .*; without a network: give .* with --sdist FILE"
    ):
        build.acquire_sdist(wanted, lambda _: None)
    assert list(wanted.downloaded.parent.iterdir()) == []


def test_download_is_there_for_the_next_try(wanted: Wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.subprocess, "run", lambda *_, **__: refuse("downloaded again"))
    for path in (wanted.downloaded, wanted.sdist):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
        assert build.acquire_sdist(wanted, lambda _: None) == path


def test_sources_are_kept_for_who_wants_them_and_no_longer_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_find_fault", lambda _: "")
    wanted = build.find_wanted(build.find_cache())
    wanted.downloaded.parent.mkdir(parents=True)
    for options, is_kept in (([], False), (["--keep-sdist"], True), ([], True)):
        wanted.downloaded.write_bytes(b"x")
        assert main(["setup-chat", *options]) == 0
        assert (wanted.downloaded.exists(), wanted.sdist.exists()) == (False, is_kept)


def test_python_without_llama_cpp_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "find_llama_cpp", lambda: None)
    with pytest.raises(BuildError, match="has no llama_cpp; install llama-cpp-python"):
        build.find_wanted(tmp_path)


def test_directory_that_cannot_be_written_is_named_before_anything_is_compiled(
    wanted: Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    monkeypatch.setattr(build.os, "access", lambda *_: False)
    with pytest.raises(BuildError, match=f"cannot write .*: run this as the owner of {tmp_path / 'site'}"):
        build.set_up(wanted, lambda _: None, lambda *_: refuse("compiled"))


def test_command_says_that_all_is_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llamactl.chatlib.build._find_fault", lambda _: "")
    assert main(["setup-chat", "--keep-sdist", "--sdist", "none"]) == 0
    assert str(find_library()) in capsys.readouterr().out


def test_command_ends_with_the_reason(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llamactl.chatlib.build.find_llama_cpp", lambda: None)
    assert main(["setup-chat"]) == 1
    assert capsys.readouterr().err.startswith("llamactl: cannot build llama.cpp's chat layer: ")


def test_source_id_names_our_part_of_the_library() -> None:
    assert len(compute_source_id()) == 16
