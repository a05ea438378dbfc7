"""Is what a template writes of an answer read back from the text of a model that was trained on it? For all templates
of llama.cpp's collection: whole, as it comes, cut anywhere, broken off anywhere, and with garbage in it.
"""

import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import pytest

from llamactl.instance.chat.layer import ChatLayer, LayerTemplate
from llamactl.instance.engine.jobs import FinishEvent, FinishReason, TextEvent, Timings
from llamactl.instance.http.deltas import Message, ToolCallDelta, read_message
from llamactl.instance.http.reading import ParsingReader, ReadingPace
from tests.sdist import read_templates
from tests.socket.instance.written import CALLS, CONTENT, KINDS, THOUGHT, Written, write_answers

FUZZ_S = float(os.environ.get("LLAMACTL_FUZZ_S", "5"))
TIMINGS = Timings(0, 1, 1.0, 2, 1.0)
WORDS = (*CONTENT.strip(".").split(), *THOUGHT.strip(".").split(), *(given["city"] for _, given in CALLS))

_ALL = frozenset(KINDS)
NOT_READ: dict[str, frozenset[str]] = {
    # The prompt begins with a thought whether it is wanted or not, which the template does not end for what it writes.
    "Apriel-1.6-15b-Thinker-fixed": frozenset({"content", "call", "calls", "content+call"}),
    "NVIDIA-Nemotron-Nano-v2": frozenset({"content", "thought+content"}),
    "tencent-Hy3": _ALL - {"content"},
    # llama.cpp reads a form that it has found out itself, and lets models write no other.
    "MiniMax-M1": frozenset({"calls"}),
    "MiniMax-M2": frozenset({"calls"}),
    "Mistral-Small-3.2-24B-Instruct-2506": frozenset({"call", "calls", "content+call", "thought+call"}),
    "meetkai-functionary-medium-v3.2": frozenset({"calls", "content+call"}),
    "upstage-Solar-Open-100B": _ALL,
    # The template writes the text behind the call, or as a thought.
    "google-gemma-4-31B-it": frozenset({"content+call"}),
    "openai-gpt-oss-120b": frozenset({"content+call"}),
}
"""What is text, or not all of it, with llama-server too."""


class Answers:
    """All that templates write, with their templates."""

    def __init__(self) -> None:
        layer = ChatLayer()
        self.all: dict[str, tuple[LayerTemplate, dict[str, Written]]] = {}
        for name, source in sorted(read_templates().items()):
            template = layer.open_template(source, None, "<s>", "</s>")
            self.all[name] = template, write_answers(template)

    def list_readable(self) -> Iterable[tuple[str, LayerTemplate, Written]]:
        for name, (template, written) in self.all.items():
            for kind, answer in written.items():
                if kind not in NOT_READ.get(name, ()):
                    yield f"{name}, {kind}", template, answer


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers()


def finish(answer: Written, reason: FinishReason = FinishReason.STOP) -> FinishEvent:
    return FinishEvent(reason, 1, 2, 0, TIMINGS, end_text=answer.end_text if reason is FinishReason.STOP else "")


def read(
    template: LayerTemplate, answer: Written, pieces: Sequence[str], reason: FinishReason = FinishReason.STOP
) -> Message:
    """Parsed after each piece."""
    pace = ReadingPace(clock=itertools.count().__next__, cost_clock=lambda: 0.0)
    reader = ParsingReader(template.start_answer(answer.applied), pace)
    return read_message(reader, [TextEvent(piece, 1) for piece in pieces], finish(answer, reason))


def is_meant(message: Message, answer: Written) -> bool:
    try:
        calls = tuple((call.name, json.loads(call.arguments)) for call in message.calls)
    except ValueError:
        return False
    said = message.content.strip() == answer.content and answer.thought in message.reasoning
    return said and calls == answer.calls and bool(answer.thought) == bool(message.reasoning.strip())


def find_misread(answers: Answers, cut: Callable[[str], Iterable[Sequence[str]]]) -> list[str]:
    """`cut`: into pieces, in every way that is to be tried."""
    return [
        f"{name}: {pieces}"
        for name, template, answer in answers.list_readable()
        for pieces in cut(answer.text)
        if not is_meant(read(template, answer, pieces), answer)
    ]


def test_what_templates_write_is_read_whole(answers: Answers) -> None:
    assert not find_misread(answers, lambda text: [[text]])
    assert len(list(answers.list_readable())) > 330


def test_what_is_not_read_is_known(answers: Answers) -> None:
    """When llama.cpp learns one of them, it is to be taken off the list."""
    for name, kinds in NOT_READ.items():
        template, written = answers.all[name]
        for kind in kinds & set(written):
            answer = written[kind]
            assert not is_meant(read(template, answer, [answer.text]), answer), f"{name}, {kind}"


def test_what_templates_write_is_read_as_it_comes(answers: Answers) -> None:
    assert not find_misread(answers, lambda text: [list(text)])


def test_what_templates_write_is_read_wherever_it_is_cut(answers: Answers) -> None:
    """Each answer at every third place, the next one at other ones: the seventy templates write the same forms."""
    starts = itertools.cycle((1, 2, 3))
    assert not find_misread(answers, lambda text: ([text[:at], text[at:]] for at in range(next(starts), len(text), 3)))


def test_words_of_an_answer_that_breaks_off_are_not_lost(answers: Answers) -> None:
    lost = []
    starts = itertools.cycle(range(3))
    for name, (template, written) in answers.all.items():
        for kind, answer in written.items():
            if (name, kind) == ("google-gemma-4-31B-it", "content+call"):
                continue  # llama.cpp reads over what stands behind a call
            for at in range(next(starts), len(answer.text), 3):
                text = answer.text[:at]
                message = read(template, answer, [text])
                if not has_words(message, text):
                    lost.append(f"{name}, {kind}: {text!r}: {message}")
    assert not lost


def has_words(message: Message, text: str) -> bool:
    """Whether all words that stand in the text are told somewhere."""
    told = "".join((message.content, message.reasoning, *(call.name + call.arguments for call in message.calls)))
    return all(told.count(word) >= text.count(word) for word in WORDS)


def test_broken_off_call_keeps_what_has_been_told(answers: Answers) -> None:
    for name, template, answer in answers.list_readable():
        for at in range(1, len(answer.text), 7):
            pieces = [answer.text[start : start + 9] for start in range(0, at, 9)]
            message = read(template, answer, pieces, FinishReason.LENGTH)
            for call in message.calls:
                assert call.id, name
                assert call.name in dict(CALLS), name


@pytest.mark.timeout(60 + 3 * FUZZ_S)
def test_garbage_is_told_as_it_came_and_ends_nothing(answers: Answers) -> None:
    seed = int(os.environ.get("LLAMACTL_FUZZ_SEED", "1"))
    chance = random.Random(seed)
    choices = [(name, template, answer) for name, (template, all_) in answers.all.items() for answer in all_.values()]
    counts: Counter[str] = Counter()
    until_s = time.monotonic() + FUZZ_S
    while time.monotonic() < until_s:
        name, template, answer = chance.choice(choices)
        text = mutate(answer, chance)
        n_pieces = chance.choice((1, 3, len(text)))
        cuts = sorted(chance.randrange(len(text) + 1) for _ in range(n_pieces))
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        check_garbage(template, answer, pieces, chance, counts, f"{name} {pieces!r} (seed {seed})")
    assert counts["read"]
    assert counts["fell back"]


def check_garbage(
    template: LayerTemplate, answer: Written, pieces: list[str], chance: random.Random, counts: Counter[str], where: str
) -> None:
    pace = ReadingPace(clock=itertools.count().__next__, cost_clock=lambda: 0.0)
    reader = ParsingReader(template.start_answer(answer.applied), pace)
    message, text = Message(), "".join(pieces)
    named: set[int] = set()
    deltas = [delta for piece in pieces for delta in reader.read(TextEvent(piece, 1))]
    told_before = len(deltas)
    deltas += reader.end(finish(answer, chance.choice(list(FinishReason))))
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            assert bool(delta.name) == bool(delta.id) == (delta.index not in named), where
            assert delta.index <= len(named), where
            named.add(delta.index)
    message.add(deltas)
    if reader.has_failed:
        counts["fell back"] += 1
        before = Message()
        before.add(deltas[:told_before])
        assert text.endswith(message.content.removeprefix(before.content)), where
    else:
        counts["read"] += 1


def mutate(answer: Written, chance: random.Random) -> str:
    marks = [*answer.applied.preserved_tokens, *(trigger.value for trigger in answer.applied.grammar_triggers)]
    noise = [
        *marks,
        "{",
        "}",
        '"',
        "\n",
        "<",
        "[",
        "]",
        ":",
        "\0",
        "é",
        "🙂",
        "[" * 5000,
        '{"a":' * 3000,
        "get_weather",
        "ALPHA",
    ]
    text = answer.text
    for _ in range(chance.randrange(1, 5)):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.randrange(12))
        text = {
            0: text[:start] + text[end:],
            1: text[:start] + chance.choice(noise) + text[start:],
            2: text[:end] + text[start:],
            3: text[:start],
        }[chance.randrange(4)]
    return text


def test_long_answer_is_not_parsed_after_each_token(answers: Answers) -> None:
    """8,000 tokens: the share of one processor's time that parsing may have holds."""
    template, written = answers.all["Qwen-Qwen3-0.6B"]
    answer = written["thought+content"]
    now_s = 0.0
    spent_s = 0.0

    def cost_clock() -> float:
        return time.thread_time()

    pace = ReadingPace(clock=lambda: now_s, cost_clock=cost_clock)
    reader = ParsingReader(template.start_answer(answer.applied), pace)
    n_told = 0
    for _ in range(8000):
        now_s += 0.001  # a fast model's token
        started_s = time.thread_time()
        n_told += bool(reader.read(TextEvent(" word", 1)))
        spent_s += time.thread_time() - started_s
    assert spent_s < 0.05 * 8000 * 0.001 * 2, "twice the share, for what is not parsing"
    assert n_told > 100, "and still it comes bit by bit"
    message = Message()
    message.add(reader.end(finish(answer)))
