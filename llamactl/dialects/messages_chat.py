"""Which chat does a request for Messages mean?

Blocks stay in their order: results of tools follow the calls that they answer, and what the user says beside them
comes where it stands. Reasoning that was signed comes back as what it was; what another server has made unreadable
(`redacted_thinking`) is left out, because nothing can be read of it.
"""

import re
from typing import Any

import msgspec

from llamactl.bodies import ChatBody, ChatMessage, ContentPart, JsonSchemaFormat, ResponseFormat, refuse
from llamactl.dialects.common import (
    add_message,
    choose_effort,
    copy_sampling,
    make_call,
    make_image_part,
    make_tool,
    open_reasoning,
)
from llamactl.dialects.messages import (
    Base64Source,
    Block,
    ContentSource,
    CountBody,
    DocumentBlock,
    FileSource,
    ImageBlock,
    MessagesBody,
    PlainSource,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    UrlSource,
)

FIELDS = {"stop": "stop_sequences", "response_format": "output_config.format"}
"""Of a chat, as they are called here."""
_ROLES = ("user", "assistant", "system")
_NO_PLACE = ("logprobs", "top_logprobs", "n_probs", "post_sampling_probs")
_BILLING = re.compile(r"\A(x-anthropic-billing-header:[^\n]*?\bcch=)[0-9a-f]{5};")
"""Claude Code's first line, with a number that is another one each time: nothing behind it would be found in memory."""


def convert_messages(body: CountBody) -> ChatBody:
    """Raises LlamactlError for what no model here can do."""
    for name in _NO_PLACE:
        if getattr(body, name):
            raise refuse(f"cannot use `{name}`: messages have no place for probabilities")
    if body.mcp_servers:
        raise refuse("cannot use `mcp_servers`: instances have no network; the client calls such tools itself")
    given = copy_sampling(body)
    if isinstance(body, MessagesBody):
        if body.container is not None:
            raise refuse("cannot use `container`: no code is run here")
        given |= {
            "max_tokens": body.max_tokens,
            "stream": body.stream,
            "return_progress": body.stream,
            "stop": body.stop_sequences,
            "cache_prompt": body.cache_prompt,
        }
    schema = _choose_format(body)
    if schema is not None:
        given["response_format"] = schema
    return ChatBody(
        messages=_convert_turns(body),
        model=body.model,
        tools=[_convert_tool(tool, index) for index, tool in enumerate(body.tools or ())] or None,
        tool_choice=_convert_choice(body),
        parallel_tool_calls=False if body.tool_choice and body.tool_choice.disable_parallel_tool_use else None,
        chat_template_kwargs=body.chat_template_kwargs,
        **_choose_thinking(body),
        **given,
    )


def _convert_turns(body: CountBody) -> list[ChatMessage]:
    messages: list[ChatMessage] = []
    if body.system:
        texts = [body.system] if isinstance(body.system, str) else [block.text for block in body.system]
        texts = [_BILLING.sub(r"\g<1>fffff;", text) for text in texts]
        content = texts[0] if len(texts) == 1 else [ContentPart(type="text", text=text) for text in texts]
        messages.append(ChatMessage(role="system", content=content))
    if not body.messages:
        raise refuse("cannot use `messages`: there are none")
    for index, turn in enumerate(body.messages):
        where = f"messages[{index}]"
        if turn.role not in _ROLES:
            raise refuse(f"cannot use `{where}.role`: {turn.role[:40]!r} is none of user, assistant and system")
        for message in _convert_turn(turn, where):
            add_message(messages, message)
    return messages


def _convert_turn(turn: Turn, where: str) -> list[ChatMessage]:
    if isinstance(turn.content, str):
        return [ChatMessage(role=turn.role, content=turn.content)]
    if turn.role == "assistant":
        return [_convert_answer(turn.content, where)]
    messages: list[ChatMessage] = []
    parts: list[ContentPart] = []
    for index, block in enumerate(turn.content):
        place = f"{where}.content[{index}]"
        if isinstance(block, ToolResultBlock) and turn.role == "user":
            if parts:
                messages.append(ChatMessage(role=turn.role, content=parts))
                parts = []
            messages.append(_convert_result(block, place))
        else:
            parts += _convert_part(block, place, turn.role)
    if parts or not messages:
        messages.append(ChatMessage(role=turn.role, content=parts))
    return messages


def _convert_answer(blocks: list[Block], where: str) -> ChatMessage:
    parts: list[ContentPart] = []
    calls: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for index, block in enumerate(blocks):
        if isinstance(block, ThinkingBlock):
            reasoning.append(block.thinking or open_reasoning(block.signature))
        elif isinstance(block, ToolUseBlock):
            calls.append(make_call(block.id, block.name, msgspec.json.encode(block.input).decode()))
        elif not isinstance(block, RedactedThinkingBlock):
            parts += _convert_part(block, f"{where}.content[{index}]", "assistant")
    return ChatMessage(
        role="assistant",
        content=parts or ("" if calls or reasoning else None),
        tool_calls=calls or None,
        reasoning_content="\n".join(filter(None, reasoning)) or None,
    )


def _convert_result(block: ToolResultBlock, where: str) -> ChatMessage:
    content: str | list[ContentPart]
    if isinstance(block.content, list):
        content = []
        for index, part in enumerate(block.content):
            content += _convert_part(part, f"{where}.content[{index}]", "tool")
    else:
        content = block.content or ""
    if block.is_error:
        content = _mark_error(content)
    return ChatMessage(role="tool", content=content, tool_call_id=block.tool_use_id)


def _mark_error(content: str | list[ContentPart]) -> str | list[ContentPart]:
    """A failure is one also to a model that has no word for it beside the text."""
    text = content if isinstance(content, str) else " ".join(part.text or "" for part in content)
    if "error" in text[:200].lower():
        return content
    return f"Error: {content}" if isinstance(content, str) else [ContentPart(type="text", text="Error:"), *content]


def _convert_part(block: Block, where: str, role: str) -> list[ContentPart]:
    if isinstance(block, TextBlock):
        return [ContentPart(type="text", text=block.text)]
    if role in ("system", "assistant") or isinstance(
        block, ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
    ):
        kind = block.__struct_config__.tag
        raise refuse(f"cannot use `{where}`: a block of type {kind!r} does not belong to the role {role!r}")
    if isinstance(block, ImageBlock):
        return [_convert_image(block, where)]
    if isinstance(block, SearchResultBlock):
        texts = "\n".join(part.text for part in block.content)
        return [ContentPart(type="text", text=f"{block.title}\n{block.source}\n{texts}")]
    return _convert_document(block, where)


def _convert_image(block: ImageBlock, where: str) -> ContentPart:
    source = block.source
    if isinstance(source, Base64Source):
        return make_image_part(f"data:{source.media_type};base64,{source.data}")
    if isinstance(source, UrlSource):
        return make_image_part(source.url)
    raise refuse(f"cannot use `{where}.source`: no files are stored here")


def _convert_document(block: DocumentBlock, where: str) -> list[ContentPart]:
    source = block.source
    head = "\n".join(filter(None, (block.title, block.context)))
    parts = [ContentPart(type="text", text=head)] if head else []
    if isinstance(source, PlainSource):
        return [*parts, ContentPart(type="text", text=source.data)]
    if isinstance(source, ContentSource):
        if isinstance(source.content, str):
            return [*parts, ContentPart(type="text", text=source.content)]
        for index, part in enumerate(source.content):
            parts += _convert_part(part, f"{where}.source.content[{index}]", "user")
        return parts
    kind = "a file of Anthropic's" if isinstance(source, FileSource) else "a PDF"
    raise refuse(f"cannot use `{where}.source`: {kind} cannot be read here, send its text")


def _convert_tool(tool: Tool, index: int) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise refuse(
            f"cannot use `tools[{index}].type`: {tool.type[:40]!r} is a tool of Anthropic's own, and only those "
            "with an `input_schema` can be called here"
        )
    return make_tool(tool.name, tool.description, tool.input_schema, tool.strict)


def _convert_choice(body: CountBody) -> str | dict[str, Any] | None:
    choice = body.tool_choice
    if choice is None:
        return None
    if choice.type == "tool":
        if not any(tool.name == choice.name for tool in body.tools or ()):
            raise refuse(f"cannot use `tool_choice.name`: {(choice.name or '')[:64]!r} is none of the `tools`")
        return {"type": "function", "function": {"name": choice.name}}
    words = {"auto": "auto", "any": "required", "none": "none"}
    if choice.type not in words:
        raise refuse(f"cannot use `tool_choice.type`: {choice.type[:40]!r} is none of auto, any, tool and none")
    return words[choice.type]


def _choose_format(body: CountBody) -> ResponseFormat | None:
    nested = body.output_config.format if body.output_config is not None else None
    form, name = (nested, "output_config.format") if nested is not None else (body.output_format, "output_format")
    if form is None:
        return None
    if form.type != "json_schema" or form.schema is None:
        raise refuse(f"cannot use `{name}`: it must be of type json_schema, with a `schema`")
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=form.schema))


def _choose_thinking(body: CountBody) -> dict[str, Any]:
    """Whether the model thinks, how hard and how long."""
    chosen: dict[str, Any] = {}
    thinking = body.thinking
    if thinking is not None:
        if thinking.type not in ("enabled", "adaptive", "disabled"):
            raise refuse(
                f"cannot use `thinking.type`: {thinking.type[:40]!r} is none of enabled, adaptive and disabled"
            )
        if thinking.display not in (None, "summarized", "omitted"):
            raise refuse(f"cannot use `thinking.display`: {thinking.display[:40]!r} is neither summarized nor omitted")
        if (thinking.budget_tokens or 0) < 0:
            raise refuse(f"cannot use `thinking.budget_tokens`: {thinking.budget_tokens} is negative")
        chosen["enable_thinking"] = thinking.type != "disabled"
        chosen["thinking_budget_tokens"] = thinking.budget_tokens
    if body.output_config is not None and body.output_config.effort is not None:
        chosen["reasoning_effort"] = choose_effort(body.output_config.effort)
    return chosen
