"""How is a grammar for llama.cpp written? Rules by name in GBNF, with literals, sets of characters and repetition in
the spelling that its parser takes.

The parser knows few escapes (`\\-` and `\\^` are errors) and refuses repetition beyond some thousand rules, so
characters go in by number and long repetition is built of blocks. Blocks are arranged so that only few readings of a
text are open at a time: llama.cpp follows all of them.
"""

import json
from collections.abc import Iterable, Sequence

MAX_RULES = 4000
MAX_COUNT = 100_000
BLOCK = 100
LAST_CODE_POINT = 0x10FFFF
Ranges = Sequence[tuple[int, int]]
"""Code points, first and last."""


class SchemaError(ValueError):
    """What is asked for cannot be said in GBNF, or makes no sense."""


class Rules:
    """The rules of one grammar."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def add(self, body: str, hint: str = "r") -> str:
        """The name of a rule with this body. Equal bodies share one."""
        if body not in self._names:
            self._names[body] = self.reserve(hint)
            self._bodies[self._names[body]] = body
        return self._names[body]

    def reserve(self, hint: str) -> str:
        """A name whose rule is set later: for rules that lead to themselves."""
        if len(self._bodies) >= MAX_RULES:
            raise SchemaError(f"it takes more than {MAX_RULES} rules")
        plain = "".join(char for char in hint if char.isascii() and (char.isalnum() or char == "-"))[:40]
        name = f"{plain or 'r'}-{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        """Give a rule of this name its body, in GBNF."""
        self._bodies[name] = body

    def format(self, root: str) -> str:
        """Format the whole grammar, of which `root` is what must match."""
        return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._bodies.items())]) + "\n"

    def repeat(self, unit: str, low: int, high: int | None) -> str:
        """`unit`, the name of a rule, from `low` to `high` times; None: without an end. Empty: never."""
        if max(low, high or 0) > MAX_COUNT:
            raise SchemaError(f"a count of {max(low, high or 0)} is more than {MAX_COUNT}")
        if high is not None and low > high:
            raise SchemaError(f"at least {low} and at most {high} is impossible")
        if low <= BLOCK and (high is None or high <= BLOCK):
            if high == 0:
                return ""
            return f"{unit}{{{low},{'' if high is None else high}}}"
        block = self.add(f"{unit}{{{BLOCK}}}", "block")
        parts = []
        if low:
            parts += [block] * (low // BLOCK) if low // BLOCK < 8 else [self._repeat_exactly(block, low // BLOCK)]
            parts.append(f"{unit}{{{low % BLOCK}}}" if low % BLOCK else "")
        if high is None:
            parts.append(f"{unit}*")
        else:
            parts.append(self._repeat_up_to(unit, block, high - low))
        return " ".join(part for part in parts if part)

    def _repeat_exactly(self, unit: str, count: int) -> str:
        if count <= BLOCK:
            return f"{unit}{{{count}}}"
        block = self.add(f"{unit}{{{BLOCK}}}", "block")
        rest = f" {unit}{{{count % BLOCK}}}" if count % BLOCK else ""
        return self._repeat_exactly(block, count // BLOCK) + rest

    def _repeat_up_to(self, unit: str, block: str, count: int) -> str:
        """Each rule is a whole block and more, or the last part: two readings at a time."""
        if count == 0:
            return ""
        name = self.add(f"{unit}{{0,{count % BLOCK}}}" if count % BLOCK else '""', "part")
        for _ in range(count // BLOCK):
            name = self.add(f"{block} {name} | {unit}{{0,{BLOCK - 1}}}", "part")
        return name


def format_literal(text: str) -> str:
    """Format a text as a GBNF literal, with its quotes."""
    return '"' + "".join(_escape(ord(char)) for char in text) + '"'


def format_json_literal(value: object) -> str:
    """A JSON value as it is written, and in no other way."""
    return format_literal(json.dumps(value, ensure_ascii=False))


def format_set(ranges: Ranges) -> str:
    """Format ranges of code points, both ends included, as a GBNF character set."""
    return (
        "[" + "".join(_escape(low) if low == high else f"{_escape(low)}-{_escape(high)}" for low, high in ranges) + "]"
    )


def join_alternatives(bodies: Iterable[str]) -> str:
    """Join bodies of which one must match, each once, in parentheses where there are several."""
    unique = list(dict.fromkeys(bodies))
    return unique[0] if len(unique) == 1 else "(" + " | ".join(unique) + ")"


def subtract_ranges(ranges: Ranges, holes: Ranges) -> list[tuple[int, int]]:
    """In order, without overlaps."""
    left = []
    for low, high in _merge_ranges(ranges):
        for first, last in _merge_ranges(holes):
            if last < low or first > high:
                continue
            if low < first:
                left.append((low, first - 1))
            low = last + 1
            if low > high:
                break
        if low <= high:
            left.append((low, high))
    return left


def _merge_ranges(ranges: Ranges) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _escape(code: int) -> str:
    if chr(code).isascii() and (chr(code).isalnum() or chr(code) in " _:,{}.@"):
        return chr(code)
    if code < 0x100:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
