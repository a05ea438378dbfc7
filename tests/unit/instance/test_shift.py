"""What goes when a context is full? As llama-server decides it (server-context.cpp: pre_decode)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.instance.engine.shift import Shift, choose_shift


@pytest.mark.parametrize(
    ("n_keep", "n_discard", "adds_bos", "shift"),
    [
        (0, 0, False, Shift(0, 127)),
        (0, 0, True, Shift(1, 127)),
        (31, 0, True, Shift(32, 111)),
        (-1, 0, False, Shift(40, 107)),
        (-1, 0, True, Shift(41, 107)),
        (10, 20, True, Shift(11, 20)),
        (10, 10_000, False, Shift(10, 244)),
        (10_000, 0, True, Shift(252, 1)),
        (10_000, 10_000, True, Shift(252, 2)),
    ],
)
def test_half_of_what_is_not_kept_goes_or_what_the_request_says(
    n_keep: int, n_discard: int, adds_bos: bool, shift: Shift
) -> None:
    assert choose_shift(255, 40, 256, n_keep=n_keep, n_discard=n_discard, adds_bos=adds_bos) == shift


@given(st.integers(8, 5000), st.data(), st.booleans())
def test_there_is_room_afterwards_and_something_to_move(n_ctx: int, data: st.DataObject, adds_bos: bool) -> None:
    n_prompt = data.draw(st.integers(1, n_ctx - 1))
    n_keep, n_discard = data.draw(st.integers(-1, 2 * n_ctx)), data.draw(st.integers(0, 2 * n_ctx))
    shift = choose_shift(n_ctx - 1, n_prompt, n_ctx, n_keep=n_keep, n_discard=n_discard, adds_bos=adds_bos)
    assert shift.n_keep >= 0
    assert shift.n_discard >= 1
    assert shift.n_keep + shift.n_discard < n_ctx - 1
