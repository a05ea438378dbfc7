"""How does a regular expression become GBNF, for strings in JSON?

The part of ECMA 262 that describes texts character by character: literals, sets, groups, alternatives, counts, and
anchors at the ends. What looks around, refers back or asks for word boundaries cannot be said in a context-free
grammar and is refused. An expression without anchors may stand anywhere in the string. Characters that JSON escapes
appear escaped here.
"""

import json

from llamactl.instance.grammar.gbnf import (
    LAST_CODE_POINT,
    Ranges,
    Rules,
    SchemaError,
    format_literal,
    format_set,
    join_alternatives,
    subtract_ranges,
)

MAX_DEPTH = 50
_SURROGATES = [(0xD800, 0xDFFF)]
_ALL = subtract_ranges([(0, LAST_CODE_POINT)], _SURROGATES)
_DIGIT = [(0x30, 0x39)]
_WORD = [*_DIGIT, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE = [(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x2028, 0x2029), (0xFEFF, 0xFEFF)]
_NEWLINES = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
_CLASSES = {
    "d": _DIGIT,
    "w": _WORD,
    "s": _SPACE,
    "D": subtract_ranges(_ALL, _DIGIT),
    "W": subtract_ranges(_ALL, _WORD),
    "S": subtract_ranges(_ALL, _SPACE),
}
_CONTROLS = {"t": 0x09, "n": 0x0A, "r": 0x0D, "f": 0x0C, "v": 0x0B, "0": 0x00}
_ESCAPED = [(0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F)]
"""Characters that do not stand for themselves in JSON, and DEL, which no one means."""
_HEX_LENGTHS = {"x": 2, "u": 4}


def format_pattern(rules: Rules, pattern: str, char: str) -> str:
    """A body that matches the inside of a JSON string. `char`: the rule of any one character. Raises SchemaError."""
    return _Parser(rules, pattern, char).parse()


def format_characters(ranges: Ranges) -> str:
    """One character of a set, as JSON writes it."""
    plain = subtract_ranges(subtract_ranges(ranges, _ESCAPED), _SURROGATES)
    alternatives = [format_set(plain)] if plain else []
    wide = sum(high - low + 1 for low, high in ranges) > len(range(0x80))
    for low, high in ranges:
        for code in [*range(max(low, 0), min(high, 0x1F) + 1), 0x22, 0x5C]:
            if low <= code <= high and (not wide or code in (0x09, 0x0A, 0x0D, 0x22, 0x5C)):
                alternatives.append(format_literal(json.dumps(chr(code))[1:-1]))
    if not alternatives:
        raise SchemaError("a set of characters is empty")
    return join_alternatives(alternatives)


class _Parser:
    def __init__(self, rules: Rules, pattern: str, char: str) -> None:
        self._rules = rules
        self._text = pattern
        self._char = char
        self._at = 0
        self._depth = 0

    def parse(self) -> str:
        body = self._parse_alternatives()
        if self._at < len(self._text):
            raise self._refuse("unbalanced )")
        return body

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _consume(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _refuse(self, what: str) -> SchemaError:
        return SchemaError(f"pattern {self._text[:100]!r}: {what} at {self._at} is not supported")

    def _parse_alternatives(self) -> str:
        alternatives = [self._parse_sequence()]
        while self._consume("|"):
            alternatives.append(self._parse_sequence())
        return join_alternatives(alternatives)

    def _parse_sequence(self) -> str:
        outermost = self._depth == 0
        starts = self._consume("^") if outermost else False
        parts: list[str] = [] if starts or not outermost else [f"{self._char}*"]
        ends = not outermost
        while self._peek() not in ("", "|", ")"):
            if outermost and self._consume("$"):
                ends = True
                if self._peek() not in ("", "|"):
                    raise self._refuse("$ within a text")
                break
            parts.append(self._parse_item())
        if not ends:
            parts.append(f"{self._char}*")
        return " ".join(part for part in parts if part) or '""'

    def _parse_item(self) -> str:
        atom = self._parse_atom()
        low, high = self._parse_count()
        if (low, high) == (1, 1):
            return atom
        return self._rules.repeat(self._rules.add(atom, "p"), low, high)

    def _parse_count(self) -> tuple[int, int | None]:
        counts: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        sign = self._peek()
        count: tuple[int, int | None] = (1, 1)
        if sign in counts and sign:
            self._at += 1
            count = counts[sign]
        elif sign == "{":
            end = self._text.find("}", self._at)
            low, comma, high = self._text[self._at + 1 : end].partition(",")
            if end < 0 or not low.isdecimal() or not (high.isdecimal() or not high) or len(low + high) > 12:
                raise self._refuse("{")
            self._at = end + 1
            count = (int(low), int(high) if high else None if comma else int(low))
        else:
            return count
        self._consume("?")  # lazy: which of the matches is meant makes no difference here
        return count

    def _parse_atom(self) -> str:
        char = self._peek()
        if self._consume("("):
            return self._parse_group()
        if self._consume("["):
            return format_characters(self._parse_set())
        self._at += 1
        if char == ".":
            return format_characters(subtract_ranges(_ALL, _NEWLINES))
        if char == "\\":
            return format_characters(self._parse_escape())
        if char in "^$*+?":
            raise self._refuse(char)
        return format_characters([(ord(char), ord(char))])

    def _parse_group(self) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refuse("such deep nesting")
        if self._consume("?"):
            named = self._consume("P<") or (self._consume("<") and self._peek() not in ("=", "!"))
            if named:
                self._at = self._text.find(">", self._at) + 1 or len(self._text)
            elif not self._consume(":"):
                raise self._refuse("(?")
        body = self._parse_alternatives()
        if not self._consume(")"):
            raise self._refuse("a group without end")
        self._depth -= 1
        return f"({body})"

    def _parse_set(self) -> Ranges:
        negated = self._consume("^")
        ranges: list[tuple[int, int]] = []
        while not self._consume("]"):
            first = self._parse_member()
            if len(first) == 1 and first[0][0] == first[0][1] and self._peek() == "-":
                self._at += 1
                if self._peek() == "]":
                    ranges += [*first, (0x2D, 0x2D)]
                    continue
                last = self._parse_member()
                if len(last) != 1 or last[0][0] != last[0][1] or last[0][0] < first[0][0]:
                    raise self._refuse("a range in []")
                first = [(first[0][0], last[0][0])]
            ranges += first
        return subtract_ranges(_ALL, ranges) if negated else ranges

    def _parse_member(self) -> Ranges:
        char = self._peek()
        if not char:
            raise self._refuse("[ without end")
        self._at += 1
        if char == "\\":
            return [(0x08, 0x08)] if self._consume("b") else self._parse_escape()
        return [(ord(char), ord(char))]

    def _parse_escape(self) -> Ranges:
        char = self._peek()
        self._at += 1
        if char in _CLASSES and char:
            return _CLASSES[char]
        if char in _CONTROLS and char:
            return [(_CONTROLS[char], _CONTROLS[char])]
        if char in _HEX_LENGTHS and char:
            digits = self._text[self._at : self._at + _HEX_LENGTHS[char]]
            if len(digits) != _HEX_LENGTHS[char] or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise self._refuse(f"\\{char}")
            self._at += len(digits)
            return [(int(digits, 16), int(digits, 16))]
        if not char or char.isalnum():
            raise self._refuse(f"\\{char}")
        return [(ord(char), ord(char))]
