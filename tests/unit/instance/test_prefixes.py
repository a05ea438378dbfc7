"""Which beginning does a request go on from, what is given up for it, and are the books right?"""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llamactl.instance.engine.prefixes import (
    MIN_CUT,
    MOVED,
    Cells,
    Cut,
    Place,
    Prefix,
    Run,
    choose_cut,
    choose_patience,
    choose_place,
    count_common_prefix,
    list_expired,
)

HEAD = list(range(100, 110))
"""With which all prompts begin: the head of a chat template."""
CHAT = [*HEAD, *range(1000, 2648)]
OTHER = [*HEAD, *range(3000, 3300)]
TOKENS = st.lists(st.integers(min_value=0, max_value=2), max_size=6)


def hold(id: int, tokens: list[int], **more: Any) -> Prefix:
    return Prefix(id, id, list(tokens), [Run(len(tokens))] if tokens else [], **more)


def choose(prefixes: list[Prefix], tokens: list[int], now: int = 10, can_copy: bool = True) -> Place:
    place = choose_place(prefixes, tokens, now, can_copy=can_copy)
    assert place is not None
    return place


@given(TOKENS, TOKENS)
def test_common_prefix_is_common_and_cannot_be_longer(left: list[int], right: list[int]) -> None:
    length = count_common_prefix(left, right)
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]


@given(st.integers(0, 600), st.integers(0, 600), st.integers(0, 600))
def test_long_common_prefix_is_counted_to_the_token(n_common: int, left: int, right: int) -> None:
    assert count_common_prefix([1] * n_common + [2] * left, [1] * n_common + [3] * right) == n_common


# --- which place ------------------------------------------------------------------------------------


def test_chat_goes_on_where_it_was() -> None:
    prefixes = [hold(0, CHAT), hold(1, OTHER), hold(2, [])]
    assert choose(prefixes, [*CHAT, 7, 8]) == Place(prefixes[0], len(CHAT))


def test_last_token_is_decoded_again() -> None:
    prefix = hold(0, CHAT)
    assert choose([prefix], CHAT) == Place(prefix, len(CHAT) - 1)


def test_another_conversation_takes_an_empty_place_though_all_begin_alike() -> None:
    prefixes = [hold(0, CHAT, last_used=9), hold(1, [])]
    assert choose(prefixes, OTHER) == Place(prefixes[1], 0, prefixes[0], len(HEAD))
    assert choose(prefixes, OTHER, can_copy=False) == Place(prefixes[1], 0)


def test_beginning_of_a_longer_text_is_copied_where_there_is_room() -> None:
    prefixes = [hold(0, CHAT, last_used=9), hold(1, [])]
    assert choose(prefixes, [*CHAT[:800], 1, 2]) == Place(prefixes[1], 0, prefixes[0], 800)


def test_prompt_that_is_asked_again_takes_the_place_of_its_former_answer() -> None:
    answered = hold(0, [*CHAT, *range(5000, 5300)], n_prompt=len(CHAT), last_used=9)
    prefixes = [answered, hold(1, [])]
    assert choose(prefixes, CHAT) == Place(answered, len(CHAT) - 1)
    assert choose(prefixes, CHAT[:-1]) == Place(prefixes[1], 0, answered, len(CHAT) - 2), "another, shorter one"
    turn = [*CHAT, *range(5000, 5300), 7, 8]
    assert choose([hold(0, turn, n_prompt=len(turn)), hold(1, [])], CHAT).donor is not None, "an earlier turn of it"


def test_beginning_of_a_busy_text_is_copied() -> None:
    prefixes = [hold(0, CHAT, busy=True), hold(1, [])]
    assert choose(prefixes, [*CHAT, 1]) == Place(prefixes[1], 0, prefixes[0], len(CHAT))


def test_answer_that_the_template_writes_otherwise_costs_no_new_place() -> None:
    prefixes = [hold(0, [*CHAT, 1, 2, 3, 4], last_used=9), hold(1, [])]
    assert choose(prefixes, [*CHAT, 5, 6]) == Place(prefixes[0], len(CHAT))


def test_where_nothing_can_be_copied_half_a_text_is_taken_over_and_its_head_is_not() -> None:
    prefixes = [hold(0, CHAT, last_used=9), hold(1, [])]
    assert choose(prefixes, [*CHAT[:900], 1], can_copy=False) == Place(prefixes[0], 900)
    assert choose(prefixes, [*CHAT[:200], 1], can_copy=False) == Place(prefixes[1], 0)


def test_without_an_empty_place_the_short_text_goes_and_the_long_one_stays() -> None:
    prefixes = [hold(0, CHAT, last_used=6), hold(1, OTHER, last_used=9)]
    assert choose(prefixes, [*HEAD, 1, 2, 3]).prefix is prefixes[1]


def test_text_that_nobody_has_asked_for_in_a_long_time_goes() -> None:
    prefixes = [hold(0, CHAT, last_used=1), hold(1, OTHER, last_used=98)]
    assert choose(prefixes, [*HEAD, 1, 2, 3], now=100).prefix is prefixes[0]


def test_text_that_another_one_holds_too_costs_nothing() -> None:
    branch = [*CHAT[:1600], *range(5000, 5010)]
    prefixes = [hold(0, CHAT, last_used=9), hold(1, branch, last_used=9), hold(2, OTHER, last_used=9)]
    assert choose(prefixes, [1, 2, 3]).prefix is prefixes[1]


def test_among_equals_the_least_recently_used_is_taken() -> None:
    prefixes = [hold(0, [], last_used=5), hold(1, [], last_used=2), hold(2, [], last_used=9)]
    assert choose(prefixes, [1]).prefix is prefixes[1]


def test_busy_prefix_is_never_taken() -> None:
    prefixes = [hold(0, CHAT, busy=True), hold(1, OTHER, busy=True)]
    assert choose_place(prefixes, CHAT, 10, can_copy=True) is None


def test_prefix_that_cannot_be_cut_there_is_worth_nothing() -> None:
    prefixes = [hold(0, CHAT, last_used=9), hold(1, [])]
    place = choose_place(prefixes, [*CHAT[:1600], 1], 10, can_copy=False, count_kept=lambda prefix, n: 0)
    assert place == Place(prefixes[1], 0)


def test_four_chats_and_their_side_requests_lose_nothing() -> None:
    """In turn, as people and the programs that write titles for them do."""
    chats = [[*HEAD, *range(n, n + 1500)] for n in (10_000, 20_000, 30_000, 40_000)]
    n_held = [0, 0, 0, 0]
    cells, now = Cells(range(32)), 0
    for turn in range(3):
        for index, chat in enumerate(chats):
            title = [*HEAD, 7, turn, index, *range(300)]
            for tokens in (chat, title):
                now += 1
                place = choose(cells.prefixes, tokens, now)
                assert tokens is title or place.n_kept == n_held[index]
                cells.cut(place.prefix, place.n_kept)
                cells.extend(place.prefix, tokens[place.n_kept :])
                place.prefix.last_used = now
            n_held[index] = len(chat)
            chat += range(chat[-1] + 1, chat[-1] + 50)


# --- what is given up -------------------------------------------------------------------------------


def test_cells_are_taken_from_the_end_of_what_has_been_idle_for_longest() -> None:
    prefixes = [hold(0, CHAT, last_used=3), hold(1, CHAT, last_used=1), hold(2, CHAT, busy=True)]
    assert choose_cut(prefixes, 1, can_cut=True) == Cut(prefixes[1], len(CHAT) - MIN_CUT)
    assert choose_cut(prefixes, 1000, can_cut=True) == Cut(prefixes[1], len(CHAT) - 1000)
    assert choose_cut(prefixes, 2000, can_cut=True) == Cut(prefixes[1], 0)
    assert choose_cut(prefixes[2:], 1, can_cut=True) is None


def test_what_cannot_be_cut_goes_whole() -> None:
    prefixes = [hold(0, CHAT, last_used=3), hold(1, CHAT, last_used=1)]
    assert choose_cut(prefixes, 1, can_cut=False) == Cut(prefixes[1], 0)


def free(cells: Cells, n_cells: int) -> list[Cut]:
    """What is given up until so many cells are free, or nothing is left to give up."""
    n_allowed, cuts = cells.n_used - n_cells, []
    while cells.n_used > n_allowed:
        cut = choose_cut(cells.prefixes, cells.n_used - n_allowed, can_cut=True)
        if cut is None:
            break
        cells.cut(cut.prefix, cut.n_kept)
        cuts.append(cut)
    return cuts


def test_cells_that_a_busy_prefix_shares_cannot_be_had() -> None:
    cells = Cells(range(2))
    busy, idle = cells.prefixes
    busy.busy = True
    cells.extend(busy, CHAT)
    cells.copy(busy, idle, 1000)
    cells.extend(idle, [1] * 300)
    assert free(cells, 200) == [Cut(idle, 1100)]
    assert free(cells, 1000) == [Cut(idle, 1000), Cut(idle, 0)]
    assert cells.n_used == len(CHAT)


def test_cells_that_only_idle_prefixes_share_can_be_had() -> None:
    """Two chats with one system prompt, whose own parts are gone already."""
    cells = Cells(range(2))
    first, second = cells.prefixes
    cells.extend(first, CHAT)
    cells.copy(first, second, 1000)
    cells.cut(first, 1000)
    assert free(cells, 400) == [Cut(first, 0), Cut(second, 600)]
    assert cells.n_used == 600
    free(cells, 600)
    assert cells.n_used == 0


# --- the books --------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["extend", "cut", "copy", "shift"]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 8)
    ),
    max_size=40,
)


@given(STEPS)
def test_cells_are_counted_as_they_are_shared(steps: list[tuple[str, int, int, int]]) -> None:
    """Beside a model in which every cell has a name."""
    cells = Cells(range(4))
    model: list[list[int]] = [[], [], [], []]
    n_cells = 0
    for what, index, other, n in steps:
        prefix = cells.prefixes[index]
        if what == "extend" and n:
            cells.extend(prefix, [7] * n)
            model[index] += range(n_cells, n_cells + n)
            n_cells += n
        elif what == "cut":
            length = min(n, len(prefix.tokens))
            cells.cut(prefix, length)
            del model[index][length:]
        elif what == "copy" and index != other:
            donor = cells.prefixes[other]
            length = min(n, len(donor.tokens) if donor.moved_from is None else donor.moved_from)
            cells.cut(prefix, 0)
            cells.copy(donor, prefix, length)
            model[index] = model[other][:length]
        elif what == "shift":
            n_keep, n_discard = min(n, len(prefix.tokens)), min(other, max(0, len(prefix.tokens) - n))
            moved = set(model[index][n_keep + n_discard :])
            sharers = cells.list_sharers(prefix, n_keep + n_discard)
            assert sharers == [
                cells.prefixes[i] for i, held in enumerate(model) if i != index and moved.intersection(held)
            ]
            for sharer in sharers:
                cells.cut(sharer, n_keep + n_discard)
                del model[sharer.home][n_keep + n_discard :]
            cells.shift(prefix, n_keep, n_discard)
            del model[index][n_keep : n_keep + n_discard]
            assert prefix.tokens[n_keep:] == [MOVED] * len(model[index][n_keep:])
        assert [len(prefix.tokens) for prefix in cells.prefixes] == [len(held) for held in model]
        assert cells.n_used == len(set().union(*model))
        for prefix, held in zip(cells.prefixes, model, strict=True):
            others = set().union(*(names for names in model if names is not held))
            assert prefix.count_own() == len(set(held) - others)
            assert sum(run.length for run in prefix.runs) == len(held)


def test_what_was_moved_is_the_beginning_of_no_prompt_and_is_forgotten_when_it_is_cut() -> None:
    cells = Cells(range(2))
    prefix, empty = cells.prefixes
    cells.extend(prefix, CHAT)
    cells.shift(prefix, 100, 50)
    assert choose(cells.prefixes, [*CHAT[:100], *CHAT[150:]]) == Place(empty, 0, prefix, 100)
    cells.extend(prefix, [1, 2])
    cells.cut(prefix, 101)
    assert prefix.moved_from == 100
    cells.cut(prefix, 100)
    assert (prefix.tokens, prefix.moved_from, cells.n_used) == (CHAT[:100], None, 100)


def test_idle_text_goes_when_it_has_cost_as_much_as_decoding_it_again() -> None:
    # 1,000 bytes of cells for each token, a hundredth of the model.
    patience = choose_patience(n_ctx=2000, model_bytes=100_000, context_bytes=2_000_000)
    assert patience == 200
    cells = Cells(range(4))
    old, young, busy, sharing = cells.prefixes
    for prefix, start in ((old, 100), (young, 200), (busy, 300)):
        cells.extend(prefix, range(start, start + 20))
    cells.copy(busy, sharing, 10)
    old.idle_since, young.idle_since, busy.busy = 50, 51, True
    assert list_expired(cells.prefixes, 249, patience) == []
    assert list_expired(cells.prefixes, 250, patience) == [old], "what others hold as well costs nothing"
    assert list_expired(cells.prefixes, 251, patience) == [old, young]


def test_patience_has_no_end_where_tokens_have_no_cells() -> None:
    assert choose_patience(n_ctx=2000, model_bytes=100_000, context_bytes=0) is None
