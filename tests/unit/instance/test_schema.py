"""Do grammars for JSON schemas say what the schemas say? Numbers, patterns and counts are read back as regular
expressions here, and compared with what they stand for; whole grammars are proven on llama.cpp in tests/instance.
"""

import contextlib
import json
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamactl.instance.grammar.gbnf import Rules, SchemaError
from llamactl.instance.grammar.schema import format_grammar
from llamactl.instance.grammar.schema_formats import FORMATS
from llamactl.instance.grammar.schema_numbers import Bounds, format_integer, format_number
from llamactl.instance.grammar.schema_pattern import format_pattern

CHAR = r'[^"\\\x00-\x1F\x7F]'
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\{[0-9,]+\}|[()|?*+]|[A-Za-z][A-Za-z0-9-]*|\s+')


def to_regex(body: str, rules: dict[str, str] | None = None) -> str:
    """A regular expression of a body without recursion."""
    parts = []
    at = 0
    while at < len(body):
        match = _TOKEN.match(body, at)
        assert match is not None, body[at : at + 40]
        token, at = match[0], match.end()
        if token.startswith('"'):
            parts.append("(?:" + re.escape(unescape(token[1:-1])) + ")")
        elif token.startswith("["):
            parts.append(token)
        elif token[0].isalpha():
            assert rules is not None
            parts.append("(?:" + to_regex(rules[token], rules) + ")")
        elif not token.isspace():
            parts.append("(?:" if token == "(" else token)
    return "".join(parts)


def unescape(text: str) -> str:
    return re.sub(r'\\(x..|u....|U........|["\\])', lambda m: m[1] if m[1] in '"\\' else chr(int(m[1][1:], 16)), text)


def read_rules(grammar: str) -> dict[str, str]:
    return dict(line.split(" ::= ", 1) for line in grammar.splitlines())


def compile_schema(schema: Any) -> re.Pattern[str]:
    rules = read_rules(format_grammar(schema))
    return re.compile(to_regex(rules["root"], rules))


BOUND = st.none() | st.integers(-1200, 1200)
FRACTION = st.none() | st.decimals(-30, 30, places=2)


def within(number: Decimal, bounds: Bounds) -> bool:
    if bounds.low is not None and (number < bounds.low or (bounds.above and number == bounds.low)):
        return False
    return bounds.high is None or number < bounds.high or (number == bounds.high and not bounds.below)


@settings(max_examples=300, deadline=None)
@given(low=BOUND, high=BOUND, above=st.booleans(), below=st.booleans(), data=st.data())
def test_integers_within_bounds_and_no_others_are_written(
    low: int | None, high: int | None, above: bool, below: bool, data: st.DataObject
) -> None:
    bounds = Bounds(None if low is None else Decimal(low), None if high is None else Decimal(high), above, below)
    try:
        pattern = re.compile(to_regex(format_integer(bounds)))
    except SchemaError:
        assert not any(within(Decimal(number), bounds) for number in range(-1300, 1301))
        return
    near = [edge + step for edge in (low, high) if edge is not None for step in (-1, 0, 1)]
    for number in [*near, data.draw(st.integers(-3000, 3000)), 0, 9, 10, 99, 100, 999, 1000, 10**9, -(10**9)]:
        assert bool(pattern.fullmatch(str(number))) == within(Decimal(number), bounds), number


@settings(max_examples=400, deadline=None)
@given(low=FRACTION, high=FRACTION, above=st.booleans(), below=st.booleans(), data=st.data())
def test_numbers_within_bounds_and_no_others_are_written(
    low: Decimal | None, high: Decimal | None, above: bool, below: bool, data: st.DataObject
) -> None:
    bounds = Bounds(low, high, above, below)
    try:
        pattern = re.compile(to_regex(format_number(bounds)))
    except SchemaError:
        assert low is not None
        assert high is not None
        assert low > high or (low == high and (above or below))
        return
    near = [edge + step for edge in (low, high) if edge is not None for step in map(Decimal, ("-0.01", "0", "0.01"))]
    more = data.draw(st.lists(st.decimals(-40, 40, places=3), max_size=20))
    for number in [*near, *more, Decimal(0), Decimal("0.5")]:
        text = format(number, "f")
        if number == 0 and text.startswith("-"):
            continue
        assert bool(pattern.fullmatch(text)) == within(number, bounds), (text, pattern.pattern)


@pytest.mark.parametrize(
    ("pattern", "texts", "others"),
    [
        ("^[a-z]+$", ["a", "xyz"], ["", "A", "a1"]),
        ("^a|b$", ["a", "axx", "xxb", "b"], ["xa", "bx", ""]),
        ("b+", ["b", "abba"], ["", "aa"]),
        (r"^\d{3}-\d{2,4}$", ["123-45", "123-4567"], ["123-4", "123-45678", "12-345"]),
        (r"^(?:ab|c)*d?$", ["", "ab", "abccd"], ["a", "dd"]),
        (r"^[^a-y]$", ["z", "A", "é"], ["b", ""]),
        (r"^\w\s\S.$", ["a b!"], ["a  !", "-b c"]),
        (r"^\u00e9\x41$", ["éA"], ["eA"]),
        (r"^(x(y(z)?)?)$", ["x", "xy", "xyz"], ["xz"]),
        (r'^"\\$', ['"\\'], ['"']),
        ("^[]a]$", [], []),
        (r"^[\-+a-]$", ["-", "+", "a"], ["b"]),
    ],
)
def test_pattern_matches_what_the_expression_matches(pattern: str, texts: list[str], others: list[str]) -> None:
    rules = Rules()
    char = rules.add(CHAR + r' | "\\" ["\\nrt]', "char")
    if pattern == "^[]a]$":  # in ECMA 262 a set without members, which matches nothing
        with pytest.raises(SchemaError):
            format_pattern(rules, pattern, char)
        return
    body = format_pattern(rules, pattern, char)
    compiled = re.compile(to_regex(body, read_rules(rules.format("x"))))
    for text in texts:
        assert compiled.fullmatch(json.dumps(text, ensure_ascii=False)[1:-1]), text
    for text in others:
        assert not compiled.fullmatch(json.dumps(text, ensure_ascii=False)[1:-1]), text


@pytest.mark.parametrize(
    "pattern", ["(?=a)", r"\bx", r"(a)\1", "a$b", "(", "a)", "[a", "[z-a]", "a{2", "*", "\\", r"\p{L}"]
)
def test_pattern_that_cannot_be_said_is_refused(pattern: str) -> None:
    rules = Rules()
    with pytest.raises(SchemaError):
        format_pattern(rules, pattern, rules.add(CHAR, "char"))


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (0, 3), (2, 2), (99, 101), (0, 250), (150, 350), (120, None), (0, 1234)]
)
def test_counts_are_exact_also_beyond_a_block(low: int, high: int | None) -> None:
    rules = Rules()
    body = rules.repeat(rules.add('"x"', "x"), low, high)
    compiled = re.compile(to_regex(body, read_rules(rules.format("x"))))
    top = 1500 if high is None else high
    for count in {0, 1, low - 1, low, low + 1, 99, 100, 101, 200, 201, (low + top) // 2, top - 1, top, top + 1}:
        if count >= 0:
            assert bool(compiled.fullmatch("x" * count)) == (low <= count and (high is None or count <= high)), count


def test_properties_come_in_order_and_optional_ones_may_be_missing() -> None:
    pattern = compile_schema(
        {
            "type": "object",
            "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}},
            "required": ["b"],
        }
    )
    for text in ('{"b":2}', '{"a":1,"b":2}', '{"b": 2, "c": 3}', '{"a":1, "b":2,"c":3}'):
        assert pattern.fullmatch(text), text
    for text in ("{}", '{"a":1}', '{"b":2,"a":1}', '{,"b":2}', '{"b":2,}', '{"b":2,"d":4}'):
        assert not pattern.fullmatch(text), text


def test_other_properties_never_bear_a_known_name() -> None:
    pattern = compile_schema(
        {"properties": {"ab": {"const": 1}, "a": {"const": 2}}, "additionalProperties": {"const": 3}}
    )
    for text in ('{"ab":1,"x":3}', '{"b":3}', '{"abc":3,"":3}', "{}", '{"ab":1,"a":2,"aa":3}'):
        assert pattern.fullmatch(text), text
    for text in ('{"ab":3}', '{"a":3}', '{"x":3,"a":3}', r'{"\u0061":3}'):
        assert not pattern.fullmatch(text), text


def test_names_of_properties_may_be_any_or_listed() -> None:
    integers = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert compile_schema({**integers, "propertyNames": {"type": "string"}}).fullmatch('{"x":1,"y":2}')
    listed = {"$defs": {"k": {"enum": ["a", "b"]}}, **integers, "propertyNames": {"$ref": "#/$defs/k"}}
    pattern = compile_schema({**listed, "properties": {"c": True, "b": {"const": 5}}, "required": ["b"]})
    assert pattern.fullmatch('{"a":1,"b":5}')
    assert pattern.fullmatch('{"b":5}')
    for text in ('{"a":1}', '{"a":1,"b":6}', '{"b":5,"c":1}', '{"b":5,"d":1}'):
        assert not pattern.fullmatch(text)


def test_arrays_have_their_beginning_and_their_length() -> None:
    pattern = compile_schema({"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 3})
    assert [bool(pattern.fullmatch(json.dumps([1] * count))) for count in range(5)] == [False, True, True, True, False]
    pattern = compile_schema({"prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}, "minItems": 1})
    good, bad = ([1], [1, 2], [1, 2, 3, 3]), ([], [2], [1, 3])
    assert [bool(pattern.fullmatch(json.dumps(value))) for value in (*good, *bad)] == [True] * 3 + [False] * 3


def test_parts_are_combined() -> None:
    pattern = compile_schema(
        {
            "$defs": {"base": {"properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}},
            "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"a": {"maximum": 3}, "b": {"enum": ["x", 1]}}}],
        }
    )
    assert pattern.fullmatch('{"a":2,"b":"x"}')
    assert not pattern.fullmatch('{"a":4}')
    assert not pattern.fullmatch('{"b":"x"}')
    pattern = compile_schema(
        {"type": "object", "required": ["k"], "anyOf": [{"properties": {"k": {"const": c}}} for c in "ab"]}
    )
    assert pattern.fullmatch('{"k":"b"}')
    assert not pattern.fullmatch('{"k":"c"}')


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"not": {}}, "'not'"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"type": "integer", "multipleOf": 3}, "'multipleOf'"),
        ({"type": "text"}, "'text'"),
        ({"$ref": "https://example.org/schema"}, "leads out"),
        ({"$ref": "#/nowhere"}, "leads nowhere"),
        ({"$ref": "#name", "$defs": {"x": {"$anchor": "name"}}}, "only paths"),
        ({"propertyNames": {"pattern": "^a"}}, "'propertyNames'"),
        ({"propertyNames": {"type": "integer"}}, "'propertyNames'"),
        ({"propertyNames": {"enum": 5}}, "'enum'"),
        ({"allOf": [{"$ref": "#"}, {"type": "null"}]}, "itself"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "no integer"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "impossible"),
        ({"type": "string", "minLength": -1}, "'minLength'"),
        ({"type": "string", "maxLength": 10**7}, "count"),
        ({"enum": []}, "'enum'"),
        ({"properties": {"a": False}, "required": ["a"]}, "'a'"),
        ({"type": "string", "enum": [1]}, "'enum'"),
        (False, "nothing"),
        ({"properties": []}, "'properties'"),
        ({"items": 5}, "neither"),
        ({"pattern": "(?=a)"}, "pattern"),
        ({"anyOf": [{"type": "string"}], "oneOf": [{"minLength": 1}]}, ""),
    ],
)
def test_schema_that_cannot_be_said_is_refused_and_the_reason_named(schema: Any, word: str) -> None:
    if word == "":
        assert format_grammar(schema)
        return
    with pytest.raises(SchemaError, match=re.escape(word)):
        format_grammar(schema)


def test_schema_that_grows_when_it_is_read_is_refused_in_time() -> None:
    defs = {
        f"d{n}": {
            "anyOf": [{"$ref": f"#/$defs/d{n + 1}", "minLength": 1}, {"$ref": f"#/$defs/d{n + 1}", "maxLength": 9}]
        }
        for n in range(40)
    }
    with pytest.raises(SchemaError, match="parts"):
        format_grammar({"$defs": {**defs, "d40": {"type": "string"}}, "$ref": "#/$defs/d0"})
    doubled = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    with pytest.raises(SchemaError, match="parts"):
        format_grammar({"$defs": {**doubled, "d40": {"type": "string"}}, "$ref": "#/$defs/d0"})
    with pytest.raises(SchemaError, match="characters"):
        format_grammar({"enum": ["x" * 1000] * 1000})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", "2024-02-28", "2024-02-30"),
        ("time", "23:59:59.5Z", "24:00:00Z"),
        ("date-time", "2024-12-31T00:00:00+01:30", "2024-12-31"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ("ipv4", "192.168.0.255", "256.1.1.1"),
        ("email", "a.b@example.org", "a@b"),
    ],
)
def test_formats(name: str, good: str, bad: str) -> None:
    compiled = re.compile(to_regex(FORMATS[name]))
    assert compiled.fullmatch(good)
    assert not compiled.fullmatch(bad)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats(-5, 5) | st.sampled_from(["a", "string", "#", "^a$"]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "enum",
                    "const",
                    "anyOf",
                    "oneOf",
                    "allOf",
                    "$ref",
                    "properties",
                    "required",
                    "additionalProperties",
                    "items",
                    "prefixItems",
                    "minItems",
                    "maxItems",
                    "minLength",
                    "maxLength",
                    "pattern",
                    "minimum",
                    "maximum",
                    "exclusiveMinimum",
                    "format",
                    "a",
                ]
            ),
            children,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None)
@given(schema=JSON)
def test_any_schema_becomes_a_grammar_or_is_refused(schema: Any) -> None:
    with contextlib.suppress(SchemaError):
        assert format_grammar(schema).startswith("root ::= ")


@pytest.mark.parametrize("bound", [10**30, -(10**30), 1e308, -1e308])
def test_bounds_too_long_to_be_written_are_refused_or_bound_nothing(bound: float) -> None:
    for kind in ("integer", "number"):
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            with contextlib.suppress(SchemaError):
                assert format_grammar({"type": kind, key: bound})
