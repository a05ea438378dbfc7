"""Both sides have the same routes, and who asks for another is told which one he may have meant."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from llamactl import endpoints
from llamactl.endpoints import format_http_error
from llamactl.errors import ERROR_TABLE, ErrorCode, LlamactlError
from llamactl.front.routes import PASSIVE, ROUTES
from llamactl.instance.engine.activity import Activity
from llamactl.instance.http.api import Api
from llamactl.settings import ModelSettings


def ask_instance(method: str, path: str) -> tuple[int, Any]:
    """The answer of an instance whose model still loads."""
    sent: list[Message] = []

    async def run() -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"{}"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}
        await Api(ModelSettings(name="m", path="/m.gguf"), Activity()).build_app()(scope, receive, send)

    asyncio.run(run())
    return sent[0]["status"], json.loads(sent[1]["body"])["error"]


@pytest.mark.parametrize(
    ("method", "paths"),
    [("POST", [*endpoints.GENERATIONS, *endpoints.TEXTS]), ("GET", list(endpoints.INTROSPECTION))],
)
def test_instance_answers_all_routes_of_the_table(method: str, paths: list[str]) -> None:
    for path in paths:
        assert ask_instance(method, path)[0] == 503, path
        other = "POST" if method == "GET" else "GET"
        assert ask_instance(other, path)[0] == 405, path


@pytest.mark.parametrize("path", ["/v1/moderations", "/v1/chat/completions/", "/", "/lora-adapters"])
def test_instance_has_no_other_route_and_does_not_redirect(path: str) -> None:
    status, error = ask_instance("POST", path)
    assert status == 404
    assert error["message"].startswith(f"cannot find '{path}': no such route; ")


def test_front_answers_routes_of_the_table() -> None:
    assert {path.decode() for path in ROUTES} <= {*endpoints.INTROSPECTION, *endpoints.ROUTER, endpoints.ROOT}
    assert {path.decode() for path in PASSIVE} <= set(endpoints.INTROSPECTION)


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/chat/completions/", "there is /v1/chat/completions"),
        ("//V1/Chat/Completions", "there is /v1/chat/completions"),
        ("/v1/v1/chat/completions", "there is /v1/chat/completions"),
        ("/v1/chat/completion", "there is /v1/chat/completions"),
        ("/v1/response", "there is /v1/responses"),
        ("/api/responses", "there is /v1/responses"),
        ("/v1/responses/other/cancel", "there is /v1/responses"),
        ("/messages", "there is /v1/messages"),
        ("/api/chat", "there is /v1/chat/completions"),
        ("/api/tags", "there is /v1/models"),
        ("/api/embed", "there is /v1/embeddings"),
        ("/v1/embedding", "there is /v1/embeddings"),
        ("/models/unloads", "there is /models/unload"),
        ("/v1/chat/complteions", "there is /v1/chat/completions"),
        ("/openai/deployments/x/chat/completions", "there is /v1/chat/completions"),
        ("/api/embeddings", "there is /v1/embeddings"),
        ("/v1/tokenize", "there is /tokenize"),
        ("/v1/models/qwen", "there is /v1/models"),
        ("/models/qwen", "there is /models"),
        ("/models/list", "there is /v1/models"),
        ("/slots/0", "there is /slots"),
        ("/prop", "there is /props"),
        ("/healthz", "there is /health"),
        ("/v1/moderations", "the usual ones are"),
        ("/v1/realtime", "the usual ones are"),
        ("/v1/videos", "the usual ones are"),
        ("/v1/modules", "the usual ones are"),
        ("/v1/threads/x/messages", "the usual ones are"),
        ("/slosh", "the usual ones are"),
        ("/favicon.ico", "the usual ones are"),
        ("/v1/images/generations", "the usual ones are"),
        ("/" + "x" * 100_000, "the usual ones are"),
    ],
)
def test_other_route_is_refused_with_what_comes_near(path: str, near: str) -> None:
    error = endpoints.refuse_route(path)
    assert error.kind.http_status == 404
    assert error.hint.startswith(near)
    assert len(str(error)) < 300


LLAMA_SERVER = {
    400: {"invalid_request_error", "exceed_context_size_error"},
    403: {"permission_error"},
    404: {"not_found_error"},
    500: {"server_error"},
    501: {"not_supported_error"},
    503: {"unavailable_error"},
}
"""The types that llama-server (format_error_response in server-common.cpp) gives with each status."""


@pytest.mark.parametrize("code", sorted(ErrorCode))
def test_error_has_the_form_of_its_route(code: ErrorCode) -> None:
    error = LlamactlError(code, "cannot use `messages[0]`: why", hint="do this", details={"n_ctx": 5})
    own = format_http_error(error, "/completion")["error"]
    assert own == {
        "code": error.kind.http_status,
        "message": "cannot use `messages[0]`: why; do this",
        "type": error.kind.type,
        "n_ctx": 5,
    }
    assert own["type"] in LLAMA_SERVER.get(own["code"], {own["type"]})
    openai = format_http_error(error, b"/v1/chat/completions")["error"]
    assert openai["code"] is None or openai["code"].isidentifier()
    field = "model" if code is ErrorCode.UNKNOWN_MODEL else "messages[0]"
    assert openai["param"] == (field if error.kind.http_status in (400, 404, 501) else None)
    assert {**openai, "code": own["code"]} == {**own, "param": openai["param"]}


def test_words_by_which_openais_clients_know_an_error() -> None:
    """openai/_exceptions.py, and what LiteLLM and LangChain look for."""
    words = {code: ERROR_TABLE[code].openai_code for code in ErrorCode if ERROR_TABLE[code].openai_code}
    assert words == {
        ErrorCode.CONTEXT_SIZE: "context_length_exceeded",
        ErrorCode.UNKNOWN_MODEL: "model_not_found",
        ErrorCode.QUEUE_FULL: "rate_limit_exceeded",
    }


@pytest.mark.parametrize(
    ("path", "is_openai"),
    [
        ("/v1/chat/completions", True),
        ("/v1/models/a", True),
        ("/v1/rerank", False),
        ("/v1/health", False),
        ("/completion", False),
        ("/chat/completions", False),
        ("", False),
    ],
)
def test_routes_whose_errors_are_openais(path: str, is_openai: bool) -> None:
    error = format_http_error(LlamactlError(ErrorCode.INVALID_REQUEST, "cannot"), path)["error"]
    assert (error["code"] is None) == is_openai


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("cannot use `top_k`: it is out of range", "top_k"),
        ("cannot read the request body: Expected `str`, got `int` - at `$.messages[0].role`", "messages[0].role"),
        ('cannot route request: "model" is not a string', "model"),
        ("cannot read the request body: Object missing required field `messages`", "messages"),
        (
            "cannot read the request body: Object missing required field `role` - at `$.messages[0]`",
            "messages[0].role",
        ),
        ("cannot take `input[2]`: request (9 tokens) exceeds", "input[2]"),
        ("cannot read body: not a JSON object: Expected `object`, got `array`", None),
        ("cannot make embeddings: 'm' generates text; set `pooling` in its configuration", None),
    ],
)
def test_field_that_an_error_is_about_is_named(message: str, param: str | None) -> None:
    error = LlamactlError(ErrorCode.INVALID_REQUEST, message)
    assert format_http_error(error, "/v1/completions")["error"]["param"] == param
