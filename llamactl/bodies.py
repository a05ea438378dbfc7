"""What may clients send? The bodies of requests as types: unknown fields are ignored as OpenAI does, a wrong type is
a 400 that names the field.

The path of the offending field comes from msgspec's own message ("... - at `$.messages[0].role`"). Every field may be
null, which means that it was not sent: clients that fill in all fields of a form do that. What the values mean is the
instance's matter; the types are the front's too, which loads no model for a body that none would take.
"""

import math
import re
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from llamactl.errors import ErrorCode, LlamactlError, explain_json_error


class ImageUrl(msgspec.Struct, frozen=True):
    url: str
    detail: str | None = None


class InputAudio(msgspec.Struct, frozen=True):
    data: str | None = None
    format: str | None = None
    url: str | None = None


class ContentPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Part of a message's content."""

    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    input_audio: InputAudio | None = None


MEDIA_MARKER = "media_marker"
"""Type of the parts that stand for a picture or a sound while a prompt is made; none of a request's own."""


_MISSING: Any = msgspec.UNSET
_MAY_BE_SILENT = ("assistant", "tool", "function")


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of a conversation. Calls need no words, and functions may return nothing; of everybody else some other field
    was meant where `content` is missing, which nobody would hear of.
    """

    role: str
    content: str | list[ContentPart] | None = _MISSING
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same, as other servers call it."""
    function_call: dict[str, Any] | None = None
    """OpenAI's older form of a call."""

    def __post_init__(self) -> None:
        if self.content is _MISSING:
            if self.role not in _MAY_BE_SILENT:
                raise ValueError("Object missing required field `content`")
            msgspec.structs.force_setattr(self, "content", None)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class JsonSchemaFormat(msgspec.Struct, frozen=True):
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: dict[str, Any] | bool | None = None
    """llama-server's: beside either type."""


class SamplingBody(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen, in llama-server's names. What is not sent is as configured."""

    temperature: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    adaptive_target: float | None = None
    adaptive_decay: float | None = None
    min_keep: int | None = None
    samplers: str | list[str] | None = None
    seed: int | None = None
    logit_bias: dict[str, Any] | list[tuple[int | str, Any]] | None = None
    ignore_eos: bool | None = None
    grammar: str | None = None
    grammar_lazy: bool | None = None
    json_schema: dict[str, Any] | bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | int | None = None
    """Chats say whether, completions say how many."""
    top_logprobs: int | None = None
    n_probs: int | None = None
    post_sampling_probs: bool | None = None


class GenerationBody(SamplingBody, frozen=True, kw_only=True):
    """What all kinds of generation have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_predict: int | None = None
    t_max_predict_ms: float | None = None
    n_indent: int | None = None
    n: int | None = None
    n_cmpl: int | None = None
    n_keep: int | None = None
    n_discard: int | None = None
    id_slot: int | None = None
    lora: list[Any] | None = None
    stop: str | list[str] | None = None
    cache_prompt: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    sse_ping_interval: float | None = None
    verbose: bool | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream is to end with the numbers of tokens, as OpenAI's `stream_options` ask for it."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    """These two are OpenAI's older form of `tools` and `tool_choice`."""
    enable_thinking: bool | None = None
    reasoning_format: str | None = None
    reasoning_effort: str | None = None
    thinking_budget_tokens: int | None = None
    reasoning_budget_tokens: int | None = None
    """llama-server's newer name of the same."""
    reasoning_budget_message: str | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = None
    chat_template_kwargs: dict[str, Any] | str | None = None


class PromptObject(msgspec.Struct, frozen=True):
    """llama-server's form of a text with images."""

    prompt_string: str
    multimodal_data: list[str] | None = None


Prompt = str | PromptObject | list[str | int | PromptObject | list[str | int]]
"""A text, tokens, texts and tokens mixed, or several of these."""


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/completions, /completion."""

    prompt: Prompt
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class InfillChunk(msgspec.Struct, frozen=True):
    """Another file of the project."""

    text: str
    filename: str | None = None


class InfillBody(GenerationBody, frozen=True, kw_only=True):
    """POST /infill."""

    input_prefix: str
    input_suffix: str
    input_extra: list[InfillChunk] | None = None
    prompt: str | None = None


class InputObject(PromptObject, frozen=True):
    """A text of embeddings in parts, or in llama-server's form."""

    prompt_string: str = _MISSING
    content: list[ContentPart] | None = None

    def __post_init__(self) -> None:
        if self.prompt_string is _MISSING:
            if self.content is None:
                raise ValueError("an object has either `content` or `prompt_string`")
            msgspec.structs.force_setattr(self, "prompt_string", "")


Input = str | InputObject | list[str | int | InputObject | list[str | int]]


class EmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings."""

    input: Input
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    embd_normalize: int | None = None


class NativeEmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /embedding: llama-server's own form."""

    content: Input | None = None
    input: Input | None = None
    model: str | None = None
    embd_normalize: int | None = None

    def choose_texts(self) -> Input:
        """Raises LlamactlError: there are none."""
        texts = self.input if self.input is not None else self.content
        if texts is None:
            raise refuse("cannot make embeddings: `content` is missing")
        return texts


class Document(msgspec.Struct, frozen=True):
    text: str


class RerankBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/rerank: Jina's form with `documents`, or that of text-embeddings-inference with `texts`."""

    query: str
    documents: list[str | Document] | None = None
    texts: list[str] | None = None
    model: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    return_text: bool | None = None


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tokenize."""

    content: str | list[str | int] = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]


class TemplateBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /apply-template: what of a chat the prompt depends on."""

    messages: list[ChatMessage]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = None
    chat_template_kwargs: dict[str, Any] | str | None = None

    def as_chat(self) -> ChatBody:
        """Make the chat of which the prompt is asked for."""
        return ChatBody(**msgspec.structs.asdict(self))


Body = TypeVar("Body")


BOM = b"\xef\xbb\xbf"
_FRACTION = re.compile(r"Expected `[^`]*\bint\b[^`]*`, got `float` - at `\$\.(\w+)`")
_MAX_FRACTIONS = 16


def parse_body(data: bytes, kind: type[Body]) -> Body:
    """Raises LlamactlError(INVALID_REQUEST) that names the field."""
    data = data.removeprefix(BOM)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if isinstance(error, msgspec.ValidationError) and "got `float`" in str(error):
            with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                return _convert_fractions(_write_whole_numbers(msgspec.json.decode(data)), kind)
        raise refuse(f"cannot read the request body: {explain_json_error(data, error)}") from None


def _convert_fractions(value: Any, kind: type[Body]) -> Body:
    """A field that holds a whole number takes the whole part of another one, as in llama-server."""
    for _ in range(_MAX_FRACTIONS):
        try:
            return msgspec.convert(value, type=kind)
        except msgspec.ValidationError as error:
            field = _FRACTION.match(str(error))
            if field is None or not isinstance(value, dict) or not abs(value.get(field[1], math.inf)) < 1 << 53:
                raise
            value[field[1]] = int(value[field[1]])
    return msgspec.convert(value, type=kind)


BODIES: dict[str, type[msgspec.Struct]] = {
    "chat": ChatBody,
    "completion": CompletionBody,
    "native_completion": CompletionBody,
    "infill": InfillBody,
    "embedding": EmbeddingBody,
    "native_embedding": NativeEmbeddingBody,
    "ranking": RerankBody,
    "tokenize": TokenizeBody,
    "detokenize": DetokenizeBody,
    "template": TemplateBody,
    "count_chat": ChatBody,
}
"""What routes take, by the words of `endpoints`."""


def check_body(word: str, data: bytes) -> None:
    """Raises LlamactlError for a body that no model takes on this route."""
    body = parse_body(data, BODIES[word])
    if isinstance(body, NativeEmbeddingBody):
        body.choose_texts()


def _write_whole_numbers(value: Any) -> Any:
    """5.0 as 5: JSON has one kind of number, and some languages write it so."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    if isinstance(value, list):
        return [_write_whole_numbers(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _write_whole_numbers(entry) for key, entry in value.items()}
    return value


def refuse(message: str) -> LlamactlError:
    """Make the error that answers a request whose body cannot be used: INVALID_REQUEST, HTTP 400."""
    return LlamactlError(ErrorCode.INVALID_REQUEST, message)


def parse_template_variables(given: dict[str, Any] | str | None) -> dict[str, Any]:
    """`chat_template_kwargs`, which some clients send as the text of a JSON object."""
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given, type=dict[str, Any]) if given.strip() else {}
        except msgspec.DecodeError as error:
            raise refuse(f"cannot use `chat_template_kwargs`: the text is no JSON object: {error}") from None
    return given or {}


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


def _join_parts(content: str | list[ContentPart] | None, index: int) -> str:
    """Parts are texts of their own (a file, a question): each begins a line, as in llama-server, but for what stands
    beside a picture.
    """
    if content is None or isinstance(content, str):
        return content or ""
    joined, is_after_text = "", False
    for part in content:
        if part.type not in ("text", MEDIA_MARKER) or part.text is None:
            raise refuse(f"cannot use `messages[{index}].content`: parts of type {part.type!r} are not supported")
        joined += "\n" + part.text if is_after_text and part.type == "text" else part.text
        is_after_text = part.type == "text" and bool(joined)
    return joined
