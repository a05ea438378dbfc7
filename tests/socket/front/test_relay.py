"""Does a request reach its instance and its answer the client, byte for byte, as it comes?"""

import asyncio
from typing import Any

import pytest

from llamactl.front.http.connection import MAX_AHEAD_BYTES
from llamactl.protocol.control_socket import IdleNotice, LeaseRequest
from tests.socket.front.conftest import format_post, read_chunk, read_head

READ_BYTES = 256_000
"""What uvloop reads at most at once."""
CHAT = "/v1/chat/completions"


def test_request_reaches_the_instance_and_its_answer_the_client(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(
            b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: example\r\nX-Mine: 1\r\n"
            b'Connection: X-Hop\r\nX-Hop: secret\r\nContent-Length: 23\r\n\r\n{"model":"a","n":[1,2]}'
        )
        call = await instance.call()
        assert (call.request.method, call.request.target) == ("POST", "/v1/chat/completions?x=1")
        assert call.request.body == b'{"model":"a","n":[1,2]}'
        *fields, (name, request_id) = call.request.headers
        assert fields == [("Host", "example"), ("X-Mine", "1"), ("Content-Length", "23")]
        assert (name, bool(request_id)) == ("X-Request-Id", True)
        call.answer(b'{"ok":1}', "Content-Type: application/json", "Keep-Alive: timeout=5", "X-Its: 2", status="201 M")
        response = await client.read_response()
        assert response.status == 201
        assert response.body == b'{"ok":1}'
        assert response.headers.pop("x-request-id") == request_id
        assert response.headers == {"content-type": "application/json", "x-its": "2", "content-length": "8"}

    stage(scenario)


@pytest.mark.parametrize("tcp", [False, True])
def test_stream_is_relayed_as_it_comes(stage: Any, tcp: bool) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect(tcp)
        client.writer.write(format_post(CHAT, {"model": "a", "stream": True}))
        call = await instance.call()
        call.begin_stream()
        _, headers = await read_head(client.reader)
        assert ("X-Accel-Buffering", "no") in headers
        for number in range(5):
            event = b"data: %d\n\n" % number
            call.chunk(event)  # the next one is sent only after this one has arrived
            assert await read_chunk(client.reader) == event
        call.write(b"0\r\n\r\n")
        assert await read_chunk(client.reader) == b""
        client.writer.write(format_post(CHAT, {"model": "a"}))
        (await instance_next(instance, call)).answer(b"again")
        assert (await client.read_response()).body == b"again"

    stage(scenario)


async def instance_next(instance: Any, call: Any) -> Any:
    """The next request on the connection of an earlier one."""
    _, headers = await read_head(call.reader)
    length = next(int(value) for key, value in headers if key.lower() == "content-length")
    await call.reader.readexactly(length)
    assert instance.connections == 1
    return call


def test_connections_are_kept_on_both_sides(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.answer_all(b'{"ok":1}')
        client = await world.connect()
        for _ in range(20):
            assert (await client.post(CHAT, {"model": "a"})).body == b'{"ok":1}'
        assert instance.connections == 1
        assert world.supervisor.count(LeaseRequest) == 1

    stage(scenario)


def test_pipelined_requests_are_answered_in_order(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.auto = lambda call: call.answer(call.request.body)
        client = await world.connect()
        bodies = [b'{"model":"a","n":%d}' % number for number in range(30)]
        requests = [format_post(CHAT, body) for body in bodies]
        requests.insert(7, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        bodies.insert(7, b'{"status":"ok"}')
        client.writer.write(b"".join(requests))
        for body in bodies:
            assert (await client.read_response()).body == body

    stage(scenario)


def test_client_that_sends_far_ahead_is_not_read_on(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        ahead = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        count = (4 << 20) // len(ahead)
        client.writer.write(ahead * count)
        call.begin_stream()
        await read_head(client.reader)
        (connection,) = world.front.clients
        for _ in range(50):  # the answer goes on meanwhile
            call.chunk(b"x")
            await read_chunk(client.reader)
        assert connection.requests.buffered_bytes <= MAX_AHEAD_BYTES + READ_BYTES
        call.write(b"0\r\n\r\n")
        assert await read_chunk(client.reader) == b""
        while not connection.congested:  # nor is it when it does not read its answers
            await asyncio.sleep(0)
        assert connection.requests.buffered_bytes <= MAX_AHEAD_BYTES + READ_BYTES
        assert connection.transport.get_write_buffer_size() <= 2 * 65536
        for _ in range(count):
            assert (await client.read_response()).status == 200

    stage(scenario)


def test_chunked_request_arrives_with_its_length(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        raw = head.encode() + b'a\r\n{"model":"\r\n3;x=y\r\na"}\r\n0\r\nT: u\r\n\r\n'
        for index in range(len(raw)):
            client.writer.write(raw[index : index + 1])
            await asyncio.sleep(0)
        call = await instance.call()
        assert call.request.body == b'{"model":"a"}'
        assert call.request.header("content-length") == "13"
        assert call.request.header("transfer-encoding") is None
        call.answer(b"{}")
        assert (await client.read_response()).status == 200

    stage(scenario)


def test_expectation_is_answered_before_the_body_is_sent(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert (await client.read_response()).status == 100
        client.writer.write(b'{"model":"a"}')
        call = await instance.call()
        assert call.request.header("expect") is None
        call.answer(b"{}")
        assert (await client.read_response()).status == 200

    stage(scenario)


def test_head_is_passed_on_and_its_answer_has_no_body(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(b"HEAD /v1/thing?model=a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        call = await instance.call()
        assert (call.request.method, call.request.target) == ("HEAD", "/v1/thing?model=a")
        call.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        response = await client.read_response(to_head=True)
        assert response.headers["content-length"] == "1000"
        assert (await client.get("/health")).status == 200

    stage(scenario)


@pytest.mark.parametrize("kind", ["change", "large"])
def test_answer_to_head_ends_with_its_head_however_it_was_asked(stage: Any, kind: str) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.auto = lambda call: call.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        client = await world.connect()
        change = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        body = b'{"n":"%b"}' % (b"A" * 200_000)
        fields = change + b"\r\n" if kind == "change" else b"Content-Length: %d\r\n\r\n" % len(body) + body
        client.writer.write(b"HEAD /slots?model=a HTTP/1.1\r\nHost: localhost\r\n" + fields)
        answer = await client.read_response(to_head=True)
        assert (answer.status, answer.headers["content-length"]) == (200, "5")
        while any(lease.in_flight for lease in world.front.leases.leases()):
            await asyncio.sleep(0)

    stage(scenario)


def test_old_client_gets_its_answer_without_chunks(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(b'POST /v1/x HTTP/1.0\r\nContent-Length: 13\r\n\r\n{"model":"a"}')
        call = await instance.call()
        call.begin_stream()
        call.chunk(b"data: 1\n\n")
        call.chunk(b"data: 2\n\n")
        call.write(b"0\r\n\r\n")
        response = await client.read_response()
        assert response.body == b"data: 1\n\ndata: 2\n\n"
        assert response.headers["connection"] == "close"

    stage(scenario)


def test_answer_that_ends_with_its_connection_is_relayed_that_way(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        call.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nabc")
        call.writer.close()
        response = await client.read_response()
        assert (response.status, response.body, response.headers["connection"]) == (200, b"abc", "close")

    stage(scenario)


def test_large_body_and_large_answer_arrive_whole(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.auto = lambda call: call.answer(call.request.body)
        client = await world.connect(tcp=True)
        body = b'{"model":"a","image":"' + b"0123456789abcdef" * 60_000 + b'"}'
        assert (await client.post(CHAT, body)).body == body

    stage(scenario)


def test_slow_client_holds_the_instance_instead_of_memory(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        total = 32 << 20
        call.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        sending = asyncio.ensure_future(send_all(call, total))
        await read_head(client.reader)
        client.writer.transport.pause_reading()
        connection = next(iter(world.front.clients))
        held, left, still = -1, -1, 0
        while still < 200:  # turns of the loop in which nothing has moved any more
            await asyncio.sleep(0)
            before = (held, left)
            held, left = connection.transport.get_write_buffer_size(), call.writer.transport.get_write_buffer_size()
            still = still + 1 if (held, left) == before and connection.congested else 0
        assert 0 < held <= 256 * 1024
        assert not sending.done()
        client.writer.transport.resume_reading()
        got = 0
        while got < total:
            got += len(await client.reader.read(1 << 20))
        await sending

    stage(scenario)


async def send_all(call: Any, total: int) -> None:
    piece = bytes(1 << 20)
    for _ in range(total // len(piece)):
        call.write(piece)
        await call.writer.drain()


def test_client_that_leaves_ends_its_generation(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        call.begin_stream()
        call.chunk(b"data: 1\n\n")
        await read_head(client.reader)
        client.close()
        await call.closed()
        notice = await world.supervisor.expect(IdleNotice)
        assert notice.model == "a"
        assert world.front.leases.leases()[0].in_flight == 0

    stage(scenario)


def test_client_that_leaves_before_the_first_byte_ends_its_generation(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect(tcp=True)
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        client.close()
        await call.closed()

    stage(scenario)


@pytest.mark.parametrize(
    ("raw", "status", "word"),
    [
        (b"GET / HTTP/1.1\nHost: localhost\r\n\r\n", 400, "bare LF"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: +1\r\n\r\n", 400, "Content-Length"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "chunk"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 40_000, 431, "head of more than"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n", 413, "more than 1048576 bytes"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n" + bytes(1 << 20), 413, "more than"),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"10000\r\n"
            + b" " * 65536
            + b"\r\n",
            0,
            "",
        ),
    ],
    ids=range(7),
)
def test_bytes_that_make_no_sense_are_refused_and_end_the_connection(
    stage: Any, raw: bytes, status: int, word: str
) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect(tcp=True)
        if not status:  # a body without an end: the limit is met in the middle of it
            head, _, chunk = raw.partition(b"\r\n\r\n")
            client.writer.write(head + b"\r\n\r\n" + chunk * 20)
        else:
            client.writer.write(raw)
        response = await client.read_response()
        assert response.status == (status or 413)
        assert response.headers["connection"] == "close"
        error = response.json()["error"]
        assert error["code"] == response.status
        assert word in error["message"]
        assert await client.reader.read() == b""

    stage(scenario)
