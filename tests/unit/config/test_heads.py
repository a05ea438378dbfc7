"""Who reads heads of model files for the supervisor, and what becomes of what was learnt."""

import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from llamactl.config.gguf import Head
from llamactl.config.heads import FileCache, acquire_heads, ask_heads
from tests.models import write_model, write_projector


def test_child_says_what_reading_here_says(tmp_path: Path) -> None:
    (tmp_path / "web.gguf").write_text("<html>")
    (tmp_path / "cut.gguf").write_bytes(write_model(tmp_path / "whole.gguf").read_bytes()[:200])
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "directory.gguf").mkdir()
    write_projector(tmp_path / "x\udcff\n-mmproj.gguf", projector="mlp", width=96)
    paths = [*sorted(map(str, tmp_path.iterdir())), str(tmp_path / "nowhere.gguf")]
    heads = ask_heads(paths)
    assert heads == acquire_heads(paths)
    assert heads[str(tmp_path / "whole.gguf")] == Head(
        architecture="llama", width=64, names=("tiny",), tokenizer="llama", n_tokens=274
    )
    assert heads[str(tmp_path / "x\udcff\n-mmproj.gguf")] == Head(
        architecture="clip", names=("tiny-vision",), projectors=("mlp",), projector_widths=(96,)
    )
    assert sum(head is not None for head in heads.values()) == 2


def test_child_does_not_wait_for_the_writer_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert ask_heads([str(tmp_path / "pipe.gguf")]) == {str(tmp_path / "pipe.gguf"): None}


def test_child_reads_without_any_capability() -> None:
    script = (
        "from llamactl.config.head_child import give_up_capabilities as f; f(); print(open('/proc/self/status').read())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    sets = {line.split()[0]: int(line.split()[1], 16) for line in done.stdout.splitlines() if line.startswith("Cap")}
    assert (sets["CapEff:"], sets["CapPrm:"], sets["CapInh:"]) == (0, 0, 0)


@pytest.mark.parametrize("end", ["exit 1", "kill -SEGV $$", "echo nonsense", "exec sleep 60"])
def test_of_a_child_that_fails_counts_what_it_has_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho null; echo '{{\"width\":7}}'\n{end}\n")
    python.chmod(stat.S_IRWXU)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr("llamactl.config.heads.TIMEOUT_S", 0.5)
    paths = ["/a.gguf", "/b.gguf", "/c.gguf"]
    assert ask_heads(paths) == FileCache(ask_heads)(paths) == {"/a.gguf": None, "/b.gguf": Head(width=7)}


def test_child_that_cannot_be_started_has_learnt_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert ask_heads(["/a.gguf"]) == {}


def test_file_that_takes_long_costs_only_its_own_head(tmp_path: Path) -> None:
    """A head of empty texts without end, for as long as the file is."""
    endless = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 1 << 62)
    (tmp_path / "endless.gguf").write_bytes(endless)
    os.truncate(tmp_path / "endless.gguf", 4 << 30)  # zeros, on no disk
    model = str(write_model(tmp_path / "m.gguf"))
    heads = ask_heads([str(tmp_path / "endless.gguf"), model])
    assert heads == {str(tmp_path / "endless.gguf"): None} | acquire_heads([model])


def test_only_files_that_are_new_or_others_are_asked_for(tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def ask(paths: list[str]) -> dict[str, Head | None]:
        asked.append(list(paths))
        return acquire_heads(paths)

    cache = FileCache(ask)
    a, b = (str(write_model(tmp_path / name)) for name in ("a.gguf", "b.gguf"))
    assert cache([a, b]) == cache([b, a]) == acquire_heads([a, b])
    write_model(tmp_path / "new.gguf", n_embd=128).rename(b)
    head = cache([a, b])[b]
    assert head is not None
    assert (head.width, asked) == (128, [[a, b], [b]])


def test_what_was_not_learnt_is_asked_for_again(tmp_path: Path) -> None:
    answers = [{}, None]
    path = str(write_model(tmp_path / "a.gguf"))
    cache = FileCache(lambda paths: acquire_heads(paths) if answers.pop(0) is None else {})
    assert cache([path]) == {}
    assert cache([path]) == acquire_heads([path])
