"""Reading stops for as long as there is a reason, and who leaves meanwhile is seen."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from llamactl.front.http.read_gate import AHEAD, BODY, ReadGate


class Transport:
    def __init__(self) -> None:
        self.reading = True
        self.closing = False

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> Any:
        assert name == "socket"
        return self

    def fileno(self) -> int:
        return 7


class Hangups:
    def __init__(self) -> None:
        self.watched: dict[int, Callable[[], None]] = {}

    def watch(self, descriptor: int, left: Callable[[], None]) -> None:
        self.watched[descriptor] = left

    def forget(self, descriptor: int) -> None:
        self.watched.pop(descriptor, None)


def make_gate() -> tuple[Any, Transport, Hangups, list[str]]:
    transport, hangups, left = Transport(), Hangups(), []
    gate = ReadGate(transport, hangups, lambda: left.append("left"))  # type: ignore[arg-type]
    return gate, transport, hangups, left


STEPS = [("hold", AHEAD), ("hold", BODY), ("release", AHEAD), ("release", BODY)]


@pytest.mark.parametrize("steps", list(product(STEPS, repeat=3)))
def test_reading_goes_on_exactly_while_no_reason_is_left(steps: Any) -> None:
    gate, transport, hangups, _ = make_gate()
    reasons: set[int] = set()
    for verb, why in steps:
        getattr(gate, verb)(why)
        (reasons.add if verb == "hold" else reasons.discard)(why)
        assert transport.reading == (not reasons)
        assert gate.held == sum(reasons)
        assert bool(hangups.watched) == bool(reasons), "the kernel is asked exactly while nobody reads"


def test_both_reasons_can_be_over_at_once() -> None:
    gate, transport, hangups, _ = make_gate()
    gate.hold(AHEAD)
    gate.hold(BODY)
    gate.release(AHEAD | BODY)
    assert transport.reading
    assert not hangups.watched


def test_client_that_leaves_unread_is_told_of() -> None:
    gate, _, hangups, left = make_gate()
    gate.hold(BODY)
    hangups.watched[7]()
    assert left == ["left"]


def test_connection_that_is_closing_is_left_alone() -> None:
    gate, transport, hangups, _ = make_gate()
    transport.closing = True
    gate.hold(AHEAD)
    assert (gate.held, transport.reading, hangups.watched) == (0, True, {})


def test_connection_that_closes_while_it_is_held_is_not_read_on() -> None:
    gate, transport, hangups, _ = make_gate()
    gate.hold(AHEAD)
    transport.closing = True
    gate.release(AHEAD)
    assert (transport.reading, hangups.watched) == (False, {})


def test_descriptor_of_a_lost_connection_is_watched_no_longer() -> None:
    gate, _, hangups, _ = make_gate()
    gate.hold(AHEAD)
    gate.close()
    assert not hangups.watched
    gate.hold(BODY)
    assert (gate.held, hangups.watched) == (0, {})
