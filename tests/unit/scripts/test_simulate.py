"""The simulator plays traces against the real scheduler: nobody is cut off or fails, and all are served."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

from simlib.policies import run_all
from simlib.world import TRACES


@pytest.mark.parametrize("trace", sorted(TRACES))
@pytest.mark.parametrize("seed", [1, 2])
def test_scheduler_serves_all_with_fewer_loads_than_the_simple_rules(trace: str, seed: int) -> None:
    played = TRACES[trace](seed, 1.0)
    ours, count, idle = run_all(played, max_loaded=4).values()
    assert ours.served == len(played.arrivals)
    assert (ours.cut, ours.failed, ours.unanswered) == (0, 0, 0)
    assert ours.loads < count.loads
    assert ours.loads < idle.loads
    assert ours.thrash <= min(count.thrash, idle.thrash)


def test_same_seed_gives_the_same_figures() -> None:
    first, second = (run_all(TRACES["agents"](3, 0.5), max_loaded=4) for _ in range(2))
    assert first == second
