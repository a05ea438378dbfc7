"""A supervisor that cannot start holds back for longer each time, and comes back when the cause is gone."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from llamactl.paths import Paths
from llamactl.supervisor import __main__ as program
from llamactl.supervisor.restarts import LONGEST_S, choose_delay_s

UNIT = Path(__file__).parents[3] / "units/system/llamactl.service"


def test_the_first_failure_costs_nothing_and_each_next_one_twice_as_much() -> None:
    assert [choose_delay_s(restarts) for restarts in range(5)] == [0.0, 0.2, 0.4, 0.8, 1.6]
    assert choose_delay_s(10**6) == LONGEST_S


def test_systemd_never_gives_up() -> None:
    lines = UNIT.read_text().splitlines()
    assert "StartLimitIntervalSec=0" in lines
    assert "Restart=always" in lines


async def count_many() -> int:
    return 100


def test_who_waits_to_try_again_ends_at_once_when_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        raise OSError("no space left on device")

    monkeypatch.setattr(program, "acquire_restarts", count_many)
    monkeypatch.setattr(program, "choose_delay_s", lambda _: 3600.0)
    monkeypatch.setattr(program.Supervisor, "start", never)
    paths = Paths(config_dir=tmp_path, runtime_dir=tmp_path, cache_dir=tmp_path)
    assert asyncio.run(program.run(paths)) == 1
