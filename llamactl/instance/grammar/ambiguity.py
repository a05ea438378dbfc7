"""How many readings of a text does a grammar leave open? llama.cpp follows all of them, so a grammar with too many is
refused before it is read.

Three counts, each for every character that a text may begin with: the ways in which a rule reaches a first character,
the ways through neighbours that may all be left out, and those through loops within loops. They are estimates on the
text: two literals that only begin alike are told apart, sets of characters and literals of one repeated character
are not. What cannot be read here adds nothing, llama.cpp itself refuses it. Groups become rules of their own, as in
llama.cpp, and nothing recurses: rules may be chained thousands deep.
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

MAX_STARTS = 16_384
"""Ways to reach a first character. Each is a stack for llama.cpp; the values of an enumeration are one each."""
MAX_READINGS = 4096
MAX_LOOPS = 4
"""Of one character, in loops within loops: with each further character of a token, the readings multiply by it."""
MAX_SETS = 2000
"""That differ in what they take of ASCII."""
MAX_PARTS = 30_000
"""Groups and repetitions: each becomes a rule of llama.cpp's."""
_N_CLASSES = 129
"""Each ASCII character, and all others as one."""
_OTHER = _N_CLASSES - 1
_MOST = 1_000_000_000
_LONG = 1 << 30
_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\r\n]*)
    |(?P<literal>"(?:\\.|[^"\\])*")
    |(?P<set>\[(?:\\.|[^\]\\])*\])
    |(?P<head>[A-Za-z0-9-]+(?=[ \t]*::=))
    |(?P<name>[A-Za-z0-9-]+)
    |(?P<count>\{(?:[\s\d,]|\#[^\r\n]*)*\}|[*+?])
    |(?P<any>\.|!?<[^>\n]*>)
    |(?P<mark>[()|])
    |(?P<rest>.)""",
    re.VERBOSE | re.DOTALL,
)
_CHAR = re.compile(
    r"\\x(?P<x>[0-9A-Fa-f]{2})|\\u(?P<u>[0-9A-Fa-f]{4})|\\U(?P<U>[0-9A-Fa-f]{8})|\\(?P<e>.)|(?P<c>.)", re.DOTALL
)
_ESCAPES = {"t": 9, "r": 13, "n": 10}

Counts = Sequence[int]
"""One number for each kind of character; those that the same terminals begin with are of one kind."""


class AmbiguityError(ValueError):
    """A grammar has too many readings."""


@dataclass(frozen=True)
class _Ways:
    """Of a part of a grammar."""

    empty: int
    """To be left out."""
    starts: Counts
    """To its first character."""
    single: Counts
    """To be a text of this character alone."""
    loops: Counts


@dataclass
class _Element:
    name: str
    """Of its rule; of a terminal, as it is written."""
    is_rule: bool = True
    low: int = 1
    high: int = 1
    key: Hashable = None
    """Equal ones match equal texts; None: those with equal names do."""


@dataclass(frozen=True)
class _Terminal:
    """Sets of characters as bits."""

    starts: int
    single: int
    empty: int = 0


@dataclass
class _Rule:
    alternatives: list[list[_Element]] = field(default_factory=lambda: [[]])


@lru_cache(maxsize=16)  # programs send one schema with each request, and this takes longer than all else of it
def check_ambiguity(text: str) -> None:
    """Raises AmbiguityError."""
    rules, terminals = _read_rules(text)
    ways = _sort_characters(terminals)
    nothing = ways[""]
    order = list(_order_rules(rules))
    # Twice: the first time, a rule that leads back to itself meets ways that are not known yet.
    for _ in range(2):
        for name in order:
            ways[name] = _count_rule(name.partition("(")[0], rules[name], ways, nothing)


def _sort_characters(terminals: dict[str, _Terminal]) -> dict[str, _Ways]:
    """The terminals' ways, and those of what matches nothing, below the empty name."""
    masks = list({mask for terminal in terminals.values() for mask in (terminal.starts, terminal.single)})
    if len(masks) > MAX_SETS:
        raise AmbiguityError(f"it has {len(masks)} different sets of characters, at most {MAX_SETS} are taken")
    kinds = list({tuple(mask >> code & 1 for mask in masks): code for code in range(_N_CLASSES)}.values())
    counts = {mask: tuple(mask >> code & 1 for code in kinds) for mask in (0, *masks)}
    ways = {
        name: _Ways(terminal.empty, counts[terminal.starts], counts[terminal.single], counts[0])
        for name, terminal in terminals.items()
    }
    return {**ways, "": _Ways(0, counts[0], counts[0], counts[0])}


def _read_rules(text: str) -> tuple[dict[str, _Rule], dict[str, _Terminal]]:
    n_parts = sum(match.lastgroup == "count" or match[0] == "(" for match in _TOKEN.finditer(text))
    if n_parts > MAX_PARTS:
        raise AmbiguityError(f"it has {n_parts} groups and repetitions, at most {MAX_PARTS} are taken")
    rules: dict[str, _Rule] = {}
    head = ""
    opened: list[tuple[str, _Element, int]] = []
    current = _Rule()
    terminals: dict[str, _Terminal] = {}
    n_groups = 0
    for match in _TOKEN.finditer(text):
        kind, word = match.lastgroup, match[0]
        sequence = current.alternatives[-1]
        if kind == "head":
            head, current, opened = word, _Rule(), []
            rules[head] = current
        elif kind in ("literal", "set", "any"):
            if word not in terminals:
                terminals[word] = _read_terminal(kind, word)
            sequence.append(_Element(word, is_rule=False))
        elif kind == "name":
            sequence.append(_Element(word))
        elif kind == "count" and sequence:
            last = sequence[-1]
            if (last.low, last.high) != (1, 1):  # a repetition is repeated
                n_groups += 1
                name = f"{head}({n_groups}"
                rules[name] = _Rule([[last]])
                last = sequence[-1] = _Element(name)
            last.low, last.high = _read_count(word)
        elif word == "(":
            n_groups += 1
            name = f"{head}({n_groups}"
            sequence.append(_Element(name))
            opened.append((name, sequence[-1], match.start()))
            rules[name] = current = _Rule()
        elif word == "|":
            current.alternatives.append([])
        elif word == ")" and opened:
            _, group, start = opened.pop()
            group.key = hash(text[start : match.end()])
            current = rules[opened[-1][0]] if opened else rules.get(head, _Rule())
    return rules, terminals


def _read_count(word: str) -> tuple[int, int]:
    if word in "*+?":
        return {"*": (0, _LONG), "+": (1, _LONG), "?": (0, 1)}[word]
    low, comma, high = re.sub(r"#[^\r\n]*", "", word[1:-1]).partition(",")
    return _read_number(low), _read_number(high) if high.strip() else _LONG if comma else _read_number(low)


def _read_number(digits: str) -> int:
    plain = re.sub(r"[^0-9]", "", digits).lstrip("0")
    return min(int(plain[:12] or "0"), _LONG)


def _read_chars(text: str) -> list[int]:
    codes = []
    for match in _CHAR.finditer(text):
        kind, value = match.lastgroup, match[match.lastgroup or 0]
        codes.append(int(value, 16) if kind in ("x", "u", "U") else _ESCAPES.get(value, ord(value)))
        if kind == "c":
            codes[-1] = ord(value)
    return codes


def _read_terminal(kind: str, word: str) -> _Terminal:
    everything = (1 << _N_CLASSES) - 1
    if kind == "any":
        return _Terminal(everything, everything)
    if kind == "literal":
        codes = _read_chars(word[1:-1])
        if not codes:
            return _Terminal(0, 0, empty=1)
        starts = 1 << min(codes[0], _OTHER)
        return _Terminal(starts, starts if len(set(codes)) == 1 else 0)
    is_negative = word.startswith("[^")
    codes = _read_chars(word[1 + is_negative : -1])
    starts = at = 0
    while at < len(codes):
        low = high = min(codes[at], _OTHER)
        if at + 2 < len(codes) and codes[at + 1] == ord("-"):
            high = min(codes[at + 2], _OTHER)
            at += 2
        at += 1
        starts |= ((2 << high) - 1) & -(1 << low)
    if is_negative:
        starts = everything & ~starts | 1 << _OTHER
    return _Terminal(starts, starts)


def _order_rules(rules: dict[str, _Rule]) -> Iterator[str]:
    """Those that a rule refers to before it, as far as they do not lead back to it."""
    seen: set[str] = set()
    for first in rules:
        if first in seen:
            continue
        seen.add(first)
        path = [(first, _list_references(rules[first]))]
        while path:
            name, references = path[-1]
            found = next((each for each in references if each in rules and each not in seen), None)
            if found is None:
                path.pop()
                yield name
            else:
                seen.add(found)
                path.append((found, _list_references(rules[found])))


def _list_references(rule: _Rule) -> Iterator[str]:
    return (element.name for sequence in rule.alternatives for element in sequence if element.is_rule)


def _count_rule(name: str, rule: _Rule, known: dict[str, _Ways], nothing: _Ways) -> _Ways:
    empty = 0
    starts = single = loops = nothing.starts
    for sequence in rule.alternatives:
        ways = _count_sequence(name, sequence, known, nothing)
        empty = min(empty + ways.empty, _MOST)
        starts, single = _add(starts, ways.starts), _add(single, ways.single)
        loops = _join(loops, ways.loops)
        _check(name, max(empty, *starts), MAX_STARTS, "ways to its first character")
    return _Ways(empty, starts, single, loops)


def _count_sequence(name: str, sequence: list[_Element], known: dict[str, _Ways], nothing: _Ways) -> _Ways:
    empty = 1
    starts = single = loops = nothing.starts
    readings: Counts = [1] * len(starts)
    """Through the neighbours up to here that may all be left out."""
    keys: set[Hashable] = set()
    may_begin = True
    for element in sequence:
        # One that leads back to this rule is not known yet; one that is defined nowhere, llama.cpp refuses.
        one = known.get(element.name, nothing)
        if not may_begin and not element.is_rule and not one.empty and element.low == element.high == 1:
            if keys:
                readings, keys = [1] * len(starts), set()
            continue
        ways = _repeat(one, element.low, element.high, nothing)
        loops = _join(loops, ways.loops)
        if may_begin:
            starts = _add(starts, _scale(ways.starts, empty))
            single = _add(_scale(single, ways.empty), _scale(ways.single, empty))
            empty = min(empty * ways.empty, _MOST)
            may_begin = empty > 0 or any(single)
        if ways.empty:
            key = element.key or element.name
            passed = _join(ways.single, [min(each, 1) for each in ways.starts]) if key in keys else ways.single
            readings = [min(each * (1 + more), _MOST) for each, more in zip(readings, passed, strict=True)]
            keys.add(key)
            _check(name, max(readings), MAX_READINGS, "readings of what may be left out")
        elif keys:
            readings, keys = [1] * len(starts), set()
    _check(name, max(loops), MAX_LOOPS, "ways through loops within loops")
    return _Ways(empty, starts, single, loops)


def _repeat(one: _Ways, low: int, high: int, nothing: _Ways) -> _Ways:
    if (low, high) == (1, 1):
        return one
    if high == 0:
        return _Ways(1, nothing.starts, nothing.starts, nothing.starts)
    empty = 1 if low == 0 else min(one.empty, 1)
    # What may be left out is passed over once for each time that it must be there; a loop finds itself again.
    n_starts = min(low, MAX_STARTS) if one.empty and low > 1 else 1
    single = one.single if low <= 1 or one.empty else nothing.single
    loops = _add(one.loops, one.single) if high > 1 and high != low else one.loops
    return _Ways(empty, _scale(one.starts, n_starts), single, loops)


def _add(left: Counts, right: Counts) -> Counts:
    return [min(one + other, _MOST) for one, other in zip(left, right, strict=True)]


def _join(left: Counts, right: Counts) -> Counts:
    return left if left is right else [max(pair) for pair in zip(left, right, strict=True)]


def _scale(counts: Counts, factor: int) -> Counts:
    return counts if factor == 1 else [min(each * factor, _MOST) for each in counts]


def _check(name: str, count: int, limit: int, what: str) -> None:
    if count > limit:
        told = f"more than {limit}" if count >= _MOST else str(count)
        raise AmbiguityError(f"its rule {name!r} has {told} {what}, at most {limit} are followed")
