"""What goes upstream and what comes back: which fields travel, and how bodies are framed."""

import msgspec
import pytest

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.http.framing import RequestReader, ResponseReader
from llamactl.front.http.headers import (
    format_answer,
    format_client_head,
    format_upstream_head,
    format_wire_error,
)
from llamactl.front.http.wire import RequestHead, ResponseHead, parse_request_head, parse_response_head
from llamactl.front.stream_texts import format_stream_error


def request(*fields: str, first: str = "POST /a?b HTTP/1.1") -> RequestHead:
    return parse_request_head("\r\n".join((first, *fields, "", "")).encode())


def response(*fields: str, first: str = "HTTP/1.1 200 OK") -> ResponseHead:
    return parse_response_head("\r\n".join((first, *fields, "", "")).encode())


def test_fields_of_one_connection_end_here() -> None:
    head = request(
        "Host: x",
        "Connection: keep-alive, X-Hop",
        "Connection: x-other",
        "Keep-Alive: 5",
        "X-Hop: 1",
        "X-Other: 2",
        "Proxy-Connection: 1",
        "Proxy-Authorization: 1",
        "TE: trailers",
        "Trailer: x",
        "Upgrade: h2c",
        "Expect: 100-continue",
        "Content-Length: 3",
        "Authorization: Bearer x",
        "Cookie: a",
        "cookie: b",
    )
    assert format_upstream_head(head, 3) == (
        b"POST /a?b HTTP/1.1\r\nHost: x\r\n"
        b"Authorization: Bearer x\r\nCookie: a\r\ncookie: b\r\nContent-Length: 3\r\n\r\n"
    )


def test_host_and_length_cannot_be_named_away() -> None:
    head = request("Host: x", "Connection: Host, Content-Length", "Content-Length: 3")
    assert format_upstream_head(head, 3) == b"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"


def test_chunked_request_travels_with_its_length() -> None:
    head = request("Host: x", "Transfer-Encoding: chunked")
    assert format_upstream_head(head, 5) == b"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
    assert b"Content-Length: 0\r\n" in format_upstream_head(head, 0)


def test_request_without_a_body_gets_no_length() -> None:
    head = request("Host: x", first="GET /a HTTP/1.1")
    assert format_upstream_head(head, 0) == b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def test_old_request_without_a_host_gets_one() -> None:
    assert format_upstream_head(request(first="GET /a HTTP/1.0"), 0) == b"GET /a HTTP/1.1\r\nHost: llamactl\r\n\r\n"


@pytest.mark.parametrize(
    ("fields", "minor", "keep_alive", "rechunk", "expected"),
    [
        (["Content-Length: 4"], 1, True, False, b"Content-Length: 4\r\n"),
        (["Content-Length: 4"], 1, False, False, b"Content-Length: 4\r\nConnection: close\r\n"),
        (["Content-Length: 4"], 0, True, False, b"Content-Length: 4\r\nConnection: keep-alive\r\n"),
        (["Transfer-Encoding: chunked"], 1, True, True, b"Transfer-Encoding: chunked\r\n"),
        (["Transfer-Encoding: chunked"], 0, False, False, b"Connection: close\r\n"),
        (["Connection: close", "Keep-Alive: 5", "A: b"], 1, False, False, b"A: b\r\nConnection: close\r\n"),
    ],
)
def test_answer_is_framed_for_its_client(
    fields: list[str], minor: int, keep_alive: bool, rechunk: bool, expected: bytes
) -> None:
    head = response(*fields)
    for _ in range(2):  # the second time from the cache
        assert format_client_head(head, minor, keep_alive, rechunk) == b"HTTP/1.1 200 OK\r\n" + expected + b"\r\n"


def test_streams_are_not_to_be_buffered() -> None:
    head = response("Content-Type: text/event-stream; charset=utf-8", "Transfer-Encoding: chunked")
    assert b"X-Accel-Buffering: no\r\n" in format_client_head(head, 1, True, True)
    said = response("Content-Type: text/event-stream", "X-Accel-Buffering: yes", "Transfer-Encoding: chunked")
    assert format_client_head(said, 1, True, True).count(b"X-Accel-Buffering") == 1


def test_answers_of_our_own_are_well_formed() -> None:
    for raw in (format_answer(200, {"a": 1}), format_wire_error(431, "long"), format_answer(204, None)):
        reader = ResponseReader()
        reader.feed(raw)
        head = reader.next_event()
        assert isinstance(head, ResponseHead)
        body = reader.next_event()
        if head.status != 204:
            assert isinstance(body, bytes)
            assert msgspec.json.decode(body)
            reader.next_event()
        assert reader.buffered_bytes == 0


def test_answer_to_head_has_the_length_and_no_body() -> None:
    assert format_answer(200, {"a": 1}, to_head=True).endswith(b"Content-Length: 7\r\n\r\n")


@pytest.mark.parametrize("mid_event", [True, False])
def test_stream_error_is_an_event_of_its_own(mid_event: bool) -> None:
    error = LlamactlError(ErrorCode.INSTANCE_DIED, "cannot go on:\nwhy")
    event = format_stream_error(error, mid_event)
    *before, data, end, rest = event.split(b"\n")
    assert before == ([b"", b""] if mid_event else [])
    assert (end, rest) == (b"", b"")
    assert msgspec.json.decode(data.removeprefix(b"data: "))["error"] == {
        "code": 502,
        "message": "cannot go on:\nwhy",
        "type": "server_error",
    }


def test_what_we_write_upstream_reads_back() -> None:
    reader = RequestReader()
    reader.feed(format_upstream_head(request("Host: x", "Transfer-Encoding: chunked"), 3) + b"abc")
    assert isinstance(reader.next_event(), RequestHead)
    assert reader.next_event() == b"abc"


def test_request_id_is_ours_to_write_in_both_directions() -> None:
    head = request("Host: x", "X-Request-Id: theirs")
    for _ in range(2):
        assert format_upstream_head(head, 0, b"X-Request-Id: ours\r\n").count(b"X-Request-Id: ours\r\n") == 1
        assert b"theirs" not in format_upstream_head(head, 0, b"X-Request-Id: ours\r\n")
    answer = response("X-Request-Id: its", "Content-Length: 0")
    told = format_client_head(answer, 1, True, False, b"X-Request-Id: ours\r\n")
    assert told.endswith(b"\r\nX-Request-Id: ours\r\n\r\n")
    assert b"its" not in told


def test_equal_heads_differ_in_what_is_added() -> None:
    answer = response("Content-Length: 0")
    first = format_client_head(answer, 1, True, False, b"X-Request-Id: 1\r\n")
    second = format_client_head(answer, 1, True, False, b"X-Request-Id: 2\r\n")
    assert (first.count(b"X-Request-Id"), first.replace(b": 1", b": 2")) == (1, second)


FORWARDING = ("X-Forwarded-For: a", "x-forwarded-port: 1", "X-Real-IP: b", "Forwarded: for=c")


def test_trusted_peer_says_where_a_request_came_from() -> None:
    out = format_upstream_head(request("Host: x", *FORWARDING), 0, b"i")
    for field in FORWARDING:
        assert field.encode() + b"\r\n" in out


def test_other_peers_are_where_it_came_from() -> None:
    out = format_upstream_head(request("Host: x:1", *FORWARDING), 0, b"i", "::1")
    for field in FORWARDING:
        assert field.encode() not in out
    assert b"X-Forwarded-For: ::1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: x:1\r\n" in out
    assert b'Forwarded: for="[::1]";proto=http;host="x:1"\r\n' in out


def test_host_cannot_end_its_quotes() -> None:
    out = format_upstream_head(request('Host: a";for=b\\'), 0, b"i", "10.0.0.1")
    assert b'Forwarded: for=10.0.0.1;proto=http;host="a\\";for=b\\\\"\r\n' in out


def test_instances_do_not_decide_which_pages_may_read() -> None:
    answer = response("Access-Control-Allow-Origin: *", "Content-Length: 0")
    assert b"Access-Control" not in format_client_head(answer, 1, True, False)


def test_answer_of_bytes_has_its_own_type() -> None:
    out = format_answer(200, b"x 1\n", content_type="text/plain", added=b"X-Request-Id: 1\r\n")
    assert b"Content-Type: text/plain\r\n" in out
    assert out.endswith(b"X-Request-Id: 1\r\n\r\nx 1\n")
