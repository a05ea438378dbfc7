"""Which routes are there, what is one told who asks for another, and how does an error look on each?

One table for both sides: an instance answers what stands here, and the front loads a model for nothing else. The words
name the handlers; routes with the same word are one.
"""

import base64
import re
from contextlib import suppress
from typing import Any

from llamactl.errors import ErrorCode, LlamactlError

GENERATIONS = {
    "/v1/chat/completions": "chat",
    "/chat/completions": "chat",
    "/v1/completions": "completion",
    "/completion": "native_completion",
    "/completions": "native_completion",
    "/v1/responses": "responses",
    "/responses": "responses",
    "/v1/messages": "messages",
    "/v1/audio/transcriptions": "transcription",
    "/audio/transcriptions": "transcription",
    "/infill": "infill",
    "/v1/embeddings": "embedding",
    "/embedding": "native_embedding",
    "/embeddings": "native_embedding",
    "/v1/rerank": "ranking",
    "/v1/reranking": "ranking",
    "/rerank": "ranking",
    "/reranking": "ranking",
}
"""POST: the model computes."""

TEXTS = {
    "/tokenize": "tokenize",
    "/detokenize": "detokenize",
    "/apply-template": "template",
    "/v1/chat/completions/input_tokens": "count_chat",
    "/chat/completions/input_tokens": "count_chat",
    "/v1/responses/input_tokens": "count_responses",
    "/responses/input_tokens": "count_responses",
    "/v1/messages/count_tokens": "count_messages",
}
"""POST: answered from the model's vocabulary and template."""

INTROSPECTION = {
    "/health": "health",
    "/v1/health": "health",
    "/v1/models": "models",
    "/models": "models",
    "/props": "props",
    "/slots": "slots",
    "/metrics": "metrics",
}
"""GET: what an instance says of itself."""

ROUTER = ("/models/load", "/models/unload", "/models/sse")
"""Answered by the front alone, besides what it has in common with INTROSPECTION."""

INSTANCE = frozenset(path.encode() for path in (*GENERATIONS, *TEXTS, *INTROSPECTION))
"""What an instance has, as it stands in a request."""

RESPONSE = "/v1/responses/resp_{rest}"
"""GET, DELETE: a response that an instance keeps; below it the items of its input."""

ROOT = "/"
"""Of the front: whether somebody is at home."""

MAX_SHOWN = 80
_ALL = (*GENERATIONS, *TEXTS, *INTROSPECTION, *ROUTER)
_CHAT, _MODELS = "/v1/chat/completions", "/v1/models"
_ELSEWHERE = {
    "chat": _CHAT,
    "conversations": _CHAT,
    "generate": "/v1/completions",
    "complete": "/v1/completions",
    "embed": "/v1/embeddings",
    "tags": _MODELS,
    "ps": _MODELS,
    "show": _MODELS,
    "models/list": _MODELS,
    "healthz": "/health",
    "livez": "/health",
    "readyz": "/health",
    "healthcheck": "/health",
}
"""What other servers call it, behind their prefix."""
_PREFIX = re.compile(r"\A(?:/(?:api|openai|v\d+\w*)(?=/|$))*")
"""What servers put before the same names."""


_STORED = re.compile(r"/v1/responses/resp_[0-9a-f]{48}_([\w-]{1,700})(?:/input_items)?", re.ASCII)
_OPENAI = "/v1/"
_ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's words by status; of others `invalid_request_error` below 500 and `api_error` from there on."""
_CLIENTS = (400, 404, 501)
"""Statuses of errors that are about what the client has sent."""
_NOT_OPENAI = frozenset({"/v1/rerank", "/v1/reranking", "/v1/health"})
_MISSING = re.compile(r"missing required field `(\w+)`(?: - at `\$\.([\w.\[\]]+)`)?")
_FIELD = re.compile(r"at `\$\.([\w.\[\]]+)`|\Acannot (?:use|take|read|route request:) [`\"]([\w.\[\]]+)[`\"]")
"""Of the request, as messages name it."""


def is_anthropics(path: str | bytes) -> bool:
    """Whether a route speaks as Anthropic's do: also of its errors, which streams name as such."""
    return (path.decode("latin-1") if isinstance(path, bytes) else path) in _ANTHROPIC


def find_keeper(path: bytes) -> str | None:
    """The model that keeps a response, whose name is in the id of it; None: that is no response's path."""
    stored = _STORED.fullmatch(path.decode("latin-1"))
    if stored is None:
        return None
    with suppress(ValueError):
        return base64.urlsafe_b64decode(stored[1] + "=" * (-len(stored[1]) % 4)).decode() or None
    return None


def format_http_error(error: LlamactlError, path: str | bytes = "", status: int = 0) -> dict[str, Any]:
    """The body of an error, as the route's clients know it, plus our details.

    Anthropic's routes have its own form. llama-server's is `{"error": {"code": <HTTP status>, "message", "type"}}`. On
    OpenAI's routes `code` is a word or null, and `param` the field that the message names. `status`: other than the
    error's own.
    """
    path = path.decode("latin-1") if isinstance(path, bytes) else path
    status = status or error.kind.http_status
    if path in _ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {**error.details, "type": kind, "message": str(error)}}
    body: dict[str, Any] = {"code": status, "message": str(error), "type": error.kind.type}
    if path.startswith(_OPENAI) and path not in _NOT_OPENAI:
        param = "model" if error.code is ErrorCode.UNKNOWN_MODEL else _find_field(error.message)
        body |= {"code": error.kind.openai_code, "param": param if status in _CLIENTS else None}
    body.update({key: value for key, value in error.details.items() if key not in body})
    return {"error": body}


def _find_field(message: str) -> str | None:
    missing = _MISSING.search(message)
    if missing is not None:
        return ".".join(name for name in (missing[2], missing[1]) if name)
    field = _FIELD.search(message)
    return None if field is None else next(name for name in field.groups() if name)


def refuse_route(path: str) -> LlamactlError:
    """The answer to a request for a route that is not there, with what comes near."""
    if find_keeper(path.encode("latin-1", "replace")) is not None:
        return LlamactlError(
            ErrorCode.NOT_FOUND,
            f"cannot find '{path[:MAX_SHOWN]}...': no such response is kept",
            hint="they are for some hours, while their model runs",
        )
    shown = path if len(path) <= MAX_SHOWN else path[: MAX_SHOWN - 3] + "..."
    near = _find_near(path[:MAX_SHOWN])
    hint = f"there is {near}" if near else f"the usual ones are {_CHAT}, /v1/completions, /v1/embeddings and {_MODELS}"
    return LlamactlError(ErrorCode.NOT_FOUND, f"cannot find '{shown}': no such route", hint=hint)


def _find_near(path: str) -> str:
    """The route that is surely meant, or empty: a guess that is wrong costs more than none. The same name behind
    another prefix, what other servers call it, something below it, or a name with a slip in one word.
    """
    path = re.sub("/+", "/", path).rstrip("/").lower()
    name = _PREFIX.sub("", path).lstrip("/")
    if name.endswith("/chat/completions"):  # behind the name of a deployment
        return _CHAT
    below = [route for route in _ALL if path.startswith(f"{route}/")]
    near = (path, f"/v1/{name}", _find_slip(path), f"/{name}", _ELSEWHERE.get(name, ""), _find_slip(f"/v1/{name}"))
    known = [route for route in (*near, _find_slip(f"/{name}"), max(below, key=len, default="")) if route in _ALL]
    return known[0] if known else ""


def _find_slip(path: str) -> str:
    """The route of which a path has one word nearly."""
    for route in _ALL:
        pairs = [(a, b) for a, b in zip(path.split("/"), route.split("/"), strict=False) if a != b]
        if path.count("/") == route.count("/") and len(pairs) == 1:
            word, meant = pairs[0]
            allowed = max(1, len(meant) // 4)
            if abs(len(word) - len(meant)) <= allowed and count_slips(word, meant) <= allowed:
                return route
    return ""


def count_slips(word: str, meant: str) -> int:
    """Letters that are too many, missing, wrong, or two that have changed places (optimal string alignment)."""
    rows = [list(range(len(meant) + 1))]
    for i, letter in enumerate(word, 1):
        row = [i]
        for j, other in enumerate(meant, 1):
            best = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != other))
            if i > 1 and j > 1 and (letter, word[i - 2]) == (meant[j - 2], other):
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]
