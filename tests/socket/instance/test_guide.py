"""Does a grammar begin where it should, and is it given up, not the process, where what has come does not fit it?"""

import sys
from pathlib import Path

import pytest

from llamactl.instance.engine import grammars
from llamactl.instance.engine.grammars import GrammarError, Prototype, create_grammar, spell
from llamactl.instance.engine.guide import AnswerGuide, AnswerRules, GrammarStart
from llamactl.instance.engine.thinking import ThinkingRules
from llamactl.instance.engine.triggers import Trigger, TriggerKind
from llamactl.instance.llama.model import Vocabulary
from tests.models import write_model
from tests.socket.instance.test_generate import load_tiny

CONTROL = ("<think>", "</think>", "<call>")
CALL = (Trigger(TriggerKind.WORD, "<call>\n"),)
THINKING = ThinkingRules("<think>", ("</think>",))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path: Path = write_model(tmp_path_factory.mktemp("guide") / "m.gguf", control=CONTROL)
    loaded = load_tiny(path, parallel=1, n_ctx=256)
    return loaded.model.vocabulary


def feed(guide: AnswerGuide, vocabulary: Vocabulary, text: str) -> None:
    for token in vocabulary.tokenize(text, add_special=False, parse_special=True):
        guide.accept(token)


def allows(guide: AnswerGuide, vocabulary: Vocabulary, text: str) -> bool:
    (token, *_) = vocabulary.tokenize(text, add_special=False, parse_special=True)
    return guide.grammar is None or guide.opens(token) or guide.grammar.allows(token)


def test_grammar_at_once_has_read_what_is_written(vocabulary: Vocabulary) -> None:
    rules = AnswerRules('root ::= "<|im_start|>a\\n" "xy"', written="<|im_start|>a\n", grammar_reads_written=True)
    guide = AnswerGuide(rules, vocabulary)
    assert allows(guide, vocabulary, "x")
    assert not allows(guide, vocabulary, "y")
    guide.close()


def test_grammar_that_does_not_begin_with_what_is_written_is_an_error(vocabulary: Vocabulary) -> None:
    with pytest.raises(GrammarError, match="does not begin"):
        AnswerGuide(AnswerRules('root ::= "b"', written="a", grammar_reads_written=True), vocabulary)


@pytest.mark.parametrize("text", ["I say: <call>\n", "I say: <", "I say: "])
def test_grammar_begins_with_its_trigger_alone(vocabulary: Vocabulary, text: str) -> None:
    guide = AnswerGuide(AnswerRules('root ::= "<call>\\n" "x"', GrammarStart.ON_TRIGGER, CALL), vocabulary)
    feed(guide, vocabulary, text)
    assert (guide.grammar is not None) == text.endswith("<call>\n")
    assert allows(guide, vocabulary, "x")
    assert allows(guide, vocabulary, "y") != text.endswith("<call>\n")
    guide.close()


def test_grammar_that_forbids_what_called_for_it_is_given_up(vocabulary: Vocabulary) -> None:
    """llama.cpp's own lazy grammar ends the process here."""
    guide = AnswerGuide(AnswerRules('root ::= "other"', GrammarStart.ON_TRIGGER, CALL), vocabulary)
    feed(guide, vocabulary, "<call>\nx")
    assert guide.grammar is None
    feed(guide, vocabulary, "<call>\nx")


def test_grammar_that_forbids_a_forced_token_is_given_up(vocabulary: Vocabulary) -> None:
    guide = AnswerGuide(AnswerRules('root ::= "x"'), vocabulary)
    (token,) = spell(vocabulary, b"y")
    guide.accept(token)
    assert guide.grammar is None


def test_call_within_thoughts_calls_for_nothing(vocabulary: Vocabulary) -> None:
    rules = AnswerRules('root ::= "<call>\\n" "x"', GrammarStart.ON_TRIGGER, CALL, written="<think>", thinking=THINKING)
    guide = AnswerGuide(rules, vocabulary)
    feed(guide, vocabulary, "<call>\n no")
    assert guide.grammar is None
    feed(guide, vocabulary, "</think>\n<call>\n")
    assert guide.grammar is not None
    guide.close()


def test_content_has_its_grammar_unless_a_thought_or_a_call_begins(vocabulary: Vocabulary) -> None:
    rules = AnswerRules(
        'root ::= "<call>\\n" "x"', GrammarStart.ON_TRIGGER, CALL, content_grammar='root ::= "{}"', thinking=THINKING
    )
    guide = AnswerGuide(rules, vocabulary)
    assert [allows(guide, vocabulary, text) for text in ("{", "<think>", "<call>", "x")] == [True, True, True, False]
    feed(guide, vocabulary, "<think>free {")
    assert guide.grammar is None
    feed(guide, vocabulary, "</think>")
    for _ in range(3):
        assert [allows(guide, vocabulary, text) for text in ("{", "<call>", "x", "\n")] == [True, True, False, True]
        feed(guide, vocabulary, "\n")
    feed(guide, vocabulary, "<call>")
    (newline,) = spell(vocabulary, b"\n")
    assert guide.pop_forced() == newline, "the rest of what calls for the grammar"
    guide.accept(newline)
    assert allows(guide, vocabulary, "x")
    assert not allows(guide, vocabulary, "{")
    guide.close()


def test_spelling_needs_no_whole_characters(vocabulary: Vocabulary) -> None:
    for text in (b"", b" a", "é🙂".encode(), "🙂".encode()[1:3], b"<call>\n"):
        tokens = spell(vocabulary, text)
        assert b"".join(vocabulary.piece(token, special=True) for token in tokens) == text


def test_grammar_is_given_back_when_its_module_is_gone(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the process modules are emptied before what they keep is dropped."""
    kept = [Prototype(create_grammar(vocabulary, 'root ::= "a"').sampler)]
    caught: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", caught.append)
    monkeypatch.setattr(grammars, "llama", None)
    kept.clear()
    assert not caught
