"""What the instance's HTTP server does beside its routes."""

import asyncio
import logging
from pathlib import Path

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from llamactl.instance.http_server import serve_http
from llamactl.sockets import bind_unix_socket
from llamactl.tasks import raise_in_loop

UPGRADE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def test_web_socket_is_answered_as_a_plain_request_and_nothing_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> bytes:
        listener = bind_unix_socket(tmp_path / "http.sock", 16)
        async with serve_http(listener, answer, raise_in_loop):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "http.sock"))
            writer.write(UPGRADE)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 15)
            writer.close()
        return head

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(run()).startswith(b"HTTP/1.1 404 ")
    assert caplog.records == []


def test_whoever_serves_is_told_of_an_error_that_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: uvicorn.Server, sockets: object = None) -> None:
        raise ValueError("spoilt")

    async def run() -> BaseException:
        told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        listener = bind_unix_socket(tmp_path / "http.sock", 16)
        with listener:
            async with serve_http(listener, object(), told.set_result):
                return await asyncio.wait_for(told, 30)

    monkeypatch.setattr(uvicorn.Server, "startup", fail)
    assert str(asyncio.run(run())) == "spoilt"
