"""Which routes are there, and what is one told who asks for another?

One table for both sides: an instance answers what stands here, and the front loads a model for nothing else. The words
name the handlers; routes with the same word are one.
"""

import re

from llamactl.errors import ErrorCode, LlamactlError

GENERATIONS = {
    "/v1/chat/completions": "chat",
    "/chat/completions": "chat",
    "/v1/completions": "completion",
    "/completion": "native_completion",
    "/completions": "native_completion",
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

TEXTS = {"/tokenize": "tokenize", "/detokenize": "detokenize", "/apply-template": "template"}
"""POST: answered from the model's vocabulary and template."""

LOOKS = {
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
"""Answered by the front alone, besides what it has in common with LOOKS."""

INSTANCE = frozenset(path.encode() for path in (*GENERATIONS, *TEXTS, *LOOKS))
"""What an instance has, as it stands in a request."""

MAX_SHOWN = 80
_ALL = (*GENERATIONS, *TEXTS, *LOOKS, *ROUTER)
_CHAT, _MODELS = "/v1/chat/completions", "/v1/models"
_ELSEWHERE = {
    "chat": _CHAT,
    "messages": _CHAT,
    "responses": _CHAT,
    "conversations": _CHAT,
    "generate": "/v1/completions",
    "embed": "/v1/embeddings",
    "tags": _MODELS,
    "ps": _MODELS,
    "show": _MODELS,
}
"""What other servers call it, by the last word of the path."""


def refuse_route(path: str) -> LlamactlError:
    """The answer to a request for a route that is not there, with what comes near."""
    shown = path if len(path) <= MAX_SHOWN else path[: MAX_SHOWN - 3] + "..."
    near = _find_near(path[:MAX_SHOWN])
    hint = f"there is {near}" if near else f"the usual ones are {_CHAT}, /v1/completions, /v1/embeddings and {_MODELS}"
    return LlamactlError(ErrorCode.NOT_FOUND, f"cannot find '{shown}': no such route", hint=hint)


def _find_near(path: str) -> str:
    import difflib  # few ask, and every start would pay for it

    path = re.sub("/+", "/", path).rstrip("/").lower()
    if path in _ALL:
        return path
    named = _ELSEWHERE.get(path.rpartition("/")[2])
    return named or next(iter(difflib.get_close_matches(path, _ALL, n=1, cutoff=0.7)), "")
