"""A connection without a socket: what it answers, in which order, and in which phase it is left."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.http.access import RequestRecord
from llamactl.front.http.body import HELD_BYTES, BodyStream
from llamactl.front.http.connection import ClientConnection
from llamactl.front.http.connection_state import Phase
from llamactl.front.http.read_gate import MAX_AHEAD_BYTES
from llamactl.front.http.wire import RequestHead
from llamactl.settings import FrontSettings

GET = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n"


class Transport:
    """Takes everything, at once unless it is told otherwise."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = self.aborted = self.shut_down = False
        self.reading = True
        self.unsent_bytes = 0

    def get_extra_info(self, name: str) -> Any:
        return self if name == "socket" else None

    def fileno(self) -> int:
        return -1  # whoever writes past the transport cannot

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def write(self, data: bytes) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.shut_down = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    family = None
    setsockopt = staticmethod(lambda *_: None)


class Timer:
    def cancel(self) -> None: ...
    def when(self) -> float:
        return 0.0


class Host:
    """Its clock stands still; what is to be done later is not."""

    def __init__(self) -> None:
        self.loop: Any = self
        self.log: Any = None
        self.settings = FrontSettings(max_body_bytes=1 << 20, send_timeout_s=0.0)
        self.max_body_bytes = 1 << 20
        self.max_held_bytes = HELD_BYTES
        self.stopping = self.draining = self.leaving = False
        self.hangups: Any = self
        self.connections: set[Any] = set()
        self.records: list[RequestRecord] = []

    def time(self) -> float:
        return 0.0

    def call_at(self, *_: Any) -> Timer:
        return Timer()

    call_later = call_at

    def watch(self, *_: Any) -> None: ...
    def forget(self, *_: Any) -> None: ...

    def make_record(self, head: RequestHead | None) -> RequestRecord:
        return RequestRecord(b"-", b"-" if head is None else head.path, b"id", b"", 0.0)

    def on_connection(self, connection: Any) -> None:
        self.connections.add(connection)

    def on_connection_lost(self, connection: Any) -> None:
        self.connections.discard(connection)

    def on_request_end(self, record: RequestRecord) -> None:
        self.records.append(record)


class Later:
    """A request that is answered when the test says so."""

    def __init__(self, client: ClientConnection, head: RequestHead) -> None:
        self.client, self.head = client, head
        self.told: list[str] = []
        client.begin(self)

    def answer(self) -> None:
        self.client.answer(self.head, 200, None)

    def cancel(self) -> None:
        self.told.append("cancel")

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")


class World:
    def __init__(self, handle: Callable[..., None] | None = None) -> None:
        self.host = Host()
        self.transport = Transport()
        self.requests: list[tuple[bytes, bytes]] = []
        self.later: list[Later] = []
        self.streams: list[BodyStream] = []
        self.connection = ClientConnection(self.host, handle or self._handle)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def _handle(self, client: Any, head: RequestHead, body: bytes, stream: BodyStream | None) -> None:
        self.requests.append((head.path, body))
        if head.path == b"/bad":
            raise LlamactlError(ErrorCode.INVALID_REQUEST, "cannot")
        if stream is not None:
            self.streams.append(stream)
        if head.path.startswith(b"/later"):
            self.later.append(Later(client, head))
        else:
            client.answer(head, 200, None)

    def feed(self, data: bytes, size: int = 1 << 20) -> "World":
        for at in range(0, len(data), size):
            if not self.transport.closing:
                self.connection.data_received(data[at : at + size])
        return self

    def lose(self) -> None:
        """The client is gone."""
        self.transport.closing = True
        self.connection.connection_lost(None)

    def statuses(self) -> list[int]:
        return [int(part[:3]) for part in self.transport.written.split(b"HTTP/1.1 ")[1:]]

    @property
    def phase(self) -> Phase:
        return self.connection.phase


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_requests_are_answered_in_order_however_they_come(size: int) -> None:
    world = World().feed(b"".join(GET % number for number in range(20)), size)
    assert world.requests == [(b"/%d" % number, b"") for number in range(20)]
    assert world.statuses() == [200] * 20
    assert world.phase is Phase.IDLE
    assert len(world.host.records) == 20


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_next_request_waits_for_the_answer_to_the_last_one(size: int) -> None:
    world = World().feed(b"".join(GET.replace(b"/%d", b"/later") for _ in range(3)), size)
    for count in (1, 2, 3):
        assert (len(world.requests), world.phase) == (count, Phase.ANSWERING)
        world.later[-1].answer()
    assert world.phase is Phase.IDLE


@pytest.mark.parametrize(
    ("raw", "phase"),
    [
        (b"", Phase.NEW),
        (b"GET", Phase.HEAD),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n123", Phase.BODY),
        (GET % 1, Phase.IDLE),
        (GET % 1 + b"G", Phase.HEAD),
        (b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n", Phase.ANSWERING),
        (b"GET / HTTP/1.1\r\n\r\n", Phase.LINGERING),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", Phase.CLOSED),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nmore", Phase.LINGERING),
        (b'POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n{"model":"a","x":"' + b"A" * 300_000,
         Phase.STREAMING_BODY),
        (b'POST /bad HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n{"model":"a","x":"' + b"A" * 300_000,
         Phase.LINGERING),
        (b"POST /bad HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", Phase.IDLE),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [100, 1 << 20])
def test_phase_is_what_has_come_of_the_request(raw: bytes, phase: Phase, size: int) -> None:
    world = World().feed(raw, size)
    assert world.phase is phase
    assert world.connection.stop() == (phase in (Phase.NEW, Phase.IDLE, Phase.CLOSED))


@pytest.mark.parametrize("after", [b"GET /2 HTTP/1.1\r\nHost: x\r\n\r\n", b"\0\0\0\0\r\n\r\n"])
def test_after_a_refusal_nothing_more_is_read(after: bytes) -> None:
    world = World().feed(b"GET / HTTP/9.9\r\nHost: x\r\n\r\n")
    written = world.transport.written
    world.feed(after)
    assert (world.transport.written, world.requests) == (written, [])
    assert world.transport.shut_down
    assert not world.transport.closing, "that would reset it, and take the refusal with it"


@given(
    pieces=st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([GET % 1, b"\r\n", b"GET ", b"{}"])), max_size=12)
)
def test_garbage_is_refused_once_and_never_handed_on(pieces: list[bytes]) -> None:
    world = World()
    for piece in pieces:
        world.feed(piece)
    statuses = world.statuses()
    assert all(status == 200 for status in statuses[:-1])
    assert len(world.requests) == statuses.count(200) + statuses.count(500)
    if statuses and statuses[-1] != 200:
        assert world.phase in (Phase.LINGERING, Phase.CLOSED)
    world.lose()
    assert world.phase is Phase.CLOSED
    assert len(world.host.records) >= len(statuses)


@given(data=st.data())
def test_connection_that_is_lost_at_any_byte_leaves_nothing_behind(data: Any) -> None:
    raw = b"".join(
        [
            GET % 1,
            b"POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n",
            b'{"model":"a","x":"' + b"A" * 199_981,
        ]
    )
    end = data.draw(st.integers(0, len(raw)))
    world = World().feed(raw[:end], 50_000)
    world.lose()
    assert world.phase is Phase.CLOSED
    assert not world.host.connections
    assert all(later.told == ["cancel"] for later in world.later)
    assert world.connection.requests.stream is None
    for later in world.later:  # who answers learns of it later, at worst
        later.answer()
    assert world.phase is Phase.CLOSED


def test_what_is_sent_ahead_is_not_read_without_end() -> None:
    world = World().feed(b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n")
    world.feed(GET % 2 * 5000, 1000)
    assert not world.transport.reading
    assert len(world.requests) == 1
    world.later[0].answer()
    assert world.transport.reading
    assert len(world.requests) == 5001


def test_client_that_does_not_read_is_read_no_further() -> None:
    world = World().feed(GET % 1)
    world.connection.pause_writing()
    world.feed(GET % 2 * 3000)
    assert (len(world.requests), world.transport.reading) == (1, False)
    assert world.connection.requests.buffered_bytes > MAX_AHEAD_BYTES
    world.connection.resume_writing()
    assert (len(world.requests), world.transport.reading) == (3001, True)


def test_whoever_answers_hears_that_the_client_does_not_read() -> None:
    world = World().feed(b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n")
    world.connection.pause_writing()
    world.connection.resume_writing()
    world.lose()
    assert world.later[0].told == ["pause", "resume", "cancel"]


def test_instance_that_cannot_take_more_stops_the_reading_of_its_body_alone() -> None:
    head = b"POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\n\r\n"
    world = World().feed(head + b'{"model":"a","x":"' + b"A" * 300_000)
    world.streams[0].hold()
    assert not world.transport.reading
    before = world.streams[0].received_bytes
    world.feed(b"A" * 1000)  # was under way already
    assert world.streams[0].received_bytes == before
    world.streams[0].resume()
    world.streams[0].detach()
    world.connection._hold_back(False)
    assert world.transport.reading
    assert world.streams[0].received_bytes == before + 1000


def test_refusal_in_the_middle_of_an_answer_is_no_answer() -> None:
    """The client must see that what it has got so far is not all."""
    head = b"POST /later HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b'{"model":"a","x":"' + b"A" * 300_000
    world = World().feed(head + b"%x\r\n%b\r\n" % (len(body), body))
    world.connection.record.status = 200
    world.connection.send(b"HTTP/1.1 200 OK\r\n\r\nhalf")
    world.feed(b"no chunk\r\n")
    assert world.transport.aborted
    assert world.transport.written.endswith(b"half")
    assert world.later[0].told == ["cancel"]
    assert world.host.records[0].is_cut


@pytest.mark.parametrize("leaving", [True, False])
def test_process_that_leaves_keeps_no_connection(leaving: bool) -> None:
    world = World()
    world.host.leaving = leaving
    world.feed(GET % 1)
    assert (b"Connection: close" in world.transport.written) == leaving
    assert world.phase is (Phase.CLOSED if leaving else Phase.IDLE)


def test_loop_sees_a_protocol() -> None:
    assert isinstance(World().connection, asyncio.Protocol)
