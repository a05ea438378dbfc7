"""What a record says of a request, and what becomes of it: counts, and a line in the log."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.front.accesslog import AccessLog, format_fields, format_message
from llamactl.front.http.access import RequestRecord, choose_request_id
from llamactl.front.http.wire import RequestHead, parse_request_head
from llamactl.front.tally import Histogram, Tally
from llamactl.systemd.journal import format_entry


def request(*fields: str) -> RequestHead:
    return parse_request_head("\r\n".join(("GET /a?secret=1 HTTP/1.1", "Host: x", *fields, "", "")).encode())


def make_record(**values: Any) -> RequestRecord:
    record = RequestRecord(b"POST", b"/v1/x", b"id-1", b"", 10.0)
    for name, value in values.items():
        setattr(record, name, value)
    return record


@pytest.mark.parametrize("given", ["a", "0af7651916cd43dd-8448eb211c80319c", "!" * 128])
def test_request_id_of_the_client_is_taken(given: str) -> None:
    head = request(f"X-Request-Id: {given}")
    assert [choose_request_id(head) for _ in range(2)] == [given.encode()] * 2


@pytest.mark.parametrize("given", ["", "a b", "!" * 129, "\xe4"])
def test_request_id_that_is_no_id_is_replaced(given: str) -> None:
    head = parse_request_head(f"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: {given}\r\n\r\n".encode("latin-1"))
    assert re.fullmatch(rb"[0-9a-f]+-[0-9a-f]+", choose_request_id(head))


def test_made_request_ids_differ() -> None:
    head = request()
    assert len({choose_request_id(head) for _ in range(100)} | {choose_request_id(None)}) == 101


ANTHROPIC = (
    b'{"usage":{"input_tokens":5,"cache_creation_input_tokens":2,"cache_read_input_tokens":12,"output_tokens":6}}'
)
USAGE = b'"usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens" : 12}'
TIMINGS = b'"timings":{"cache_n":1,"prompt_n":3,"prompt_ms":1.5,"predicted_n":4,"predicted_ms":2}'
"""Of a prompt of four tokens, of which the cache had one."""


@pytest.mark.parametrize(
    ("tail", "tokens"),
    [
        (b'{"choices":[],' + USAGE + b"}", (7, 12)),
        (b'data: {"usage":null}\n\ndata: {' + USAGE + b"}\n\ndata: [DONE]\n\n", (7, 12)),
        (b'{"content":"a \\"usage\\": {\\"prompt_tokens\\": 99}"}', (0, 0)),
        (b'{"content":"x",' + TIMINGS + b"}", (4, 4)),
        (b"{" + USAGE + b"," + TIMINGS + b"}", (7, 12)),
        (b'{"usage":null,' + TIMINGS + b"}", (4, 4)),
        (b'{"usage":{"input_tokens":5,"output_tokens":6}}', (5, 6)),
        (ANTHROPIC, (19, 6)),
        (b'{"data":[],"usage":{"prompt_tokens":9,"total_tokens":9}}', (9, 0)),
        (b"", (0, 0)),
        (b'{"usage":{"prompt_tokens":-1,"completion_tokens":"x"}}', (0, 0)),
    ],
    ids=range(11),
)
def test_tokens_are_what_the_answer_says_at_its_end(tail: bytes, tokens: tuple[int, int]) -> None:
    record = make_record()
    record.parse_usage(tail)
    assert (record.prompt_tokens, record.completion_tokens) == tokens


def test_waits_add_up() -> None:
    record = make_record()
    record.end_wait(11.0)
    assert record.waited_s == 0
    for since, until in ((11.0, 12.0), (13.0, 15.5)):
        record.queued_s = since
        record.end_wait(until)
    record.end_wait(99.0)
    assert record.waited_s == 3.5


TEXTS = st.text("aB9/-=\"'\\ é\x7f\x9b\xad", max_size=12)
SECONDS = st.sampled_from((0.0, 0.000004, 0.25, 12.3456789, 99.999, 100.0, 12345.6))
COUNTS = st.sampled_from((0, 1, 1023, 1024, 5 << 20))


def read_fields(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


@given(
    st.tuples(TEXTS, TEXTS.map(lambda text: text * 30 + "x"), TEXTS, TEXTS.map(lambda text: text + "1")),
    st.sampled_from((0, 200, 404)),
    st.booleans(),
    st.tuples(SECONDS, SECONDS, SECONDS),
    st.tuples(COUNTS, COUNTS, COUNTS, COUNTS),
)
def test_line_is_what_any_other_line_of_ours_would_be(
    texts: tuple[str, ...], status: int, is_cut: bool, times_s: tuple[float, ...], counts: tuple[int, ...]
) -> None:
    record = RequestRecord(texts[0].encode("latin-1"), texts[1].encode("latin-1"), texts[3].encode("latin-1"), b"", 0.0)
    record.model, record.status, record.is_cut = texts[2], status, is_cut
    record.waited_s, record.first_byte_s, duration_s = times_s
    record.ended_s = duration_s
    record.received_bytes, record.sent_bytes, record.prompt_tokens, record.completion_tokens = counts
    expected = format_entry(
        {
            "event": "request broken off" if is_cut or not status else "request answered",
            "method": texts[0] or None,
            "path": texts[1],
            "model": texts[2] or None,
            "status": status or 499,
            "duration_s": duration_s,
            "waited_s": record.waited_s,
            "first_byte_s": record.first_byte_s or None,
            "received_bytes": record.received_bytes,
            "sent_bytes": record.sent_bytes,
            "prompt_tokens": record.prompt_tokens or None,
            "completion_tokens": record.completion_tokens or None,
            "request_id": texts[3],
        }
    )
    assert format_message(record) == expected.pop("MESSAGE")
    assert format_message(record).isprintable()
    del expected["PRIORITY"]
    fields = read_fields(format_fields(record))
    assert list(fields) == list(expected)
    for name, value in fields.items():
        assert float(value) == round(float(expected[name]), 6) if name.endswith("_S") else value == expected[name]


class Kept:
    """Where lines go, without a journal behind it."""

    def __init__(self) -> None:
        self.waiting = 0
        self.written = 0
        self.takes = True

    def add(self, about: RequestRecord) -> None:
        self.waiting += 1

    def flush(self) -> None:
        if self.takes:
            self.finish()

    def finish(self) -> None:
        self.written, self.waiting = self.written + self.waiting, 0


class Clock:
    """A loop whose time is moved by hand."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> "Clock":
        self.due.append(call)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def pass_time(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


def make_log() -> tuple[AccessLog, Kept, Clock]:
    lines, clock = Kept(), Clock()
    return AccessLog(cast(asyncio.AbstractEventLoop, clock), lines), lines, clock


def test_lines_that_come_together_are_written_together() -> None:
    access, lines, clock = make_log()
    for _ in range(3):
        access.write(make_record(status=200))
    assert (lines.written, len(clock.due)) == (0, 1)
    clock.pass_time()
    assert (lines.written, clock.due) == (3, [])


def test_lines_that_the_journal_does_not_take_are_tried_again() -> None:
    access, lines, clock = make_log()
    lines.takes = False
    access.write(make_record(status=200))
    clock.pass_time()
    assert lines.written == 0
    lines.takes = True
    clock.pass_time()
    assert (lines.written, clock.due) == (1, [])


def test_log_that_ends_writes_what_it_has() -> None:
    access, lines, clock = make_log()
    lines.takes = False
    access.write(make_record(status=200))
    access.close()
    assert (lines.written, clock.due) == (1, [])


def test_log_that_is_off_writes_nothing() -> None:
    access = AccessLog(cast(asyncio.AbstractEventLoop, Clock()), None)
    assert not access.is_on
    access.write(make_record())


def test_requests_are_counted_by_model_and_status() -> None:
    tally = Tally()
    for status in (200, 200, 404):
        tally.count(make_record(model="a", status=status, sent_bytes=10, completion_tokens=2, ended_s=10.5))
    tally.count(make_record(is_cut=True, waited_s=2.0, ended_s=10.5))
    counts = tally.models["a"]
    assert (counts.statuses, counts.sent_bytes, counts.completion_tokens, counts.cut) == ({200: 2, 404: 1}, 30, 6, 0)
    own = tally.models[""]
    assert (own.statuses, own.cut, sum(own.waited.counts), own.waited.total) == ({499: 1}, 1, 1, 2.0)
    assert sum(counts.waited.counts) == 0
    assert counts.duration.total == 1.5


def test_value_lies_in_the_first_bucket_that_reaches_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.add(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 14.0)
