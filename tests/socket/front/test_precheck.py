"""A request that every model refuses: for it none is loaded, and its client cannot tell who refused it."""

import asyncio
from typing import Any

import msgspec
import pytest

from llamactl import endpoints
from llamactl.dialects.check import check_body
from llamactl.endpoints import format_http_error
from llamactl.errors import LlamactlError
from llamactl.front.http.body import HELD_BYTES
from llamactl.front.precheck import find_mistake
from llamactl.protocol.control_socket import Failure, LeaseRequest
from tests.socket.front.conftest import REQUIRED, format_post
from tests.socket.front.test_guard import configure

CHAT = "/v1/chat/completions"
WRONG = [
    (CHAT, b'{"model":"a"}'),
    (CHAT, b'{"model":"a","messages":"hello"}'),
    (CHAT, b'{"model":"a","messages":[{"content":"x"}]}'),
    (CHAT, b'{"model":"a","messages":[{"role":"user","text":"x"}]}'),
    (CHAT, b'{"model":"a","messages":[],"temperature":"hot"}'),
    ("/v1/completions", b'{"model":"a"}'),
    ("/completion", b'{"model":"a","prompt":1.5}'),
    ("/v1/embeddings", b'{"model":"a","input":{"text":"x"}}'),
    ("/embedding", b'{"model":"a"}'),
    ("/v1/rerank", b'{"model":"a","documents":["x"]}'),
    ("/infill", b'{"model":"a","input_prefix":"x"}'),
    ("/tokenize", b'{"model":"a","content":{}}'),
    ("/detokenize", b'{"model":"a","tokens":"1"}'),
    ("/apply-template", b'{"model":"a","messages":{}}'),
    ("/v1/chat/completions/input_tokens", b'{"model":"a","messages":1}'),
    ("/v1/responses", b'{"model":"a"}'),
    ("/v1/responses", b'{"model":"a","input":[{"type":"compaction"}]}'),
    ("/v1/responses", b'{"model":"a","input":"x","tools":[{"type":"mcp"}]}'),
    ("/v1/responses/input_tokens", b'{"model":"a","input":1}'),
    ("/v1/messages", b'{"model":"a","messages":"hello"}'),
    ("/v1/messages", b'{"model":"a","messages":[{"role":"wizard","content":"x"}]}'),
    ("/v1/messages/count_tokens", b'{"model":"a"}'),
]


def refuse_as_instance(path: str, body: bytes) -> dict[str, Any]:
    """What an instance answers, of whose code this is the first line of each route."""
    with pytest.raises(LlamactlError) as refused:
        check_body({**endpoints.GENERATIONS, **endpoints.TEXTS}[path], body)
    return format_http_error(refused.value, path)


@pytest.mark.parametrize(("path", "body"), WRONG, ids=str)
def test_wrong_request_loads_no_model_and_is_told_what_the_model_would_tell(stage: Any, path: str, body: bytes) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        client.writer.write(format_post(path, body))
        request = await world.supervisor.expect(LeaseRequest)
        assert (request.model, request.autoload, request.passive) == ("a", False, True)
        failure = Failure(id=request.id, code="not_loaded", message="cannot use 'a'", model="a")
        world.supervisor.send(failure)
        response = await client.read_response()
        assert (response.status, response.json()) == (400, refuse_as_instance(path, body))

    stage(scenario)


def test_model_that_runs_is_asked_and_says_it_itself(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        read: list[bytes] = []

        def refuse(call: Any) -> None:
            read.append(call.request.body)
            call.answer(b"its own words", status="400 Bad Request")

        instance.auto = refuse
        while not world.front.leasing.connected:
            await asyncio.sleep(0)
        for _ in range(2):  # before the lease is here, and after
            response = await client.request(format_post(CHAT, b'{"model":"a"}'))
            assert (response.status, response.body) == (400, b"its own words")
        assert read == [b'{"model":"a"}'] * 2
        assert world.supervisor.count(LeaseRequest) == 1

    stage(scenario)


def test_model_that_is_not_there_is_told_first(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        client.writer.write(format_post(CHAT, b'{"model":"zz"}'))
        request = await world.supervisor.expect(LeaseRequest)
        world.supervisor.send(Failure(id=request.id, code="unknown_model", message="cannot find 'zz'"))
        response = await client.read_response()
        assert (response.status, response.json()["error"]["message"]) == (404, "cannot find 'zz'")

    stage(scenario)


def test_default_model_is_not_loaded_for_it_either(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await configure(world, default_model="a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, b'{"model":"zz"}'))
        first = await world.supervisor.expect(LeaseRequest)
        world.supervisor.send(Failure(id=first.id, code="unknown_model", message="cannot find 'zz'"))
        second = await world.supervisor.expect(LeaseRequest)
        assert (second.model, second.autoload, second.passive) == ("a", False, True)
        world.supervisor.send(Failure(id=second.id, code="not_loaded", message="cannot use 'a'"))
        assert (await client.read_response()).json() == refuse_as_instance(CHAT, b'{"model":"zz"}')

    stage(scenario)


def test_large_body_is_for_its_model_to_judge(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        client.writer.write(format_post(CHAT, b'{"model":"a","x":"%b"}' % (b"A" * 2 * HELD_BYTES)))
        assert (await world.supervisor.expect(LeaseRequest)).autoload

    stage(scenario)


def test_every_route_that_loads_a_model_is_looked_at() -> None:
    for path, word in {**endpoints.GENERATIONS, **endpoints.TEXTS}.items():
        assert find_mistake(path.encode(), b"{}") is not None or word == "tokenize", path
        assert find_mistake(path.encode(), b"no JSON") is not None, path
        body = b"--x\r\n" if word == "transcription" else msgspec.json.encode(REQUIRED[word])
        assert find_mistake(path.encode(), body) is None, path
    assert find_mistake(b"/other", b"{}") is None
