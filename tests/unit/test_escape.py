"""Texts of others, as people see them."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.escape import escape_json, escape_lines, escape_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain name, é 世界 🙂", "plain name, é 世界 🙂"),
        ("\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        ("a\nb\tc\rd\0", r"a\nb\tc\rd\x00"),
        ("\x9b2J\x7f\xad\xa0", r"\x9b2J\x7f\xad\xa0"),
        ("\u202egnp\u2066\u2028\ufeff", r"\u202egnp\u2066\u2028\ufeff"),
        ("\U000e0041", r"\U000e0041"),
        ("caf\udce9 \ud800", r"caf\xe9 \ud800"),
    ],
)
def test_what_is_not_printable_is_shown_as_in_a_string(text: str, shown: str) -> None:
    assert escape_text(text) == shown
    assert escape_lines(f"{text}\n{text}").replace("\n", r"\n") == (f"{shown}\\n{shown}")


@given(st.text())
def test_nothing_unprintable_is_left(text: str) -> None:
    assert escape_text(text).isprintable()
    assert escape_lines(text).count("\n") == text.count("\n")
    assert escape_lines(text).replace("\n", "").isprintable()


_JSON = st.recursive(
    st.text(st.characters()) | st.none() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_JSON, st.sampled_from([None, 2]))
def test_json_keeps_its_value(value: object, indent: int | None) -> None:
    text = escape_json(json.dumps(value, indent=indent, ensure_ascii=False))
    assert json.loads(text) == value
    assert text.replace("\n", "").isprintable()
    assert not re.search("[\ud800-\udfff]", text)
