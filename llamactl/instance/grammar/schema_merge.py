"""Which schema is valid for what two schemas are both valid for? `allOf`, and alternatives beside other keywords.

Where two values of a keyword cannot be made one, the pair is refused rather than one of them dropped.
"""

from collections.abc import Callable, Mapping
from typing import Any

from llamactl.instance.grammar.gbnf import SchemaError

_DESCRIBING = frozenset(
    ("title", "description", "default", "examples", "$comment", "$id", "$schema", "$anchor", "$defs", "definitions")
)


def merge_schemas(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Raises SchemaError."""
    merged = dict(left)
    for keyword, value in right.items():
        if keyword not in merged or merged[keyword] == value or keyword in _DESCRIBING:
            merged[keyword] = value
        elif keyword in _RULES:
            merged[keyword] = _RULES[keyword](merged[keyword], value)
        else:
            raise SchemaError(f"two values of {keyword!r} cannot be combined")
    _close_properties(left, right, merged)
    return merged


def _merge_value(left: Any, right: Any) -> Any:
    if left is True or right is True:
        return right if left is True else left
    if left is False or right is False:
        return False
    if not isinstance(left, Mapping) or not isinstance(right, Mapping):
        raise SchemaError("what is combined is no schema")
    # Both, whatever they refer to: resolved when they are read.
    if "$ref" in left or "$ref" in right or "allOf" in left or "allOf" in right:
        return {"allOf": [left, right]}
    return merge_schemas(left, right)


def _merge_properties(left: Any, right: Any) -> Any:
    if not isinstance(left, Mapping) or not isinstance(right, Mapping):
        raise SchemaError("'properties' is no object")
    merged = dict(left)
    for name, schema in right.items():
        merged[name] = _merge_value(merged[name], schema) if name in merged else schema
    return merged


def _merge_types(left: Any, right: Any) -> list[str]:
    lefts, rights = (value if isinstance(value, list) else [value] for value in (left, right))
    both = [kind for kind in lefts if kind in rights]
    # An integer is a number.
    if "integer" not in both and (
        ("integer" in lefts and "number" in rights) or ("number" in lefts and "integer" in rights)
    ):
        both.append("integer")
    if not both:
        raise SchemaError(f"types {left!r} and {right!r} exclude each other")
    return both


def _merge_enum(left: Any, right: Any) -> list[Any]:
    if not isinstance(left, list) or not isinstance(right, list):
        raise SchemaError("'enum' is no list")
    both = [value for value in left if value in right]
    if not both:
        raise SchemaError("no value is in both lists of 'enum'")
    return both


def _merge_required(left: Any, right: Any) -> list[Any]:
    if not isinstance(left, list) or not isinstance(right, list):
        raise SchemaError("'required' is no list")
    return [*left, *(name for name in right if name not in left)]


def _choose_number(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def merge(left: Any, right: Any) -> Any:
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in (left, right)):
            raise SchemaError("a bound is no number")
        return choose(left, right)

    return merge


_RULES: dict[str, Callable[[Any, Any], Any]] = {
    "properties": _merge_properties,
    "required": _merge_required,
    "type": _merge_types,
    "enum": _merge_enum,
    "items": _merge_value,
    "additionalProperties": _merge_value,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), _choose_number(max)),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), _choose_number(min)),
    "uniqueItems": lambda left, right: left or right,
    "nullable": lambda left, right: left and right,
}


def _close_properties(left: Mapping[str, Any], right: Mapping[str, Any], merged: dict[str, Any]) -> None:
    """A schema that takes no others takes none of the other's either; which it would have to know, one by one."""
    for one, other in ((left, right), (right, left)):
        others = one.get("additionalProperties", True)
        if others is True:
            continue
        known = one.get("properties", {})
        for name in other.get("properties", {}):
            if name not in known:
                merged["properties"] = {
                    **merged["properties"],
                    name: _merge_value(merged["properties"][name], others),
                }
