"""Do clients of other APIs find the front as they know their servers?"""

import asyncio
from typing import Any

import msgspec
import pytest

from llamactl.protocol.control_socket import Failure, LeaseRequest
from tests.socket.front.conftest import format_post, read_chunk, read_head

MESSAGES = "/v1/messages"
SAID = [{"role": "user", "content": "hello"}]


def test_somebody_is_at_home(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        client.writer.write(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        response = await client.read_response(to_head=True)
        assert (response.status, response.body) == (200, b"")
        assert "llamactl" in (await client.get("/")).json()
        assert world.supervisor.count(LeaseRequest) == 0

    stage(scenario)


def test_model_is_found_in_a_body_of_76_kilobytes_behind_its_query(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        system = [{"type": "text", "text": "x" * 76_000, "cache_control": {"type": "ephemeral"}}]
        body = msgspec.json.encode({"system": system, "messages": SAID, "max_tokens": 32000, "model": "a"})
        fields = ("anthropic-version: 2023-06-01", "anthropic-beta: a,b", "x-api-key: k")
        client.writer.write(format_post(f"{MESSAGES}?beta=true", body, *fields))
        call = await instance.call()
        assert call.request.body == body
        assert ("anthropic-version", "2023-06-01") in call.request.headers
        call.answer(b"{}")
        assert (await client.read_response()).status == 200

    stage(scenario)


def check_anthropics(answer: Any, kind: str) -> None:
    assert answer["type"] == "error"
    assert answer["error"]["type"] == kind
    assert answer["error"]["message"].startswith("cannot ")


@pytest.mark.parametrize(
    ("raw", "status", "kind"),
    [
        (format_post(MESSAGES, b"no JSON"), 400, "invalid_request_error"),
        (format_post(MESSAGES, b'{"messages": []}'), 400, "invalid_request_error"),
        (b"GET /v1/messages HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "invalid_request_error"),
    ],
    ids=str,
)
def test_errors_of_the_front_have_anthropics_form(stage: Any, raw: bytes, status: int, kind: str) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        response = await client.request(raw)
        assert response.status == status
        check_anthropics(response.json(), kind)

    stage(scenario)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("unknown_model", 404, "not_found_error"),
        ("does_not_fit", 503, "overloaded_error"),
        ("queue_full", 429, "rate_limit_error"),
        ("queue_timeout", 504, "timeout_error"),
        ("load_failed", 500, "api_error"),
    ],
)
def test_errors_of_the_supervisor_have_anthropics_form(stage: Any, code: str, status: int, kind: str) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        client.writer.write(format_post(MESSAGES, {"model": "a", "messages": SAID}))
        request = await world.supervisor.expect(LeaseRequest)
        world.supervisor.send(Failure(id=request.id, code=code, message="cannot do it"))
        response = await client.read_response()
        assert response.status == status
        check_anthropics(response.json(), kind)

    stage(scenario)


def test_stream_whose_instance_dies_ends_with_a_named_error(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(MESSAGES, {"model": "a", "stream": True, "messages": SAID}))
        call = await instance.call()
        call.begin_stream()
        call.chunk(b"event: ping\ndata: {}\n\n")
        await read_head(client.reader)
        await read_chunk(client.reader)
        call.die()
        rest = await asyncio.wait_for(client.reader.read(), 5)
        event = rest.split(b"\r\n", 1)[1]
        name, _, data = event.partition(b"\n")
        assert name == b"event: error"
        check_anthropics(msgspec.json.decode(data.removeprefix(b"data: ").strip()), "api_error")

    stage(scenario)


STORED = f"/v1/responses/resp_{'0' * 48}_YQ"
"""Kept by the model `a`."""


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("below", ["", "/input_items?order=asc"])
def test_response_is_asked_of_the_model_that_keeps_it(stage: Any, method: str, below: str) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(f"{method} {STORED}{below} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        call = await instance.call()
        assert (call.request.method, call.request.target) == (method, STORED + below)
        call.answer(b"{}")
        assert (await client.read_response()).status == 200

    stage(scenario)


def test_no_model_is_loaded_for_a_response_that_it_cannot_have_kept(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        client.writer.write(f"GET {STORED} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        request = await world.supervisor.expect(LeaseRequest)
        assert (request.model, request.autoload, request.passive) == ("a", False, True)
        world.supervisor.send(Failure(id=request.id, code="not_loaded", message="cannot use 'a'"))
        response = await client.read_response()
        assert response.status == 404
        assert "no such response is kept" in response.json()["error"]["message"]
        assert (await client.get("/v1/responses/resp_other")).status == 404

    stage(scenario)
