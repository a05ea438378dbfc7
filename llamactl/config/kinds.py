"""What may a key of the configuration hold?

A kind turns a TOML value into a setting or raises ValueError with the end of a sentence ("must be ..."). TOML's
booleans are integers to Python: every kind that takes numbers must refuse them itself.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llamactl.config.builtin_templates import check_template
from llamactl.config.value_parsers import (
    MAX_INT,
    check_text,
    parse_access_log,
    parse_aliases,
    parse_boolean,
    parse_devices,
    parse_env,
    parse_extra,
    parse_finite_duration,
    parse_hosts,
    parse_margins,
    parse_optional_path,
    parse_origins,
    parse_path,
    parse_rpc,
    parse_samplers,
    parse_split,
    parse_switch,
    parse_tags,
    parse_texts,
    parse_variables,
)
from llamactl.quantities import format_duration, format_size, parse_duration, parse_size


@dataclass(frozen=True)
class Kind:
    """What a key may hold: words for the documentation, the parser, and how a default is shown."""

    words: str
    parse: Callable[[object], Any]
    format: Callable[[Any], str] = lambda value: f"`{value!r}`"
    unit: str = ""
    """What fields of this kind have behind their name."""


def show_plain(value: object) -> str:
    """A default as the documentation shows it; empty where there is none."""
    if isinstance(value, tuple):
        return f"`{', '.join(map(str, value))}`" if value else ""
    return f"`{str(value).lower()}`" if value not in ("", (), {}, None) else ""


def _show_text(value: object) -> str:
    return f'`"{value}"`' if value else ""


def _show_list(value: Sequence[str]) -> str:
    return f"`{json.dumps(list(value))}`"


def make_integer(low: int, high: int = MAX_INT, words: dict[str, int] | None = None) -> Kind:
    """Integers within these limits; `words` stand for some of them."""
    names = words or {}
    spelled = "".join(f' or "{word}"' for word in names)
    limits = f"an integer of {low} or more" if high == MAX_INT else f"an integer from {low} to {high}"

    def parse(value: object) -> int:
        if isinstance(value, str) and value in names:
            return names[value]
        if high == MAX_INT and isinstance(value, int) and value > high:
            raise ValueError(f"must be {limits}, and at most {high}")
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be {limits}{spelled}")
        return value

    def show(value: int) -> str:
        word = next((word for word, number in names.items() if number == value), None)
        return f'`"{word}"`' if word else f"`{value}`"

    return Kind(limits.removeprefix("an ") + spelled, parse, show)


def make_number(low: float, high: float) -> Kind:
    """Numbers within these limits."""
    limits = f"number from {low:g} to {high:g}"

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"must be a {limits}")
        return float(value)

    return Kind(limits, parse, lambda value: f"`{value:g}`")


def make_choice(choices: tuple[str, ...], empty: bool = False) -> Kind:
    """One of these texts; with `empty`, none is right, too."""
    listed = ", ".join(f'"{choice}"' for choice in choices)

    def parse(value: object) -> str:
        if not isinstance(value, str) or (value not in choices and not (empty and value == "")):
            raise ValueError(f"must be one of {listed}")
        return value

    return Kind(f"one of {listed}", parse, _show_text)


def make_duration(never: bool) -> Kind:
    """Times in seconds; with `never`, 0 and "infinity" mean no limit and become 0."""

    def parse(value: object) -> float:
        seconds = parse_duration(value)
        if never:
            return 0.0 if math.isinf(seconds) else seconds
        if math.isinf(seconds) or seconds == 0:
            raise ValueError("must be a time above 0 that ends, as in '60s'")
        return seconds

    return Kind('time; `0` or `"infinity"`: no limit' if never else "time", parse, _show_duration, "_s")


def _show_duration(seconds: float) -> str:
    return f'`"{format_duration(seconds)}"`' if seconds else "`0`"


BOOLEAN = Kind("boolean", parse_boolean, show_plain)
TEXT = Kind("text", check_text, _show_text)
TEMPLATE = Kind("text", lambda value: check_template(check_text(value)), _show_text)
VARIABLES = Kind("table", parse_variables, show_plain)
PATH = Kind("absolute path", parse_path, _show_text)
OPTIONAL_PATH = Kind("absolute path", parse_optional_path, _show_text)
SIZE = Kind("size", parse_size, lambda size: f'`"{format_size(size)}"`' if size is not None else "", "_bytes")
DURATION = make_duration(never=False)
DURATION_OR_NEVER = make_duration(never=True)
DURATION_OR_NONE = Kind("time; `0`: none", parse_finite_duration, _show_duration, "_s")
TEXTS = Kind("list of texts", lambda value: list(parse_texts(value)), _show_list)
TAGS = Kind("list of texts", parse_tags, show_plain)
SAMPLER_LIST = Kind("list of texts", parse_samplers, _show_list)
SWITCH = Kind('"auto", "on" or "off"', parse_switch, _show_text)
HOSTS = Kind("list of names", parse_hosts, show_plain)
ORIGINS = Kind("list of origins", parse_origins, show_plain)
ACCESS_LOG = Kind('"info", "debug" or "off"', parse_access_log, _show_text)
ALIASES = Kind("list of texts", parse_aliases, show_plain)
DEVICES = Kind('list of texts, or "none"', parse_devices, show_plain)
SPLIT = Kind("list of numbers", parse_split, show_plain)
RPC = Kind('list of "IPv4:PORT"', parse_rpc, show_plain)
ENV = Kind("table of texts", parse_env, show_plain)
EXTRA = Kind("table of properties", parse_extra, show_plain)
MARGINS = Kind("table of sizes", parse_margins, show_plain, "_bytes")
