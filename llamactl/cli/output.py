"""How do bytes, times and messages look on a terminal?

What others wrote (log lines, file names) must not reach the terminal as it is. The streams are that door: whatever a
command prints has what is not printable escaped, but for the colours and the changing line that are ours. Where a text
is one line of several, `clean_line` escapes newlines as well.
"""

import json
import re
import sys
from typing import Any, TextIO

from llamactl.cli.terminal import CODES
from llamactl.errors import LlamactlError
from llamactl.escape import escape_json, escape_lines, escape_text
from llamactl.quantities import format_bytes

NOTHING = "-"


def format_known_bytes(size: int | None) -> str:
    """A size for people; None is one that nobody knows."""
    return NOTHING if size is None else format_bytes(size)


def clean_text(text: str) -> str:
    """A text without anything that moves a cursor; newlines stay."""
    return escape_lines(text)


def clean_line(text: str) -> str:
    """The same on one line, whatever it holds."""
    return escape_text(text)


class CleanStream:
    """A text stream for people. `write` lets printable characters, newlines and our colours pass and escapes all
    else; `draw` writes what it is given.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text as people may see it: control characters escaped, colours kept."""
        return self._stream.write(text if text.isprintable() else "".join(map(_clean_part, _COLOURS.split(text))))

    def draw(self, text: str) -> int:
        """Write a text as it is, with all control sequences in it."""
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_COLOURS = re.compile("(" + "|".join(re.escape(code) for code in CODES) + ")")


def _clean_part(part: str) -> str:
    return part if part in CODES else escape_lines(part)


def draw(stream: TextIO, text: str) -> None:
    """Write what moves the cursor: controls of our own, and nothing of others that was not cleaned."""
    getattr(stream, "draw", stream.write)(text)


def print_json(value: Any) -> None:
    """One JSON value on standard output: readable on a terminal, one line in a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    print(escape_json(json.dumps(value, indent=indent, ensure_ascii=False)))


def complain(message: str) -> None:
    """A message on standard error, in the way of Unix commands."""
    print(f"llamactl: {clean_text(message)}", file=sys.stderr)


def describe_error(error: LlamactlError) -> dict[str, Any]:
    """An error for scripts."""
    fields = {"code": error.code, "message": error.message, "hint": error.hint, "model": error.model}
    return {"error": fields | {"details": error.details}}
