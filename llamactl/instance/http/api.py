"""Which routes does an instance have on its socket, and who answers while the model still loads?

The app listens before the model is there: until `service` is set, everything answers 503 "Loading model", in
llama-server's words. Requests that use the engine are counted from their first byte to their last (`Activity`): that
count decides whether an order to stop finds the instance busy, and from an accepted order on, new ones are refused.
"""

import asyncio
import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llamactl import endpoints
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.engine.activity import Activity
from llamactl.instance.http.generations import Generations
from llamactl.instance.http.introspection import (
    METRICS_TYPE,
    LastWords,
    format_listing,
    format_metrics,
    format_props,
    format_slots,
    keep_last_words,
    read_figures,
)
from llamactl.instance.http.requests import Handler, RequestReader, answer_json
from llamactl.instance.http.responses import send_error
from llamactl.instance.http.service import Service
from llamactl.instance.http.stored import ResponseStore
from llamactl.instance.http.texts import Texts
from llamactl.instance.http.unknown_fields import FieldWatch
from llamactl.instance.http.vectors import Vectors
from llamactl.settings import ModelSettings


class Api:
    """The routes of one instance. `service` is set when the model is ready."""

    def __init__(self, settings: ModelSettings, activity: Activity) -> None:
        self._settings = settings
        self._activity = activity
        self._started_s = int(time.time())
        self.service: Service | None = None
        self._last_words: LastWords | None = None
        """Of a model that sleeps, or wakes."""
        self._responses = ResponseStore()

    def begin_service(self, service: Service) -> None:
        """The model is ready."""
        self.service, self._last_words = service, None

    def end_service(self) -> Service | None:
        """The model falls asleep: looks are answered as of now until it has woken, everything else is refused."""
        service, self.service = self.service, None
        if service is not None:
            self._last_words = keep_last_words(service)
        return service

    def build_app(self) -> ASGIApp:
        """Build the ASGI application with all routes of instances."""
        reader = RequestReader(self._require_service, FieldWatch(self._settings.name))
        handlers: dict[str, Handler] = {
            **Generations(reader, self._responses).handlers,
            **Vectors(reader).handlers,
            **Texts(reader, self._responses).handlers,
            "health": self._show_health,
            "models": self._list_models,
            "props": self._show_props,
            "slots": self._show_slots,
            "metrics": self._show_metrics,
        }
        posts = {**endpoints.GENERATIONS, **endpoints.TEXTS}
        app = Starlette(
            routes=[
                *(Route(path, handlers[word], methods=["POST"]) for path, word in posts.items()),
                *(Route(path, handlers[word], methods=["GET"]) for path, word in endpoints.INTROSPECTION.items()),
                Route(endpoints.RESPONSE, handlers["response"], methods=["GET", "DELETE"]),
                Route(f"{endpoints.RESPONSE}/input_items", handlers["response_input"], methods=["GET"]),
            ],
            exception_handlers={
                LlamactlError: _handle_error,
                HTTPException: _handle_http_exception,
                ClientDisconnect: _handle_disconnect,
                Exception: _handle_bug,
            },
        )
        app.router.redirect_slashes = False  # a POST that is redirected is a GET to many a client
        return self._count_requests(app, frozenset(endpoints.GENERATIONS))

    def _count_requests(self, app: ASGIApp, paths: frozenset[str]) -> ASGIApp:
        activity = self._activity

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] not in paths:
                await app(scope, receive, send)
                return
            if activity.is_refusing:
                await send_error(
                    send,
                    LlamactlError(ErrorCode.SHUTTING_DOWN, f"the instance is {activity.describe()}"),
                    scope["path"],
                )
                return
            activity.begin()
            has_begun = False

            async def watched(message: Message) -> None:
                nonlocal has_begun
                has_begun = True
                await send(message)

            try:
                await app(scope, receive, watched)
            except asyncio.CancelledError:
                # The server's patience at the end of the process is over; a traceback would tell nobody anything. An
                # answer that has begun is left without its end, and the server closes the connection for that.
                if not has_begun:
                    await send_error(
                        send, LlamactlError(ErrorCode.SHUTTING_DOWN, "the instance is stopping"), scope["path"]
                    )
            finally:
                activity.end()

        return counted

    def _require_service(self) -> Service:
        if self.service is None:
            why = "Loading model" if self._last_words is None else "the instance is asleep"
            raise LlamactlError(ErrorCode.SHUTTING_DOWN, why)
        return self.service

    # --- the instance itself ----------------------------------------------------------------------

    async def _show_health(self, _request: Request) -> Response:
        if self._last_words is None:
            self._require_service()
        return answer_json({"status": "ok"})

    async def _list_models(self, _request: Request) -> Response:
        if self._last_words is not None:
            return answer_json(self._last_words.listing)
        return answer_json(format_listing(self._require_service()))

    async def _show_props(self, _request: Request) -> Response:
        if self._last_words is not None:
            return answer_json(self._last_words.props)
        return answer_json(format_props(self._require_service()))

    async def _show_slots(self, _request: Request) -> Response:
        return answer_json(format_slots(self._require_service()))

    async def _show_metrics(self, _request: Request) -> Response:
        words = self._last_words
        text = format_metrics(words.figures if words is not None else read_figures(self._require_service()))
        # llama-server's: whoever sees counters begin again learns why.
        headers = {"Process-Start-Time-Unix": str(self._started_s)}
        return Response(text, media_type=METRICS_TYPE, headers=headers)


class _ErrorResponse:
    def __init__(self, error: LlamactlError) -> None:
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_error(send, self._error, scope["path"])


# Handlers are coroutines because Starlette runs plain functions on a pool of forty threads.


async def _handle_error(_request: Request, error: Exception) -> Any:
    assert isinstance(error, LlamactlError)
    return _ErrorResponse(error)


async def _handle_http_exception(request: Request, error: Exception) -> Any:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message = f"{request.method} is not a method of {request.url.path}"
        return _ErrorResponse(LlamactlError(ErrorCode.METHOD_NOT_ALLOWED, message))
    return _ErrorResponse(endpoints.refuse_route(request.url.path))


async def _handle_bug(_request: Request, error: Exception) -> Any:
    """The exception itself is raised again by Starlette and ends in the log."""
    return _ErrorResponse(LlamactlError(ErrorCode.INTERNAL, f"unexpected {type(error).__name__}"))


async def _handle_disconnect(_request: Request, _error: Exception) -> Response:
    """Nobody reads it: the client left while it sent its body."""
    return Response(status_code=400)
