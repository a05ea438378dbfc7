"""Sizes and times as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.cli.output import format_known_bytes
from llamactl.quantities import format_bytes, format_duration, format_size, parse_duration, parse_size
from llamactl.sched.evict import Outcome, Plan
from llamactl.sched.explain import format_hopeless
from llamactl.systemd.journal import format_message


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (123, 123),
        ("123", 123),
        ("1K", 1024),
        ("1 KiB", 1024),
        ("512 MiB", 512 << 20),
        ("8G", 8 << 30),
        ("8Gi", 8 << 30),
        ("1.5 GiB", 3 << 29),
        (" 2T ", 2 << 40),
        ("100B", 100),
    ],
)
def test_size_counts_in_steps_of_1024(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "G", "8 GB", "8 g", "eight", "-1", "1e9", "1 G 2", "9999E", True, 1.5, None, -1, []]
)
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"must|may mean|is no unit"):
        parse_size(text)


def test_gb_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(ValueError, match="write GiB or G"):
        parse_size("8 GB")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (0, 0.0),
        (90, 90.0),
        (1.5, 1.5),
        ("90", 90.0),
        ("500ms", 0.5),
        ("1min 30s", 90.0),
        ("1min30s", 90.0),
        ("2h", 7200.0),
        ("1d 2h", 93600.0),
        ("infinity", math.inf),
        ("100 us", 1e-4),
    ],
)
def test_time_adds_up_as_in_systemd(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "5 parsecs", "-5s", "1min -5s", True, -1, 10**400, float("nan"), None, "9999999y"]
)
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"must|is no unit"):
        parse_duration(text)


@given(st.integers(0, (1 << 63) - 1))
def test_size_survives_being_shown(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(0, 10**8))
def test_time_survives_being_shown(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-5)


@pytest.mark.parametrize("size", [0, 60, 1023, 284_900_000, 8_912_000_000, (1 << 40) - 1])
def test_a_size_reads_the_same_in_the_journal_in_messages_and_in_tables(size: int) -> None:
    journal = format_message("load decided", {"needs_bytes": size})
    assert journal == f"load decided: needs={format_bytes(size)}"
    assert format_known_bytes(size) == format_bytes(size)
    plan = Plan(Outcome.WAIT, hopeless={"Host": 0})
    assert format_hopeless(plan, {"Host": size}).startswith(f"needs {format_bytes(size)} on Host")
