"""Does text come out the same wherever it was cut?"""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from llamactl.instance.engine.text import TextStream, count_stop_prefix, find_first_stop

# Few characters, so that stop strings happen, of one to four bytes each.
TEXT = st.text(alphabet="ab é世🙂", max_size=24)
STOPS = st.lists(st.text(alphabet="ab é世🙂", min_size=1, max_size=4), max_size=3)


def feed_all(pieces: list[bytes], stops: list[str]) -> tuple[str, str | None]:
    stream = TextStream(stops)
    text = "".join(stream.feed(piece) for piece in pieces)
    return text + stream.finish(), stream.stopped_by


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def cut_by_reference(text: str, stops: list[str]) -> str:
    """Reads character by character: the first place at which a stop string is complete decides."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


@given(TEXT, STOPS, st.lists(st.integers(min_value=0, max_value=100), max_size=12))
def test_text_does_not_depend_on_the_cuts(text: str, stops: list[str], places: list[int]) -> None:
    expected = cut_by_reference(text, stops)
    result, stopped_by = feed_all(cut(text.encode(), places), stops)
    assert result == expected
    assert (stopped_by is not None) == any(stop in text for stop in stops)


@given(TEXT, STOPS)
def test_bytes_one_at_a_time_give_the_same_text(text: str, stops: list[str]) -> None:
    assert feed_all([bytes([byte]) for byte in text.encode()], stops)[0] == cut_by_reference(text, stops)


@given(st.binary(max_size=40), st.lists(st.integers(min_value=0, max_value=100), max_size=12))
def test_bytes_that_are_no_text_give_the_same_replacement_wherever_cut(data: bytes, places: list[int]) -> None:
    assert feed_all(cut(data, places), []) == feed_all([data], [])


@given(TEXT, STOPS, st.lists(st.integers(min_value=0, max_value=100), max_size=12))
def test_what_was_shown_is_never_taken_back(text: str, stops: list[str], places: list[int]) -> None:
    expected, shown = cut_by_reference(text, stops), ""
    stream = TextStream(stops)
    for piece in cut(text.encode(), places):
        shown += stream.feed(piece)
        assert expected.startswith(shown)


def test_half_a_character_is_held_back_and_dropped_at_the_end() -> None:
    stream = TextStream()
    assert stream.feed("a🙂".encode()[:3]) == "a"
    assert stream.finish() == ""


def test_beginning_of_a_stop_string_that_never_comes_is_shown_at_the_end() -> None:
    stream = TextStream(["stop"])
    assert stream.feed(b"do not sto") == "do not "
    assert stream.finish() == "sto"


def test_nothing_comes_after_a_stop_string() -> None:
    stream = TextStream(["x"])
    assert stream.feed(b"ab x cd") == "ab "
    assert stream.stopped_by == "x"
    assert stream.feed(b"more") == ""
    assert stream.finish() == ""


def test_empty_stop_strings_stop_nothing() -> None:
    assert feed_all([b"text"], [""]) == ("text", None)


def test_longest_of_the_stops_that_end_together_decides() -> None:
    assert find_first_stop("abc", ["c", "bc"]) == (1, "bc")
    assert find_first_stop("abcd", ["bcd", "c"]) == (2, "c")
    assert find_first_stop("abc", ["x"]) is None


def test_prefix_of_a_stop_is_the_longest_one() -> None:
    assert count_stop_prefix("aab", ["abab"]) == 2
    assert count_stop_prefix("abab", ["abab"]) == 2
    assert count_stop_prefix("xyz", ["abab"]) == 0


INDENTED = st.text(alphabet="ab \n\t", max_size=24)


def cut_dedented_by_reference(text: str, min_indent: int) -> str:
    """Line by line: the first one after the first that says something with too little before it ends the text."""
    first, *lines = text.split("\n")
    kept = first
    for number, line in enumerate(lines):
        blanks = line[: len(line) - len(line.lstrip(" \t"))]
        is_whole = number < len(lines) - 1
        kept += "\n" + blanks
        if len(blanks) < min_indent and (line != blanks or is_whole):
            return kept
        kept += line[len(blanks) :]
    return kept


@given(INDENTED, st.integers(min_value=1, max_value=3), st.lists(st.integers(min_value=0, max_value=100), max_size=12))
def test_line_that_is_indented_too_little_ends_the_text(text: str, min_indent: int, places: list[int]) -> None:
    stream = TextStream(("bb",), min_indent)
    result = "".join(stream.feed(piece) for piece in cut(text.encode(), places)) + stream.finish()
    assert result == cut_dedented_by_reference(cut_by_reference(text, ["bb"]), min_indent)
    assert stream.is_dedented == (result != cut_by_reference(text, ["bb"]))
    assert not (stream.is_dedented and stream.stopped_by)
