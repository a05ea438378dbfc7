"""Which routes does an instance have on its socket, and who answers while the model still loads?

The app listens before the model is there: until `service` is set, everything answers 503 "Loading model", in
llama-server's words. Requests that use the engine are counted from their first byte to their last (`Activity`): that
count decides whether an order to stop finds the instance busy, and from an accepted order on, new ones are refused.
"""

import asyncio
import base64
import itertools
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llamactl import endpoints
from llamactl.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    GenerationBody,
    InfillBody,
    NativeEmbeddingBody,
    RerankBody,
    TemplateBody,
    TokenizeBody,
    parse_body,
    refuse,
)
from llamactl.dialects import messages_chat, responses, responses_chat
from llamactl.dialects.common import rename_fields
from llamactl.dialects.messages import CountBody, MessagesBody
from llamactl.dialects.messages_chat import convert_messages
from llamactl.dialects.responses import ResponsesBody
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.engine.activity import Activity
from llamactl.instance.engine.embed import normalize_as
from llamactl.instance.engine.jobs import EmbeddingRequest, Job
from llamactl.instance.http import transcriptions
from llamactl.instance.http.chat_format import ChatFormat
from llamactl.instance.http.formats import AnswerFormat, CompletionFormat, NativeFormat, encode_json, format_ranking
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
from llamactl.instance.http.messages import MessagesFormat
from llamactl.instance.http.openai_responses import ResponseSettings, ResponsesFormat
from llamactl.instance.http.parameters import choose_norm, choose_quiet_s
from llamactl.instance.http.responses import StreamedText, WholeEmbedding, WholeText, send_error, wait_for_disconnect
from llamactl.instance.http.service import Service
from llamactl.instance.http.stored import ResponseStore, list_input
from llamactl.settings import ModelSettings

_T = TypeVar("_T")
Handler = Callable[[Request], Awaitable[Any]]


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
        handlers: dict[str, Handler] = {
            "chat": self._answer_chat,
            "completion": self._answer_completion,
            "native_completion": self._answer_native,
            "infill": self._answer_infill,
            "transcription": self._answer_transcription,
            "messages": self._answer_messages,
            "responses": self._answer_responses,
            "embedding": self._answer_embedding,
            "native_embedding": self._answer_native_embedding,
            "ranking": self._answer_ranking,
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "template": self._apply_template,
            "count_chat": self._count_chat,
            "count_messages": self._count_messages,
            "count_responses": self._count_responses,
            "response": self._tell_response,
            "response_input": self._list_response_input,
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
            raise LlamactlError(ErrorCode.SHUTTING_DOWN, "Loading model")
        return self.service

    # --- generation -------------------------------------------------------------------------------

    async def _answer_chat(self, request: Request) -> Any:
        service = self._require_service()
        body = parse_body(await request.body(), ChatBody)
        jobs, options = await _stay(request, service.submit_chat(body))
        return _choose_response(service, jobs, ChatFormat(options), body)

    async def _answer_completion(self, request: Request) -> Any:
        service = self._require_service()
        body = parse_body(await request.body(), CompletionBody)
        jobs, options = await _stay(request, service.submit_completion(body))
        return _choose_response(service, jobs, CompletionFormat(options), body)

    async def _answer_native(self, request: Request) -> Any:
        service = self._require_service()
        body = parse_body(await request.body(), CompletionBody)
        jobs, options = await _stay(request, service.submit_completion(body))
        return _choose_response(service, jobs, NativeFormat(options), body)

    async def _answer_infill(self, request: Request) -> Any:
        service = self._require_service()
        body = parse_body(await request.body(), InfillBody)
        jobs, options = await _stay(request, service.submit_infill(body))
        return _choose_response(service, jobs, NativeFormat(options), body)

    async def _answer_transcription(self, request: Request) -> Any:
        service = self._require_service()
        fields = transcriptions.parse_form(request.headers.get("content-type", ""), await request.body())
        chat = transcriptions.make_chat(fields)
        jobs, options = await _stay(request, _name_errors(service.submit_chat(chat), transcriptions.FIELDS))
        return _choose_response(service, jobs, transcriptions.TranscriptionFormat(options), chat)

    async def _answer_messages(self, request: Request) -> Any:
        service = self._require_service()
        body = parse_body(await request.body(), MessagesBody)
        chat = await service.later_system.settle(convert_messages(body))
        jobs, options = await _stay(request, _name_errors(service.submit_chat(chat), messages_chat.FIELDS))
        return _choose_response(service, jobs, MessagesFormat(options, body), chat)

    async def _answer_responses(self, request: Request) -> Any:
        service = self._require_service()
        data = await request.body()
        body = parse_body(data, ResponsesBody)
        conversion = self._responses.convert(body)
        chat = await service.later_system.settle(conversion.chat)
        jobs, options = await _stay(request, _name_errors(service.submit_chat(chat), responses_chat.FIELDS))
        keep = None if body.store is False else self._responses.make_keep(body, conversion, len(data))
        answer_format = ResponsesFormat(options, ResponseSettings(body, conversion, service.sampling, keep))
        return _choose_response(service, jobs, answer_format, chat)

    async def _answer_embedding(self, request: Request) -> Any:
        service = self._require_service()
        body = parse_body(await request.body(), EmbeddingBody)
        job, n_tokens = await service.submit_embedding(body)

        def format_body(vectors: list[list[float]]) -> dict[str, Any]:
            if body.dimensions is not None:
                # Models made for it have what matters first; a shortened vector gets the norm once more.
                vectors = [normalize_as(vector[: body.dimensions], choose_norm(body)) for vector in vectors]
            as_base64 = body.encoding_format == "base64"
            data = [
                {"object": "embedding", "index": index, "embedding": _encode_vector(vector) if as_base64 else vector}
                for index, vector in enumerate(vectors)
            ]
            usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
            return {"object": "list", "model": self._settings.name, "data": data, "usage": usage}

        return WholeEmbedding(job, service.engine.cancel, format_body)

    async def _answer_native_embedding(self, request: Request) -> Any:
        service = self._require_service()
        body = parse_body(await request.body(), NativeEmbeddingBody)
        job, _ = await service.submit_embedding(
            EmbeddingBody(input=body.choose_texts(), embd_normalize=body.embd_normalize), by_token=True
        )

        def format_body(vectors: list[list[float]]) -> list[dict[str, Any]]:
            if service.embeds_tokens:
                assert isinstance(job.request, EmbeddingRequest)
                rest = iter(vectors)
                return [
                    {"index": index, "embedding": list(itertools.islice(rest, len(tokens)))}
                    for index, tokens in enumerate(job.request.inputs)
                ]
            return [{"index": index, "embedding": [vector]} for index, vector in enumerate(vectors)]

        return WholeEmbedding(job, service.engine.cancel, format_body)

    async def _answer_ranking(self, request: Request) -> Any:
        service = self._require_service()
        body = parse_body(await request.body(), RerankBody)
        given = body.documents if body.documents is not None else body.texts or []
        documents = [document if isinstance(document, str) else document.text for document in given]
        job, n_tokens = await service.submit_ranking(body, documents)

        def format_body(scores: list[list[float]]) -> Any:
            return format_ranking(self._settings.name, body, documents, [values[0] for values in scores], n_tokens)

        return WholeEmbedding(job, service.engine.cancel, format_body)

    # --- texts and tokens -------------------------------------------------------------------------

    async def _tokenize(self, request: Request) -> Response:
        service = self._require_service()
        body = parse_body(await request.body(), TokenizeBody)
        parts = [body.content] if isinstance(body.content, str) else body.content
        tokenizing = service.prompts.tokenize_parts(
            parts, add_special=body.add_special, parse_special=body.parse_special
        )
        tokens = await _stay(request, tokenizing)
        if not body.with_pieces:
            return _answer_json({"tokens": tokens})
        return _answer_json({"tokens": [{"id": token, "piece": _show_piece(service, token)} for token in tokens]})

    async def _detokenize(self, request: Request) -> Response:
        service = self._require_service()
        body = parse_body(await request.body(), DetokenizeBody)
        service.prompts.check_tokens(body.tokens)
        return _answer_json({"content": service.vocabulary.detokenize(body.tokens)})

    async def _apply_template(self, request: Request) -> Response:
        service = self._require_service()
        body = parse_body(await request.body(), TemplateBody)
        return _answer_json({"prompt": await _stay(request, service.write_prompt(body.as_chat()))})

    async def _count_chat(self, request: Request) -> Response:
        service = self._require_service()
        body = parse_body(await request.body(), ChatBody)
        n_tokens = await _stay(request, service.count_tokens(body))
        return _answer_json({"object": "response.input_tokens", "input_tokens": n_tokens})

    async def _count_messages(self, request: Request) -> Response:
        service = self._require_service()
        body = parse_body(await request.body(), CountBody)
        chat = await service.later_system.settle(convert_messages(body))
        counting = _name_errors(service.count_tokens(chat), messages_chat.FIELDS)
        return _answer_json({"input_tokens": await _stay(request, counting)})

    async def _count_responses(self, request: Request) -> Response:
        service = self._require_service()
        body = parse_body(await request.body(), responses.CountBody)
        chat = await service.later_system.settle(self._responses.convert(body).chat)
        n_tokens = await _stay(request, _name_errors(service.count_tokens(chat), responses_chat.FIELDS))
        return _answer_json({"object": "response.input_tokens", "input_tokens": n_tokens})

    # --- what is kept -----------------------------------------------------------------------------

    async def _tell_response(self, request: Request) -> Response:
        response_id = _read_response_id(request)
        if request.method == "DELETE":
            self._responses.remove(response_id)
            return _answer_json({"id": response_id, "object": "response", "deleted": True})
        if request.query_params.get("stream", "false") != "false":
            raise refuse("cannot use `stream`: what is kept of a response is its end")
        return _answer_json(self._responses.require(response_id).response)

    async def _list_response_input(self, request: Request) -> Response:
        stored = self._responses.require(_read_response_id(request))
        return _answer_json(list_input(stored, request.query_params))

    # --- the instance itself ----------------------------------------------------------------------

    async def _show_health(self, _request: Request) -> Response:
        if self._last_words is None:
            self._require_service()
        return _answer_json({"status": "ok"})

    async def _list_models(self, _request: Request) -> Response:
        if self._last_words is not None:
            return _answer_json(self._last_words.listing)
        return _answer_json(format_listing(self._require_service()))

    async def _show_props(self, _request: Request) -> Response:
        if self._last_words is not None:
            return _answer_json(self._last_words.props)
        return _answer_json(format_props(self._require_service()))

    async def _show_slots(self, _request: Request) -> Response:
        return _answer_json(format_slots(self._require_service()))

    async def _show_metrics(self, _request: Request) -> Response:
        words = self._last_words
        text = format_metrics(words.figures if words is not None else read_figures(self._require_service()))
        # llama-server's: whoever sees counters begin again learns why.
        headers = {"Process-Start-Time-Unix": str(self._started_s)}
        return Response(text, media_type=METRICS_TYPE, headers=headers)


async def _stay(request: Request, submitting: Coroutine[Any, Any, _T]) -> _T:
    """The result, unless the client leaves first: what is not submitted by then never is."""
    task = asyncio.ensure_future(submitting)
    watching = asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait((task, watching), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watching.cancel()


def _read_response_id(request: Request) -> str:
    return f"resp_{request.path_params['rest']}"


async def _name_errors(answering: Coroutine[Any, Any, _T], fields: dict[str, str]) -> _T:
    """What is said to a chat that came in other words. Errors name its fields as the client does."""
    try:
        return await answering
    except LlamactlError as error:
        raise rename_fields(error, fields) from None


def _choose_response(
    service: Service, jobs: Sequence[Job], answer_format: AnswerFormat, body: GenerationBody
) -> StreamedText | WholeText:
    if body.stream:
        return StreamedText(jobs, service.engine.cancel, answer_format, choose_quiet_s(body))
    return WholeText(jobs, service.engine.cancel, answer_format)


def _answer_json(value: Any, status: int = 200) -> Response:
    return Response(encode_json(value), status_code=status, media_type="application/json; charset=utf-8")


def _show_piece(service: Service, token: int) -> str | list[int]:
    """Text, or the bytes where they are no text, as llama-server answers."""
    piece = service.vocabulary.piece(token, special=True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _encode_vector(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


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
