"""What do answers look like? OpenAI's JSON, with llama-server's additions (`timings`), built as plain values and
encoded once.

A stream's chunks differ only in their delta: everything else is encoded when the stream begins.
"""

import secrets
import time
from typing import Any

import msgspec

from llamactl.errors import LlamactlError, format_http_error
from llamactl.instance.jobs import FinishEvent, Timings

encode_json = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


def format_sse(value: Any) -> bytes:
    return b"data: " + encode_json(value) + b"\n\n"


def format_sse_error(error: LlamactlError) -> bytes:
    """The end of a stream that failed; no [DONE] follows."""
    return b"event: error\n" + format_sse(format_http_error(error))


def format_usage(finish: FinishEvent) -> dict[str, Any]:
    return {
        "prompt_tokens": finish.n_prompt,
        "completion_tokens": finish.n_generated,
        "total_tokens": finish.n_prompt + finish.n_generated,
        "prompt_tokens_details": {"cached_tokens": finish.n_cached},
    }


def format_timings(timings: Timings) -> dict[str, Any]:
    return {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": _divide(timings.prompt_ms, timings.prompt_n),
        "prompt_per_second": _divide(timings.prompt_n * 1e3, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": _divide(timings.predicted_ms, timings.predicted_n),
        "predicted_per_second": _divide(timings.predicted_n * 1e3, timings.predicted_ms),
    }


def _divide(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0


class ChatShape:
    """One answer of /v1/chat/completions."""

    def __init__(self, model: str) -> None:
        self._head = {"id": "chatcmpl-" + secrets.token_urlsafe(24), "created": int(time.time()), "model": model}

    def first(self) -> bytes:
        return self._chunk({"role": "assistant", "content": None}, None)

    def text(self, text: str) -> bytes:
        return self._chunk({"content": text}, None)

    def last(self, finish: FinishEvent) -> bytes:
        return self._chunk({}, finish.reason, timings=format_timings(finish.timings))

    def usage(self, finish: FinishEvent) -> bytes:
        return format_sse({**self._stream_head(), "choices": [], "usage": format_usage(finish)})

    def whole(self, text: str, finish: FinishEvent) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "logprobs": None,
            "finish_reason": finish.reason,
        }
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": format_usage(finish),
            "timings": format_timings(finish.timings),
        }

    def _stream_head(self) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk"}

    def _chunk(self, delta: dict[str, Any], reason: str | None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return format_sse({**self._stream_head(), "choices": [choice], **more})


class CompletionShape:
    """One answer of /v1/completions."""

    def __init__(self, model: str) -> None:
        self._head = {
            "id": "cmpl-" + secrets.token_urlsafe(24),
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def first(self) -> bytes:
        return b""

    def text(self, text: str) -> bytes:
        return format_sse({**self._head, "choices": [self._choice(text, None)]})

    def last(self, finish: FinishEvent) -> bytes:
        more = {"timings": format_timings(finish.timings)}
        return format_sse({**self._head, "choices": [self._choice("", finish.reason)], **more})

    def usage(self, finish: FinishEvent) -> bytes:
        return format_sse({**self._head, "choices": [], "usage": format_usage(finish)})

    def whole(self, text: str, finish: FinishEvent) -> dict[str, Any]:
        return {
            **self._head,
            "choices": [self._choice(text, finish.reason)],
            "usage": format_usage(finish),
            "timings": format_timings(finish.timings),
        }

    def _choice(self, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}


Shape = ChatShape | CompletionShape
