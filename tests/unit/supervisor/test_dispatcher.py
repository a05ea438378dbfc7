"""Events reach the scheduler one at a time, and an error is somebody's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llamactl.protocol.values import LoadFailure
from llamactl.sched import events
from llamactl.supervisor.dispatcher import Dispatcher
from llamactl.supervisor.suspects import SIZE, Suspect, Suspects, format_suspect, parse_suspect

ENDED = events.InstanceEnded("m", "g", LoadFailure(result="x", exit_code=0, message=""))


class Scripted:
    """A scheduler that gives what a test wants."""

    def __init__(self) -> None:
        self.handled: list[object] = []
        self.failing: set[type] = set()
        self.effects: list[Any] = []

    def handle(self, event: Any, now: float) -> list[Any]:
        self.handled.append(type(event))
        if type(event) in self.failing:
            raise KeyError("a bug")
        effects, self.effects = self.effects, []
        return effects


def make(scheduler: Scripted, run: Callable[[Any], None] = lambda _: None) -> tuple[Dispatcher, list[BaseException]]:
    failures: list[BaseException] = []
    plain: Any = scheduler
    dispatcher = Dispatcher(plain, lambda _: iter(()), run, lambda: None, lambda _: None, failures.append)
    return dispatcher, failures


def test_an_error_of_a_sender_is_told_to_it_and_all_else_goes_on() -> None:
    scheduler, told = Scripted(), list[Exception]()
    scheduler.failing.add(events.InstanceEnded)
    dispatcher, failures = make(scheduler)
    with dispatcher.blame(told.append):
        dispatcher.dispatch(ENDED)
    dispatcher.dispatch(events.DevicesReadEnded())
    assert [type(error) for error in told] == [KeyError]
    assert (failures, scheduler.handled) == ([], [events.InstanceEnded, events.Tick, events.DevicesReadEnded])


def test_an_error_of_nobody_and_one_that_stays_end_the_supervisor() -> None:
    scheduler = Scripted()
    scheduler.failing = {events.InstanceEnded, events.Tick}
    dispatcher, failures = make(scheduler)
    dispatcher.dispatch(ENDED)
    assert len(failures) == 1
    dispatcher, failures = make(scheduler)
    with dispatcher.blame(lambda _: None):
        dispatcher.dispatch(ENDED)
    assert len(failures) == 1, "the scheduler cannot decide any longer"


def test_an_effect_that_fails_keeps_no_other_from_being_carried_out() -> None:
    scheduler, done, told = Scripted(), list[Any](), list[Exception]()

    def run(effect: Any) -> None:
        if effect == "bad":
            raise ValueError(effect)
        done.append(effect)

    dispatcher, failures = make(scheduler, run)
    scheduler.effects = ["first", "bad", "last"]
    with dispatcher.blame(told.append):
        dispatcher.dispatch(ENDED)
    assert (done, len(told), failures) == (["first", "last"], 1, [])


@pytest.mark.parametrize("unit", ["llamactl-model@a.service", "llamactl-measure@a.service"])
def test_a_child_is_guilty_when_two_supervisors_in_a_row_died_with_its_report(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "run" / "suspects"
    for deaths in range(2):
        suspects = Suspects(path)
        suspects.open()
        assert not suspects.is_guilty(unit, "g"), f"after {deaths} deaths"
        suspects.begin(unit, "g")  # and it dies
    suspects = Suspects(path)
    suspects.open()
    assert suspects.is_guilty(unit, "g")
    assert suspects.is_guilty(unit, "other") == ("measure" in unit)
    assert not suspects.is_guilty("llamactl-model@b.service", "g")


def test_a_report_that_was_handled_clears_its_child(tmp_path: Path) -> None:
    for _ in range(4):
        suspects = Suspects(tmp_path / "suspects")
        suspects.open()
        suspects.begin("llamactl-model@a.service", "g")
        suspects.end()
        suspects.begin("llamactl-model@a.service", "g")  # and it dies
    suspects.open()
    assert not suspects.is_guilty("llamactl-model@a.service", "g")


@pytest.mark.parametrize("content", [b"", b"\0" * SIZE, b"x" * SIZE, b"1\0\xff\0\xff\0", b"9" * 99 + b"\0a\0b\0"])
def test_any_content_of_the_file_is_taken(content: bytes) -> None:
    parse_suspect(content)
    assert parse_suspect(format_suspect(Suspect("u", "g", 2)) + content) == Suspect("u", "g", 2)
