"""Lines that come by the thousand: many at a time, in order with all others, counted where the journal takes none."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from llamactl.systemd import journal
from llamactl.systemd.bulk import BATCH_LINES, MAX_LINES, Bulk, open_bulk
from llamactl.systemd.journal import JournalSink, Sink, StreamSink

Pair = tuple[str, str]


def make_bulk(sink: Sink, level: str = "info") -> Bulk[Pair]:
    """Of messages with their fields."""
    return Bulk(sink, "x", level, lambda pair: pair[0], lambda pair: pair[1])


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "socket"))
        sock.setblocking(False)
        yield sock


def read_all(journald: socket.socket) -> list[list[str]]:
    """The messages of each datagram."""
    found = []
    while True:
        try:
            entries = journald.recv(1 << 20).decode().split("\n\n")
        except BlockingIOError:
            return found
        found.append([entry.partition("\n")[0].removeprefix("MESSAGE=") for entry in entries if entry])


def test_lines_of_one_moment_are_one_datagram(journald: socket.socket) -> None:
    lines = make_bulk(JournalSink(journald.getsockname()), "debug")
    lines.add(("one", "A=1\nB=2\n"))
    lines.add(("two", "A=3\n"))
    assert (read_all(journald), lines.waiting) == ([], 2)
    lines.flush()
    assert lines.waiting == 0
    assert journald.recv(1000) == (
        b"MESSAGE=one\nA=1\nB=2\nPRIORITY=7\nSYSLOG_IDENTIFIER=x\n\n"
        b"MESSAGE=two\nA=3\nPRIORITY=7\nSYSLOG_IDENTIFIER=x\n\n"
    )


def test_full_batch_does_not_wait(journald: socket.socket) -> None:
    lines = make_bulk(JournalSink(journald.getsockname()))
    for number in range(BATCH_LINES + 1):
        lines.add((str(number), ""))
    assert read_all(journald) == [[str(number) for number in range(BATCH_LINES)]]
    assert lines.waiting == 1


def test_other_line_comes_after_those_that_were_before_it(journald: socket.socket) -> None:
    sink = JournalSink(journald.getsockname())
    lines = make_bulk(sink)
    lines.add(("first", ""))
    sink.write({"MESSAGE": "second", "PRIORITY": "6"})
    lines.add(("third", ""))
    lines.finish()
    assert read_all(journald) == [["first"], ["second"], ["third"]]


def test_journal_that_takes_nothing_loses_no_line_below_the_bound(journald: socket.socket) -> None:
    sink = JournalSink(journald.getsockname())
    lines = make_bulk(sink)
    count = MAX_LINES - BATCH_LINES
    for number in range(count):  # a queue holds fewer datagrams than that
        lines.add((str(number) + "x" * 2000, ""))
    told: list[str] = []
    assert lines.waiting
    while lines.waiting:
        told += [message for batch in read_all(journald) for message in batch]
        lines.flush()
    told += [message for batch in read_all(journald) for message in batch]
    assert [message.rstrip("x") for message in told] == [str(number) for number in range(count)]


def test_lines_beyond_the_bound_are_counted(journald: socket.socket) -> None:
    lines = make_bulk(JournalSink(journald.getsockname()))
    asked = told = lost = 0
    while lines.waiting < MAX_LINES - 1:
        lines.add(("x" * 2000, ""))
        asked += 1
    for _ in range(5 * BATCH_LINES):
        lines.add(("x" * 2000, ""))
        asked += 1
    assert lines.waiting <= MAX_LINES
    while True:
        messages = [message for batch in read_all(journald) for message in batch]
        told += sum(message.startswith("xxx") for message in messages)
        lost += sum(
            int(message.split("=")[1].split(":")[0]) for message in messages if message.startswith("lines lost")
        )
        if not messages and not lines.waiting:
            break
        lines.flush()
    assert lost >= 5 * BATCH_LINES - BATCH_LINES
    assert told + lost == asked


def test_absent_journald_leaves_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = make_bulk(JournalSink(str(tmp_path / "none")))
    lines.add(("one", "A=1\n"))
    lines.add(("two", "A=2\n"))
    lines.finish()
    assert capsys.readouterr().err == "x: one\nx: two\n"


def test_standard_error_gets_the_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    lines = make_bulk(StreamSink(), "debug")
    lines.add(("one", ""))
    lines.add(("two", ""))
    assert capsys.readouterr().err == ""
    lines.finish()
    assert capsys.readouterr().err == "x: debug: one\nx: debug: two\n"


@pytest.mark.parametrize(("level", "opened"), [("debug", False), ("info", True)])
def test_level_that_is_not_logged_has_no_lines(level: str, opened: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_process", journal.Process(StreamSink(), "x", 20))
    assert (open_bulk(level, str, str) is not None) == opened
