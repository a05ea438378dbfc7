"""An instance dies: what does the client see, and what is tried again?"""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from llamactl.front.stream_texts import ends_with_error
from llamactl.protocol.control_socket import CancelRequest, IdleNotice, LeaseRequest
from tests.http_errors import check_error
from tests.socket.front.conftest import format_post, read_chunk, read_head

CHAT = "/v1/chat/completions"


def test_instance_that_dies_before_its_answer_is_a_502(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        call.die()
        response = await client.read_response()
        assert response.status == 502
        error = response.json()["error"]
        assert error["type"] == "server_error"
        check_error(error, CHAT, 502)
        assert "'a'" in error["message"]
        assert instance.calls.empty()  # it was read, so it is not sent again
        assert (await client.get("/health")).status == 200
        assert world.front.leases.leases()[0].in_flight == 0

    stage(scenario)


def test_502_shows_a_command_that_a_shell_understands(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("Smol LM ü")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "Smol LM ü"}))
        (await instance.call()).die()
        message = (await client.read_response()).json()["error"]["message"]
        assert message.endswith("; `llamactl logs 'Smol LM ü'` may show why")

    stage(scenario)


def test_instance_that_dies_with_a_kept_connection_is_a_502(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        call.answer(b"1")
        await client.read_response()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        await call.reader.readuntil(b"\r\n\r\n")
        await call.reader.readexactly(13)
        instance.kill()
        assert (await client.read_response()).status == 502
        assert world.supervisor.count(LeaseRequest) == 1

    stage(scenario)


def test_stream_cut_by_its_instance_ends_with_an_error_and_not_cleanly(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a", "stream": True}))
        call = await instance.call()
        call.begin_stream()
        call.chunk(b"data: 1\n\n")
        await read_head(client.reader)
        await read_chunk(client.reader)
        call.die()
        rest = await client.reader.read()
        _, _, event = rest.partition(b"\r\n")
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n\r\n")
        check_error(msgspec.json.decode(event[6:].strip())["error"], CHAT, 502)
        assert b"[DONE]" not in rest
        assert not rest.endswith(b"0\r\n\r\n")

    stage(scenario)


def test_error_after_half_an_event_is_still_an_event(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a", "stream": True}))
        call = await instance.call()
        call.begin_stream()
        call.chunk(b"data: {half")
        await read_head(client.reader)
        await read_chunk(client.reader)
        call.die()
        assert b"\r\n\n\ndata: {" in await client.reader.read()

    stage(scenario)


@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
def test_other_answer_cut_by_its_instance_ends_short(stage: Any, framing: bytes) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        call.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + framing + b"\r\n\r\n5\r\nhello\r\n")
        await read_head(client.reader)
        await client.reader.readexactly(10)
        call.die()
        assert await client.reader.read() == b""

    stage(scenario)


def test_instance_that_speaks_no_http_is_a_502(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.auto = lambda call: call.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        client = await world.connect()
        assert (await client.post(CHAT, {"model": "a"})).status == 502

    stage(scenario)


def test_instance_that_is_gone_is_replaced_by_the_next_one(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.answer_all(b"1")
        client = await world.connect()
        assert (await client.post(CHAT, {"model": "a"})).body == b"1"
        instance.kill()
        del world.supervisor.grants["a"]
        client.writer.write(format_post(CHAT, {"model": "a"}))
        await world.supervisor.expect(LeaseRequest)
        request = await world.supervisor.expect(LeaseRequest)
        assert request.stale_generation == "g1"
        await instance.start()
        instance.answer_all(b"2")
        world.supervisor.send(world.grant("a", "g2", request.id))
        assert (await client.read_response()).body == b"2"

    stage(scenario)


def test_request_that_was_never_read_is_sent_again(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        call.answer(b"1")
        await client.read_response()
        call.reader._transport.pause_reading()  # a process that hangs, or is stopping
        client.writer.write(format_post(CHAT, {"model": "a"}))
        (upstream,) = world.front.clients
        while upstream.running is None:
            await asyncio.sleep(0)
        instance.kill()
        await instance.start()
        (await instance.call()).answer(b"2")
        assert (await client.read_response()).body == b"2"

    stage(scenario)


def test_instance_that_refuses_twice_is_a_502(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.refuse_connections()
        client = await world.connect()
        assert (await client.post(CHAT, {"model": "a"})).status == 502
        assert world.supervisor.count(LeaseRequest) == 2

    stage(scenario)


def test_client_that_leaves_while_its_instance_is_replaced_cancels(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a", granted=False)
        instance.refuse_connections()
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        request = await world.supervisor.expect(LeaseRequest)
        world.supervisor.send(world.grant("a", request_id=request.id))
        again = await world.supervisor.expect(LeaseRequest)
        client.close()
        assert (await world.supervisor.expect(CancelRequest)).id == again.id

    stage(scenario)


def test_early_refusal_of_a_large_body_reaches_the_client_and_spends_the_connection(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await world.add_model("a", granted=False)
        path = world.directory / "models" / "a" / "http.sock"

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno")
            await refused.wait()
            with contextlib.suppress(ConnectionError):  # the rest of the body never comes
                while await reader.read(1 << 16):
                    pass
            closed.set()

        refused, closed = asyncio.Event(), asyncio.Event()
        await world.instances["a"].close()
        server = await asyncio.start_unix_server(refuse, str(path))
        world.supervisor.grants["a"] = world.grant("a")
        client = await world.connect()
        body = b'{"model":"a","x":"' + bytes(b"x" * 900_000) + b'"}'
        response = await client.post(CHAT, body)
        assert (response.status, response.body) == (400, b"no")
        refused.set()
        await closed.wait()
        server.close()

    stage(scenario)


def test_deaths_leave_no_count_and_no_connection_behind(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        clients = [await world.connect(tcp=bool(index % 2)) for index in range(40)]
        for client in clients:
            client.writer.write(format_post(CHAT, {"model": "a", "stream": True}))
        for index, client in enumerate(clients):
            call = await instance.call()
            call.begin_stream()
            call.chunk(b"data: 1\n\n")
            if index % 4 == 0:
                call.die()
            elif index % 4 == 1:
                call.write(b"0\r\n\r\n")
            elif index % 4 == 2:
                client.close()
        # each died, ended or was left; the last quarter is left now
        for client in clients:
            client.close()
        while world.front.clients:
            await asyncio.sleep(0)
        (lease,) = world.front.leases.leases()
        assert lease.in_flight == 0
        assert len(world.front.leases.queue) == 0
        await world.supervisor.expect(IdleNotice)

    stage(scenario)


@pytest.mark.parametrize("pieces", [1, 3])
def test_stream_that_its_instance_ends_with_an_error_has_no_clean_end(stage: Any, pieces: int) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a", "stream": True}))
        call = await instance.call()
        call.begin_stream()
        error = b'event: error\ndata: {"error": {"code": 503}}\n\n'
        text = b'data: {"choices": []}\n\n' + error
        size = -(-len(text) // pieces)
        for begin in range(0, len(text), size):
            call.chunk(text[begin : begin + size])
        call.write(b"0\r\n\r\n")
        received = await asyncio.wait_for(client.reader.read(), 10)
        assert received.endswith(error + b"\r\n"), "the last chunk is missing, and the connection closed"
        assert received.count(b"error") == 2, "nobody says it a second time"

    stage(scenario)


def test_text_that_speaks_of_errors_is_no_error() -> None:
    assert not ends_with_error(b"data: 1\n\ndata: event: error\n\n")
    assert not ends_with_error(b"event: error\ndata: 1\n\ndata: [DONE]\n\n")
    assert not ends_with_error(b"")
    assert ends_with_error(b"event: error\ndata: 1\n\n")
