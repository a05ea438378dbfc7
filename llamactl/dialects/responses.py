"""What may clients of OpenAI's Responses send?

Items and parts of all kinds have one type each, with every field that one of them has: which it needs is known when it
is converted, and a kind that is not here is refused by its name then. How tokens are chosen may be said in all of
llama-server's names besides.
"""

from typing import Any

import msgspec

from llamactl.bodies import SamplingBody


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a content: input_text, input_image, output_text, refusal, reasoning_text, summary_text."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of an input, or of an answer."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    """Of a custom tool: what its input looks like."""
    tools: "list[Tool] | None" = None
    """Of a namespace."""


class ToolChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[dict[str, Any]] | None = None


class Reasoning(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    """Its older name."""


class TextFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True):
    format: TextFormat | None = None


class CountBody(SamplingBody, frozen=True, kw_only=True):
    """POST /v1/responses/input_tokens: what a prompt is made of."""

    input: str | list[Item] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    truncation: str | None = None
    chat_template_kwargs: dict[str, Any] | str | None = None


class ResponsesBody(CountBody, frozen=True, kw_only=True):
    """POST /v1/responses."""

    max_output_tokens: int | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    stop: str | list[str] | None = None
    cache_prompt: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    sse_ping_interval: float | None = None
