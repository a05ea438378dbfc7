"""How do bytes, times and messages look on a terminal?

Texts that others wrote (log lines, file names) are cleaned before they are shown: escape sequences in them would
reach the terminal.
"""

import json
import sys
from typing import Any

from llamactl.errors import LlamactlError

NOTHING = "-"


def format_bytes(size: int | None) -> str:
    """Three digits and a unit: "312 MiB", "5.21 GiB"."""
    if size is None:
        return NOTHING
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if value < 999.5 or unit == "PiB":
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def format_span(seconds: float) -> str:
    """A length of time in its two largest units, as systemd writes them: "2min 3s"; fractions below ten seconds."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    rest = round(seconds)
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if rest >= size:
            parts.append(f"{rest // size}{unit}")
            rest %= size
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def clean_text(text: str) -> str:
    """A text without anything that moves a cursor; newlines stay."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text.replace("\t", " "))


def print_json(value: Any) -> None:
    """One JSON value on standard output: readable on a terminal, one line in a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(value, indent=indent, ensure_ascii=False))


def complain(message: str) -> None:
    """A message on standard error, in the way of Unix commands."""
    print(f"llamactl: {clean_text(message)}", file=sys.stderr)


def describe_error(error: LlamactlError) -> dict[str, Any]:
    """An error for scripts."""
    fields = {"code": error.code, "message": error.message, "hint": error.hint, "model": error.model}
    return {"error": fields | {"details": error.details}}
