"""Where in an answer does its grammar begin? At the first text that calls for it: a word, or a match of a pattern.

llama.cpp's lazy grammars look for it themselves, but search all of the text again after each token (minutes for a long
answer), and end the process when what they have found is not as the grammar has it. So it is found here, once for each
byte, and the grammar reads it token by token like anything else.

Bytes, not characters: a token may be a part of a character. Patterns are std::regex's ECMAScript ones, of which
llama.cpp uses what Python reads alike; their first group, where they have one, is where the grammar begins.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

_WINDOW = 1024
"""How far back a match of a pattern may begin, in bytes."""


class TriggerKind(StrEnum):
    """llama.cpp's: common/common.h, common_grammar_trigger_type."""

    TOKEN = "token"
    WORD = "word"
    PATTERN = "pattern"
    PATTERN_FULL = "pattern_full"


@dataclass(frozen=True)
class Trigger:
    kind: TriggerKind
    value: str
    """Of a token, its text."""


def list_words(triggers: tuple[Trigger, ...]) -> tuple[str, ...]:
    """Those that are texts, not patterns."""
    return tuple(t.value for t in triggers if t.kind in (TriggerKind.TOKEN, TriggerKind.WORD) and t.value)


class TriggerWatch:
    """Of one answer."""

    def __init__(self, triggers: tuple[Trigger, ...]) -> None:
        """Raises ValueError for a pattern that Python cannot read."""
        self._text = bytearray()
        patterns = [t for t in triggers if t.kind in (TriggerKind.PATTERN, TriggerKind.PATTERN_FULL)]
        self._words = tuple(t.value.encode() for t in triggers if t not in patterns and t.value)
        self._longest = max((len(word) for word in self._words), default=0)
        self._patterns = tuple(_compile(t) for t in patterns)

    def find(self, piece: bytes) -> bytes | None:
        """What the grammar has to read, up to the end of this piece, when something has called for it."""
        n_before = len(self._text)
        self._text += piece
        starts = [
            start for word in self._words if (start := self._text.find(word, max(0, n_before - self._longest + 1))) >= 0
        ]
        for pattern, is_anchored in self._patterns:
            if is_anchored and n_before > _WINDOW:
                continue
            match = pattern.search(self._text, 0 if is_anchored else max(0, n_before - _WINDOW))
            if match is not None:
                groups = range(1, pattern.groups + 1)
                starts.append(next((match.start(index) for index in groups if match[index]), match.start()))
        return bytes(self._text[min(starts) :]) if starts else None


def _compile(trigger: Trigger) -> tuple[re.Pattern[bytes], bool]:
    """With whether it can only match at the beginning of the answer."""
    text = trigger.value
    is_anchored = text.startswith("^") or trigger.kind is TriggerKind.PATTERN_FULL
    if is_anchored and (text.endswith("$") or trigger.kind is TriggerKind.PATTERN_FULL):
        text = rf"\A(?:{text.removeprefix('^').removesuffix('$')})\Z"  # Python's own $ means a last new line, too
    try:
        return re.compile(text.encode()), is_anchored
    except re.error as error:
        raise ValueError(f"cannot read the pattern {trigger.value!r}: {error}") from None
