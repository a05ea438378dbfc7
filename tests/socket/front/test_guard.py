"""Where a request came from, under which name, and who may read its answer; the model that stands in."""

import asyncio
from typing import Any

import pytest

from llamactl.protocol.control_socket import Failure, LeaseRequest, ModelsChanged
from llamactl.settings import FrontSettings
from tests.socket.front.conftest import format_post

CHAT = "/v1/chat/completions"
FORWARDING = (
    "X-Forwarded-For: 203.0.113.7",
    "X-Forwarded-Proto: https",
    "X-Forwarded-Host: llm.example",
    "X-Real-IP: 203.0.113.7",
    'Forwarded: for="203.0.113.7"',
)


async def configure(world: Any, **settings: Any) -> None:
    front = FrontSettings(max_body_bytes=1 << 20, **settings)
    world.supervisor.send(ModelsChanged(front=front))
    while world.front.settings != front:
        await asyncio.sleep(0)


async def relay(world: Any, tcp: bool, *fields: str) -> dict[str, str]:
    """The forwarding fields that an instance gets."""
    instance = await world.add_model("a")
    client = await world.connect(tcp=tcp)
    for _ in range(2):
        client.writer.write(format_post(CHAT, {"model": "a"}, *fields))
        call = await instance.call()
        call.answer(b"{}", "Connection: close")
        await client.read_response()
    headers = [(name.lower(), value) for name, value in call.request.headers]
    found = [name for name, _ in headers if name.startswith("x-forwarded") or name in ("forwarded", "x-real-ip")]
    assert len(found) == len(set(found))
    return {name: value for name, value in headers if name in found}


def test_word_of_a_proxy_on_the_unix_socket_is_kept(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        kept = await relay(world, False, *FORWARDING)
        assert kept == {name.lower(): value for name, _, value in (field.partition(": ") for field in FORWARDING)}

    stage(scenario)


def test_nothing_is_added_on_the_unix_socket(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        assert await relay(world, False) == {}

    stage(scenario)


@pytest.mark.parametrize("fields", [(), FORWARDING])
def test_word_of_a_client_on_tcp_is_replaced(stage: Any, fields: tuple[str, ...]) -> None:
    async def scenario(world: Any) -> None:
        assert await relay(world, True, *fields) == {
            "x-forwarded-for": "127.0.0.1",
            "x-forwarded-proto": "http",
            "x-forwarded-host": "localhost",
            "forwarded": 'for=127.0.0.1;proto=http;host="localhost"',
        }

    stage(scenario)


def test_request_id_goes_all_the_way_and_comes_back(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        seen = set()
        for fields in (("X-Request-Id: mine",), (), ()):
            client.writer.write(format_post(CHAT, {"model": "a"}, *fields))
            call = await instance.call()
            passed = call.request.header("x-request-id")
            call.answer(b"{}", "X-Request-Id: its-own", "Connection: close")
            response = await client.read_response()
            assert response.headers["x-request-id"] == passed
            seen.add(passed)
        assert "mine" in seen
        assert len(seen) == 3
        for raw in (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", b"nonsense\r\n\r\n"):
            assert (await client.request(raw)).headers["x-request-id"] not in seen

    stage(scenario)


def test_foreign_name_is_refused_on_tcp_and_taken_on_the_unix_socket(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        tcp, unix = await world.connect(tcp=True), await world.connect()
        raw = b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n"
        refused = await tcp.request(raw)
        assert (refused.status, refused.json()["error"]["type"]) == (403, "permission_error")
        assert "allowed_hosts" in refused.json()["error"]["message"]
        assert (await unix.request(raw)).status == 200
        assert (await tcp.get("/health")).status == 200
        absolute = b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert (await tcp.request(absolute)).status == 403
        await configure(world, allowed_hosts=("*.example",))
        assert (await tcp.request(raw)).status == 200

    stage(scenario)


def test_foreign_name_reaches_no_model(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await world.add_model("a")
        tcp = await world.connect(tcp=True)
        raw = format_post(CHAT, {"model": "a"}).replace(b"Host: localhost", b"Host: evil.example")
        assert (await tcp.request(raw)).status == 403
        assert world.supervisor.count(LeaseRequest) == 0

    stage(scenario)


def test_web_socket_of_a_foreign_page_is_refused_on_tcp(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        raw = (
            b"GET /ws?model=a HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Origin: https://evil.example\r\n\r\n"
        )
        refused = await (await world.connect(tcp=True)).request(raw)
        assert (refused.status, "cors_origins" in refused.json()["error"]["message"]) == (403, True)
        assert world.supervisor.count(LeaseRequest) == 0
        for client, sent in (
            (await world.connect(), raw),
            (await world.connect(tcp=True), raw.replace(b"https://evil.example", b"http://localhost")),
        ):
            client.writer.write(sent)
            call = await instance.call()
            call.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            assert (await client.reader.readline()).startswith(b"HTTP/1.1 101 ")
            client.close()

    stage(scenario)


PREFLIGHT = (
    b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example\r\n"
    b"Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type\r\n\r\n"
)


def test_pages_of_other_origins_are_told_nothing_unless_configured(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.auto = lambda call: call.answer(b"{}", "Access-Control-Allow-Origin: *")
        client = await world.connect()
        preflight = await client.request(PREFLIGHT)
        answer = await client.post(CHAT, {"model": "a"}, "Origin: https://chat.example")
        for response in (preflight, answer):
            assert not [name for name in response.headers if name.startswith("access-control")]

    stage(scenario)


def test_pages_of_a_configured_origin_may_ask_and_read(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.answer_all()
        client = await world.connect()
        await configure(world, cors_origins=("https://chat.example",))
        preflight = await client.request(PREFLIGHT)
        assert preflight.status == 200
        assert preflight.body == b""
        assert preflight.headers["access-control-allow-origin"] == "https://chat.example"
        assert preflight.headers["access-control-allow-credentials"] == "true"
        assert preflight.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
        assert preflight.headers["access-control-allow-headers"] == "content-type"
        for path in (CHAT, "/nothing"):  # relayed, and refused by the front itself
            answer = await client.post(path, {"model": "a"} if path == CHAT else b"{", "Origin: https://chat.example")
            assert answer.headers["access-control-allow-origin"] == "https://chat.example"
            assert answer.headers["vary"] == "Origin"
        foreign = await client.post(CHAT, {"model": "a"}, "Origin: https://evil.example")
        assert "access-control-allow-origin" not in foreign.headers
        assert foreign.headers["vary"] == "Origin"

    stage(scenario)


def refuse_unknown(world: Any) -> None:
    world.supervisor.replies[LeaseRequest] = lambda message: Failure(
        id=message.id, code="unknown_model", message="cannot find model", model=message.model
    )


def test_default_model_serves_requests_that_name_none_or_an_unknown_one(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        refuse_unknown(world)
        instance = await world.add_model("stand-in")
        client = await world.connect()
        assert (await client.post(CHAT, {})).status == 400
        assert (await client.post(CHAT, {"model": "gpt-4"})).status == 404
        await configure(world, default_model="stand-in")
        instance.answer_all(b"me")
        for body in ({}, {"model": "gpt-4"}, {"model": "gpt-4"}, {"model": None}):
            assert (await client.post(CHAT, body)).body == b"me"
        assert (await client.get("/slots")).body == b"me"
        asked = [message.model for message in world.supervisor.log if isinstance(message, LeaseRequest)]
        assert asked == ["gpt-4", "stand-in", "gpt-4"]
        assert (await client.post(CHAT, b"{")).status == 400
        assert (await client.get("/favicon.ico")).status == 404
        assert {line["model"] for line in world.events if line.get("status") == 200} == {"stand-in"}
        assert set(world.front.tally.models) == {"", "stand-in"}, "no name of a client's becomes a label"
        await configure(world)
        assert (await client.post(CHAT, {"model": "gpt-4"})).status == 404

    stage(scenario)


def test_name_that_was_unknown_is_asked_for_again_after_a_reload(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        refuse_unknown(world)
        (await world.add_model("stand-in")).answer_all(b"me")
        client = await world.connect()
        await configure(world, default_model="stand-in")
        assert (await client.post(CHAT, {"model": "new"})).body == b"me"
        (await world.add_model("new")).answer_all(b"new")
        assert (await client.post(CHAT, {"model": "new"})).body == b"me"
        world.supervisor.send(ModelsChanged(front=world.front.settings))
        while world.front.unknown_names:
            await asyncio.sleep(0)
        assert (await client.post(CHAT, {"model": "new"})).body == b"new"
        for number in range(5000):
            world.front.note_unknown(f"n{number}")
        assert len(world.front.unknown_names) <= 1024

    stage(scenario)


def test_default_model_that_does_not_exist_is_an_unknown_model(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        refuse_unknown(world)
        client = await world.connect()
        await configure(world, default_model="nobody")
        for body in ({}, {"model": "gpt-4"}):
            assert (await client.post(CHAT, body)).status == 404

    stage(scenario)


def test_looking_is_asked_for_as_such_beside_a_request_that_waits(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a", granted=False)
        waiting, looking = await world.connect(), await world.connect()
        waiting.writer.write(format_post(CHAT, {"model": "a"}))
        first = await world.supervisor.expect(LeaseRequest)
        looking.writer.write(b"GET /slots?model=a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        second = await world.supervisor.expect(LeaseRequest)
        assert (first.passive, second.passive, second.autoload) == (False, True, False)
        world.supervisor.send(Failure(id=second.id, code="not_loaded", message="cannot use 'a'", model="a"))
        assert (await looking.read_response()).status == 503
        instance.answer_all(b"served")
        world.supervisor.send(world.grant("a", request_id=first.id))
        assert (await waiting.read_response()).body == b"served"

    stage(scenario)
