"""What do all answers have in common? The values that they are made of, and how OpenAI's JSON shows them, with
llama-server's additions (`timings`, `prompt_progress`): built as plain values and encoded once.

A stream's chunks differ only in their text: all the rest is encoded when the stream begins.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from llamactl.bodies import RerankBody
from llamactl.endpoints import format_http_error
from llamactl.errors import LlamactlError
from llamactl.event_stream import format_event
from llamactl.instance.engine.jobs import (
    FinishEvent,
    GenerationRequest,
    ProgressEvent,
    TextEvent,
    Timings,
    TokenInfo,
)
from llamactl.instance.engine.sampling import SamplingParams
from llamactl.instance.http.deltas import PlainReader, Reader

encode_json = msgspec.json.Encoder().encode
DONE = format_event(b"[DONE]")


@dataclass
class Answer:
    """One choice, when it has ended."""

    finish: FinishEvent
    parts: list[TextEvent] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)

    @property
    def infos(self) -> list[TokenInfo]:
        return [info for part in self.parts for info in part.infos]

    @property
    def tokens(self) -> list[int]:
        return [token for part in self.parts for token in part.tokens]


@dataclass(frozen=True)
class FormatOptions:
    """What the format of an answer depends on besides its text."""

    model: str
    build: str = ""
    """llama.cpp's, as answers tell it."""
    n_choices: int = 1
    """For each prompt."""
    n_top: int | None = None
    """Alternatives told of each token; None: not even its own probability."""
    post_sampling: bool = False
    include_usage: bool = False
    return_tokens: bool = False
    fields: Sequence[str] | None = None
    """Of llama-server's own answers, those that are told; None: all."""
    echoes: Sequence[str] = ()
    """Of each choice, the prompt that stands before its text."""
    n_prompt: Sequence[int] = ()
    """Tokens of each choice's prompt."""
    verbose: bool = False
    describe: Callable[[int], dict[str, Any]] = lambda index: {}
    """What an answer that tells it says of the request of a choice."""
    make_reader: Callable[[], Reader] = PlainReader
    """For each choice one: what its text is made of."""
    count_tokens: Callable[[str], int] = len
    """Of a text that the model has written."""
    is_legacy: bool = False
    """Calls are told in OpenAI's older form."""


class AnswerFormat(Protocol):
    """How one endpoint answers. All methods but `whole` give server-sent events."""

    ping: bytes
    """What a stream says when it has nothing to say."""

    def first(self, index: int) -> bytes:
        """Format what opens choice `index`, before any of its text; may be empty."""

    def text(self, index: int, event: TextEvent) -> bytes:
        """Format what an event adds to choice `index`; empty while nothing can be told yet."""

    def progress(self, index: int, event: ProgressEvent) -> bytes:
        """Format how far the prompt of choice `index` has been read."""

    def last(self, index: int, finish: FinishEvent) -> bytes:
        """Format the end of choice `index`, with why it ended."""

    def end(self, finishes: Sequence[FinishEvent]) -> bytes:
        """After the last choice."""

    def fail(self, error: LlamactlError, path: str) -> bytes:
        """The last of a stream that failed."""

    def whole(self, answers: Sequence[Answer]) -> Any:
        """Format the answers of all choices as one JSON value, for a client that does not stream."""


def format_sse(value: Any) -> bytes:
    """Format a value as the data of a server-sent event."""
    return format_event(encode_json(value))


def format_sse_error(error: LlamactlError, path: str) -> bytes:
    """The end of a stream that failed; no [DONE] follows."""
    return b"event: error\n" + format_sse(format_http_error(error, path))


def format_usage(finishes: Sequence[FinishEvent], n_choices: int) -> dict[str, Any]:
    """Prompts count once, however many choices are made for them."""
    prompts = finishes[::n_choices]
    n_prompt = sum(finish.n_prompt for finish in prompts)
    n_generated = sum(finish.n_generated for finish in finishes)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
        "prompt_tokens_details": {"cached_tokens": sum(finish.n_cached for finish in prompts)},
    }


def format_timings(timings: Timings) -> dict[str, Any]:
    """Format llama-server's `timings`: milliseconds, and tokens per second."""
    return {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": _divide(timings.prompt_ms, timings.prompt_n),
        "prompt_per_second": _divide(timings.prompt_n * 1e3, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": _divide(timings.predicted_ms, timings.n_steps),
        "predicted_per_second": _divide(timings.n_steps * 1e3, timings.predicted_ms),
    }


def format_sampling(params: SamplingParams, ends: Sequence[int] = ()) -> dict[str, Any]:
    """As /completion, /props and /slots show it. `ends`: the tokens that `ignore_eos` forbids."""
    shown = msgspec.structs.asdict(params)
    biases = {**params.logit_bias, **dict.fromkeys(ends if params.ignore_eos else (), -math.inf)}
    # JSON has no infinity.
    shown["logit_bias"] = [
        {"token": token, "bias": None if bias == -math.inf else bias} for token, bias in biases.items()
    ]
    return {**shown, "seed": -1 if params.seed is None else params.seed}


def format_params(request: GenerationRequest, ends: Sequence[int] = ()) -> dict[str, Any]:
    """What a request asks for, as the same three show it."""
    n_predict = -1 if request.max_tokens is None else request.max_tokens
    return {
        **format_sampling(request.sampling, ends),
        "n_predict": n_predict,
        "max_tokens": n_predict,
        "n_keep": request.n_keep,
        "n_discard": request.n_discard,
    }


def format_progress(event: ProgressEvent) -> dict[str, Any]:
    """llama-server's addition to a chunk that has no text."""
    progress = {
        "total": event.n_total,
        "cache": event.n_cached,
        "processed": event.n_processed,
        "time_ms": round(event.time_ms),
    }
    return {"prompt_progress": progress, **format_more(event.timings)}


def _divide(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0


class EventFormat:
    """What the streams of most endpoints have in common."""

    ping = b":\n\n"

    def fail(self, error: LlamactlError, path: str) -> bytes:
        """Format an error in the middle of a stream; `path` decides its form."""
        return format_sse_error(error, path)


def format_ranking(
    model: str, body: RerankBody, documents: Sequence[str], scores: Sequence[float], n_tokens: int
) -> Any:
    """Best first: Jina's form, or a bare list for requests in the form of text-embeddings-inference."""
    is_bare = body.documents is None
    label = "score" if is_bare else "relevance_score"
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    if body.top_n is not None:
        order = order[: max(0, body.top_n)]
    results: list[dict[str, Any]] = [{"index": index, label: scores[index]} for index in order]
    for result in results:
        text = documents[result["index"]]
        if is_bare and body.return_text:
            result["text"] = text
        elif not is_bare and body.return_documents:
            result["document"] = {"text": text}
    if is_bare:
        return results
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"model": model, "object": "list", "usage": usage, "results": results}


def format_more(timings: Timings | None) -> dict[str, Any]:
    """What a chunk holds besides, where it is asked for."""
    return {} if timings is None else {"timings": format_timings(timings)}


def format_sums(answers: Sequence[Answer], options: FormatOptions) -> dict[str, Any]:
    """Of all choices."""
    finishes = [answer.finish for answer in answers]
    return {"usage": format_usage(finishes, options.n_choices), "timings": format_timings(finishes[0].timings)}


def end_stream(head: dict[str, Any], options: FormatOptions, finishes: Sequence[FinishEvent]) -> bytes:
    """The last of OpenAI's events."""
    if not options.include_usage:
        return DONE
    sums = {"usage": format_usage(finishes, options.n_choices), "timings": format_timings(finishes[0].timings)}
    return format_sse({**head, "choices": [], **sums}) + DONE
