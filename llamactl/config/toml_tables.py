"""What does one TOML table set, and what is wrong with it?

Each wrong key is one Problem and all of them are found in one pass, since a file is repaired faster from a whole
list. A key that is not known is wrong, never ignored: `n_gpu_layer = 0` would else run a model on a device from which
it was to be kept.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llamactl.config.builtin_templates import check_template
from llamactl.config.keys import Key
from llamactl.config.model_keys import CHAT_TEMPLATE_FILE, OTHER_NAMES
from llamactl.config.read import UnreadableError, read_text
from llamactl.config.value_parsers import list_reasons, show_value
from llamactl.settings import ModelSettings, Problem

_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Place:
    """Where a finding is: the file, the dotted key of the table, and the model that it concerns."""

    file: str
    table: str = ""
    model: str = ""

    def at(self, key: str) -> str:
        """The dotted name of a key here."""
        return f"{self.table}.{format_key(key)}" if self.table else format_key(key)

    def report(self, message: str, key: str = "", hint: str = "", fatal: bool = True) -> Problem:
        """A finding about this table, or about one key of it."""
        where = self.at(key) if key else self.table
        return Problem(file=self.file, where=where, message=message, hint=hint, model=self.model, fatal=fatal)


def place_model(model: ModelSettings) -> Place:
    """Where a finding about a model as a whole is, however it came into the configuration."""
    return Place(model.source, f"models.{format_key(model.name)}", model.name)


def format_key(key: str) -> str:
    """A key as it must be written in TOML: quoted where it is not bare."""
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def find_close_key(name: str, keys: Iterable[str]) -> str:
    """The key that is probably meant by one that does not exist, or empty."""
    known = list(keys)
    plain = name.lower().replace("-", "_").strip("_")
    guess = OTHER_NAMES.get(plain)
    if guess in known:
        return guess
    return next(iter(difflib.get_close_matches(plain[:100], known, n=1, cutoff=0.6)), "")


def suggest_key(name: str, keys: Iterable[str]) -> str:
    """A hint for an unknown key, or empty."""
    known = list(keys)
    plain = name.lower().replace("-", "_").strip("_")
    if plain.startswith("no_"):
        negated = suggest_key(plain[3:], known)
        return f"{negated.removesuffix('?')} = false?" if negated and plain[3:] in known else negated
    close = find_close_key(name, known)
    return f"did you mean {close!r}?" if close else ""


def _suggest_elsewhere(name: str, others: Mapping[str, str]) -> str:
    close = find_close_key(name, others)
    return f"did you mean {close!r}? {others[close]}" if close else ""


def parse_table(
    keys: tuple[Key, ...],
    table: Mapping[str, Any],
    place: Place,
    problems: list[Problem],
    others: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The fields that a table sets. `others`: keys that exist elsewhere, with the hint that says where."""
    known = {key.name: key for key in keys}
    fields: dict[str, Any] = {}
    for name, value in table.items():
        key = known.get(name)
        if key is None:
            hint = (others or {}).get(name) or suggest_key(name, known) or _suggest_elsewhere(name, others or {})
            if place.model and isinstance(value, dict):  # TOML reads [models.qwen2.5] as a table 5 in models.qwen2
                whole = json.dumps(f"{place.model}.{name}", ensure_ascii=False)
                hint = f"a name with a dot stands in quotes: [models.{whole}]"
            problems.append(place.report(f"unknown key {name!r}" if len(name) < 80 else "unknown key", name, hint))
            continue
        try:
            fields[key.field] = (
                _read_template(key.kind.parse(value)) if key is CHAT_TEMPLATE_FILE else key.kind.parse(value)
            )
        except ValueError as error:
            shown = f"cannot use {name} = {show_value(value)}"
            problems += [place.report(f"{shown}: {reason}", name) for reason in list_reasons(error)]
    if "chat_template" in table and CHAT_TEMPLATE_FILE.name in table:
        message = "cannot use chat_template and chat_template_file together"
        problems.append(place.report(message, CHAT_TEMPLATE_FILE.name, "remove one of them"))
    return fields


def _read_template(path: str) -> str:
    try:
        return check_template(read_text(path))
    except FileNotFoundError:
        raise ValueError("no such file") from None
    except UnreadableError as error:
        raise ValueError(f"{error.where} {error.reason}".strip()) from None
