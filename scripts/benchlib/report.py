"""What is a measured figure, and how is it shown to people and to machines?"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


class BenchError(Exception):
    """Ends the command with its message."""


@dataclass(frozen=True)
class Result:
    """One figure. `ratio` is `value` divided by the same figure of `against`; both are empty where nothing compares.
    `bound` is the ratio's 95 % bound on its bad side, where it was computed.
    """

    bench: str
    name: str
    value: float
    unit: str
    ratio: float | None = None
    against: str | None = None
    bound: float | None = None


def format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def print_results(results: Sequence[Result], *, as_json: bool) -> None:
    if as_json:
        for result in results:
            rounded = {**asdict(result), "value": round(result.value, 6)}
            for name in ("ratio", "bound"):
                rounded[name] = None if rounded[name] is None else round(rounded[name], 4)
            print(json.dumps(rounded))
        return
    rows = [
        (
            result.name,
            format_number(result.value),
            result.unit,
            "" if result.ratio is None else f"{result.ratio:.2f} x {result.against}",
            "" if result.bound is None else f"(bound {result.bound:.2f})",
        )
        for result in results
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for name, value, unit, ratio, bound in rows:
        print(f"{name:<{widths[0]}}  {value:>{widths[1]}} {unit:<{widths[2]}}  {ratio:<{widths[3]}}  {bound}".rstrip())
