"""How does a model's name become a unit's name, and back?

A slug is the instance part of `llamactl-model@SLUG.service` and the name of the model's socket directory. Names
that are already plain stay as they are; all others get a readable part and eight hex digits of their SHA-256. A
plain name that ends like such a hash is hashed too, so that no two names share a slug. systemd-escape's own form
is not used: it makes `/` and `-` unreadable and costs four characters a byte.
"""

import re
from collections.abc import Collection
from enum import StrEnum

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.escape import escape_text

MODEL_SLICE = "llamactl-models.slice"
MAX_NAME_LENGTH = 128
MAX_SUGGESTED_FROM = 2000
"""More names take too long to compare."""
MAX_SLUG_LENGTH = 56  # "/run/user/4294967295/llamactl/models/SLUG/http.sock" must stay below the 108 bytes of sun_path

_PLAIN = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_SLUG_LENGTH - 1}}}")
_HASHED = re.compile(r".*-[0-9a-f]{8}")
DEVICES_SLUG = "_devices"
"""In the place of a model's: the measure child that only lists devices. No model's slug begins with `_`."""

_UNIT = re.compile(r"llamactl-(model|measure)@([a-z0-9][a-z0-9._-]*|_devices)\.service")


class Role(StrEnum):
    """The two kinds of child, named as in their units."""

    MODEL = "model"
    MEASURE = "measure"


def check_model_name(name: str) -> None:
    """Raise LlamactlError (invalid_config) unless `name` can name a model: printable, 1 to 128 characters, no
    outer blanks.
    """
    if not name or len(name) > MAX_NAME_LENGTH:
        raise LlamactlError(
            ErrorCode.INVALID_CONFIG,
            f"cannot use model name {name[:40]!r}: must have 1 to {MAX_NAME_LENGTH} characters",
        )
    if name != name.strip() or not name.isprintable():
        raise LlamactlError(
            ErrorCode.INVALID_CONFIG,
            f"cannot use model name {name!r}: blanks around it and unprintable characters are not allowed",
        )


def quote_name(name: str) -> str:
    """A name in a sentence. Models whose names cannot be shown are called as they are shown (`a\\nb`): to escape that
    once more would name nobody.
    """
    return repr(name) if name.isprintable() and "\\" not in name else f"'{escape_text(name)}'"


def suggest_names(name: str, names: Collection[str]) -> str:
    """Which of these was probably meant by one that is none of them: `did you mean 'a' or 'b'?`, or empty."""
    if len(names) > MAX_SUGGESTED_FROM or len(name) > MAX_NAME_LENGTH:
        return ""
    import difflib  # only whoever has mistyped needs it

    plain = {known.casefold(): known for known in names}
    similar = [plain[match] for match in difflib.get_close_matches(name.casefold(), plain, n=3, cutoff=0.6)]
    return f"did you mean {' or '.join(quote_name(match) for match in similar)}?" if similar else ""


def format_command(verb: str, name: str) -> str:
    """A command about one model, as a shell takes it; whoever shows it in a sentence puts backticks around it."""
    import shlex  # only whoever is in trouble needs it

    return f"llamactl {verb} {'-- ' if name.startswith('-') else ''}{shlex.quote(name)}"


def format_slug(name: str) -> str:
    """The slug of a model's name: stable, unique per name, `[a-z0-9._-]`, at most 56 characters."""
    if _PLAIN.fullmatch(name) and not _HASHED.fullmatch(name):
        return name
    import hashlib  # few names need it, and every start would pay for it

    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    readable = re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-._")[: MAX_SLUG_LENGTH - 9].rstrip("-._")
    return f"{readable or 'model'}-{digest}"


def format_unit(role: Role, slug: str) -> str:
    """The name of the transient unit of a slug in a role."""
    return f"llamactl-{role}@{slug}.service"


def parse_unit(unit: str) -> tuple[Role, str] | None:
    """Role and slug of a unit's name, or None for a unit that is not one of ours."""
    match = _UNIT.fullmatch(unit)
    return (Role(match[1]), match[2]) if match else None
