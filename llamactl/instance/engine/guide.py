"""What must the next token of an answer be, or may it be, by what has come so far? Its grammar, from where that begins,
and the end of thoughts that have taken too long.

A grammar begins at once (it has read then what the template has written of the answer), where something calls for it (a
function's call), or behind the thoughts. Thoughts are free. All that a grammar reads is tried before: where it forbids
what has come, which llama.cpp would end the process for, it is given up, and the answer goes on without it.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from llamactl.instance.engine.grammars import Grammar, GrammarError, create_grammar, prepare_grammar, spell
from llamactl.instance.engine.thinking import ThinkingRules, ThinkingWatch
from llamactl.instance.engine.triggers import Trigger, TriggerWatch
from llamactl.instance.llama.model import Vocabulary


class GrammarStart(StrEnum):
    AT_ONCE = "at_once"
    ON_TRIGGER = "on_trigger"
    AFTER_THINKING = "after_thinking"


@dataclass(frozen=True)
class AnswerRules:
    """Of the answers to one request."""

    grammar: str = ""
    """GBNF; empty: none."""
    start: GrammarStart = GrammarStart.AT_ONCE
    triggers: tuple[Trigger, ...] = ()
    written: str = ""
    """What the template has written of the answer."""
    grammar_reads_written: bool = False
    """A grammar that begins at once begins with it."""
    thinking: ThinkingRules | None = None

    def replace_grammar(self, grammar: str, *, waits: bool) -> "AnswerRules":
        """By one that the request brings. `waits`: for the end of thoughts."""
        start = GrammarStart.AFTER_THINKING if waits else GrammarStart.AT_ONCE
        return replace(self, grammar=grammar, start=start, triggers=(), grammar_reads_written=False)

    def prepare(self, vocabulary: Vocabulary) -> None:
        """Makes on this thread what takes long, so that the engine's finds it made. Raises GrammarError."""
        if self.grammar:
            prepare_grammar(vocabulary, self.grammar)
            AnswerGuide(self, vocabulary).close()


class AnswerGuide:
    """Of one answer. Owns its grammar: `close` it. Raises GrammarError."""

    def __init__(self, rules: AnswerRules, vocabulary: Vocabulary) -> None:
        self._rules = rules
        self._vocabulary = vocabulary
        self._thinking = None if rules.thinking is None else ThinkingWatch(rules.thinking, rules.written)
        self._waits = bool(rules.grammar)
        """There is a grammar that has not begun."""
        self._triggers = TriggerWatch(rules.triggers)
        self.grammar: Grammar | None = None
        """The one that the next token must fit."""
        if rules.grammar and rules.start is GrammarStart.AT_ONCE:
            self._begin(rules.written.encode() if rules.grammar_reads_written else b"")
            if self.grammar is None:
                raise GrammarError(f"it does not begin with {rules.written!r}, with which the chat template does")
        elif rules.start is GrammarStart.AFTER_THINKING and not self.is_thinking:
            self._begin(b"")

    @property
    def is_thinking(self) -> bool:
        return self._thinking is not None and self._thinking.is_within

    def take_forced(self) -> int | None:
        """The token that must come next; None: any that fits the grammar."""
        return None if self._thinking is None else self._thinking.take_forced()

    def accept(self, token: int, *, is_tried: bool = False) -> None:
        """The next token. `is_tried`: the grammar allows it."""
        if self.grammar is not None:
            if is_tried:
                self.grammar.accept(token)
            elif not self.grammar.read((token,)):
                self._give_up()
            if self._thinking is not None:
                self._thinking.accept(self._vocabulary.piece(token, special=True))
            return
        piece = self._vocabulary.piece(token, special=True)
        was_thinking = self.is_thinking
        outside = piece if self._thinking is None else self._thinking.accept(piece)
        if not self._waits:
            return
        if self._rules.start is GrammarStart.ON_TRIGGER:
            text = self._triggers.find(outside) if outside else None
            if text is not None:
                self._begin(text)
        elif was_thinking and not self.is_thinking:
            self._begin(b"")

    def close(self) -> None:
        self._give_up()

    def _begin(self, text: bytes) -> None:
        self._waits = False
        grammar = Grammar(prepare_grammar(self._vocabulary, self._rules.grammar).clone())
        if grammar.read(spell(self._vocabulary, text)):
            self.grammar = grammar
        else:
            grammar.close()

    def _give_up(self) -> None:
        if self.grammar is not None:
            self.grammar.close()
            self.grammar = None


def guide_by_grammar(vocabulary: Vocabulary, text: str) -> AnswerGuide:
    """By a grammar alone, which one request has: it is read once and not kept."""
    guide = AnswerGuide(AnswerRules(), vocabulary)
    guide.grammar = create_grammar(vocabulary, text)
    return guide
