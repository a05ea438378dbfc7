"""Which changes of state does the table allow, and does it hold?"""

import itertools

import pytest

from llamactl.protocol.values import State
from llamactl.sched.states import RUNNING, TRANSITIONS, IllegalTransition, check_transition


def test_every_state_is_in_the_table_and_can_be_left() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(TRANSITIONS.values())


def test_a_change_that_is_not_in_the_table_raises_and_names_both_states() -> None:
    for before, after in itertools.product(State, State):
        if after in TRANSITIONS[before]:
            check_transition("qwen", before, after)
        else:
            with pytest.raises(IllegalTransition, match=f"'qwen' from {before} to {after}"):
                check_transition("qwen", before, after)


def test_a_model_that_stops_can_only_end() -> None:
    assert TRANSITIONS[State.STOPPING] == {State.UNLOADED}


def test_only_a_model_without_a_unit_is_started_and_one_that_sleeps_woken() -> None:
    starting = {before for before, after in TRANSITIONS.items() if State.LOADING in after}
    assert starting == (set(State) - RUNNING) | {State.SLEEPING}
