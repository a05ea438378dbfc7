"""Which requests are in these bytes, however they are cut? And what is handed over before it is whole?"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.http.assembler import Request, RequestAssembler
from llamactl.front.http.body import HELD_BYTES
from llamactl.front.http.framing import END
from llamactl.front.http.wire import RequestHead, WireError

CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


class Limits:
    def __init__(self, max_body_bytes: int = 1 << 20) -> None:
        self.max_body_bytes = max_body_bytes
        self.max_held_bytes = min(HELD_BYTES, max_body_bytes)


class Sink:
    """Where a large body goes."""

    congested = False

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def ask_later(self) -> None:
        raise AssertionError


def make_assembler(max_body_bytes: int = 1 << 20) -> RequestAssembler:
    return RequestAssembler(Limits(max_body_bytes), lambda hold: None)


def format_post(body: bytes, *fields: bytes) -> bytes:
    return CHAT + b"".join(field + b"\r\n" for field in (b"Content-Length: %d" % len(body), *fields)) + b"\r\n" + body


def list_events(assembler: RequestAssembler) -> Iterator[Any]:
    while (event := assembler.next_event()) is not None:
        yield event


def read(assembler: RequestAssembler, pieces: list[bytes]) -> list[Any]:
    events: list[Any] = []
    for piece in pieces:
        assembler.feed(piece)
        events += list_events(assembler)
    return events


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def describe(events: list[Any]) -> list[Any]:
    """Without what depends on how the bytes were cut."""
    told: list[Any] = []
    for event in events:
        if isinstance(event, RequestHead):
            told.append(("head", event.path))
        elif isinstance(event, Request):
            told.append(("request", event.head.path, event.body, event.stream is not None))
        else:
            told.append(event)
    return told


SMALL = [
    format_post(b'{"model":"a"}'),
    b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    CHAT + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mod\r\n8\r\nel":"b"}\r\n0\r\n\r\n',
    format_post(b"x" * 5000),
]


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 1 << 20])
def test_same_bytes_are_the_same_requests_however_they_are_cut(size: int) -> None:
    assert describe(read(make_assembler(), cut(b"".join(SMALL), size))) == [
        ("head", b"/v1/chat/completions"),
        ("request", b"/v1/chat/completions", b'{"model":"a"}', False),
        ("head", b"/health"),
        ("request", b"/health", b"", False),
        ("head", b"/v1/chat/completions"),
        ("request", b"/v1/chat/completions", b'{"model":"b"}', False),
        ("head", b"/v1/chat/completions"),
        ("request", b"/v1/chat/completions", b"x" * 5000, False),
    ]


@given(data=st.data())
def test_nothing_is_taken_of_the_next_request_before_it_is_asked_for(data: Any) -> None:
    raw = b"".join(SMALL)
    assembler = make_assembler()
    assembler.feed(raw)
    left = len(raw)
    for request in SMALL:
        assert isinstance(assembler.next_event(), RequestHead)
        assert isinstance(assembler.next_event(), Request)
        left -= len(request)
        assert assembler.buffered_bytes == left


@given(pieces=st.lists(st.binary(max_size=40), max_size=20))
def test_garbage_is_a_wire_error_and_nothing_else(pieces: list[bytes]) -> None:
    assembler = make_assembler(max_body_bytes=1000)
    try:
        read(assembler, pieces)
    except (WireError, LlamactlError):
        return
    assert assembler.buffered_bytes <= len(b"".join(pieces))


@given(at=st.integers(0, 200), byte=st.integers(0, 255), size=st.sampled_from([1, 3, 1000]))
def test_request_with_one_wrong_byte_is_read_or_refused(at: int, byte: int, size: int) -> None:
    raw = bytearray(b"".join(SMALL[:3]))
    raw[at % len(raw)] = byte
    try:
        events = read(make_assembler(), cut(bytes(raw), size))
    except (WireError, LlamactlError):
        return
    assert len(events) <= 6


def test_whole_request_with_the_last_ones_head_is_found_at_once() -> None:
    assembler = make_assembler()
    read(assembler, [SMALL[0]])
    _, body = assembler.consume_whole(format_post(b'{"model":"c"}')) or (None, b"")
    assert (body, assembler.buffered_bytes) == (b'{"model":"c"}', 0)
    assert assembler.consume_whole(format_post(b'{"model":"longer"}')) is None
    assert read(assembler, [SMALL[1]])[1].head.path == b"/health", "nothing of it is left behind"


def test_whole_request_that_is_large_is_fed() -> None:
    assembler = make_assembler()
    raw = format_post(b'{"model":"a","x":"' + b"A" * HELD_BYTES + b'"}')
    read(assembler, [raw])
    assert assembler.consume_whole(raw) is None


LARGE = b'{"model":"a","x":"' + b"A" * (3 * HELD_BYTES) + b'"}'


@pytest.mark.parametrize("size", [1000, 4096, 70_000, 1 << 20])
@pytest.mark.parametrize("chunked", [True, False])
def test_large_body_is_handed_over_once_it_says_its_model_and_its_end_is_told(size: int, chunked: bool) -> None:
    assembler, sink = make_assembler(), Sink()
    raw = format_post(LARGE)
    if chunked:
        raw = CHAT + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(LARGE), LARGE)
    events: list[Any] = []
    for piece in cut(raw, size):
        assembler.feed(piece)
        for event in list_events(assembler):
            if isinstance(event, Request):
                assert event.stream is not None
                assert event.stream.scanner.members.read_model() == "a"
                event.stream.attach(sink, chunked=False)
            events.append(event)
    assert [type(event) for event in events[:2]] == [RequestHead, Request]
    assert events[2:] == ([] if size > len(raw) else [END]), "what has come whole has no end of its own"
    assert sink.data == LARGE
    assert assembler.stream is None


def test_large_body_that_names_its_model_last_is_handed_over_at_its_end() -> None:
    body = b'{"x":"' + b"A" * (3 * HELD_BYTES) + b'","model":"a"'
    assembler = make_assembler()
    _, request = read(assembler, cut(format_post(body + b"}"), 5000))
    assert request.stream.scanner.members.read_model() == "a"
    assert not request.stream.complete or request.stream.received_bytes == len(body) + 1


def test_large_body_without_a_model_is_handed_over_whole() -> None:
    body = b'{"x":"' + b"A" * (3 * HELD_BYTES) + b'"'
    assembler = make_assembler()
    _, request = read(assembler, cut(format_post(body), 5000))
    assert request.stream.complete
    assert request.stream.scanner.members.read_model() is None
    request.stream.close()


@pytest.mark.parametrize("fields", [(), (b"Expect: 100-continue",)])
def test_body_that_says_that_it_is_too_large_is_refused_with_its_head(fields: tuple[bytes, ...]) -> None:
    assembler = make_assembler(max_body_bytes=1000)
    with pytest.raises(LlamactlError, match="more than 1000 bytes") as caught:
        read(assembler, [format_post(b"x" * 1001, *fields)[:150]])
    assert caught.value.code is ErrorCode.TOO_LARGE
    assert assembler.head is not None


def test_body_that_turns_out_too_large_is_refused_when_it_does() -> None:
    assembler = make_assembler(max_body_bytes=1000)
    head = CHAT + b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"64\r\n" + b"x" * 100 + b"\r\n"
    read(assembler, [head, *[chunk] * 10])
    with pytest.raises(LlamactlError, match="more than 1000 bytes"):
        read(assembler, [chunk])


def test_body_that_comes_byte_by_byte_is_kept_in_few_pieces() -> None:
    assembler = make_assembler()
    raw = format_post(b" " * 1000)
    read(assembler, cut(raw[:-1], 1))
    assert assembler.received_bytes == 999
    assert assembler.n_pieces <= 64


@pytest.mark.parametrize(
    ("raw", "awaits"),
    [
        (CHAT + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n", True),
        (CHAT + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\nx", False),
        (CHAT + b"Content-Length: 0\r\nExpect: 100-continue\r\n\r\n", False),
        (CHAT + b"Content-Length: 5\r\n\r\n", False),
        (CHAT.replace(b"1.1", b"1.0") + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n", False),
    ],
)
def test_client_is_told_to_go_on_only_where_it_waits_for_that(raw: bytes, awaits: bool) -> None:
    assembler = make_assembler()
    assembler.feed(raw)
    assert isinstance(assembler.next_event(), RequestHead)
    assert assembler.awaits_continue == awaits
