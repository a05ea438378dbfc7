"""What must the next token of an answer be, or may it be, by what has come so far? Its grammars, from where they begin,
and the end of thoughts that have taken too long.

A grammar begins at once (it has read then what the template has written of the answer), or where something calls for it
(a function's call). One of the content holds from its first token on, unless that begins a thought or a call: thoughts
are free, and calls have the other grammar. All that a grammar reads is tried before: where it forbids what has come,
which llama.cpp would end the process for, it is given up, and the answer goes on without it.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from llamactl.instance.engine.grammars import Grammar, GrammarError, create_grammar, prepare_grammar, spell
from llamactl.instance.engine.thinking import ThinkingRules, ThinkingWatch
from llamactl.instance.engine.triggers import Trigger, TriggerWatch, list_words
from llamactl.instance.llama.model import Vocabulary

_MAX_SPACES = 4


class GrammarStart(StrEnum):
    AT_ONCE = "at_once"
    ON_TRIGGER = "on_trigger"


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
    content_grammar: str = ""
    """Of what is neither a thought nor a call. Nothing comes of it where a grammar begins at once."""
    thinking: ThinkingRules | None = None

    def add_grammar(self, grammar: str, *, of_content: bool) -> "AnswerRules":
        """One that the request brings: of the content, or of all that is generated."""
        if of_content:
            return replace(self, content_grammar=grammar)
        return replace(self, grammar=grammar, start=GrammarStart.AT_ONCE, triggers=(), grammar_reads_written=False)

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
        self._openers: tuple[bytes, ...] = ()
        """What may come instead of the first of the content."""
        self._n_spaces = 0
        """How many bytes of white space may come before it: models leave a line between thoughts and content."""
        self._forced: list[int] = []
        """The rest of such a text that has begun."""
        self.grammar: Grammar | None = None
        """The one that the next token must fit."""
        if rules.grammar and rules.start is GrammarStart.AT_ONCE:
            self._begin(rules.written.encode() if rules.grammar_reads_written else b"")
            if self.grammar is None:
                raise GrammarError(f"it does not begin with {rules.written!r}, with which the chat template does")
        elif not self.is_thinking:
            self._begin_content()

    @property
    def is_thinking(self) -> bool:
        return self._thinking is not None and self._thinking.is_within

    def pop_forced(self) -> int | None:
        """The token that must come next; None: any that fits."""
        if self._forced:
            return self._forced.pop(0)
        return None if self._thinking is None else self._thinking.pop_forced()

    def opens(self, token: int) -> bool:
        """Whether it begins a thought or a call where content could begin, or leaves space before that."""
        if not self._openers and not self._n_spaces:
            return False
        piece = self._read_piece(token)
        return self._is_space(piece) or self._find_opener(piece) is not None

    def accept(self, token: int, *, is_tried: bool = False) -> None:
        """The next token. `is_tried`: it fits."""
        piece = self._read_piece(token)
        if self._is_space(piece):
            self._n_spaces -= len(piece)
            return
        if self._openers or self._n_spaces:
            opener = self._find_opener(piece)
            self._openers, self._n_spaces = (), 0
            if opener is not None:
                self._give_up()
                self._forced = spell(self._vocabulary, opener[len(piece.lstrip()) :])
        was_thinking = self.is_thinking
        outside = piece if self._thinking is None else self._thinking.accept(piece)
        if self.grammar is not None:
            if is_tried:
                self.grammar.accept(token)
            elif not self.grammar.read((token,)):
                self._give_up()
        elif self._waits and outside and (text := self._triggers.find(outside)) is not None:
            self._begin(text)
        elif was_thinking and not self.is_thinking:
            self._begin_content()

    def close(self) -> None:
        self._give_up()

    def _read_piece(self, token: int) -> bytes:
        return self._vocabulary.piece(token, special=True)

    def _is_space(self, piece: bytes) -> bool:
        return 0 < len(piece) <= self._n_spaces and piece.isspace()

    def _find_opener(self, piece: bytes) -> bytes | None:
        text = piece.lstrip()
        openers = [opener for opener in self._openers if opener.startswith(text) or text.startswith(opener)]
        return openers[0] if text and openers else None

    def _begin_content(self) -> None:
        rules = self._rules
        if not rules.content_grammar:
            return
        self.grammar = Grammar(prepare_grammar(self._vocabulary, rules.content_grammar).clone())
        words = list_words(rules.triggers) if self._waits else ()
        thinking = self._thinking
        if thinking is not None and rules.thinking is not None:
            if thinking.has_thought:
                self._n_spaces = _MAX_SPACES
            else:
                words = (rules.thinking.start, *words)
        self._openers = tuple(word.encode() for word in words if word)

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
