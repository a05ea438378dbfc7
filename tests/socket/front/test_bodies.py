"""Large bodies on their way: in pieces, through a file, refused in the middle, and never whole in memory."""

import asyncio
import os
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from llamactl.front import wait as wait_module
from llamactl.front.http import body as body_module
from llamactl.protocol.control_socket import ClientHello, Failure, LeaseRequest, Progress
from llamactl.protocol.values import Stage
from llamactl.settings import FrontSettings
from tests.http_errors import check_error
from tests.socket.front.conftest import format_post, read_chunk, read_head

CHAT = "/v1/chat/completions"
LARGE = 800_000


def make_body(model: str = "a", late: bool = False, size: int = LARGE, **more: str) -> bytes:
    name, image = b'"model":"%b"' % model.encode(), b'"image":"%b"' % (b"A" * size)
    rest = b"".join(b',"%b":%b' % (key.encode(), value.encode()) for key, value in more.items())
    return b"{" + (image + b"," + name if late else name + b"," + image) + rest + b"}"


def chunk_up(body: bytes, size: int = 10_000) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def format_chunked(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunk_up(body)


def count_spools() -> int:
    """Unlinked files that this process holds open; pytest has some of its own."""
    paths = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _exists(name)]
    return sum(path.endswith("(deleted)") and path.startswith("/tmp") for path in paths)


def _exists(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


async def serve_raw(world: Any, handle: Any, granted: bool = True) -> asyncio.Server:
    """A model `a` whose connections are handled by `handle`."""
    instance = await world.add_model("a", granted=granted)
    await instance.close()
    path: Path = instance.path
    path.unlink(missing_ok=True)
    return await asyncio.start_unix_server(handle, str(path), limit=1 << 22)


async def read_request_body(reader: asyncio.StreamReader) -> tuple[list[tuple[str, str]], bytes]:
    _, headers = await read_head(reader)
    fields = {key.lower(): value for key, value in headers}
    if "content-length" in fields:
        return headers, await reader.readexactly(int(fields["content-length"]))
    body = b""
    while piece := await read_chunk(reader):
        body += piece
    return headers, body


def answer_with_body(bodies: list[bytes]) -> Any:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            try:
                _, body = await read_request_body(reader)
            except asyncio.IncompleteReadError:
                break
            bodies.append(body)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    return handle


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_large_body_arrives_whole(stage: Any, late: bool, framing: str) -> None:
    async def scenario(world: Any) -> None:
        bodies: list[bytes] = []
        server = await serve_raw(world, answer_with_body(bodies))
        client = await world.connect(tcp=True)
        body = make_body(late=late)
        for _ in range(3):
            raw = format_post(CHAT, body) if framing == "length" else format_chunked(CHAT, body)
            assert (await client.request(raw)).body == b"ok"
        assert bodies == [body] * 3
        assert world.supervisor.count(LeaseRequest) == 1
        server.close()

    stage(scenario)


def test_pieces_are_relayed_before_the_body_has_ended(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        got: asyncio.Queue[bytes] = asyncio.Queue()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            while data := await reader.read(1 << 20):
                got.put_nowait(data)

        server = await serve_raw(world, handle)
        client = await world.connect()
        body = make_body()
        raw = format_post(CHAT, body)
        client.writer.write(raw[:200_000])
        received = b""
        while len(received) < 200_000 - (len(raw) - len(body)):
            received += await got.get()
        assert body.startswith(received)
        client.close()
        server.close()

    stage(scenario)


def test_body_of_a_queued_request_waits_in_a_file_and_its_client_may_leave(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        bodies: list[bytes] = []
        before = count_spools()
        server = await serve_raw(world, answer_with_body(bodies), granted=False)
        first, second = await world.connect(), await world.connect(tcp=True)
        body = make_body()
        first.writer.write(format_post(CHAT, body))
        request = await world.supervisor.expect(LeaseRequest)
        second.writer.write(format_post(CHAT, make_body(size=LARGE + 1)))
        while count_spools() < before + 2:
            await asyncio.sleep(0)
        while any(connection.requests.stream is not None for connection in world.front.clients):
            await asyncio.sleep(0)  # both have been read to their ends
        second.close()
        while count_spools() > before + 1:
            await asyncio.sleep(0)
        world.supervisor.send(world.grant("a", request_id=request.id))
        assert (await first.read_response()).body == b"ok"
        assert bodies == [body]
        assert count_spools() == before
        server.close()

    stage(scenario)


def test_slow_instance_holds_the_client_instead_of_memory(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        gate = asyncio.Event()
        before = count_spools()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            stopped.set()
            await gate.wait()

        stopped = asyncio.Event()
        world.supervisor.settings = FrontSettings(max_body_bytes=64 << 20)
        await world.supervisor.stop()
        await world.supervisor.start()
        await world.supervisor.expect(ClientHello)
        server = await serve_raw(world, handle)
        client = await world.connect()
        while world.front.settings.max_body_bytes != 64 << 20:
            await asyncio.sleep(0)
        client.writer.write(format_post(CHAT, make_body(size=20 << 20)))
        await stopped.wait()
        (connection,) = world.front.clients
        left, still = -1, 0
        while still < 200:  # turns of the loop in which nothing has moved any more
            await asyncio.sleep(0)
            last, left = left, client.writer.transport.get_write_buffer_size()
            still = still + 1 if left == last else 0
        assert left > 15 << 20
        upstream = connection.running._upstream
        held = connection.requests.buffered_bytes + upstream._transport.get_write_buffer_size()
        assert held < 256 * 1024
        assert count_spools() == before
        client.close()  # while nobody reads from it: seen all the same
        while world.front.clients:
            await asyncio.sleep(0)
        gate.set()
        server.close()

    stage(scenario)


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
@pytest.mark.parametrize("size", [100, LARGE])
def test_compressed_body_is_refused_with_what_is_taken(stage: Any, encoding: str, size: int) -> None:
    async def scenario(world: Any) -> None:
        (await world.add_model("a")).answer_all(b"taken")
        for body in (b"\x1f\x8b" + os.urandom(size), make_body(size=size), make_body(size=size, late=True)):
            client = await world.connect()
            response = await client.post(CHAT, body, f"Content-Encoding: {encoding}")
            error = response.json()["error"]
            assert (response.status, response.headers["accept-encoding"]) == (415, "identity")
            check_error(error, CHAT, 415)
            assert encoding in error["message"]
        client = await world.connect()
        assert (await client.post(CHAT, make_body(size=size), "Content-Encoding: Identity")).body == b"taken"
        assert len(world.front.leases.leases()) == 1

    stage(scenario)


def test_body_that_finds_no_space_is_refused_with_what_is_so(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: Any) -> None:
        monkeypatch.setattr(body_module.tempfile, "TemporaryFile", lambda **_: FileIO("/dev/full", "wb+"))
        monkeypatch.setattr(body_module.tempfile, "tempdir", "/tmp/full")
        await world.add_model("a")
        client = await world.connect()
        response = await client.post(CHAT, make_body(late=True))
        error = response.json()["error"]
        assert (response.status, error["type"]) == (507, "unavailable_error")
        check_error(error, CHAT, 507)
        assert response.headers["retry-after"] == "5"
        assert "kept in '/tmp/full': No space left on device; free space" in error["message"]
        (warning,) = [event for event in world.events if event["event"] == "body not kept"]
        assert (warning["level"], warning["why"]) == ("warning", error["message"])

    stage(scenario)


def test_chunked_body_that_is_too_large_is_refused_in_its_middle(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        begun, closed = asyncio.Event(), asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            begun.set()
            try:
                await read_request_body(reader)
            except asyncio.IncompleteReadError:
                closed.set()

        server = await serve_raw(world, handle)
        client = await world.connect(tcp=True)
        raw = format_chunked(CHAT, make_body(size=2 << 20))
        client.writer.write(raw[: 512 << 10])
        await begun.wait()
        client.writer.write(raw[512 << 10 :])
        response = await client.read_response()
        assert (response.status, response.headers["connection"]) == (413, "close")
        await closed.wait()
        assert world.front.leases.leases()[0].in_flight == 0
        server.close()

    stage(scenario)


def test_large_body_that_makes_no_sense_ends_its_request_at_both_sides(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        closed = asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(1 << 20):
                pass
            closed.set()

        server = await serve_raw(world, handle)
        client = await world.connect()
        raw = format_chunked(CHAT, make_body())
        client.writer.write(raw[:300_000])
        await world.supervisor.expect(LeaseRequest)
        client.writer.write(b"\r\nno chunk\r\n" * 2000)
        assert (await client.read_response()).status == 400
        await closed.wait()
        server.close()

    stage(scenario)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" + b"1," * 100_000 + b"1]", "not a JSON object"),
        (b'{"x":"' + b"A" * 200_000 + b'"}', "names no model"),
        (b'{"model":[1],"x":"' + b"A" * 200_000 + b'"}', "not a string"),
        (b'{"keep_alive":"soon","model":"a","x":"' + b"A" * 200_000 + b'"}', 'cannot read "keep_alive"'),
        (b'{"model":"a","x":"' + b"A" * 200_000 + b'","keep_alive":"soon"}', 'cannot read "keep_alive"'),
    ],
)
def test_large_body_that_names_no_model_or_no_duration_is_refused(stage: Any, body: bytes, message: str) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect(tcp=True)
        response = await client.post(CHAT, body)
        assert response.status == 400
        assert message in response.json()["error"]["message"]
        if "keep-alive" not in response.headers.get("connection", "") and "close" not in response.headers.values():
            assert (await client.get("/health")).status == 200

    stage(scenario)


def test_large_body_that_turns_out_to_have_no_duration_ends_its_request_at_both_sides(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        closed = asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(1 << 20):
                pass
            closed.set()

        server = await serve_raw(world, handle)
        client = await world.connect()
        raw = format_post(CHAT, b'{"model":"a","x":"' + b"A" * 600_000 + b'","keep_alive":"soon"}')
        client.writer.write(raw[:300_000])
        while not (leases := world.front.leases.leases()):
            await asyncio.sleep(0)
        client.writer.write(raw[300_000:])
        response = await client.read_response()
        assert (response.status, response.headers["connection"]) == (400, "close")
        assert 'cannot read "keep_alive"' in response.json()["error"]["message"]
        await closed.wait()
        assert leases[0].in_flight == 0
        server.close()

    stage(scenario)


def test_body_that_comes_byte_by_byte_takes_no_more_than_its_size(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        raw = format_post(CHAT, b'{"model":"a"}' + b" " * 1000)
        (connection,) = world.front.clients
        client.writer.write(raw[:100])
        while connection.requests.head is None:
            await asyncio.sleep(0)
        for _ in range(300):
            before = connection.requests.received_bytes
            client.writer.write(b" ")
            while connection.requests.received_bytes == before:
                await asyncio.sleep(0)
            assert connection.requests.n_pieces <= 64

    stage(scenario)


def test_large_form_is_routed_by_its_field(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        bodies: list[bytes] = []
        server = await serve_raw(world, answer_with_body(bodies))
        form = (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            + bytes(400_000)
            + b'\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--b--\r\n'
        )
        client = await world.connect()
        raw = format_post("/v1/audio/transcriptions", form, "Content-Type: multipart/form-data; boundary=b")
        assert (await client.request(raw)).body == b"ok"
        assert bodies == [form]
        server.close()

    stage(scenario)


def test_large_body_is_sent_again_where_nobody_has_read_it(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        bodies: list[bytes] = []
        instance = await world.add_model("a")
        instance.refuse_connections()
        del world.supervisor.grants["a"]
        client = await world.connect()
        body = make_body()
        client.writer.write(format_post(CHAT, body))
        request = await world.supervisor.expect(LeaseRequest)
        world.supervisor.send(world.grant("a", "g1", request.id))
        again = await world.supervisor.expect(LeaseRequest)
        assert again.stale_generation == "g1"
        instance.path.unlink()
        server = await asyncio.start_unix_server(answer_with_body(bodies), str(instance.path), limit=1 << 22)
        world.supervisor.send(world.grant("a", "g2", again.id))
        assert (await client.read_response()).body == b"ok"
        assert bodies == [body]
        server.close()

    stage(scenario)


def test_client_of_a_large_body_that_no_instance_took_is_heard_again(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.answer_all()
        client = await world.connect()
        raw = format_post(CHAT, make_body(size=100_000))  # more than is held, yet read at once
        assert (await client.request(raw)).status == 200
        world.supervisor.grants.clear()
        instance.kill()
        client.writer.write(raw)
        while not (request := await world.supervisor.expect(LeaseRequest)).stale_generation:
            pass
        world.supervisor.send(Failure(id=request.id, code="load_failed", message="cannot load 'a': no"))
        answer = await client.read_response()
        assert answer.status == 500
        assert "connection" not in answer.headers
        assert (await client.get("/health")).status == 200

    stage(scenario)


def test_stream_that_waits_for_its_model_says_so(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_module, "COMMENT_S", 0.02)

    async def scenario(world: Any) -> None:
        instance = await world.add_model("a", granted=False)
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a", "stream": True}))
        request = await world.supervisor.expect(LeaseRequest)
        stage = Stage.LOADING
        world.supervisor.send(Progress(id=request.id, stage=stage, fraction=0.45))
        line, headers = await read_head(client.reader)
        assert line == "HTTP/1.1 200 OK"
        assert ("Content-Type", "text/event-stream") in headers
        assert ("X-Accel-Buffering", "no") in headers
        while (comment := await read_chunk(client.reader)) != b": loading a 45 %\n\n":
            assert comment == b": waiting a\n\n"
        assert await read_chunk(client.reader) == b": loading a 45 %\n\n"
        world.supervisor.send(world.grant("a", request_id=request.id))
        call = await instance.call()
        call.begin_stream()
        call.chunk(b"data: 1\n\n")
        call.write(b"0\r\n\r\n")
        while (chunk := await read_chunk(client.reader)).startswith(b":"):
            pass
        assert chunk == b"data: 1\n\n"
        assert await read_chunk(client.reader) == b""
        assert (await client.get("/health")).status == 200

    stage(scenario)


def test_refusal_after_comments_is_an_event_and_no_clean_end(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_module, "COMMENT_S", 0.02)

    async def scenario(world: Any) -> None:
        await world.add_model("a", granted=False)
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a", "stream": True}))
        request = await world.supervisor.expect(LeaseRequest)
        await read_head(client.reader)
        world.supervisor.send(Failure(id=request.id, code="load_failed", message="cannot load 'a': no"))
        rest = await client.reader.read()
        assert b'data: {"error":' in rest
        assert b"cannot load 'a': no" in rest
        assert not rest.endswith(b"0\r\n\r\n")

    stage(scenario)


def test_answer_that_is_no_stream_after_comments_is_an_event(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_module, "COMMENT_S", 0.02)

    async def scenario(world: Any) -> None:
        instance = await world.add_model("a", granted=False)
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a", "stream": True}))
        request = await world.supervisor.expect(LeaseRequest)
        await read_head(client.reader)
        world.supervisor.send(world.grant("a", request_id=request.id))
        (await instance.call()).answer(b'{"error":{"code":400}}', status="400 Bad Request")
        rest = await client.reader.read()
        assert b'data: {"error":{"code":400}}\n\n' in rest
        assert not rest.endswith(b"0\r\n\r\n")
        assert world.front.leases.leases()[0].in_flight == 0

    stage(scenario)


def test_request_that_wants_no_stream_waits_in_silence(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_module, "COMMENT_S", 0.01)

    async def scenario(world: Any) -> None:
        instance = await world.add_model("a", granted=False)
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a", "n": {"stream": True}}))
        request = await world.supervisor.expect(LeaseRequest)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.1)
        world.supervisor.send(world.grant("a", request_id=request.id))
        (await instance.call()).answer(b"{}")
        assert (await client.read_response()).status == 200

    stage(scenario)
