"""When is what computes held to be stuck, so that the watchdog ends the instance?"""

from dataclasses import dataclass
from typing import Any

import pytest

from llamactl.instance.serving import HANG_PER_TOKEN_S, HANG_S, Serving

IDLE = (0.0, 0)
LONG = (HANG_S + 4 * HANG_PER_TOKEN_S, 5)
STUCK = (HANG_S + 4 * HANG_PER_TOKEN_S, 4)


@dataclass
class Computing:
    """For so long, at so many tokens."""

    since_s: float
    n_tokens: int

    def since_progress_s(self) -> float:
        return self.since_s

    def count_step_tokens(self) -> int:
        return self.n_tokens


def make_serving(engine: tuple[float, int], encoder: tuple[float, int] | None) -> Serving:
    made: dict[str, Any] = dict.fromkeys(("loaded", "service", "n_threads", "stats"))
    made |= {"engine": Computing(*engine), "encoder": Computing(*encoder) if encoder else None}
    return Serving(**made)


@pytest.mark.parametrize(
    ("engine", "encoder", "is_stuck"),
    [
        (IDLE, None, False),
        (LONG, None, False),
        (STUCK, None, True),
        (IDLE, IDLE, False),
        (IDLE, LONG, False),
        (IDLE, STUCK, True),
        (STUCK, IDLE, True),
    ],
)
def test_step_is_stuck_that_takes_longer_than_one_of_its_size(
    engine: tuple[float, int], encoder: tuple[float, int] | None, is_stuck: bool
) -> None:
    assert make_serving(engine, encoder).is_stuck() is is_stuck
