"""Is somebody who may not read the journal told so, and nobody else?"""

import argparse
from pathlib import Path

import pytest

from llamactl.cli import logs
from llamactl.errors import ErrorCode, LlamactlError
from tests.unit.config.tree import Tree


def make_journal(directory: Path) -> Path:
    path = directory / "0123456789abcdef" / "system.journal"
    path.parent.mkdir(parents=True)
    path.touch()
    path.with_name("user-1000.journal").touch()
    return path


def test_journal_is_sealed_when_none_of_the_systems_can_be_read(tmp_path: Path) -> None:
    kept, volatile = make_journal(tmp_path / "var"), make_journal(tmp_path / "run")
    directories = (tmp_path / "var", tmp_path / "run", tmp_path / "none")
    assert logs.find_sealed_journal(directories, lambda path: path.name.startswith("user")) == kept
    assert logs.find_sealed_journal(directories, lambda path: path == volatile) is None


def test_journal_that_is_not_there_is_journalctls_matter(tmp_path: Path) -> None:
    assert logs.find_sealed_journal((tmp_path,), lambda path: False) is None


def test_another_journal_than_the_systems_is_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(logs, "find_sealed_journal", lambda: tmp_path / "system.journal")
    monkeypatch.setenv("LLAMACTL_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(logs, "_has_lines", lambda name: False)
    for options, code in (([], ErrorCode.PERMISSION), (["--directory=/x"], ErrorCode.UNKNOWN_MODEL)):
        with pytest.raises(LlamactlError) as refused:
            logs.run_logs(argparse.Namespace(name="m", options=options, follow=False, lines=None))
        assert refused.value.code is code


def test_name_that_is_mistyped_is_guessed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.model(name="smollm2", keys='aliases = ["tiny"]')
    tree.file("bad.toml", "[models.broken]\nctxx = 1\n")
    monkeypatch.setenv("LLAMACTL_CONFIG_DIR", str(tree.paths.config_dir))
    monkeypatch.setattr(logs, "find_sealed_journal", lambda: None)
    monkeypatch.setattr(logs, "_has_lines", lambda name: False)
    guesses = {}
    for name in ("smolm", "Tiny2", "brokn", "other"):
        with pytest.raises(LlamactlError) as refused:
            logs.run_logs(argparse.Namespace(name=name, options=[], follow=False, lines=None))
        guesses[name] = refused.value.hint
    assert guesses == {
        "smolm": "did you mean 'smollm2'?",
        "Tiny2": "did you mean 'tiny'?",
        "brokn": "did you mean 'broken'?",
        "other": "`llamactl list` shows all models",
    }
