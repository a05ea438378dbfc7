"""Is the place where a grammar begins found, once, and wherever tokens are cut?"""

import time

import pytest

from llamactl.instance.engine.triggers import Trigger, TriggerKind, TriggerWatch

WORD = Trigger(TriggerKind.WORD, "<call>\n")
TOKEN = Trigger(TriggerKind.TOKEN, "<|call|>")
GPT = (
    Trigger(TriggerKind.PATTERN, r"^\s+to$"),
    Trigger(TriggerKind.PATTERN, r"<\|start\|>assistant(\s+to)"),
    Trigger(TriggerKind.PATTERN, r"<\|start\|>assistant(<\|channel\|>(?:commentary|analysis)\s+to)"),
)


def feed(triggers: tuple[Trigger, ...], text: str, size: int) -> tuple[int, bytes] | None:
    """After how many bytes something has called for the grammar, and what that reads."""
    watch, data = TriggerWatch(triggers), text.encode()
    for at in range(0, len(data), size):
        found = watch.find(data[at : at + size])
        if found is not None:
            return min(at + size, len(data)), found
    return None


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("trigger", [WORD, TOKEN])
def test_word_is_found_wherever_it_is_cut(trigger: Trigger, size: int) -> None:
    text = f"I é look: {trigger.value}{{}}"
    found = feed((trigger,), text, size)
    assert found is not None
    n_read, begun = found
    assert text.encode()[:n_read].endswith(begun)
    assert begun.startswith(trigger.value.encode())


def test_nothing_calls_for_the_grammar() -> None:
    assert feed((WORD, *GPT), "a <call> to nowhere <|start|>assistant", 3) is None


@pytest.mark.parametrize(
    ("text", "begun"),
    [
        (" to", b" to"),
        ("so<|start|>assistant to", b" to"),
        ("<|start|>assistant<|channel|>analysis to", b"<|channel|>analysis to"),
    ],
)
def test_first_group_of_a_pattern_is_the_beginning(text: str, begun: bytes) -> None:
    assert feed(GPT, text, 1) == (len(text), begun)


def test_pattern_of_the_beginning_does_not_match_later() -> None:
    assert feed(GPT, "no to", 1) is None
    assert feed((Trigger(TriggerKind.PATTERN_FULL, "a+"),), "baa", 1) is None
    assert feed((Trigger(TriggerKind.PATTERN_FULL, "a+b"),), "aab", 1) == (3, b"aab")


def test_alternative_for_the_beginning_does_not_match_behind_a_long_text() -> None:
    trigger = Trigger(TriggerKind.PATTERN, r"(?:^|<s>)( to=[a-z]+;)")
    assert feed((trigger,), " to=x;", 1) == (6, b" to=x;")
    assert feed((trigger,), "." * 5000 + " to=x;", 1) is None
    assert feed((trigger,), "." * 5000 + "<s> to=x;", 1) == (5009, b" to=x;")


def test_unreadable_pattern_is_an_error() -> None:
    with pytest.raises(ValueError, match="pattern"):
        TriggerWatch((Trigger(TriggerKind.PATTERN, "("),))


def test_long_answer_costs_no_more_for_each_token() -> None:
    """llama.cpp's own search takes a minute for so many."""
    watch = TriggerWatch((WORD, *GPT))
    costs_s = []
    for _ in range(4):
        started_s = time.perf_counter()
        for _ in range(4000):
            assert watch.find(b" word") is None
        costs_s.append(time.perf_counter() - started_s)
    assert sum(costs_s) < 5
    assert min(costs_s[2:]) < 8 * max(costs_s[0], 0.001)
