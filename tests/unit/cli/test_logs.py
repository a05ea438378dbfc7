"""Is somebody who may not read the journal told so, and nobody else?"""

import argparse
from pathlib import Path

import pytest

from llamactl.cli import logs
from llamactl.errors import ErrorCode, LlamactlError


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
