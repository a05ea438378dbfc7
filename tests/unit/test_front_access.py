"""What a record says of a request, and what becomes of it: counts, and a line in the log."""

import re
from typing import Any

import pytest

from llamactl.front.access import AccessLog, RequestRecord, choose_request_id
from llamactl.front.tally import Histogram, Tally
from llamactl.front.wire import RequestHead, parse_request_head


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
        (b'{"data":[],"usage":{"prompt_tokens":9,"total_tokens":9}}', (9, 0)),
        (b"", (0, 0)),
        (b'{"usage":{"prompt_tokens":-1,"completion_tokens":"x"}}', (0, 0)),
    ],
    ids=range(10),
)
def test_tokens_are_what_the_answer_says_at_its_end(tail: bytes, tokens: tuple[int, int]) -> None:
    record = make_record()
    record.take_usage(tail)
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


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append(("info", event, fields))

    def debug(self, event: str, **fields: Any) -> None:
        self.lines.append(("debug", event, fields))


def test_line_says_what_happened() -> None:
    log = Log()
    record = make_record(model="a", status=200, waited_s=0.5, first_byte_s=0.75, prompt_tokens=3, completion_tokens=4)
    AccessLog(log, "info").write(record, 12.0)
    ((level, event, fields),) = log.lines
    assert (level, event) == ("info", "request answered")
    assert fields == {
        "method": "POST",
        "path": "/v1/x",
        "model": "a",
        "status": 200,
        "duration_s": 2.0,
        "waited_s": 0.5,
        "first_byte_s": 0.75,
        "received_bytes": 0,
        "sent_bytes": 0,
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "request_id": "id-1",
    }


def test_client_that_left_is_told_apart() -> None:
    log = Log()
    access = AccessLog(log, "debug")
    access.write(make_record(is_cut=True), 12.0)
    access.write(make_record(is_cut=True, status=200), 12.0)
    assert [(level, event, fields["status"]) for level, event, fields in log.lines] == [
        ("debug", "request broken off", 499),
        ("debug", "request broken off", 200),
    ]


def test_log_that_is_off_writes_nothing() -> None:
    log = Log()
    access = AccessLog(log, "off")
    assert not access.is_on
    access.write(make_record(), 12.0)
    assert log.lines == []


def test_requests_are_counted_by_model_and_status() -> None:
    tally = Tally()
    for status in (200, 200, 404):
        tally.count(make_record(model="a", status=status, sent_bytes=10, completion_tokens=2), 10.5)
    tally.count(make_record(is_cut=True, waited_s=2.0), 10.5)
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
