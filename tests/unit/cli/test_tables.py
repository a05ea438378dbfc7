"""Tables and lines: whole in a pipe, never wider than the terminal, aligned whatever they are painted with."""

import io
import re

import pytest

from llamactl.cli.tables import Cell, Column, choose_widths, format_table
from llamactl.cli.terminal import WHOLE, Look, Style, acquire_look, measure_width, shorten, wrap

COLUMNS = (
    Column("NAME", least=6, middle=True),
    Column("SIZE", right=True),
    Column("WHY", least=4),
    Column("UNIT", least=8, optional=True),
)
ROWS = [("qwen-7b-instruct-q4", "4.10 GiB", "because of this", "llamactl-model@qwen.service"), ("b", "1 B", "", "u")]


def strip_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_table_aligns_and_shows_empty_cells() -> None:
    rows = [("long", "5"), ("x", ""), ("y\n", "1234567")]
    assert format_table(("A", Column("NUMBER", right=True)), rows).splitlines() == [
        "A      NUMBER",
        "long        5",
        "x           -",
        "y\\n   1234567",
    ]


def test_table_in_a_pipe_is_whole() -> None:
    text = format_table(COLUMNS, ROWS, WHOLE)
    assert all(cell in text for cell in ROWS[0])


@pytest.mark.parametrize("width", range(1, 90))
def test_table_is_never_wider_than_the_terminal(width: int) -> None:
    for colour in (True, False):
        lines = strip_colours(format_table(COLUMNS, ROWS, Look(width, colour))).splitlines()
        assert max(map(measure_width, lines)) <= width
        assert len(lines) == 3


def test_optional_column_gives_way_first_and_then_the_widest() -> None:
    wanted = [19, 8, 15, 27]
    assert choose_widths(COLUMNS, wanted, 75) == wanted
    assert choose_widths(COLUMNS, wanted, 60) == [19, 8, 15, 12]
    assert choose_widths(COLUMNS, wanted, 55) == [19, 8, 15, 0]
    assert choose_widths(COLUMNS, wanted, 40) == [14, 8, 14, 0]
    assert choose_widths(COLUMNS, wanted, 24) == [6, 8, 6, 0]
    assert choose_widths(COLUMNS, wanted, 10) == [6, 8, 4, 0], "less is of no use: the line is cut"
    assert choose_widths(COLUMNS, [5, 8, 5, 3], 30) == [5, 8, 5, 3], "what is short is not left out"


def test_what_was_cut_has_an_ellipsis_where_it_matters_least() -> None:
    header, row, _ = format_table(COLUMNS, ROWS, Look(32)).splitlines()
    assert (header, row) == ("NAME            SIZE  WHY", "qwen-…t-q4  4.10 GiB  because o…")


def test_colours_do_not_move_columns() -> None:
    rows = [(Cell("ready", Style.GOOD), "1"), (Cell("x", Style.BAD), "22")]
    columns = ("STATE", Column("N", right=True))
    painted = format_table(columns, rows, Look(80, colour=True))
    assert "\x1b[0;1;32mready\x1b[0m" in painted
    assert strip_colours(painted) == format_table(columns, rows)


def test_wide_characters_take_two_columns() -> None:
    assert measure_width("千问") == 4
    assert measure_width("e\u0301") == 1
    assert shorten("千问大模型", 6) == "千问…"
    assert measure_width(shorten("千问大模型", 6, middle=True)) <= 6
    lines = format_table(("A", "B"), [("千问", "x"), ("abcd", "y")]).splitlines()
    assert lines[1:] == ["千问  x", "abcd  y"]


@pytest.mark.parametrize(
    ("text", "width", "middle", "short"),
    [
        ("abcdef", 6, False, "abcdef"),
        ("abcdef", 5, False, "abcd…"),
        ("abcdef", 5, True, "ab…ef"),
        ("abcdef", 4, True, "ab…f"),
        ("abcdef", 1, True, "…"),
        ("abcdef", 0, False, ""),
    ],
)
def test_ellipsis(text: str, width: int, middle: bool, short: str) -> None:
    assert shorten(text, width, middle) == short


def test_prose_is_wrapped_on_a_terminal_only() -> None:
    assert wrap("one two three four five six", 25, "    ") == "one two three four\n    five six"
    assert wrap("one two three four five six", None, "    ") == "one two three four five six"
    assert wrap("a\nb", None, "  ") == "a\n  b"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "look"),
    [
        ({}, Look(80, True)),
        ({"COLUMNS": "132"}, Look(132, True)),
        ({"COLUMNS": "wide"}, Look(80, True)),
        ({"NO_COLOR": "1"}, Look(80, False)),
        ({"NO_COLOR": ""}, Look(80, True)),
        ({"TERM": "dumb"}, Look(80, False)),
    ],
)
def test_terminal_says_how_it_wants_things(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], look: Look
) -> None:
    for name in ("COLUMNS", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert acquire_look(_Terminal()) == look
    assert acquire_look(_Terminal(), full=True) == Look(None, look.colour)
    assert acquire_look(io.StringIO()) == WHOLE
