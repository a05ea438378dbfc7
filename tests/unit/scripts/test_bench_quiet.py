"""Are neighbours that the bench was asked for there, gone afterwards, and no strangers to it?"""

import os
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"


def test_wanted_neighbours_are_children_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from benchlib import quiet

    before = set(quiet.acquire_children())
    with quiet.run_neighbours(2):
        neighbours = set(quiet.acquire_children()) - before
        assert len(neighbours) == 2
        watch = quiet.OthersWatch([])
        assert neighbours <= watch.pids
        assert os.getpid() in watch.pids
    assert not neighbours & set(quiet.acquire_children())
    assert not any(Path(f"/proc/{pid}").exists() for pid in neighbours)
