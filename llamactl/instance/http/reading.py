"""What is content, what is thought, and what is a call in the text of an answer? llama.cpp's parser says it, fed as the
text comes.

The parser reads all of it again with each text, so a long answer is fed in steps: never more often than a small share
of the time allows, which is divided among all answers that are being read. A parser that throws costs no character:
what has been told stands, and at the end the rest of the text is content. Models make mistakes: they call what there
is not, write on behind a call, or are cut off.
"""

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol
from weakref import WeakSet

import msgspec

from llamactl.instance.chat.layer import Applied, ParseError
from llamactl.instance.chat.layer import Delta as ParsedDelta
from llamactl.instance.engine.jobs import FinishEvent, FinishReason, TextEvent, TokenInfo
from llamactl.instance.http.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallDelta

PARSE_SHARE = 0.04
"""Of one processor's time."""


class Parser(Protocol):
    """Of one answer: `chat.layer.AnswerParser`."""

    def feed(self, text: str, is_partial: bool) -> tuple[Sequence[ParsedDelta], Any]:
        """Parse `text` behind what was fed: what it adds, and the message so far. `is_partial`: more may come."""

    def close(self) -> None:
        """Free what the parser holds; it is fed no longer."""


class ReadingPace:
    """When may an answer be parsed again? Of one loaded model; belongs to the event loop."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cost_clock: Callable[[], float] = time.thread_time
    ) -> None:
        """`cost_clock`: of computing alone. Others wait for Python's lock, too, and so long a parse would seem dear."""
        self.clock, self.cost_clock = clock, cost_clock
        self._readers: WeakSet[ParsingReader] = WeakSet()

    def add(self, reader: "ParsingReader") -> None:
        """Count a reader among those that share the time for parsing."""
        self._readers.add(reader)

    def remove(self, reader: "ParsingReader") -> None:
        """Count a reader no longer, whether it was counted or not."""
        self._readers.discard(reader)

    def choose_pause_s(self, cost_s: float) -> float:
        """After a parse that has taken so long."""
        return cost_s * len(self._readers) / PARSE_SHARE


class ParsingReader:
    """The Reader of an answer that may be more than content."""

    def __init__(self, parser: Parser, pace: ReadingPace, *, n_calls: int | None = None) -> None:
        """`n_calls`: how many are told; None: all. llama.cpp's grammars let more come than a client may want."""
        self._parser = parser
        self._n_calls = n_calls
        self._pace = pace
        pace.add(self)
        self._text = ""
        self._n_fed = 0
        self._n_told = 0
        """Where the text begins of which nothing has been told."""
        self._infos: list[TokenInfo] = []
        """Of tokens whose content has not been told."""
        self._heads: dict[int, ToolCallDelta] = {}
        """Calls of which no arguments have come: their names may not be whole."""
        self._in_call = False
        self._next_s = 0.0
        self.has_failed = False
        """At its end the answer was in no form that the parser knows."""

    def read(self, event: TextEvent) -> Sequence[Delta]:
        self._text += event.text
        self._infos += event.infos
        if not event.text or self._pace.clock() < self._next_s:
            return []
        started_s = self._pace.cost_clock()
        deltas = self._try_partial()
        self._next_s = self._pace.clock() + self._pace.choose_pause_s(self._pace.cost_clock() - started_s)
        return deltas

    def end(self, finish: FinishEvent) -> Sequence[Delta]:
        self._pace.remove(self)
        deltas: list[Delta] = []
        try:
            if self._n_fed < len(self._text):
                deltas += self._try_partial()
            try:
                deltas += self._feed(is_partial=False)
            except ParseError:
                if not finish.end_text:
                    raise
                # Some formats end with it. What they make of it is told, but it is no text of its own.
                deltas += self._feed(finish.end_text, is_partial=False)
            deltas += self._pop_heads()
        except ParseError:
            self.has_failed = True
            self._heads.clear()
            rest = self._text[self._n_told :]
            was_cut = finish.reason is FinishReason.LENGTH and self._in_call
            if rest.strip() and not was_cut:
                deltas.append(ContentDelta(rest))
        finally:
            self._parser.close()
        return self._add_infos(deltas, is_last=True)

    def _try_partial(self) -> list[Delta]:
        """What can be told of an answer that may turn out not to be in its form."""
        try:
            return self._feed(is_partial=True)
        except ParseError:
            return []

    def _feed(self, end_text: str = "", *, is_partial: bool) -> list[Delta]:
        n_before, self._n_fed = self._n_fed, len(self._text)
        deltas: list[Delta] = []
        for parsed in self._parser.feed(self._text[n_before:] + end_text, is_partial)[0]:
            deltas += self._tell(parsed, n_before)
        return self._add_infos(deltas, is_last=False)

    def _tell(self, parsed: ParsedDelta, n_before: int) -> list[Delta]:
        """`n_before`: how much of the text had been fed before it was found."""
        told: list[Delta] = []
        call = parsed.call
        if call is None or call.index not in self._heads:
            told += self._pop_heads()
        if parsed.reasoning_content:
            self._pass(parsed.reasoning_content, n_before)
            told.append(ReasoningDelta(parsed.reasoning_content))
        if parsed.content:
            self._pass(parsed.content, n_before)
            told.append(ContentDelta(parsed.content))
        self._in_call = call is not None
        if call is None or (self._n_calls is not None and call.index >= self._n_calls):
            return told
        if call.name:
            self._heads[call.index] = ToolCallDelta(call.index, call.id, call.name)
        if call.arguments:
            told += self._pop_heads()
            self._pass(call.arguments, n_before)
            told.append(ToolCallDelta(call.index, arguments=call.arguments))
        return told

    def _pop_heads(self) -> list[Delta]:
        heads = list(self._heads.values())
        self._heads.clear()
        for head in heads:
            self._pass(head.name, self._n_told)
        return list(heads)

    def _pass(self, piece: str, n_before: int) -> None:
        """What is told ends within what is new. Arguments are not always told as they stand in the text: then all that
        was fed before has gone into them.
        """
        start = self._text.find(piece, max(self._n_told, n_before - len(piece) + 1))
        self._n_told = max(self._n_told, n_before) if start < 0 else start + len(piece)

    def _add_infos(self, deltas: list[Delta], *, is_last: bool) -> list[Delta]:
        """Probabilities go with content, wherever their tokens belong: OpenAI tells them of nothing else."""
        if not self._infos:
            return deltas
        index = next((n for n, delta in enumerate(deltas) if isinstance(delta, ContentDelta)), None)
        if index is None:
            if not is_last:
                return deltas
            deltas.append(ContentDelta(""))
            index = len(deltas) - 1
        content = deltas[index]
        assert isinstance(content, ContentDelta)
        deltas[index] = ContentDelta(content.text, (*content.infos, *self._infos))
        self._infos = []
        return deltas


@lru_cache(maxsize=64)
def _is_text_parser(parser: str, generation_prompt: str) -> bool:
    if not parser:
        return True
    arena = msgspec.json.decode(parser)
    nodes: list[dict[str, Any]] = arena["parsers"]

    def is_text(number: int) -> bool:
        node = nodes[number]
        match node["type"]:
            case "sequence":
                return all(is_text(child) for child in node["children"])
            case "tag":
                return bool(node["tag"] == "content" and nodes[node["child"]] == {"type": "until", "delimiters": []})
            case "literal":
                return bool(node["literal"] == generation_prompt)
            case kind:
                return kind in ("epsilon", "end")

    return not arena["rules"] and bool(is_text(arena["root"]))


def is_all_content(applied: Applied) -> bool:
    """Whether an answer is its text, so that it need not be parsed."""
    return _is_text_parser(applied.parser, applied.generation_prompt)
