"""Where do thoughts begin and end, and what ends them? Whole, byte by byte, and cut off."""

import pytest

from llamactl.instance.engine.thinking import ThinkingRules, ThinkingWatch

RULES = ThinkingRules("<think>", ("</think>", "<call>"))
TEXT = "a<think>b c</think>d<call>e"


def run(watch: ThinkingWatch, pieces: list[bytes]) -> tuple[bytes, list[bool]]:
    return b"".join(watch.accept(piece) for piece in pieces), [watch.is_within]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_what_stands_outside_is_the_same_however_it_is_cut(size: int) -> None:
    data = TEXT.encode()
    outside, _ = run(ThinkingWatch(RULES), [data[at : at + size] for at in range(0, len(data), size)])
    assert outside == b"a<think></think>d<call>e"


def test_thoughts_may_begin_in_the_prompt() -> None:
    watch = ThinkingWatch(RULES, "<assistant><think>\n")
    assert watch.is_within
    assert watch.accept(b"so <call") == b""
    assert watch.accept(b">f") == b"<call>f"
    assert not watch.is_within


def test_thoughts_that_the_prompt_has_ended_are_over() -> None:
    watch = ThinkingWatch(RULES, "<think>\n\n</think>\n")
    assert watch.has_thought
    assert not watch.is_within


def test_end_tag_outside_of_thoughts_is_text() -> None:
    assert ThinkingWatch(RULES).accept(b"a</think>b") == b"a</think>b"


def test_second_block_has_a_budget_of_its_own() -> None:
    watch = ThinkingWatch(ThinkingRules("(", (")",), budget=2, forced=(9,)))
    forced = []
    for piece in (b"(", b"a", b"b", b")", b"x", b"(", b"c", b"d"):
        assert watch.pop_forced() is None or piece == b")"
        watch.accept(piece)
        forced.append(bool(watch._forced))
    assert forced == [False, False, True, False, False, False, False, True]


def test_used_up_budget_forces_the_end() -> None:
    watch = ThinkingWatch(ThinkingRules("<t>", ("</t>",), budget=2, forced=(7, 8)), "<t>")
    assert watch.pop_forced() is None
    for piece in (b"a", b"b"):
        watch.accept(piece)
    assert watch.pop_forced() == 7
    watch.accept(b"</")
    assert watch.pop_forced() == 8
    watch.accept(b"t>")
    assert watch.pop_forced() is None
    assert not watch.is_within


def test_forced_tokens_end_thoughts_even_if_their_text_does_not_show_it() -> None:
    watch = ThinkingWatch(ThinkingRules("<t>", ("</t>",), budget=0, forced=(7,)), "<t>")
    assert watch.pop_forced() == 7
    watch.accept(b"?")
    assert not watch.is_within
    assert watch.pop_forced() is None


def test_budget_ends_no_character_in_its_middle() -> None:
    watch = ThinkingWatch(ThinkingRules("<t>", ("</t>",), budget=1, forced=(7,)), "<t>")
    first, *rest = "🙂".encode()
    watch.accept(bytes([first]))
    for byte in rest:
        assert watch.pop_forced() is None
        watch.accept(bytes([byte]))
    assert watch.pop_forced() == 7


def test_no_budget_forces_nothing() -> None:
    watch = ThinkingWatch(RULES, "<think>")
    for _ in range(1000):
        watch.accept(b"x")
    assert watch.pop_forced() is None


def test_short_tag_is_found_once() -> None:
    """The tail that is kept for the longest tag may hold a shorter one whole."""
    watch = ThinkingWatch(ThinkingRules("<i>", ("</i>", "<a very long tag>")))
    assert b"".join(watch.accept(bytes([byte])) for byte in b"<i>x</i>y<i>z</i>w") == b"<i></i>y<i></i>w"
