"""Files that are no models, as a reload finds them without opening one."""

import os
from pathlib import Path

import pytest

from llamactl.config.heads import FileCache, ask_faults
from llamactl.config.permissions import check_config
from llamactl.settings import Problem
from tests.unit.config.tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_file_that_is_no_model_makes_its_model_invalid_in_the_words_of_check(tree: Tree) -> None:
    tree.file("hosts.toml", '[models.hosts]\npath = "/etc/hosts"\naliases = ["h"]\n')
    tree.model(name="good")
    tree.model(name="vision", keys=f'mmproj = "{tree.gguf("mmproj.gguf", b"<html>")}"')
    config = tree.load(read_faults=ask_faults)
    assert list(config.models) == ["good"]
    assert set(config.invalid) == {"hosts", "vision"}
    checked = [problem for problem in check_config(tree.paths, tree.load()) if "it is" in problem.message]
    assert list(config.problems) == checked == _expect(tree)
    assert config.invalid["hosts"].reason == checked[0].message


def _expect(tree: Tree) -> list[Problem]:
    hosts = f"cannot use '/etc/hosts': it is no GGUF file: it starts with {Path('/etc/hosts').read_bytes()[:4]!r}, "
    web = f"cannot use '{tree.models}/mmproj.gguf': it is a web page; the download went wrong"
    place = tree.paths.models_config_dir
    return [
        Problem(file=f"{place}/hosts.toml", where="models.hosts.path", message=f"{hosts}not b'GGUF'", model="hosts"),
        Problem(file=f"{place}/vision.toml", where="models.vision.mmproj", message=web, model="vision"),
    ]


def test_model_is_there_once_its_file_is_one(tree: Tree) -> None:
    tree.model()
    whole = (tree.models / "m.gguf").read_bytes()
    read_faults = FileCache(ask_faults)
    (tree.models / "m.gguf").write_bytes(b"")
    empty = tree.load(read_faults=read_faults)
    assert empty.invalid["m"].reason == f"cannot use '{tree.models}/m.gguf': it is empty"
    (tree.models / "m.gguf").write_bytes(whole)
    assert list(tree.load(empty, read_faults=read_faults).models) == ["m"]


def test_more_files_than_can_be_open_are_looked_at(tree: Tree) -> None:
    paths = [str(tree.gguf(f"{number}.gguf")) for number in range(1200)]
    Path(paths[-1]).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    faults = ask_faults(paths)
    assert list(faults) == paths
    assert [path for path in paths if faults[path]] == paths[-1:]


def test_what_cannot_be_read_has_no_fault_that_is_known(tree: Tree) -> None:
    os.mkfifo(tree.models / "pipe.gguf")
    paths = [str(tree.models / name) for name in ("pipe.gguf", "nowhere.gguf", ".")]
    assert ask_faults(paths) == dict.fromkeys(paths, "")


@pytest.mark.parametrize("end", ["exit 1", "kill -SEGV $$", "echo nonsense", "exec sleep 60"])
def test_of_a_child_that_fails_counts_what_it_has_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho 47475546\necho 3c68\n{end}\n")
    python.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setattr("llamactl.config.heads.TIMEOUT_S", 0.5)
    faults = ask_faults(["/a.gguf", "/b.gguf", "/c.gguf"])
    assert faults == {"/a.gguf": "", "/b.gguf": "it is a web page; the download went wrong"}
