"""The table is whole: what a client can do has a way out of each phase, and what we do wrong is seen."""

import re
from pathlib import Path

import pytest

from llamactl.front.http.connection_state import (
    RULES,
    TRANSITIONS,
    Deadline,
    Event,
    IllegalTransition,
    Phase,
    Reads,
    step,
)

CONNECTION = Path(__file__).resolve().parents[3] / "llamactl" / "front" / "http" / "connection.py"


def walk(*events: Event) -> list[Phase]:
    phase, phases = Phase.NEW, []
    for event in events:
        phase = step(phase, event)
        phases.append(phase)
    return phases


def list_reachable(start: Phase) -> set[Phase]:
    found, waiting = {start}, [start]
    while waiting:
        for after in TRANSITIONS[waiting.pop()].values():
            if after not in found:
                found.add(after)
                waiting.append(after)
    return found


def test_small_request_is_read_to_its_end_before_it_is_answered() -> None:
    assert walk(Event.PART_OF_HEAD, Event.HEAD_READ, Event.REQUEST_READ, Event.ANSWERED) == [
        Phase.HEAD,
        Phase.BODY,
        Phase.ANSWERING,
        Phase.IDLE,
    ]


def test_large_body_is_still_read_when_its_request_has_been_handed_over() -> None:
    assert walk(Event.HEAD_READ, Event.HANDED_OVER, Event.REQUEST_READ, Event.ANSWERED)[1:] == [
        Phase.STREAMING_BODY,
        Phase.ANSWERING,
        Phase.IDLE,
    ]


def test_answer_before_the_end_of_the_body_is_the_last_one() -> None:
    assert Event.ANSWERED not in TRANSITIONS[Phase.STREAMING_BODY]
    assert walk(Event.HEAD_READ, Event.HANDED_OVER, Event.LAST_SENT)[-1] is Phase.LINGERING


def test_request_that_comes_at_once_is_known_by_the_one_before_it() -> None:
    assert step(Phase.IDLE, Event.REQUEST_READ) is Phase.ANSWERING
    with pytest.raises(IllegalTransition):
        step(Phase.NEW, Event.REQUEST_READ)


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_has_its_rules_and_its_row(phase: Phase) -> None:
    assert phase in RULES
    assert TRANSITIONS[phase][Event.ENDED] is Phase.CLOSED


def test_every_phase_can_be_reached() -> None:
    assert list_reachable(Phase.NEW) == set(Phase)


def test_nothing_leaves_a_closed_connection() -> None:
    assert list_reachable(Phase.CLOSED) == {Phase.CLOSED}


def test_a_connection_that_lingers_takes_no_request() -> None:
    assert list_reachable(Phase.LINGERING) == {Phase.LINGERING, Phase.CLOSED}
    assert RULES[Phase.LINGERING].reads is Reads.NOTHING


@pytest.mark.parametrize("phase", [phase for phase in Phase if RULES[phase].reads is Reads.REQUESTS])
def test_client_that_sends_garbage_can_be_told_so_wherever_it_is_read(phase: Phase) -> None:
    assert TRANSITIONS[phase][Event.LAST_SENT] is Phase.LINGERING


@pytest.mark.parametrize("phase", Phase)
def test_client_is_waited_for_with_a_deadline_exactly_where_its_requests_are_read(phase: Phase) -> None:
    rules = RULES[phase]
    assert (rules.deadline is not Deadline.NONE) == (rules.reads is Reads.REQUESTS)


@pytest.mark.parametrize("phase", Phase)
def test_process_that_stops_closes_where_no_request_has_begun(phase: Phase) -> None:
    begun = {Phase.HEAD, Phase.BODY, Phase.STREAMING_BODY, Phase.ANSWERING, Phase.TUNNEL, Phase.LINGERING}
    assert RULES[phase].may_stop == (phase not in begun)


@pytest.mark.parametrize("phase", Phase)
def test_client_that_has_begun_a_request_is_told_that_it_is_late(phase: Phase) -> None:
    assert RULES[phase].is_told == (phase in (Phase.HEAD, Phase.BODY, Phase.STREAMING_BODY))


ILLEGAL = [(phase, event) for phase in Phase for event in Event if event not in TRANSITIONS[phase]]


@pytest.mark.parametrize(("phase", "event"), ILLEGAL)
def test_what_the_table_does_not_have_is_a_bug_that_names_both(phase: Phase, event: Event) -> None:
    with pytest.raises(IllegalTransition, match=f"{event.name} .* {phase.name}"):
        step(phase, event)


def test_phases_change_by_the_table_alone() -> None:
    """The connection sets its phase where it begins, and in the one method that asks the table."""
    assert re.findall(r"self\.phase = (.*)", CONNECTION.read_text()) == ["Phase.NEW", "step(self.phase, event)"]
