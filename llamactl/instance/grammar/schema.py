"""Which JSON texts follow a schema? As a grammar for llama.cpp, which then lets a model write nothing else.

A grammar describes what is written, not what is valid: it may leave out valid texts (properties come in the schema's
order, none is made up unless `additionalProperties` says so), but every text it allows is valid. Keywords that only
describe are ignored; those that restrict in a way that grammars cannot (`not`, `uniqueItems`, `multipleOf` ...) are
refused, since ignoring them would break that promise. `oneOf` is read as `anyOf`. References stay within the schema.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from llamactl.instance.grammar.gbnf import (
    Rules,
    SchemaError,
    format_json_literal,
    format_literal,
    format_set,
    join_alternatives,
)
from llamactl.instance.grammar.schema_formats import FORMATS
from llamactl.instance.grammar.schema_merge import merge_schemas
from llamactl.instance.grammar.schema_numbers import INTEGER, NUMBER, Bounds, format_integer, format_number
from llamactl.instance.grammar.schema_pattern import format_pattern

__all__ = ["SchemaError", "format_grammar"]

MAX_CHARS = 1 << 18
MAX_DEPTH = 100
MAX_VISITS = 20_000
"""Of parts: references beside other keywords can make many of few."""
MAX_KEY_CHARS = 60
"""About: of properties that the schema does not name."""
_SPACE = r'| " " | "\n" [ \t]{0,20}'
_CHAR = (
    r'[^"\\\x00-\x1F\x7F] | "\\" ("\"" | "\\" | [bfnrt] | '
    r'"u" ([0-9a-cefA-CEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))'
)
_KEY_CHAR = r'[^"\\\x00-\x1F\x7F]'
_REFUSED = frozenset(
    (
        *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "patternProperties"),
        *("contains", "minContains", "maxContains", "multipleOf"),
    )
)
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_IMPLIED = {
    "object": ("properties", "required", "additionalProperties", "propertyNames", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "additionalItems"),
    "string": ("pattern", "minLength", "maxLength", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
"""Where `type` is missing: keywords by which it is known what is meant."""

Schema = Mapping[str, Any] | bool


def format_grammar(schema: Schema) -> str:
    """The grammar. Raises SchemaError."""
    size = len(json.dumps(schema))
    if size > MAX_CHARS:
        raise SchemaError(f"it has {size} characters, at most {MAX_CHARS} are taken")
    try:
        return _Writer(schema).write()
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None


class _Writer:
    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._rules = Rules()
        self._space = self._rules.add(_SPACE, "space")
        self._char = self._rules.add(_CHAR, "char")
        self._references: dict[str, str] = {}
        self._depth = 0
        self._n_visits = 0

    def write(self) -> str:
        return self._rules.format(self._visit(self._root, "value"))

    def _visit(self, schema: Any, name: str) -> str:
        """The rule of a schema."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SchemaError(f"it is nested more than {MAX_DEPTH} deep")
        self._count_visit()
        try:
            return self._choose_rule(schema, name)
        finally:
            self._depth -= 1

    def _count_visit(self) -> None:
        self._n_visits += 1
        if self._n_visits > MAX_VISITS:
            raise SchemaError(f"it has more than {MAX_VISITS} parts, references followed")

    def _choose_rule(self, schema: Any, name: str) -> str:
        if schema is True:
            return self._any_value()
        if schema is False:
            raise SchemaError(f"{name!r} allows nothing")
        if not isinstance(schema, Mapping):
            raise SchemaError(f"{name!r} is neither an object nor true or false")
        if isinstance(schema.get("$ref"), str) and not _restricts(schema, besides=("$ref",)):
            return self._refer(schema["$ref"])
        if "allOf" in schema and not _restricts(schema, besides=("allOf",)):
            parts = _require_list(schema, "allOf")
            if len(parts) == 1:
                # What generators of schemas write to put a description beside a reference.
                return self._visit(parts[0], name)
        schema = self._flatten(schema)
        for keyword in schema:
            if keyword in _REFUSED:
                raise SchemaError(f"{keyword!r} is not supported")
        if schema.get("uniqueItems") is True:
            raise SchemaError("'uniqueItems' is not supported")
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                rest = {key: value for key, value in schema.items() if key != keyword}
                alternatives = _require_list(schema, keyword)
                return self._unite(
                    [self._visit(self._specialize(rest, alternative), name) for alternative in alternatives], name
                )
        if "const" in schema:
            return self._rules.add(format_json_literal(schema["const"]), name)
        if "enum" in schema:
            return self._visit_enum(schema, name)
        return self._visit_types(schema, name)

    def _specialize(self, base: Mapping[str, Any], alternative: Any) -> Any:
        if not _restricts(base):
            return alternative
        if isinstance(alternative, bool):
            return dict(base) if alternative else False
        if not isinstance(alternative, Mapping):
            raise SchemaError("an alternative is no schema")
        return merge_schemas(base, self._flatten(alternative))

    def _flatten(self, schema: Mapping[str, Any], depth: int = 0) -> Mapping[str, Any]:
        """Without `allOf`, and without references that stand beside other keywords."""
        if "allOf" not in schema and "$ref" not in schema:
            return schema
        if depth > MAX_DEPTH:
            raise SchemaError("'allOf' or '$ref' leads back to itself")
        self._count_visit()
        flat: Mapping[str, Any] = {key: value for key, value in schema.items() if key not in ("allOf", "$ref")}
        parts = list(_require_list(schema, "allOf")) if "allOf" in schema else []
        if "$ref" in schema:
            parts.append(self._look_up(schema["$ref"]))
        for part in parts:
            if part is True:
                continue
            if not isinstance(part, Mapping):
                raise SchemaError("a part of 'allOf' allows nothing, or is no schema")
            flat = merge_schemas(flat, self._flatten(part, depth + 1))
        return flat

    # --- references -------------------------------------------------------------------------------

    def _refer(self, reference: str) -> str:
        if reference not in self._references:
            name = self._references[reference] = self._rules.reserve(reference.rpartition("/")[2] or "root")
            self._rules.define(name, self._visit(self._look_up(reference), name))
        return self._references[reference]

    def _look_up(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaError(f"'$ref' {str(reference)[:100]!r} leads out of the schema")
        found: Any = self._root
        start, *parts = reference[1:].split("/")
        if start:
            raise SchemaError(f"'$ref' {reference[:100]!r} names a place, only paths are followed")
        for part in parts:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and len(key) < 6 and int(key) < len(found):
                found = found[int(key)]
            else:
                raise SchemaError(f"'$ref' {reference[:100]!r} leads nowhere")
        return found

    # --- types ------------------------------------------------------------------------------------

    def _visit_enum(self, schema: Mapping[str, Any], name: str) -> str:
        values = _require_list(schema, "enum")
        types = _list_types(schema) if "type" in schema else _TYPES
        fitting = [value for value in values if any(_is_of_type(value, kind) for kind in types)]
        if not fitting:
            raise SchemaError(f"no value of 'enum' of {name!r} is possible")
        return self._rules.add(join_alternatives(format_json_literal(value) for value in fitting), name)

    def _visit_types(self, schema: Mapping[str, Any], name: str) -> str:
        kinds = _list_types(schema)
        if not kinds:
            return self._any_value()
        visits: dict[str, Callable[[Mapping[str, Any], str], str]] = {
            "object": self._visit_object,
            "array": self._visit_array,
            "string": self._visit_string,
            "number": self._visit_number,
            "integer": self._visit_number,
            "boolean": lambda schema, name: self._rules.add('"true" | "false"', "boolean"),
            "null": lambda schema, name: self._rules.add('"null"', "null"),
        }
        return self._unite([visits[kind]({**schema, "type": kind}, name) for kind in kinds], name)

    def _unite(self, names: Sequence[str], name: str) -> str:
        unique = list(dict.fromkeys(names))
        return unique[0] if len(unique) == 1 else self._rules.add(" | ".join(unique), name)

    def _visit_number(self, schema: Mapping[str, Any], name: str) -> str:
        bounds = _read_bounds(schema)
        is_integer = schema["type"] == "integer"
        if bounds == Bounds():
            return self._rules.add(INTEGER if is_integer else NUMBER, schema["type"])
        return self._rules.add(format_integer(bounds) if is_integer else format_number(bounds), name)

    def _visit_string(self, schema: Mapping[str, Any], name: str) -> str:
        low, high = _read_counts(schema, "minLength", "maxLength")
        if "pattern" in schema:
            if (low, high) != (0, None):
                raise SchemaError("'pattern' together with 'minLength' or 'maxLength' is not supported")
            pattern = schema["pattern"]
            if not isinstance(pattern, str):
                raise SchemaError("'pattern' is no text")
            return self._rules.add(rf'"\"" {format_pattern(self._rules, pattern, self._char)} "\""', name)
        form = schema.get("format")
        if isinstance(form, str) and form in FORMATS and (low, high) == (0, None):
            return self._rules.add(rf'"\"" ({FORMATS[form]}) "\""', form)
        return self._rules.add(rf'"\"" {self._rules.repeat(self._char, low, high)} "\""', name)

    def _visit_array(self, schema: Mapping[str, Any], name: str) -> str:
        low, high = _read_counts(schema, "minItems", "maxItems")
        items, first = schema.get("items", True), schema.get("prefixItems", [])
        if isinstance(items, list):
            first, items = items, schema.get("additionalItems", True)
        if not isinstance(first, list):
            raise SchemaError("'prefixItems' is no list")
        if not first and items is not False:
            return self._rules.add(self._repeat_items(self._visit(items, f"{name}-item"), low, high), name)
        # With a beginning of its own: what the schema names, and more only if it takes more.
        n_first = len(first) if high is None else min(len(first), high)
        names = [self._visit(schema, f"{name}-{index}") for index, schema in enumerate(first[:n_first])]
        body, comma = "", self._comma()
        if n_first < low or (items is not True and items is not False and (high is None or high > n_first)):
            if items is False:
                raise SchemaError(f"'minItems' {low} of {name!r} are more than there may be")
            rest = self._rules.add(f"{comma} {self._visit(items, f'{name}-item')}", "more")
            body = self._rules.repeat(rest, max(0, low - n_first), None if high is None else high - n_first)
        for index in range(n_first - 1, -1, -1):
            part = f"{comma} {names[index]} {body}" if index else f"{names[index]} {body}"
            body = part if index < low else f"({part})?"
        return self._rules.add(f'"[" {self._space} {body} {self._space} "]"', name)

    def _repeat_items(self, item: str, low: int, high: int | None) -> str:
        if high == 0:
            return f'"[" {self._space} "]"'
        more = self._rules.add(f"{self._comma()} {item}", "more")
        rest = self._rules.repeat(more, max(0, low - 1), None if high is None else high - 1)
        body = f"{item} {rest}"
        return f'"[" {self._space} {body if low else f"({body})?"} {self._space} "]"'

    def _comma(self) -> str:
        return self._rules.add(f'{self._space} "," {self._space}', "comma")

    def _visit_object(self, schema: Mapping[str, Any], name: str) -> str:
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise SchemaError("'properties' is no object")
        required = _require_texts(schema.get("required", []), "required")
        others = schema.get("additionalProperties", not properties)
        unknown = [key for key in required if key not in properties]
        if unknown:
            if others is False and properties:
                others = schema.get("additionalProperties", True)
            if others is False:
                raise SchemaError(f"'required' names {unknown[0]!r}, which may not be there")
            properties = {**properties, **dict.fromkeys(unknown, others)}
            others = schema.get("additionalProperties", False)
        if (names := self._list_names(schema)) is not None:
            properties = {name: properties.get(name, others) for name in names} | {
                key: False for key in properties if key not in names
            }
            others = False
        low, high = _read_counts(schema, "minProperties", "maxProperties")
        if low > len(required) or (high is not None and (others is not False or high < len(properties))):
            raise SchemaError(f"'minProperties' or 'maxProperties' of {name!r} is not supported")
        pairs = [
            (self._pair(key, value, name), key in required) for key, value in self._list_possible(properties, required)
        ]
        other = None if others is False else self._other_pair(others, list(properties), name)
        return self._rules.add(f'"{{" {self._space} {self._list_pairs(pairs, other)} {self._space} "}}"', name)

    def _list_names(self, schema: Mapping[str, Any]) -> list[str] | None:
        """The names that `propertyNames` lists; None: any."""
        names = schema.get("propertyNames", True)
        if names is True:
            return None
        if isinstance(names, Mapping):
            names = self._flatten(names)
            if names.get("type", "string") == "string" and not _restricts(names, besides=("type", "enum")):
                listed = _require_list(names, "enum") if "enum" in names else None
                return None if listed is None else [name for name in listed if isinstance(name, str)]
        raise SchemaError("'propertyNames' is not supported, except for a list of names ('enum')")

    def _list_possible(self, properties: Mapping[str, Any], required: Sequence[str]) -> list[tuple[str, Any]]:
        """Properties that may not be there are left out."""
        for key, value in properties.items():
            if value is False and key in required:
                raise SchemaError(f"property {key!r} is required and allows nothing")
        return [(key, value) for key, value in properties.items() if value is not False]

    def _pair(self, key: str, value: Any, name: str) -> str:
        rule = self._visit(value, f"{name}-{key}")
        return self._rules.add(f'{format_json_literal(key)} {self._space} ":" {self._space} {rule}', f"{name}-{key}")

    def _other_pair(self, value: Any, known: list[str], name: str) -> str:
        rule = self._visit(value, f"{name}-other")
        # With escapes a known key could be spelled in another way: there are none, and known keys that need them cannot
        # be met.
        known = [key for key in known if json.dumps(key, ensure_ascii=False)[1:-1] == key]
        key = self._rules.add(rf'"\"" {self._other_key(known)} "\""', "key")
        return self._rules.add(f'{key} {self._space} ":" {self._space} {rule}', f"{name}-other")

    def _other_key(self, known: list[str]) -> str:
        """Any key but the known ones, letter by letter."""
        char = self._rules.add(_KEY_CHAR, "keychar")
        if not known:
            return f"{char}{{0,{MAX_KEY_CHARS}}}"
        alternatives = [] if "" in known else ['""']
        heads = sorted({key[0] for key in known if key})
        for head in heads:
            rest = self._other_key([key[1:] for key in known if key[:1] == head])
            alternatives.append(f"{format_literal(head)} {self._rules.add(rest, 'key')}")
        excluded = "".join(format_set([(ord(head), ord(head))])[1:-1] for head in heads)
        alternatives.append(rf'[^"\\\x00-\x1F\x7F{excluded}] {char}{{0,{MAX_KEY_CHARS}}}')
        return "(" + " | ".join(alternatives) + ")"

    def _list_pairs(self, pairs: Sequence[tuple[str, bool]], other: str | None) -> str:
        """Pairs in order, each optional one there or not, others at the end. Two chains of rules: what may follow when
        something stands before, and when nothing does.
        """
        comma = self._comma()
        after = self._rules.add(f"({comma} {other})*", "others") if other else ""
        alone = self._rules.add(f"({other} {after})?", "others") if other else ""
        for pair, is_required in reversed(pairs):
            begins = f"{pair} {after}"
            if not is_required:
                begins = f"{begins} | {alone}" if alone else f"({begins})?"
            alone = self._rules.add(begins, "first")
            follows = f"{comma} {pair}" if is_required else f"({comma} {pair})?"
            after = self._rules.add(f"{follows} {after}", "next")
        return alone

    def _any_value(self) -> str:
        if "" not in self._references:
            value = self._references[""] = self._rules.reserve("any")
            string = self._rules.add(rf'"\"" {self._char}* "\""', "string")
            pair = self._rules.add(f'{string} {self._space} ":" {self._space} {value}', "pair")
            comma, space = self._comma(), self._space
            self._rules.define(
                value,
                f'{string} | {self._rules.add(NUMBER, "number")} | "true" | "false" | "null" | '
                f'"{{" {space} ({pair} ({comma} {pair})*)? {space} "}}" | '
                f'"[" {space} ({value} ({comma} {value})*)? {space} "]"',
            )
        return self._references[""]


def _restricts(schema: Mapping[str, Any], besides: Sequence[str] = ()) -> bool:
    """Whether any keyword is there that says what is valid."""
    said = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "nullable", "uniqueItems", *_REFUSED}
    said |= {keyword for keywords in _IMPLIED.values() for keyword in keywords}
    return any(keyword in said and keyword not in besides for keyword in schema)


def _list_types(schema: Mapping[str, Any]) -> list[str]:
    """Empty: any."""
    given = schema.get("type")
    if given is None:
        kinds = [kind for kind, keywords in _IMPLIED.items() if any(keyword in schema for keyword in keywords)]
    else:
        kinds = _require_texts(given if isinstance(given, list) else [given], "type")
    for kind in kinds:
        if kind not in _TYPES:
            raise SchemaError(f"'type' {str(kind)[:50]!r} is none of " + ", ".join(_TYPES))
    if schema.get("nullable") is True and kinds and "null" not in kinds:
        kinds.append("null")
    return kinds


def _is_of_type(value: Any, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    classes: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, classes[kind])


def _require_list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema[keyword]
    if not isinstance(value, list) or not value:
        raise SchemaError(f"{keyword!r} is no list, or empty")
    return value


def _require_texts(value: Any, keyword: str) -> list[str]:
    """Each once."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SchemaError(f"{keyword!r} is no text, or no list of texts")
    return list(dict.fromkeys(value))


def _read_counts(schema: Mapping[str, Any], low: str, high: str) -> tuple[int, int | None]:
    counts = []
    for keyword in (low, high):
        value = schema.get(keyword)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            raise SchemaError(f"{keyword!r} is no number of 0 or more")
        counts.append(None if value is None else int(value))
    return counts[0] or 0, counts[1]


def _read_bounds(schema: Mapping[str, Any]) -> Bounds:
    low, above = _read_bound(schema, "minimum", "exclusiveMinimum", max)
    high, below = _read_bound(schema, "maximum", "exclusiveMaximum", min)
    return Bounds(low, high, above, below)


def _read_bound(
    schema: Mapping[str, Any], keyword: str, exclusive: str, tighter: Callable[[Decimal, Decimal], Decimal]
) -> tuple[Decimal | None, bool]:
    """The tighter one of both, and whether it is exclusive. Draft 4 has true in place of the exclusive number."""
    inclusive_value, exclusive_value = schema.get(keyword), schema.get(exclusive)
    if isinstance(exclusive_value, bool):
        return _to_decimal(inclusive_value, keyword), exclusive_value
    plain, strict = _to_decimal(inclusive_value, keyword), _to_decimal(exclusive_value, exclusive)
    if strict is None:
        return plain, False
    if plain is None or tighter(plain, strict) == strict:
        return strict, True
    return plain, False


def _to_decimal(value: Any, keyword: str) -> Decimal | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SchemaError(f"{keyword!r} is no number")
    return Decimal(json.dumps(value))
