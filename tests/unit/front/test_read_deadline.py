"""A client is late when what it has to send has not come in its time, and never because of a timer from before."""

from collections.abc import Callable
from typing import Any

import pytest

from llamactl.front.http.connection_state import Deadline
from llamactl.front.http.read_deadline import DRAIN_IDLE_S, ReadDeadline, choose_limit_s
from llamactl.settings import FrontSettings

SETTINGS = FrontSettings(head_timeout_s=1.0, body_timeout_s=2.0, keepalive_timeout_s=75.0)


class Timer:
    def __init__(self, at_s: float, fire: Callable[[], None]) -> None:
        self.at_s, self.fire = at_s, fire
        self.cancelled = False

    def when(self) -> float:
        return self.at_s

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """A loop's, that goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[Timer] = []
        self.n_armed = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, fire: Callable[[], None]) -> Timer:
        self.timers.append(Timer(at_s, fire))
        self.n_armed += 1
        return self.timers[-1]

    def go(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while due := [timer for timer in self.timers if not timer.cancelled and timer.at_s <= end_s]:
            timer = min(due, key=Timer.when)
            self.timers.remove(timer)
            self.now_s = max(self.now_s, timer.at_s)
            timer.fire()
        self.now_s = end_s


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.limit_s = 10.0
        self.late: list[tuple[float, float]] = []
        self.deadline = ReadDeadline(self.clock, lambda: self.limit_s, self._on_late)  # type: ignore[arg-type]

    def _on_late(self, limit_s: float) -> None:
        self.late.append((self.clock.now_s, limit_s))


@pytest.mark.parametrize("what", [Deadline.FIRST, Deadline.HEAD, Deadline.BODY, Deadline.NEXT])
def test_client_that_sends_nothing_is_late_when_its_time_is_over(what: Deadline) -> None:
    world = World()
    world.deadline.begin(what)
    world.clock.go(9.9)
    assert world.late == []
    world.clock.go(1.0)
    assert world.late == [(110.0, 10.0)]


@pytest.mark.parametrize(("what", "is_late"), [(Deadline.HEAD, True), (Deadline.BODY, False), (Deadline.NEXT, False)])
def test_each_piece_gives_more_time_but_those_of_a_head(what: Deadline, is_late: bool) -> None:
    world = World()
    for _ in range(6):
        world.deadline.begin(what)
        world.clock.go(4.0)
    assert bool(world.late) == is_late


def test_head_after_an_answer_has_its_own_time() -> None:
    world = World()
    world.deadline.begin(Deadline.HEAD)
    world.clock.go(9.0)
    world.limit_s = 0.0  # it has come, and is answered for long
    world.deadline.forget()
    world.clock.go(100.0)
    world.limit_s = 10.0
    world.deadline.begin(Deadline.HEAD)
    world.clock.go(9.0)
    assert world.late == []
    world.clock.go(2.0)
    assert len(world.late) == 1


def test_time_that_an_answer_takes_is_not_the_clients() -> None:
    world = World()
    world.deadline.begin(Deadline.NEXT)
    world.limit_s = 0.0
    world.clock.go(1000.0)
    assert world.late == []
    assert not world.deadline.is_armed


def test_client_that_is_quick_costs_no_timer_for_each_request() -> None:
    world = World()
    for _ in range(1000):
        world.deadline.begin(Deadline.NEXT)
        world.clock.go(0.001)
    assert world.clock.n_armed == 1


def test_shorter_time_counts_although_a_timer_is_set() -> None:
    world = World()
    world.limit_s = 75.0
    world.deadline.begin(Deadline.NEXT)
    world.limit_s = 1.0
    world.deadline.begin(Deadline.HEAD)
    world.clock.go(1.5)
    assert world.late == [(101.0, 1.0)]


def test_limit_that_has_become_shorter_counts_once_it_is_armed_again() -> None:
    world = World()
    world.limit_s = 75.0
    world.deadline.begin(Deadline.NEXT)
    world.limit_s = 5.0
    world.deadline.arm()
    world.clock.go(6.0)
    assert world.late == [(105.0, 5.0)]


def test_no_limit_is_no_timer() -> None:
    world = World()
    world.limit_s = 0.0
    world.deadline.begin(Deadline.FIRST)
    assert not world.deadline.is_armed


def test_lost_connection_is_never_late() -> None:
    world = World()
    world.deadline.begin(Deadline.BODY)
    world.deadline.close()
    world.deadline.begin(Deadline.BODY)
    world.clock.go(100.0)
    assert world.late == []


def choose(what: Deadline, settings: Any = SETTINGS, draining: bool = False, held_back: bool = False) -> float:
    return choose_limit_s(what, settings, draining, held_back)


def test_settings_say_how_long_each_may_take() -> None:
    assert [choose(what) for what in (Deadline.FIRST, Deadline.HEAD, Deadline.BODY, Deadline.NEXT, Deadline.NONE)] == [
        1.0,
        1.0,
        2.0,
        75.0,
        0.0,
    ]


def test_client_that_cannot_send_its_body_is_not_late_with_it() -> None:
    assert choose(Deadline.BODY, held_back=True) == 0.0


@pytest.mark.parametrize(("keepalive_s", "limit_s"), [(75.0, DRAIN_IDLE_S), (0.0, DRAIN_IDLE_S), (3.0, 3.0)])
def test_replaced_process_waits_shortly_for_another_request(keepalive_s: float, limit_s: float) -> None:
    assert choose(Deadline.NEXT, FrontSettings(keepalive_timeout_s=keepalive_s), draining=True) == limit_s
