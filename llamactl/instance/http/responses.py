"""How do the events of jobs reach a client that may leave at any moment? As ASGI responses that watch the connection
while they wait.

Jobs are cancelled as soon as the client is gone, and in any case when the response ends before they do. A
failure before the first text is an ordinary HTTP error; in a stream that has begun (with its first text, or with a
comment after a while) it is an `error` event without [DONE].
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.types import Receive, Scope, Send

from llamactl.endpoints import format_http_error
from llamactl.errors import RETRY_SOON_S, LlamactlError
from llamactl.instance.engine.jobs import (
    EmbeddingEvent,
    Event,
    FailureEvent,
    FinishEvent,
    Job,
    ProgressEvent,
    TextEvent,
)
from llamactl.instance.http.formats import Answer, AnswerFormat, encode_json
from llamactl.instance.http.parameters import QUIET_S

_JSON_HEADERS = [(b"content-type", b"application/json; charset=utf-8")]
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    # nginx would collect the events otherwise.
    (b"x-accel-buffering", b"no"),
]
_RETRY_HEADERS = [(b"retry-after", b"%d" % RETRY_SOON_S)]


class JobResponse:
    """Base of responses that wait for the jobs of one request, which share a mailbox. `cancel` frees a job's place in
    the engine.
    """

    def __init__(self, jobs: Sequence[Job], cancel: Callable[[Job], None]) -> None:
        self._jobs = jobs
        self._mailbox = jobs[0].mailbox
        self._cancel = cancel
        self._path = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._path = scope.get("path", "")
        answering = asyncio.ensure_future(self._answer(send))
        watching = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait((answering, watching), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            for job in self._jobs:
                self._cancel(job)
            for task in (answering, watching):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _answer(self, send: Send) -> None:
        raise NotImplementedError


class StreamedText(JobResponse):
    """Server-sent events, as the text comes. The texts of several choices come mixed."""

    def __init__(
        self,
        jobs: Sequence[Job],
        cancel: Callable[[Job], None],
        answer_format: AnswerFormat,
        quiet_s: float | None = QUIET_S,
    ) -> None:
        """`quiet_s`: after so long without an event there is a ping; None: never."""
        super().__init__(jobs, cancel)
        self._answer_format = answer_format
        self._quiet_s = quiet_s
        self._begun: set[int] = set()
        self._finishes: dict[int, FinishEvent] = {}

    async def _answer(self, send: Send) -> None:
        events = await self._mailbox.receive(self._quiet_s)
        failure = next((event for _, event in events if isinstance(event, FailureEvent)), None)
        if failure is not None:
            await send_error(send, failure.error, self._path)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        while True:
            chunk, ended = self._format_events(events) if events else (self._answer_format.ping, False)
            await send({"type": "http.response.body", "body": chunk, "more_body": not ended})
            if ended:
                return
            events = await self._mailbox.receive(self._quiet_s)

    def _format_events(self, events: list[tuple[int, Event]]) -> tuple[bytes, bool]:
        """All events at hand as one piece, and whether they were the last."""
        answer_format = self._answer_format
        chunks: list[bytes] = []
        for index, event in events:
            if isinstance(event, FailureEvent):
                return b"".join((*chunks, answer_format.fail(event.error, self._path))), True
            if isinstance(event, ProgressEvent):
                chunks.append(answer_format.progress(index, event))
                continue
            if index not in self._begun:
                self._begun.add(index)
                chunks.append(answer_format.first(index))
            if isinstance(event, TextEvent):
                chunks.append(answer_format.text(index, event))
            elif isinstance(event, FinishEvent):
                chunks.append(answer_format.last(index, event))
                self._finishes[index] = event
        ended = len(self._finishes) == len(self._jobs)
        if ended:
            chunks.append(answer_format.end([self._finishes[index] for index in range(len(self._jobs))]))
        return b"".join(chunks), ended


class WholeText(JobResponse):
    """One JSON object when all choices have ended."""

    def __init__(self, jobs: Sequence[Job], cancel: Callable[[Job], None], answer_format: AnswerFormat) -> None:
        super().__init__(jobs, cancel)
        self._answer_format = answer_format

    async def _answer(self, send: Send) -> None:
        parts: list[list[TextEvent]] = [[] for _ in self._jobs]
        finishes: dict[int, FinishEvent] = {}
        while len(finishes) < len(self._jobs):
            for index, event in await self._mailbox.receive():
                if isinstance(event, TextEvent):
                    parts[index].append(event)
                elif isinstance(event, FinishEvent):
                    finishes[index] = event
                elif isinstance(event, FailureEvent):
                    await send_error(send, event.error, self._path)
                    return
        answers = [Answer(finishes[index], parts[index]) for index in range(len(self._jobs))]
        await send_json(send, 200, self._answer_format.whole(answers))


class WholeEmbedding(JobResponse):
    """One JSON object with all vectors. `format_body` makes it of them."""

    def __init__(
        self, job: Job, cancel: Callable[[Job], None], format_body: Callable[[list[list[float]]], Any]
    ) -> None:
        super().__init__([job], cancel)
        self._format_body = format_body

    async def _answer(self, send: Send) -> None:
        for _, event in await self._mailbox.receive():
            if isinstance(event, EmbeddingEvent):
                await send_json(send, 200, self._format_body(event.vectors))
            elif isinstance(event, FailureEvent):
                await send_error(send, event.error, self._path)


async def send_json(send: Send, status: int, value: Any, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    """Send a whole response with a JSON body and its length."""
    body = encode_json(value)
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*_JSON_HEADERS, length, *(headers or [])]})
    await send({"type": "http.response.body", "body": body})


def send_error(send: Send, error: LlamactlError, path: str) -> Awaitable[None]:
    """In the form of the route."""
    status = error.kind.http_status
    return send_json(send, status, format_http_error(error, path), _RETRY_HEADERS if status == 503 else None)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has hung up; what it sends until then is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass
