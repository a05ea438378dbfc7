"""Both sides have the same routes, and who asks for another is told which one he may have meant."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from llamactl import endpoints
from llamactl.front.routes import LOOKUPS, ROUTES
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
    [("POST", [*endpoints.GENERATIONS, *endpoints.TEXTS]), ("GET", list(endpoints.LOOKS))],
)
def test_instance_answers_all_routes_of_the_table(method: str, paths: list[str]) -> None:
    for path in paths:
        assert ask_instance(method, path)[0] == 503, path
        other = "POST" if method == "GET" else "GET"
        assert ask_instance(other, path)[0] == 405, path


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions/", "/", "/lora-adapters"])
def test_instance_has_no_other_route_and_does_not_redirect(path: str) -> None:
    status, error = ask_instance("POST", path)
    assert status == 404
    assert error["message"].startswith(f"cannot find '{path}': no such route; ")


def test_front_answers_routes_of_the_table() -> None:
    assert {path.decode() for path in ROUTES} <= {*endpoints.LOOKS, *endpoints.ROUTER}
    assert {path.decode() for path in LOOKUPS} <= set(endpoints.LOOKS)


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/chat/completions/", "there is /v1/chat/completions"),
        ("//V1/Chat/Completions", "there is /v1/chat/completions"),
        ("/v1/v1/chat/completions", "there is /v1/chat/completions"),
        ("/v1/chat/completion", "there is /v1/chat/completions"),
        ("/v1/responses", "there is /v1/chat/completions"),
        ("/v1/messages", "there is /v1/chat/completions"),
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
