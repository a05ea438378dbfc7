"""What may clients of Anthropic's Messages send?

Blocks of a kind that is not here are refused by their type; what only steers Anthropic's own machines (`cache_control`
of a block, `citations`) has no field, and is passed over. How tokens are chosen may be said in all of llama-server's
names besides.
"""

from typing import Any

import msgspec

from llamactl.bodies import SamplingBody


class Base64Source(msgspec.Struct, frozen=True, tag="base64"):
    data: str
    media_type: str


class UrlSource(msgspec.Struct, frozen=True, tag="url"):
    url: str


class FileSource(msgspec.Struct, frozen=True, tag="file"):
    file_id: str


class PlainSource(msgspec.Struct, frozen=True, tag="text"):
    data: str
    media_type: str = "text/plain"


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ImageBlock(msgspec.Struct, frozen=True, tag="image"):
    source: Base64Source | UrlSource | FileSource


class ContentSource(msgspec.Struct, frozen=True, tag="content"):
    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(msgspec.Struct, frozen=True, tag="document"):
    source: Base64Source | UrlSource | FileSource | PlainSource | ContentSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(msgspec.Struct, frozen=True, tag="search_result"):
    content: list[TextBlock]
    source: str
    title: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag="redacted_thinking"):
    data: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock] | None = None
    is_error: bool | None = None


Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)


class Turn(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Block]


class Tool(msgspec.Struct, frozen=True):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    type: str
    schema: dict[str, Any] | bool | None = None


class OutputConfig(msgspec.Struct, frozen=True):
    effort: str | None = None
    format: OutputFormat | None = None


class CountBody(SamplingBody, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens: what a prompt is made of."""

    messages: list[Turn]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    chat_template_kwargs: dict[str, Any] | str | None = None
    mcp_servers: list[Any] | None = None
    context_management: dict[str, Any] | None = None


class MessagesBody(CountBody, frozen=True, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    container: Any = None
    cache_prompt: bool | None = None
