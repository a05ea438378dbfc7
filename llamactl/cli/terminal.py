"""How wide is the terminal, and does it want colours?

Only a terminal has a width: what goes into a pipe or a file is never cut, and never coloured. As with systemctl,
COLUMNS overrides the width and 80 is the width of a terminal that does not know its own. NO_COLOR in the environment
(no-color.org) or TERM=dumb: no colours.
"""

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

ELLIPSIS = "…"
DEFAULT_WIDTH = 80
LEAST_PROSE = 20
"""Into fewer columns nothing is wrapped."""


class Style(StrEnum):
    """What is coloured, as systemctl colours it: the codes of ECMA-48."""

    PLAIN = ""
    GOOD = "\x1b[0;1;32m"
    PENDING = "\x1b[0;1;33m"
    BAD = "\x1b[0;1;31m"
    QUIET = "\x1b[0;90m"
    TITLE = "\x1b[0;4m"


_END = "\x1b[0m"
CODES = frozenset((*filter(None, Style), _END))
"""All that `paint` writes around a text."""


@dataclass(frozen=True)
class Look:
    """How a command's output shall look: at most `width` columns (None: as wide as it is), with colours or without."""

    width: int | None = None
    colour: bool = False

    def paint(self, text: str, style: Style) -> str:
        """Put a text into the colour of a style, where there are colours."""
        return f"{style}{text}{_END}" if self.colour and style and text else text

    def fit(self, line: str, middle: bool = False) -> str:
        """A line that is not wrapped, with an ellipsis where something was left out."""
        return line if self.width is None else shorten(line, self.width, middle)


WHOLE = Look()
"""As into a pipe."""


def acquire_look(stream: TextIO, full: bool = False) -> Look:
    """What the terminal behind a stream wants. `full`: lines are not cut."""
    if not stream.isatty():
        return Look()
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Look(None if full else find_width(stream), colour)


def find_width(stream: TextIO) -> int | None:
    """Columns of a terminal; None: the stream is none."""
    if not stream.isatty():
        return None
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
    except (OSError, ValueError):
        return DEFAULT_WIDTH


def measure_width(text: str) -> int:
    """Columns that a text takes on a terminal: East Asian wide characters two, combining ones none."""
    return len(text) if text.isascii() else sum(map(_measure_character, text))


def _measure_character(character: str) -> int:
    import unicodedata  # most texts are ASCII

    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(text: str, width: int, middle: bool = False) -> str:
    """At most `width` columns; what does not fit gives way to an ellipsis, at the end or in the middle."""
    if measure_width(text) <= width:
        return text
    if width < 1:
        return ""
    kept = width - len(ELLIPSIS)
    tail = _cut_to_width(text[::-1], kept // 2)[::-1] if middle else ""
    return _cut_to_width(text, kept - measure_width(tail)) + ELLIPSIS + tail


def _cut_to_width(text: str, width: int) -> str:
    """The beginning of a text that takes at most `width` columns."""
    for at, character in enumerate(text):
        width -= _measure_character(character)
        if width < 0:
            return text[:at]
    return text


def wrap(text: str, width: int | None, indent: str = "") -> str:
    """Prose in lines of at most `width` columns less the indent, which stands before all of them but the first."""
    if width is None:
        return text.replace("\n", f"\n{indent}")
    import textwrap  # only terminals need it

    room = max(LEAST_PROSE, width - len(indent))
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, room, break_on_hyphens=False) or [""]]
    return f"\n{indent}".join(lines)
