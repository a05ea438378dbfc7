"""The readers: the same bytes give the same events however they are cut, and garbage gives an error of theirs."""

import contextlib
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.front.http.framing import MAX_TRAILER_BYTES, End, RequestReader, ResponseReader
from llamactl.front.http.wire import RequestHead, ResponseHead, WireError

Reader = RequestReader | ResponseReader


def collect(reader: Reader, pieces: list[bytes]) -> list[Any]:
    """What the reader says, with the pieces of a body joined; an error is the last event."""
    events: list[Any] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (event := reader.next_event()) is not None:
                if isinstance(event, bytes):
                    assert event
                    if events and isinstance(events[-1], bytes):
                        events[-1] += event
                        continue
                elif isinstance(event, RequestHead):
                    event = (event.method, event.target, tuple(event.headers))  # type: ignore[assignment]
                elif isinstance(event, ResponseHead):
                    event = (event.status, event.reason, tuple(event.headers))  # type: ignore[assignment]
                events.append(event)
    except WireError as error:
        events.append(error.status)
    return events


def collect_quickly(reader: Reader, messages: list[bytes]) -> list[Any]:
    """As collect, for messages that come one by one, by the short ways where they are open."""
    events: list[Any] = []
    for message in messages:
        whole = reader.consume_whole(message)
        if whole is not None:
            head, body = whole
            parsed = (
                (head.method, head.target, tuple(head.headers))
                if isinstance(head, RequestHead)
                else (head.status, head.reason, tuple(head.headers))
            )
            events += [parsed, *([body] if body else []), End.END]
            continue
        for at in range(0, len(message), 16):
            piece = message[at : at + 16]
            if reader.pass_over(len(piece)):
                if isinstance(events[-1], bytes):
                    events[-1] += piece
                else:
                    events.append(piece)
                piece = b""
            more = collect(reader, [piece])
            if more and isinstance(more[0], bytes) and events and isinstance(events[-1], bytes):
                events[-1] += more.pop(0)
            events += more
    return events


def cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(borders)]


def format_chunked(pieces: list[bytes], extension: bytes, trailer: bytes) -> bytes:
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces if piece)
    return body + b"0" + extension + b"\r\n" + trailer + b"\r\n"


bodies = st.binary(max_size=40) | st.sampled_from([b"\r\n\r\n", b"0\r\n\r\n", b"\r", b"GET / HTTP/1.1\r\n\r\n"])
extensions = st.sampled_from([b"", b";a", b';a="b"', b" ; a=b", b"  "])
trailers = st.sampled_from([b"", b"A: b\r\n", b"A: b\r\nC:\r\n"])


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, list[Any]]:
    """One request, and the events it must give."""
    body = draw(bodies)
    blank = draw(st.sampled_from([b"", b"\r\n"]))
    kind = draw(st.sampled_from(["none", "length", "chunked"]))
    if kind == "none":
        head, framed, body = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", b"", b""
    elif kind == "length":
        head, framed = b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body), body
    else:
        head = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        framed = format_chunked(
            cut(body, draw(st.lists(st.integers(0, 50), max_size=3))), draw(extensions), draw(trailers)
        )
    target = head.split(b" ")[1]
    events = [(b"GET" if kind == "none" else b"POST", target), *([body] if body else []), End.END]
    return blank + head + framed, events


def simplify(events: list[Any]) -> list[Any]:
    return [event[:2] if isinstance(event, tuple) else event for event in events]


@given(st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(0, 2000), max_size=12))
def test_requests_read_the_same_however_they_are_cut(parts: list[tuple[bytes, list[Any]]], places: list[int]) -> None:
    data = b"".join(raw for raw, _ in parts)
    expected = [event for _, events in parts for event in events]
    assert simplify(collect(RequestReader(), [data])) == expected
    assert simplify(collect(RequestReader(), cut(data, places))) == expected
    assert simplify(collect(RequestReader(), [data[i : i + 1] for i in range(len(data))])) == expected


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, list[Any]]:
    body = draw(bodies)
    interim = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"])
    )
    kind = draw(st.sampled_from(["204", "length", "chunked"]))
    if kind == "204":
        return interim + b"HTTP/1.1 204 No Content\r\n\r\n", [(204, b"No Content"), End.END]
    if kind == "length":
        framed = b"Content-Length: %d\r\n\r\n" % len(body) + body
    else:
        framed = b"Transfer-Encoding: chunked\r\n\r\n" + format_chunked([body[:3], body[3:]], draw(extensions), b"")
    return interim + b"HTTP/1.1 200 OK\r\n" + framed, [(200, b"OK"), *([body] if body else []), End.END]


@given(st.lists(responses(), min_size=1, max_size=3), st.lists(st.integers(0, 1000), max_size=12))
def test_responses_read_the_same_however_they_are_cut(parts: list[tuple[bytes, list[Any]]], places: list[int]) -> None:
    data = b"".join(raw for raw, _ in parts)
    expected = [event for _, events in parts for event in events]
    assert simplify(collect(ResponseReader(), [data])) == expected
    assert simplify(collect(ResponseReader(), cut(data, places))) == expected
    assert simplify(collect(ResponseReader(), [data[i : i + 1] for i in range(len(data))])) == expected


fragments = st.lists(
    st.binary(max_size=6)
    | st.sampled_from(
        [
            b"GET / HTTP/1.1\r\n",
            b"POST /x HTTP/1.1\r\n",
            b"HTTP/1.1 200 OK\r\n",
            b"Host: x\r\n",
            b"Content-Length: 5\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Upgrade: x\r\nConnection: upgrade\r\n",
            b"\r\n",
            b"\n",
            b"\r",
            b"0\r\n",
            b"5\r\nhello\r\n",
            b"fffffffff\r\n",
        ]
    ),
    max_size=14,
)


@given(fragments, st.lists(st.integers(0, 300), max_size=6), st.booleans())
def test_garbage_gives_the_same_events_or_error_however_it_is_cut(
    parts: list[bytes], places: list[int], to_head: bool
) -> None:
    data = b"".join(parts)
    for make in (RequestReader, ResponseReader):
        results = []
        for pieces in ([data], cut(data, places), [data[i : i + 1] for i in range(len(data))]):
            reader = make()
            if isinstance(reader, ResponseReader):
                reader.expect(to_head)
            results.append(collect(reader, pieces))
        assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    "body",
    [
        b"g\r\n",
        b"-1\r\n",
        b"0x5\r\nhello\r\n",
        b"5\nhello\r\n",
        b"5\r\nhello!\r\n",
        b"5\r\nhelloX\n",
        b"5\r\nhell\r\n0\r\n\r\n",
        b"\r\n",
        b" 5\r\nhello\r\n",
        b"5;a\rb\r\nhello\r\n",
        b"1000000000000000\r\n",
        b"5;" + b"a" * 2000,
        b"0\r\nA b\r\n\r\n",
        b"0\r\n B: c\r\n\r\n",
        b"0\r\n" + b"A: b\r\n" * (MAX_TRAILER_BYTES // 6 + 1) + b"\r\n",
    ],
    ids=lambda body: str(body[:24]),
)
def test_malformed_chunks_are_refused(body: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert collect(RequestReader(), [head + body])[-1] == 400


def test_reader_stops_at_the_end_of_a_request() -> None:
    reader = RequestReader()
    first = b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
    reader.feed(first + b"GET /2 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert isinstance(reader.next_event(), RequestHead)
    assert reader.next_event() is End.END
    assert reader.buffered_bytes == len(first)


def test_answer_to_head_has_no_body() -> None:
    reader = ResponseReader()
    reader.expect(to_head=True)
    assert simplify(collect(reader, [b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"])) == [(200, b"OK"), End.END]


def test_close_ends_only_a_body_without_a_length() -> None:
    reader = ResponseReader()
    assert collect(reader, [b"HTTP/1.1 200 OK\r\n\r\nab", b"cd"])[-1] == b"abcd"
    assert reader.finish()
    reader = ResponseReader()
    collect(reader, [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"])
    assert not reader.finish()
    reader = ResponseReader()
    collect(reader, [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"])
    assert not reader.finish()


def test_whole_small_body_is_handed_on_without_a_copy() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n")
    reader.next_event()
    piece = bytes(60000)
    reader.feed(piece)
    assert reader.next_event() is piece


def test_reader_of_refused_bytes_says_nothing_more() -> None:
    reader = RequestReader()
    reader.feed(b"GET / HTTP/1.1\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n")
    with pytest.raises(WireError):
        reader.next_event()
    with contextlib.suppress(WireError):
        assert reader.next_event() is None


@given(st.lists(st.tuples(st.sampled_from(["1", "2"]), bodies), max_size=6))
def test_short_ways_through_a_reader_tell_the_same(messages: list[tuple[str, bytes]]) -> None:
    sent = [
        b"POST /%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (name.encode(), len(body), body)
        for name, body in messages
    ]
    assert collect_quickly(RequestReader(), sent) == collect(RequestReader(), sent)
    sent = [
        b"HTTP/1.1 %b00 OK\r\nContent-Length: %d\r\n\r\n%b" % (name.replace("1", "4").encode(), len(body), body)
        for name, body in messages
    ]
    assert collect_quickly(ResponseReader(), sent) == collect(ResponseReader(), sent)


@pytest.mark.parametrize(
    "second",
    [
        b"POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nab",
        b"POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcG",
        b"POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
    ],
)
def test_only_one_whole_message_with_the_same_head_is_taken_at_once(second: bytes) -> None:
    reader = RequestReader()
    first = b"POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    assert reader.consume_whole(first) is None
    collect(reader, [first])
    assert reader.consume_whole(second) is None
    taken = reader.consume_whole(first)
    assert taken is not None
    assert taken[1] == b"abc"
    reader.feed(first[:5])
    assert reader.consume_whole(first) is None


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_answers_whose_end_is_another_are_not_taken_at_once(answer: bytes) -> None:
    reader = ResponseReader()
    collect(reader, [answer])
    assert reader.consume_whole(answer) is None
    reader = ResponseReader()
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"
    collect(reader, [plain])
    assert reader.consume_whole(plain) is not None
    reader.expect(to_head=True)
    assert reader.consume_whole(plain) is None


def test_reader_between_messages_holds_nothing() -> None:
    reader = RequestReader()
    collect(reader, [b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + bytes(60000)])
    assert reader._data == b""
