"""What may clients send? The bodies of requests as types: unknown fields are ignored as OpenAI does, a wrong type is
a 400 that names the field.

The path of the offending field comes from msgspec's own message ("... - at `$.messages[0].role`"). What is sent but
not supported is refused rather than ignored where ignoring it would change the answer's meaning (`n`, `echo`).
"""

from typing import Any, TypeVar

import msgspec

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.sampling import SamplingParams

MAX_STOPS = 64
_INT32_MAX = (1 << 31) - 1


class TextPart(msgspec.Struct, frozen=True):
    """Part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class _Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of generation have in common; None: the default of SamplingParams."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_predict: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | list[tuple[int, float]] | None = None
    ignore_eos: bool = False
    cache_prompt: bool = True

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatBody(_Generation, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(_Generation, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int]
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class EmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str | None = None


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tokenize."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]


class TemplateBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /apply-template."""

    messages: list[ChatMessage]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


Body = TypeVar("Body")


def parse_body(data: bytes, kind: type[Body]) -> Body:
    """Raises LlamactlError(INVALID_REQUEST) that names the field."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise refuse(f"cannot read the request body: {error}") from None


def refuse(message: str) -> LlamactlError:
    return LlamactlError(ErrorCode.INVALID_REQUEST, message)


def choose_sampling(body: _Generation) -> SamplingParams:
    given = {
        name: value
        for name in SamplingParams.__struct_fields__
        if name not in ("logit_bias", "seed") and (value := getattr(body, name, None)) is not None
    }
    for name in ("top_k", "repeat_last_n"):
        if abs(given.get(name, 0)) > _INT32_MAX:
            raise refuse(f"cannot use `{name}`: {given[name]} is out of range")
    if given.get("repeat_penalty", 1.0) <= 0:
        raise refuse("cannot use `repeat_penalty`: it must be greater than 0")
    if given.get("repeat_last_n", 0) < -1:
        raise refuse("cannot use `repeat_last_n`: it must be at least -1")
    # llama-server's word for "all of the context".
    if given.get("repeat_last_n") == -1:
        given["repeat_last_n"] = _INT32_MAX
    if body.seed is not None and body.seed >= 0:
        given["seed"] = body.seed & 0xFFFFFFFF
    return SamplingParams(**given, logit_bias=_parse_logit_bias(body.logit_bias))


def _parse_logit_bias(bias: dict[str, float] | list[tuple[int, float]] | None) -> dict[int, float]:
    if bias is None:
        return {}
    if isinstance(bias, list):
        return dict(bias)
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError:
        raise refuse("cannot use `logit_bias`: its keys must be token numbers") from None


def choose_stops(body: _Generation) -> tuple[str, ...]:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stops) > MAX_STOPS:
        raise refuse(f"cannot use `stop`: {len(stops)} strings, at most {MAX_STOPS} are taken")
    return tuple(stop for stop in stops if stop)


def choose_max_tokens(body: _Generation) -> int | None:
    """None: no limit of the client's. llama-server's -1 says the same."""
    for name in ("max_completion_tokens", "max_tokens", "n_predict"):
        value: int | None = getattr(body, name)
        if value is None:
            continue
        if value < -1:
            raise refuse(f"cannot use `{name}`: {value} is negative")
        return None if value == -1 else value
    return None


def check_choices(body: _Generation) -> None:
    if body.n not in (None, 1):
        raise refuse(f"cannot use `n`: {body.n} choices were asked for, only 1 is made")


def format_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """As chat templates expect them: contents are text."""
    if not messages:
        raise refuse("cannot use `messages`: there are none")
    formatted = []
    for index, message in enumerate(messages):
        entry: dict[str, Any] = msgspec.to_builtins(message)
        entry["content"] = _join_parts(message.content, index)
        formatted.append(entry)
    return formatted


def _join_parts(content: str | list[TextPart] | None, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        if part.type != "text" or part.text is None:
            raise refuse(f"cannot use `messages[{index}].content`: parts of type {part.type!r} are not supported")
        texts.append(part.text)
    return "".join(texts)
