"""A stage for each test."""

from pathlib import Path

import pytest

from tests.socket.supervisor.stage import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)
