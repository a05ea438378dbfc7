"""What becomes of a request that is not submitted yet when its client leaves, or when the process ends?"""

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from llamactl.instance.engine.activity import Activity
from llamactl.instance.http.api import Api
from llamactl.instance.http.requests import stay
from llamactl.settings import ModelSettings

SCOPE: dict[str, Any] = {"type": "http", "path": "/completion", "method": "POST", "headers": []}


async def never_receive() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def cancel_request(app: Any, begun: asyncio.Event, activity: Activity) -> list[Message]:
    """What is sent by a request that the server calls off once it has begun."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    api = Api(ModelSettings(name="m", path="/m.gguf"), activity)
    counted = api._count_requests(app, frozenset({"/completion"}))
    task = asyncio.ensure_future(counted(SCOPE, never_receive, send))
    await begun.wait()
    assert activity.n_busy == 1
    task.cancel()
    await asyncio.wait((task,))
    sent.append({"type": "cancelled" if task.cancelled() else "returned"})
    return sent


def test_request_called_off_before_its_answer_is_told_so_without_a_traceback() -> None:
    async def run() -> None:
        begun, activity = asyncio.Event(), Activity()

        async def hang(scope: Scope, receive: Receive, send: Send) -> None:
            begun.set()
            await asyncio.Event().wait()

        start, body, end = await cancel_request(hang, begun, activity)
        assert start["status"] == 503
        assert "stopping" in json.loads(body["body"])["error"]["message"]
        assert end["type"] == "returned"
        assert activity.n_busy == 0

    asyncio.run(run())


def test_answer_that_has_begun_is_not_completed_when_it_is_called_off() -> None:
    async def run() -> None:
        begun = asyncio.Event()

        async def hang(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            begun.set()
            await asyncio.Event().wait()

        sent = await cancel_request(hang, begun, Activity())
        assert [message["type"] for message in sent] == ["http.response.start", "returned"]

    asyncio.run(run())


def test_request_is_dropped_when_its_client_leaves_before_it_is_submitted() -> None:
    async def run() -> None:
        ended = asyncio.Event()

        async def submit() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        with pytest.raises(ClientDisconnect):
            await stay(Request(SCOPE, receive), submit())
        await asyncio.wait_for(ended.wait(), 30)

    asyncio.run(run())


def test_result_and_errors_of_a_client_that_stays_are_its_own() -> None:
    async def run() -> None:
        async def submit(text: str) -> int:
            await asyncio.sleep(0)
            return int(text)

        assert await stay(Request(SCOPE, never_receive), submit("5")) == 5
        with pytest.raises(ValueError, match="word"):
            await stay(Request(SCOPE, never_receive), submit("word"))

    asyncio.run(run())
