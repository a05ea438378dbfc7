"""What the front answers itself, as llama-server's router does, and what it passes on."""

from typing import Any

import msgspec
import pytest

from llamactl import endpoints
from llamactl.protocol.control_socket import (
    Done,
    Failure,
    IdleNotice,
    LeaseRequest,
    ListRequest,
    LoadRequest,
    MachineStatus,
    ModelList,
    ReloadRequest,
    ReloadResult,
    StatusRequest,
    UnloadRequest,
)
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.values import LoadFailure, State
from llamactl.settings import HttpControl
from tests.http_errors import check_error
from tests.socket.front.conftest import format_post
from tests.socket.front.test_guard import configure

MODELS = (
    ModelStatus(name="a", state=State.READY, aliases=("x/y",), path="/m/a.gguf"),
    ModelStatus(name="b", state=State.UNLOADED),
    ModelStatus(name="c", state=State.FAILED, failure=LoadFailure(result="exit-code", exit_code=1, message="bad")),
    ModelStatus(name="d", state=State.UNLOADED, invalid="no such file"),
    ModelStatus(name="e", state=State.UNLOADED, unlisted=True),
)


def list_models(message: ListRequest) -> Any:
    found = [model for model in MODELS if message.model in ("", model.name, *model.aliases)]
    if not found:
        return Failure(id=message.id, code="unknown_model", message="cannot find model")
    return ModelList(id=message.id, now_s=1, models=tuple(found))


async def set_up(world: Any) -> Any:
    replies = world.supervisor.replies
    replies[ListRequest] = list_models
    replies[LoadRequest] = lambda message: Done(id=message.id, model=message.model)
    replies[UnloadRequest] = lambda message: (
        Done(id=message.id)
        if message.model == "a"
        else Failure(id=message.id, code="not_loaded", message="cannot unload")
    )
    replies[ReloadRequest] = lambda message: ReloadResult(id=message.id)
    replies[StatusRequest] = lambda message: MachineStatus(
        id=message.id, llamactl="1", pid=1, since_s=0, now_s=0, devices=(), loaded=1, max_loaded=3, build="b5-x"
    )
    return await world.connect()


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
def test_models_are_listed(stage: Any, path: str) -> None:
    async def scenario(world: Any) -> None:
        client = await set_up(world)
        response = await client.get(path)
        assert response.headers["content-type"] == "application/json"
        listing = response.json()
        assert listing["object"] == "list"
        assert [(model["id"], model["status"]["value"]) for model in listing["data"]] == [
            ("a", "loaded"),
            ("b", "unloaded"),
            ("c", "unloaded"),
            ("d", "unloaded"),
        ]
        assert listing["data"][2]["status"]["exit_code"] == 1
        assert listing["data"][3]["status"]["failed"]
        assert world.supervisor.count(ReloadRequest) == 0
        assert (await client.get(path + "?reload=1")).json() == listing
        assert world.supervisor.count(ReloadRequest) == 1

    stage(scenario)


@pytest.mark.parametrize(
    ("control", "path", "is_open"),
    [
        (HttpControl.OPEN, "/models?reload=1", False),
        (HttpControl.OPEN, "/models/load", True),
        (HttpControl.OPEN, "/models/unload", True),
        (HttpControl.ADMIN, "/models/load", False),
        (HttpControl.ADMIN, "/models/unload", False),
    ],
)
def test_who_sends_over_tcp_may_do_what_anybody_may(stage: Any, control: HttpControl, path: str, is_open: bool) -> None:
    async def scenario(world: Any) -> None:
        await set_up(world)
        await configure(world, http_control=control)
        for is_tcp in (True, False):  # on the Unix socket it is root who asks
            client = await world.connect(tcp=is_tcp)
            answer = await (client.get(path) if "reload" in path else client.post(path, {"model": "b"}))
            if is_open or not is_tcp:
                assert answer.status != 403
                continue
            assert answer.status == 403
            check_error(answer.json()["error"], path.partition("?")[0], 403)
            assert "llamactl-admin" in answer.json()["error"]["message"]
            for kind in (ReloadRequest, LoadRequest, UnloadRequest):
                assert world.supervisor.count(kind) == 0

    stage(scenario)


def test_one_model_is_told_by_name_and_alias(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await set_up(world)
        assert (await client.get("/v1/models/b")).json()["id"] == "b"
        assert (await client.get("/v1/models/x%2Fy")).json()["id"] == "a"
        assert (await client.get("/v1/models/x/y")).json()["id"] == "a"
        assert (await client.get("/v1/models/e")).json()["id"] == "e", "unlisted, but there"
        missing = await client.get("/v1/models/zz")
        assert (missing.status, missing.json()["error"]["type"]) == (404, "not_found_error")

    stage(scenario)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/models/load", {"model": "b"}, 200),
        ("/models/load", {"model": "c"}, 200),
        ("/models/load", {"model": "a"}, 400),
        ("/models/load", {"model": "zz"}, 404),
        ("/models/load", {}, 400),
        ("/models/unload", {"model": "a"}, 200),
        ("/models/unload", {"model": "b"}, 400),
        ("/models/unload", {}, 400),
    ],
)
def test_models_are_loaded_and_unloaded(stage: Any, path: str, body: Any, status: int) -> None:
    async def scenario(world: Any) -> None:
        client = await set_up(world)
        response = await client.post(path, body)
        assert response.status == status
        if status == 200:
            assert response.json() == {"success": True}
            kind = LoadRequest if path.endswith("/load") else UnloadRequest
            assert not (await world.supervisor.expect(kind)).wait
        else:
            assert response.json()["error"]["code"] == status

    stage(scenario)


def test_health_and_props_are_the_routers(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await set_up(world)
        assert (await client.get("/health")).json() == {"status": "ok"}
        props = (await client.get("/props")).json()
        assert (props["role"], props["max_instances"], props["models_autoload"]) == ("router", 3, True)
        assert props["build_info"] == "b5-x"
        assert props["default_generation_settings"] == {"params": {}, "n_ctx": 0}

    stage(scenario)


@pytest.mark.parametrize(
    ("raw", "status", "allow"),
    [
        (b"DELETE /health HTTP/1.1", 405, "GET, HEAD, OPTIONS"),
        (b"DELETE /v1/models/a HTTP/1.1", 405, "GET, HEAD, OPTIONS"),
        (b"POST /v1/models/a%2Fb HTTP/1.1", 405, "GET, HEAD, OPTIONS"),
        (b"OPTIONS /v1/models/a HTTP/1.1", 204, "GET, HEAD, OPTIONS"),
        (b"POST /infill?model=a&autoload=maybe HTTP/1.1", 400, None),
        (b"GET /models/load HTTP/1.1", 405, "POST, OPTIONS"),
        (b"GET /v1/chat/completions HTTP/1.1", 405, "POST, OPTIONS"),
        (b"OPTIONS /models/load HTTP/1.1", 204, "POST, OPTIONS"),
        (b"OPTIONS * HTTP/1.1", 204, "GET, HEAD, POST, OPTIONS"),
        (b"GET /nothing HTTP/1.1", 404, None),
        (b"POST / HTTP/1.1", 405, "GET, HEAD, OPTIONS"),
        (b"GET /slots HTTP/1.1", 400, None),
        (b"POST /nothing HTTP/1.1", 404, None),
        (b"POST /v1/moderations HTTP/1.1", 404, None),
        (b"GET /v1/chat/completions?model=a HTTP/1.1", 405, "POST, OPTIONS"),
        (b"DELETE /v1/chat/completions HTTP/1.1", 405, "POST, OPTIONS"),
        (b"TRACE /tokenize HTTP/1.1", 405, "POST, OPTIONS"),
        (b"PUT /infill?model=a HTTP/1.1", 405, "POST, OPTIONS"),
        (b"POST /slots?model=a HTTP/1.1", 405, "GET, HEAD, OPTIONS"),
        (b"POST /props?model=a HTTP/1.1", 405, "GET, HEAD, OPTIONS"),
        (b"OPTIONS /v1/completions HTTP/1.1", 204, "POST, OPTIONS"),
        (b"OPTIONS /slots HTTP/1.1", 204, "GET, HEAD, OPTIONS"),
    ],
    ids=str,
)
def test_routes_and_methods_that_are_not_there(stage: Any, raw: bytes, status: int, allow: str | None) -> None:
    async def scenario(world: Any) -> None:
        client = await set_up(world)
        for _ in range(2):
            response = await client.request(raw + b"\r\nHost: localhost\r\n\r\n")
            assert response.status == status
            assert response.headers.get("allow") == allow
            if status >= 400:
                check_error(response.json()["error"], raw.split(b" ")[1].decode().partition("?")[0], status)
        assert world.supervisor.count(LeaseRequest) == 0

    stage(scenario)


def test_head_on_a_route_of_ours_has_no_body(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await set_up(world)
        client.writer.write(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        response = await client.read_response(to_head=True)
        assert response.headers["content-length"] == "15"
        assert (await client.get("/health")).status == 200

    stage(scenario)


@pytest.mark.parametrize("path", ["/props", "/slots", "/metrics", "/health"])
def test_looking_at_a_model_never_loads_it(stage: Any, path: str) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a", granted=False)
        client = await world.connect()
        client.writer.write(f"GET {path}?model=a&autoload=true HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        request = await world.supervisor.expect(LeaseRequest)
        assert not request.autoload
        world.supervisor.send(Failure(id=request.id, code="not_loaded", message="cannot look at 'a'"))
        response = await client.read_response()
        assert (response.status, response.json()["error"]["code"]) == (503, 503)
        assert response.json()["error"]["type"] == "unavailable_error"
        world.supervisor.grants["a"] = world.grant("a")
        instance.answer_all(b"look")
        assert (await client.get(f"{path}?model=a")).body == b"look"
        idle = await world.supervisor.expect(IdleNotice)
        assert idle.last_used_s == 0

    stage(scenario)


@pytest.mark.parametrize("path", ["/props", "/metrics"])
def test_model_that_sleeps_is_asked_without_a_lease(stage: Any, path: str) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a", granted=False)
        instance.answer_all(b"as it was")
        grant = world.grant("a")

        async def look(socket: str) -> Any:
            client = await world.connect()
            client.writer.write(f"GET {path}?model=a HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            request = await world.supervisor.expect(LeaseRequest)
            details = {"asleep": grant.generation, "socket": socket}
            failure = Failure(id=request.id, code="not_loaded", message="cannot use 'a'", model="a", details=details)
            world.supervisor.send(failure)
            return await client.read_response()

        for _ in range(2):
            answer = await look(grant.socket)
            assert (answer.status, answer.body) == (200, b"as it was")
        gone = await look(grant.socket + ".gone")
        assert gone.status == 503
        assert "socket" not in gone.body.decode(), "where it lies is nobody's business"
        assert not world.front.leases.leases()
        assert world.supervisor.count(IdleNotice) == 0

    stage(scenario)


def test_autoload_can_be_switched_off(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        client.writer.write(
            b'POST /infill?autoload=false HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\n{"model":"a"}'
        )
        request = await world.supervisor.expect(LeaseRequest)
        assert not request.autoload
        world.supervisor.send(Failure(id=request.id, code="not_loaded", message="cannot answer"))
        assert (await client.read_response()).status == 400

    stage(scenario)


def test_without_autoload_on_the_machine_only_requests_that_say_so_load(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await set_up(world)
        await configure(world, autoload=False)
        assert (await client.get("/props")).json()["models_autoload"] is False
        for query, loads in (("", False), ("?x=1", False), ("?autoload=false", False), ("?autoload=true", True)):
            for _ in range(2):
                client.writer.write(format_post(f"/v1/completions{query}", {"model": "b", "prompt": "x"}))
                request = await world.supervisor.expect(LeaseRequest)
                assert request.autoload is loads
                world.supervisor.send(Failure(id=request.id, code="not_loaded", message="cannot use 'b'"))
                refused = await client.read_response()
                assert (refused.status, refused.json()["error"]["message"]) == (400, "cannot use 'b'")

    stage(scenario)


@pytest.mark.parametrize("path", [*endpoints.GENERATIONS, *endpoints.TEXTS])
def test_model_is_loaded_for_the_routes_that_instances_have(stage: Any, path: str) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        client.writer.write(format_post(path, {"model": "a"}))
        assert (await world.supervisor.expect(LeaseRequest)).autoload

    stage(scenario)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/audio/speech"),
        ("POST", "/v1/moderations?autoload=true"),
        ("POST", "/api/chat"),
        ("POST", "/v1/images/generations"),
        ("POST", "/v1/chat/completions/"),
        ("GET", "/new/thing?model=a"),
        ("PUT", "/new/thing"),
        ("DELETE", "/slots/0?model=a"),
    ],
)
def test_no_model_is_loaded_for_a_route_that_instances_lack(stage: Any, method: str, target: str) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        for _ in range(2):
            client.writer.write(format_post(target, {"model": "a"}).replace(b"POST", method.encode(), 1))
            request = await world.supervisor.expect(LeaseRequest)
            assert (request.model, request.autoload) == ("a", False)
            world.supervisor.send(Failure(id=request.id, code="not_loaded", message="cannot use 'a'"))
            response = await client.read_response()
            error = response.json()["error"]
            assert (response.status, error["type"]) == (404, "not_found_error")
            check_error(error, target.partition("?")[0], 404)
            assert error["message"].startswith(f"cannot find '{target.partition('?')[0]}': no such route; ")

    stage(scenario)


@pytest.mark.parametrize("size", [129, 50_000, 200_000])
@pytest.mark.parametrize("default", ["", "a"])
def test_name_that_is_too_long_for_any_model_is_told_so(stage: Any, size: int, default: str) -> None:
    async def scenario(world: Any) -> None:
        (await world.add_model("a")).answer_all(b"default")
        await configure(world, default_model=default)
        name = "n" * size
        form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--b--\r\n' % name.encode()
        posts = [
            format_post("/infill", {"model": name}),
            format_post("/infill", form, "Content-Type: multipart/form-data; boundary=b"),
        ]
        if not default and size < 10_000:
            posts += [
                format_post("/models/load", {"model": name}),
                format_post("/models/unload", {"model": name}),
                f"GET /v1/models/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
            ]
        for post in posts:
            response = await (await world.connect()).request(post)
            if default:
                assert response.body == b"default"
            else:
                message = response.json()["error"]["message"]
                assert (response.status, "at most 128 characters" in message, len(message) < 200) == (404, True, True)
        assert not any(len(name) > 128 for name in world.front.unknown_names)
        assert all(getattr(message, "model", "a") == "a" for message in world.supervisor.log)

    stage(scenario)


def test_unknown_routes_reach_the_model_that_they_name(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        for method, target, body in (
            ("PUT", "/new/thing?a=b", b'{"model":"a"}'),
            ("GET", "/new/thing?model=a&z=%20", b""),
            ("DELETE", "/slots/0?model=a", b""),
        ):
            client.writer.write(
                f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            )
            call = await instance.call()
            assert (call.request.method, call.request.target, call.request.body) == (method, target, body)
            call.answer(b"{}", "Connection: close")
            assert (await client.read_response()).status == 200

    stage(scenario)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"model":1}', b"{}", b"\xff"])
def test_body_that_names_no_model_is_a_400(stage: Any, body: bytes) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        response = await client.post("/v1/chat/completions", body)
        assert response.status == 400
        assert msgspec.json.decode(response.body)["error"]["type"] == "invalid_request_error"
        assert (await client.get("/health")).status == 200
        assert world.supervisor.count(LeaseRequest) == 0

    stage(scenario)
