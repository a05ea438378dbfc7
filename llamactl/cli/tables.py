"""How does a table fit into a terminal?

Columns are aligned, two blanks apart. Where that is too wide, one that may be left out is cut first, and left out
before it becomes useless; then of those that may be cut always the widest, none below its least width, with an
ellipsis. Into a pipe everything goes whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llamactl.cli.output import NOTHING, clean_line
from llamactl.cli.terminal import WHOLE, Look, Style, measure_width, shorten

_GAP = 2


@dataclass(frozen=True)
class Column:
    """`least`: to how many columns of the terminal it may be cut; 0: not at all."""

    title: str
    right: bool = False
    least: int = 0
    middle: bool = False
    """Both ends of its texts say something: they are cut in the middle."""
    optional: bool = False
    """Left out where it would have to be cut to less."""


@dataclass(frozen=True)
class Cell:
    """A text with a style."""

    text: str
    style: Style


def format_table(
    columns: Sequence[Column | str], rows: Sequence[Sequence[Cell | str]], look: Look = WHOLE, indent: str = ""
) -> str:
    """Lines of aligned cells; empty ones are shown as such."""
    heads = [column if isinstance(column, Column) else Column(column) for column in columns]
    cells = [[_clean(cell) for cell in row] for row in rows]
    widths = [
        max(measure_width(head.title), *(measure_width(row[at].text) for row in cells), 0)
        for at, head in enumerate(heads)
    ]
    if look.width is not None:
        widths = choose_widths(heads, widths, look.width - len(indent))
    lines = [[Cell(head.title, Style.TITLE) for head in heads], *cells]
    return "\n".join(_format_line(heads, widths, line, look, indent) for line in lines)


def choose_widths(columns: Sequence[Column], wanted: Sequence[int], available: int) -> list[int]:
    """The width of each column, 0 for one that is left out."""
    widths = list(wanted)

    def measure_excess() -> int:
        return sum(widths) + _GAP * (sum(width > 0 for width in widths) - 1) - available

    for at in [at for at, column in enumerate(columns) if column.optional]:
        left = widths[at] - max(0, measure_excess())
        widths[at] = left if left >= min(columns[at].least, widths[at]) else 0
    while measure_excess() > 0:
        cuttable = [at for at, column in enumerate(columns) if column.least and widths[at] > column.least]
        if not cuttable:
            break
        widths[max(cuttable, key=lambda at: widths[at])] -= 1
    return widths


def _clean(cell: Cell | str) -> Cell:
    text, style = (cell, Style.PLAIN) if isinstance(cell, str) else (cell.text, cell.style)
    return Cell(clean_line(text) or NOTHING, style)


def _format_line(
    columns: Sequence[Column], widths: Sequence[int], line: Sequence[Cell], look: Look, indent: str
) -> str:
    plain, painted = indent, indent
    for column, width, cell in zip(columns, widths, line, strict=True):
        if not width:
            continue
        text = shorten(cell.text, width, column.middle)
        blanks = " " * (width - measure_width(text))
        gap = " " * _GAP if plain != indent else ""
        plain += gap + (blanks + text if column.right else text + blanks)
        shown = look.paint(text, cell.style)
        painted += gap + (blanks + shown if column.right else shown + blanks)
    fits = look.width is None or measure_width(plain.rstrip()) <= look.width
    return painted.rstrip() if fits else look.fit(plain.rstrip())
