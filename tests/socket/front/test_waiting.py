"""Who is late, who has left, and who changes protocols: connections beside the plain request."""

import asyncio
from typing import Any

import pytest

from llamactl.protocol.control_socket import CancelRequest, LeaseRequest, ModelsChanged
from llamactl.settings import FrontSettings
from tests.socket.front.conftest import format_post, read_head

CHAT = "/v1/chat/completions"
SHORT_S = 0.05


async def set_limits(world: Any, **limits: float) -> None:
    """Have the supervisor tell other settings."""
    settings = FrontSettings(max_body_bytes=1 << 20, **limits)  # type: ignore[arg-type]
    world.supervisor.send(ModelsChanged(front=settings))
    while world.front.settings != settings:
        await asyncio.sleep(0)


def test_connection_that_says_nothing_is_closed(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, head_timeout_s=SHORT_S)
        client = await world.connect()
        assert await client.reader.read() == b""

    stage(scenario)


def test_head_that_comes_too_slowly_is_answered_with_408(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, head_timeout_s=10 * SHORT_S)  # its first byte must come in time
        client = await world.connect(tcp=True)
        raw = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "

        async def trickle() -> None:  # a byte now and then does not make it any younger
            for byte in raw + b"x" * 1000:
                client.writer.write(bytes([byte]))
                await asyncio.sleep(0.002)

        sending = asyncio.ensure_future(trickle())
        response = await client.read_response()
        assert (response.status, response.headers["connection"]) == (408, "close")
        sending.cancel()

    stage(scenario)


@pytest.mark.parametrize("size", [1000, 500_000])
def test_body_that_stops_in_its_middle_is_answered_with_408(stage: Any, size: int) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, body_timeout_s=SHORT_S)
        await world.add_model("a", granted=False)
        client = await world.connect()
        body = b'{"model":"a","x":"' + b"A" * size + b'"}'
        raw = format_post(CHAT, body)
        client.writer.write(raw[: len(raw) // 2])
        assert (await client.read_response()).status == 408
        assert len(world.front.leases.queue) == 0

    stage(scenario)


def test_idle_connection_is_closed_and_one_that_is_answered_is_not(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, keepalive_timeout_s=SHORT_S, head_timeout_s=SHORT_S, body_timeout_s=SHORT_S)
        instance = await world.add_model("a")
        idle, busy = await world.connect(), await world.connect()
        assert (await idle.get("/health")).status == 200
        busy.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        assert await idle.reader.read() == b""
        await asyncio.sleep(2 * SHORT_S)  # no time-out for what a model thinks
        call.answer(b"late")
        assert (await busy.read_response()).body == b"late"
        assert await busy.reader.read() == b""

    stage(scenario)


def test_zero_means_no_time_out(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, keepalive_timeout_s=0, head_timeout_s=0, body_timeout_s=0)
        client = await world.connect()
        (connection,) = world.front.clients
        client.writer.write(b"GET /health HTTP/1.1\r\n")
        while not connection.requests.buffered_bytes:
            await asyncio.sleep(0)
        client.writer.write(b"Host: x\r\n\r\n")
        assert (await client.read_response()).status == 200
        if connection.deadline.is_armed:  # the one from before the settings were known
            connection.deadline.check()
        assert not connection.deadline.is_armed

    stage(scenario)


def test_request_that_waits_too_long_for_its_model_leaves_the_queue(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, queue_timeout_s=SHORT_S)
        await world.add_model("a", granted=False)
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        request = await world.supervisor.expect(LeaseRequest)
        response = await client.read_response()
        assert response.status == 504
        assert "queue_timeout" in response.json()["error"]["message"]
        assert (await world.supervisor.expect(CancelRequest)).id == request.id
        assert (await client.get("/health")).status == 200

    stage(scenario)


@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("tcp", [True, False])
def test_client_that_has_sent_far_ahead_and_leaves_is_noticed(stage: Any, granted: bool, tcp: bool) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a", granted=granted)
        client = await world.connect(tcp)
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call() if granted else None
        if call is None:
            await world.supervisor.expect(LeaseRequest)
        client.writer.write(format_post(CHAT, {"model": "a", "x": "A" * 1000}) * 100)
        (connection,) = world.front.clients
        while not connection.gate.held:
            await asyncio.sleep(0)
        client.close()
        if call is not None:
            await call.closed()
        else:
            await world.supervisor.expect(CancelRequest)
        while world.front.clients:
            await asyncio.sleep(0)

    stage(scenario)


UPGRADE = (
    b"GET /v1/realtime?model=a HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n"
)


@pytest.mark.parametrize("tcp", [False, True])
def test_websocket_is_a_tunnel_to_the_instance_that_the_query_names(stage: Any, tcp: bool) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect(tcp)
        client.writer.write(UPGRADE)
        call = await instance.call()
        assert call.request.header("upgrade") == "websocket"
        assert call.request.header("connection") == "Upgrade"
        assert call.request.header("sec-websocket-key") == "dGhlIHNhbXBsZSBub25jZQ=="
        call.write(SWITCH + b"hello")
        line, headers = await read_head(client.reader)
        assert line.startswith("HTTP/1.1 101 ")
        fields = {name.lower(): value for name, value in headers}
        assert fields["upgrade"] == "websocket"
        assert fields["connection"] == "Upgrade"
        assert fields["sec-websocket-accept"] == "x"
        assert await client.reader.readexactly(5) == b"hello"
        for size in (1, 100_000, 3_000_000):
            client.writer.write(b"\r\n\0" + b"u" * size)
            assert await call.reader.readexactly(size + 3) == b"\r\n\0" + b"u" * size
            call.write(b"d" * size)
            assert await client.reader.readexactly(size) == b"d" * size
        assert world.front.leases.leases()[0].in_flight == 1
        call.writer.close()
        assert await client.reader.read() == b""
        while world.front.clients:
            await asyncio.sleep(0)
        assert world.front.leases.leases()[0].in_flight == 0

    stage(scenario)


def test_tunnel_ends_at_the_instance_when_its_client_leaves(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(UPGRADE)
        call = await instance.call()
        call.write(SWITCH)
        await read_head(client.reader)
        client.close()
        await call.closed()

    stage(scenario)


def test_instance_that_does_not_change_protocols_answers_as_ever(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(UPGRADE)
        (await instance.call()).answer(b"no", status="404 Not Found")
        assert (await client.read_response()).status == 404
        assert (await client.get("/health")).status == 200

    stage(scenario)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"Upgrade: websocket", b"Upgrade: h2c"),
        (b"Connection: keep-alive, Upgrade", b"Connection: keep-alive"),
        (b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
def test_other_changes_of_protocol_are_not_passed_on(stage: Any, old: bytes, new: bytes) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(UPGRADE.replace(old, new))
        call = await instance.call()
        assert call.request.header("upgrade") is None
        assert call.request.header("connection") is None
        call.write(SWITCH)  # unasked for
        assert (await client.read_response()).status == 502

    stage(scenario)


def test_answer_to_half_a_body_is_passed_on_and_ends_the_connection(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        await instance.close()
        closed = asyncio.Event()

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            while await reader.read(1 << 16):
                pass
            closed.set()

        instance.path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(refuse, str(instance.path))
        client = await world.connect(tcp=True)
        raw = format_post(CHAT, b'{"model":"a","x":"' + b"A" * 900_000 + b'"}')
        client.writer.write(raw[:300_000])
        response = await client.read_response()
        assert (response.status, response.body, response.headers["connection"]) == (413, b"no", "close")
        await closed.wait()
        server.close()

    stage(scenario)
