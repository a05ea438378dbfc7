"""What does `keep_alive` mean, and how does it reach the supervisor?"""

import itertools

import pytest

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.http.members import parse_keep_alive
from llamactl.front.http.scan import JsonScanner
from llamactl.front.http.wire import parse_request_head
from llamactl.front.lease import Asked
from llamactl.front.leases import LeaseTable
from llamactl.front.naming import read_members
from llamactl.protocol.control_socket import BusyNotice, IdleNotice, LeaseGrant, Recall, RecallAnswer

NAMES = Asked("m")
HEAD = parse_request_head(b"POST /x?model=m HTTP/1.1\r\nHost: x\r\n\r\n")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (300, 300.0),
        (1.5, 1.5),
        (0, 0.0),
        (-1, -1.0),
        (-0.5, -1.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("300ms", 0.3),
        ("1.5h", 5400.0),
        ("-1m", -1.0),
        ("0", 0.0),
        ("30", 30.0),
        ("9999999h", -1.0),
        (1e300, -1.0),
    ],
)
def test_keep_alive_as_ollama_has_it(value: object, seconds: float) -> None:
    assert parse_keep_alive(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["soon", "5 minutes", "5x", "m", "", "nan", True, None, [5], {}, 10**400, -(10**400)])
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"duration|number"):
        parse_keep_alive(value)


def test_body_with_a_number_beyond_all_bounds_is_refused() -> None:
    with pytest.raises(LlamactlError, match="keep_alive") as caught:
        read_members(HEAD, b'{"model": "m", "keep_alive": 1' + b"0" * 400 + b"}").read_keep_alive_s()
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        (b'{"model": "m"}', None),
        (b'{"model": "m", "keep_alive": "10m"}', 600.0),
        (b'{"keep_alive": 0}', 0.0),
        (b'{"keep_alive": null}', None),
        (b'{"prompt": "\\"keep_alive\\": 5"}', None),
        (b'{"options": {"keep_alive": 5}}', None),
        (b'not json "keep_alive"', None),
    ],
)
def test_only_the_top_level_member_counts(body: bytes, seconds: float | None) -> None:
    assert read_members(HEAD, body).read_keep_alive_s() == seconds
    if body.startswith(b"{"):
        scanner = JsonScanner()
        for byte in body:
            scanner.feed(bytes([byte]))
        assert scanner.members.read_keep_alive_s() == seconds


@pytest.mark.parametrize("body", [b'{"keep_alive": "soon"}', b'{"keep_alive": []}', b'{"keep_alive": true}'])
def test_nonsense_is_refused_with_what_would_do_however_large_the_body(body: bytes) -> None:
    def scan() -> None:
        scanner = JsonScanner()
        for byte in body:
            scanner.feed(bytes([byte]))

    for read in (lambda: read_members(HEAD, body).read_keep_alive_s(), scan):
        with pytest.raises(LlamactlError, match="keep_alive") as raised:
            read()
        assert raised.value.code is ErrorCode.INVALID_REQUEST


def make_table(**limits: int) -> LeaseTable:
    table = LeaseTable(itertools.count(1))
    table.queue.max_queue, table.queue.max_queue_total = limits.get("max_queue", 0), limits.get("max_queue_total", 0)
    table.handle_connected()
    return table


def grant(table: LeaseTable, *waiters: str, at_s: float = 100.0) -> LeaseGrant:
    for waiter in waiters:
        table.acquire(waiter, NAMES, at_s)
    granted = LeaseGrant(id=1, model="m", slug="m", generation="g", socket="/s")
    table.handle(granted, at_s)
    table.outbox.clear()
    return granted


def test_the_last_that_asked_is_told_when_the_model_goes_idle_and_once() -> None:
    table = make_table()
    grant(table, "w", "x")
    lease = table.leases()[0]
    table.release(lease, 101.0, waiter="w", keep_alive_s=30.0)
    table.release(lease, 102.0, waiter="x")
    table.flush_idle()
    assert [m.keep_alive_s for m in table.outbox if isinstance(m, IdleNotice)] == [30.0]
    table.acquire("y", NAMES, 103.0)
    table.release(lease, 104.0, waiter="y")
    table.flush_idle()
    assert [m.keep_alive_s for m in table.outbox if isinstance(m, IdleNotice)] == [30.0, None]


def test_the_supervisor_hears_which_request_is_the_oldest() -> None:
    table = make_table()
    grant(table, "w", at_s=100.0)
    lease = table.leases()[0]
    assert table.acquire("x", NAMES, 105.0) is lease
    assert table.acquire("y", NAMES, 106.0) is lease
    table.release(lease, 107.0, waiter="w")
    assert [m.since_s for m in table.outbox if isinstance(m, BusyNotice)] == [105.0]
    table.release(lease, 107.5, waiter="x")
    assert len(table.outbox) == 1, "told more than once a second"
    table.handle(Recall(model="m", generation="g", id=3), 108.0)
    assert [m.since_s for m in table.outbox if isinstance(m, RecallAnswer)] == [106.0]
    assert table.announce()[0].since_s == 106.0


@pytest.mark.parametrize("limit", ["max_queue", "max_queue_total"])
def test_one_more_than_may_wait_is_refused(limit: str) -> None:
    table = make_table(**{limit: 2})
    assert table.acquire("a", NAMES, 1.0) is None
    assert table.acquire("b", NAMES, 1.0) is None
    with pytest.raises(LlamactlError, match=limit) as raised:
        table.acquire("c", NAMES, 1.0)
    assert raised.value.kind.http_status == 429
    assert raised.value.details["retry_after_s"] > 0
    table.queue.leave("a")
    assert table.acquire("c", NAMES, 1.0) is None
    assert len(table.queue) == 2


def test_other_models_have_their_own_queue() -> None:
    table = make_table(max_queue=1)
    assert table.acquire("a", NAMES, 1.0) is None
    assert table.acquire("b", Asked("other"), 1.0) is None
    assert table.acquire("c", Asked("m", passive=True), 1.0) is None, "who looks is not refused here"


def test_requests_held_back_by_a_drain_wait_too() -> None:
    table = make_table(max_queue=1)
    grant(table, "w")
    table.handle(Recall(model="m", generation="g", drain=True, id=1), 101.0)
    assert table.acquire("a", NAMES, 102.0) is None
    with pytest.raises(LlamactlError):
        table.acquire("b", NAMES, 102.0)
