"""How do a job's events reach a client that may leave at any moment? As ASGI responses that watch the connection
while they wait.

The job is cancelled as soon as the client is gone, and in any case when the response ends before the job does. A
failure before the first text is an ordinary HTTP error; in a stream that has begun it is an `error` event without
[DONE].
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.types import Receive, Scope, Send

from llamactl.errors import LlamactlError, format_http_error
from llamactl.instance.jobs import EmbeddingEvent, Event, FailureEvent, FinishEvent, Job, TextEvent
from llamactl.instance.shapes import DONE, Shape, encode_json, format_sse_error

_JSON_HEADERS = [(b"content-type", b"application/json; charset=utf-8")]
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    # nginx would collect the events otherwise.
    (b"x-accel-buffering", b"no"),
]
_RETRY_HEADERS = [(b"retry-after", b"1")]


class JobResponse:
    """Base of responses that wait for one job. `cancel` frees the job's place in the engine."""

    def __init__(self, job: Job, cancel: Callable[[Job], None]) -> None:
        self._job = job
        self._cancel = cancel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.ensure_future(self._answer(send))
        watching = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((answering, watching), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            self._cancel(self._job)
            for task in (answering, watching):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _answer(self, send: Send) -> None:
        raise NotImplementedError


class StreamedText(JobResponse):
    """Server-sent events, as the text comes."""

    def __init__(self, job: Job, cancel: Callable[[Job], None], shape: Shape, include_usage: bool) -> None:
        super().__init__(job, cancel)
        self._shape = shape
        self._include_usage = include_usage

    async def _answer(self, send: Send) -> None:
        events = await self._job.receive()
        if isinstance(events[0], FailureEvent):
            await send_error(send, events[0].error)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        chunk, ended = self._format(events)
        chunk = self._shape.first() + chunk
        while True:
            await send({"type": "http.response.body", "body": chunk, "more_body": not ended})
            if ended:
                return
            chunk, ended = self._format(await self._job.receive())

    def _format(self, events: list[Event]) -> tuple[bytes, bool]:
        """All events at hand as one piece, and whether they were the last."""
        chunks, ended = [], False
        for event in events:
            if isinstance(event, TextEvent):
                chunks.append(self._shape.text(event.text))
            elif isinstance(event, FinishEvent):
                chunks.append(self._shape.last(event))
                if self._include_usage:
                    chunks.append(self._shape.usage(event))
                chunks.append(DONE)
                ended = True
            elif isinstance(event, FailureEvent):
                chunks.append(format_sse_error(event.error))
                ended = True
        return b"".join(chunks), ended


class WholeText(JobResponse):
    """One JSON object when the generation has ended."""

    def __init__(self, job: Job, cancel: Callable[[Job], None], shape: Shape) -> None:
        super().__init__(job, cancel)
        self._shape = shape

    async def _answer(self, send: Send) -> None:
        parts: list[str] = []
        while True:
            for event in await self._job.receive():
                if isinstance(event, TextEvent):
                    parts.append(event.text)
                elif isinstance(event, FinishEvent):
                    await send_json(send, 200, self._shape.whole("".join(parts), event))
                    return
                elif isinstance(event, FailureEvent):
                    await send_error(send, event.error)
                    return


class WholeEmbedding(JobResponse):
    """One JSON object with all vectors. `format_body` makes it of them."""

    def __init__(
        self, job: Job, cancel: Callable[[Job], None], format_body: Callable[[list[list[float]]], dict[str, Any]]
    ) -> None:
        super().__init__(job, cancel)
        self._format_body = format_body

    async def _answer(self, send: Send) -> None:
        for event in await self._job.receive():
            if isinstance(event, EmbeddingEvent):
                await send_json(send, 200, self._format_body(event.vectors))
            elif isinstance(event, FailureEvent):
                await send_error(send, event.error)


async def send_json(send: Send, status: int, value: Any, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    body = encode_json(value)
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*_JSON_HEADERS, length, *(headers or [])]})
    await send({"type": "http.response.body", "body": body})


def send_error(send: Send, error: LlamactlError) -> Awaitable[None]:
    status = error.kind.http_status
    return send_json(send, status, format_http_error(error), _RETRY_HEADERS if status == 503 else None)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
