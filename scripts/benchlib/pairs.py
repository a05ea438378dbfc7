"""How sure is a ratio of two measurements that were taken in turn? As sure as the order of the pairs' ratios makes it.

Each round measures both sides one after the other, so that a busy machine hurts both; its ratio is one sample. The
bound is a rank of the sorted ratios and assumes nothing of their distribution: of n samples the k-th is below the
median with probability 1 - P(Binomial(n, 1/2) < k). Five rounds are the fewest that give one at 95 %: the worst ratio.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
MIN_ROUNDS = 5


@dataclass(frozen=True)
class Comparison:
    """Medians of both sides, the median of the pairs' ratios, and its bounds, each one-sided."""

    ours: float
    theirs: float
    ratio: float
    low: float
    high: float


def compare_pairs(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """At least five pairs."""
    ratios = sorted(our / their for our, their in zip(ours, theirs, strict=True))
    rank = count_bound_rank(len(ratios))
    return Comparison(
        ours=statistics.median(ours),
        theirs=statistics.median(theirs),
        ratio=statistics.median(ratios),
        low=ratios[rank - 1],
        high=ratios[-rank],
    )


def count_bound_rank(n_rounds: int) -> int:
    """Which of the sorted ratios bounds the median from below, counted from 1."""
    if n_rounds < MIN_ROUNDS:
        raise ValueError(f"{n_rounds} rounds give no bound, {MIN_ROUNDS} do")
    rank, below = 0, 0.0
    while True:
        below += math.comb(n_rounds, rank) / 2**n_rounds
        if below > 1 - CONFIDENCE:
            return rank
        rank += 1
