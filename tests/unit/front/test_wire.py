"""Heads: which are taken, what is read from them, and which are refused with what status?"""

import pytest

from llamactl.front.http.wire import (
    MAX_HEAD_BYTES,
    RequestHead,
    WireError,
    find_head_end,
    parse_request_head,
    parse_response_head,
)


def parse(*lines: bytes, first: bytes = b"POST /v1/x?model=a HTTP/1.1") -> RequestHead:
    raw = b"\r\n".join((first, *lines, b"", b""))
    assert find_head_end(raw, 0) == len(raw)
    return parse_request_head(raw)


def test_head_is_read() -> None:
    head = parse(b"Host: x", b"Content-Length:  12 ", b"X-Empty:", b"Accept: a, b")
    assert (head.method, head.target, head.path, head.query) == (b"POST", b"/v1/x?model=a", b"/v1/x", b"model=a")
    assert head.content_length == 12
    assert not head.chunked
    assert head.keep_alive
    assert head.headers == [
        (b"host", b"Host", b"x"),
        (b"content-length", b"Content-Length", b"12"),
        (b"x-empty", b"X-Empty", b""),
        (b"accept", b"Accept", b"a, b"),
    ]


@pytest.mark.parametrize(
    ("first", "lines", "keep_alive"),
    [
        (b"GET / HTTP/1.1", [b"Host: x"], True),
        (b"GET / HTTP/1.1", [b"Host: x", b"Connection: close"], False),
        (b"GET / HTTP/1.1", [b"Host: x", b"Connection: x-a, Close"], False),
        (b"GET / HTTP/1.1", [b"Host: x", b"Connection: x-a", b"Connection: close"], False),
        (b"GET / HTTP/1.0", [], False),
        (b"GET / HTTP/1.0", [b"Connection: Keep-Alive"], True),
    ],
)
def test_persistence_follows_version_and_connection(first: bytes, lines: list[bytes], keep_alive: bool) -> None:
    assert parse(*lines, first=first).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("target", "origin"),
    [
        (b"/a?b", b"/a?b"),
        (b"http://host:80/a?b", b"/a?b"),
        (b"HTTPS://host", b"/"),
        (b"http://host?q", b"/?q"),
        (b"//host/a", b"//host/a"),
        (b"/a%20b", b"/a%20b"),
    ],
)
def test_targets_become_origin_form(target: bytes, origin: bytes) -> None:
    assert parse(b"Host: x", first=b"GET %b HTTP/1.1" % target).target == origin


def test_absolute_target_names_the_host() -> None:
    """RFC 9112 3.2.2: else a check of Host could be passed by the one, and the request be for the other."""
    head = parse(b"A: b", b"Host: localhost", first=b"GET http://evil.example:80/a HTTP/1.1")
    assert head.find(b"host") == b"evil.example:80"
    assert parse(first=b"GET http://old.example/ HTTP/1.0").find(b"host") == b"old.example"


def test_asterisk_is_for_options() -> None:
    assert parse(b"Host: x", first=b"OPTIONS * HTTP/1.1").target == b"*"


def test_upgrade_is_read_as_an_ordinary_request() -> None:
    head = parse(b"Host: x", b"Connection: Upgrade", b"Upgrade: h2c", first=b"GET /a HTTP/1.1")
    assert head.target == b"/a"
    assert len(head.headers) == 3


HOSTILE = [
    # RFC 9112 2.2: lines end in CRLF, and a bare CR is no part of anything
    (400, b"GET / HTTP/1.1\nHost: x\r\n\r\n"),
    (400, b"GET / HTTP/1.1\r\nHost: x\n\r\n"),
    (400, b"GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n"),
    (400, b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\r\n\r\n"),
    (400, b"GET /\r HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"GET / HTTP/1.1\r\n Host: x\r\n\r\n"),
    # 2.3: versions
    (505, b"GET / HTTP/2.0\r\nHost: x\r\n\r\n"),
    (400, b"GET / HTTP/1.9\r\nHost: x\r\n\r\n"),
    (400, b"GET / HTTP/11\r\nHost: x\r\n\r\n"),
    (400, b"GET / http/1.1\r\nHost: x\r\n\r\n"),
    (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    (400, b"GET /\r\nHost: x\r\n\r\n"),
    # 3: the request line
    (400, b"G@T / HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"GET / x HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"\x16\x03\x01\x02\x00\r\n\r\n"),
    # 3.2: targets
    (400, b"GET x HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"GET host:80 HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"GET * HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"GET http://u@x/ HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"GET http://x/ HTTP/1.1\r\n\r\n"),
    (400, b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"GET /\x80 HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"),
    (400, b"GET / HTTP/1.1\r\n\r\n"),
    (400, b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n"),
    # 5.1, 5.2: fields
    (400, b"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n"),
    (400, b"GET / HTTP/1.1\r\nHost: x\r\nA\r\n\r\n"),
    (400, b"GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n"),
    (400, b"GET / HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n"),
    (400, b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n"),
    (400, b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n\tc\r\n\r\n"),
    (400, b"GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n"),
    (400, b"GET / HTTP/1.1\r\nHost: x\r\nA\0: c\r\n\r\n"),
    # 6.1: Transfer-Encoding
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n"),
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
    (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    (501, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n"),
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n"),
    # 6.2, 6.3: Content-Length
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n"),
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\n"),
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n"),
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"),
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x1\r\n\r\n"),
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1 2\r\n\r\n"),
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n"),
    (400, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n"),
    # 9110 10.1.1
    (417, b"POST / HTTP/1.1\r\nHost: x\r\nExpect: a-pony\r\n\r\n"),
    # 9110 5.4 and 6585 5
    (431, b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n"),
    (431, b"GET /" + b"b" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n"),
]


@pytest.mark.parametrize(("status", "raw"), HOSTILE, ids=[str(raw[:70]) for _, raw in HOSTILE])
def test_hostile_head_is_refused(status: int, raw: bytes) -> None:
    with pytest.raises(WireError) as caught:
        parse_request_head(raw[: find_head_end(raw, 0)])
    assert caught.value.status == status


def test_head_of_the_largest_size_is_taken() -> None:
    raw = b"GET / HTTP/1.1\r\nHost: x\r\nA: "
    raw += b"b" * (MAX_HEAD_BYTES - len(raw) - 4) + b"\r\n\r\n"
    assert find_head_end(raw, 0) == MAX_HEAD_BYTES
    assert parse_request_head(raw).find(b"host") == b"x"
    with pytest.raises(WireError):
        find_head_end(raw[:-4] + b"b\r\n\r\n", 0)


def test_response_head_is_read() -> None:
    head = parse_response_head(
        b"HTTP/1.1 404 Not There\r\ncontent-type: Text/Event-Stream; x\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    assert (head.status, head.reason, head.chunked, head.content_length) == (404, b"Not There", True, -1)
    assert head.is_event_stream


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\rc\r\n\r\n",
    ],
)
def test_malformed_response_head_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        parse_response_head(raw)
