"""Which slot does a request get, and what is given up first?"""

from hypothesis import given
from hypothesis import strategies as st

from llamactl.instance.engine.slots import Slot, choose_purges, choose_slot, count_cells, count_common_prefix

TOKENS = st.lists(st.integers(min_value=0, max_value=2), max_size=6)


@given(TOKENS, TOKENS)
def test_common_prefix_is_common_and_cannot_be_longer(left: list[int], right: list[int]) -> None:
    length = count_common_prefix(left, right)
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]


def test_slot_with_the_longest_common_prefix_is_taken() -> None:
    slots = [Slot(0, [1, 2]), Slot(1, [1, 2, 3]), Slot(2, [9])]
    assert choose_slot(slots, [1, 2, 3, 4]) is slots[1]


def test_among_equals_the_least_recently_used_is_taken() -> None:
    slots = [Slot(0, last_used=5), Slot(1, last_used=2), Slot(2, last_used=9)]
    assert choose_slot(slots, [1]) is slots[1]


def test_busy_slot_is_never_taken() -> None:
    slots = [Slot(0, [1, 2], busy=True), Slot(1)]
    assert choose_slot(slots, [1, 2]) is slots[1]
    slots[1].busy = True
    assert choose_slot(slots, [1, 2]) is None


def test_oldest_idle_slots_are_purged_until_it_suffices() -> None:
    slots = [Slot(0, [1] * 4, last_used=3), Slot(1, [1] * 4, last_used=1), Slot(2, [1] * 4, busy=True, last_used=0)]
    assert choose_purges(slots, 1) == [slots[1]]
    assert choose_purges(slots, 5) == [slots[1], slots[0]]
    assert choose_purges(slots, 50) == [slots[1], slots[0]]
    assert choose_purges(slots, 0) == []
    assert count_cells(slots) == 12
