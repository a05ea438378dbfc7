"""Which chat does a request for Responses mean?

`instructions` and what stands first of system and developer are one system message: many templates take no second one.
Reasoning belongs to what the model did next, so it becomes part of that turn. What another server has sealed in
`encrypted_content` is left out: nobody here can read it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llamactl.bodies import ChatBody, ChatMessage, ContentPart, JsonSchemaFormat, ResponseFormat, refuse
from llamactl.dialects.common import (
    add_message,
    choose_effort,
    copy_sampling,
    make_call,
    make_image_part,
    open_reasoning,
)
from llamactl.dialects.responses import CountBody, Item, Part, ResponsesBody
from llamactl.dialects.responses_tools import Tools, join_name, wrap_input
from llamactl.errors import ErrorCode, LlamactlError

FIELDS = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}
"""Of a chat, as they are called here."""
ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
_NOTHING_OF_THE_KIND = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""May be asked for, of tools that there are not."""
_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}

FindItem = Callable[[str], Item | None]


@dataclass(frozen=True)
class Conversion:
    chat: ChatBody
    tools: Tools
    items: list[Item]
    """Of the request's own input."""


def convert_responses(body: CountBody, history: Sequence[Item] = (), find_item: FindItem | None = None) -> Conversion:
    """`history`: items of earlier requests. `find_item`: for references; None: they are not looked at. Raises
    LlamactlError for what no model here can do.
    """
    for name in ("conversation", "prompt"):
        if getattr(body, name) is not None:
            raise refuse(f"cannot use `{name}`: none are stored here, send it as `input`")
    if body.truncation not in (None, "auto", "disabled"):
        raise refuse(f"cannot use `truncation`: {body.truncation[:40]!r} is neither auto nor disabled")
    tools = Tools(body.tools or ())
    items = _list_items(body, find_item)
    given = copy_sampling(body)
    if isinstance(body, ResponsesBody):
        given |= _convert_options(body)
    effort = body.reasoning.effort if body.reasoning is not None else None
    form = _choose_format(body)
    if form is not None:
        given["response_format"] = form
    chat = ChatBody(
        messages=_convert_items(body.instructions, [*history, *items]),
        model=body.model,
        tools=tools.functions or None,
        tool_choice=tools.convert_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=None if effort is None else choose_effort(effort),
        chat_template_kwargs=body.chat_template_kwargs,
        **given,
    )
    return Conversion(chat, tools, items)


def _convert_options(body: ResponsesBody) -> dict[str, Any]:
    if body.background:
        raise refuse("cannot use `background`: answers are made while their client waits")
    for name in body.include or ():
        if name not in (ENCRYPTED, LOGPROBS, *_NOTHING_OF_THE_KIND):
            raise refuse(f"cannot use `include`: {name[:60]!r} is nothing that there is")
    options: dict[str, Any] = {
        "max_tokens": body.max_output_tokens,
        "stream": body.stream,
        "stop": body.stop,
        "cache_prompt": body.cache_prompt,
        "timings_per_token": body.timings_per_token,
        "return_progress": body.stream,
        "sse_ping_interval": body.sse_ping_interval,
    }
    if LOGPROBS in (body.include or ()) or body.top_logprobs is not None:
        options["logprobs"] = True
    return options


def _list_items(body: CountBody, find_item: FindItem | None) -> list[Item]:
    if body.input is None:
        raise refuse("cannot use `input`: it is missing")
    if isinstance(body.input, str):
        return [Item(type="message", role="user", content=body.input)]
    items = []
    for index, item in enumerate(body.input):
        if item.type == "item_reference" or (item.type is None and item.role is None and item.id is not None):
            if find_item is None:
                continue
            found = find_item(item.id or "")
            if found is None:
                raise LlamactlError(
                    ErrorCode.NOT_FOUND,
                    f"cannot use `input[{index}]`: no item {(item.id or '')[:80]!r} is kept",
                    hint="items of stored responses are, for a while; send the item itself",
                )
            items.append(found)
        else:
            items.append(item)
    if not items and find_item is not None:
        raise refuse("cannot use `input`: there are no items")
    return items


def _convert_items(instructions: str | None, items: Sequence[Item]) -> list[ChatMessage]:
    messages: list[ChatMessage] = []
    if instructions:
        messages.append(ChatMessage(role="system", content=instructions))
    for index, item in enumerate(items):
        add_message(messages, _convert_item(item, f"input[{index}]"))
    return messages


def _convert_item(item: Item, where: str) -> ChatMessage:
    kind = item.type or ("message" if item.role is not None else "")
    if kind == "message":
        if item.role not in _ROLES:
            raise refuse(f"cannot use `{where}.role`: {str(item.role)[:40]!r} is none of {', '.join(_ROLES)}")
        return ChatMessage(role=_ROLES[item.role], content=_convert_content(item.content, f"{where}.content"))
    if kind == "function_call":
        name = join_name(item.namespace, _require(item.name, f"{where}.name"))
        arguments = _require(item.arguments, f"{where}.arguments")
        return _make_calling(make_call(_require(item.call_id, f"{where}.call_id"), name, arguments))
    if kind == "custom_tool_call":
        name = join_name(item.namespace, _require(item.name, f"{where}.name"))
        arguments = wrap_input(_require(item.input, f"{where}.input"))
        return _make_calling(make_call(_require(item.call_id, f"{where}.call_id"), name, arguments))
    if kind in ("function_call_output", "custom_tool_call_output"):
        call_id = _require(item.call_id, f"{where}.call_id")
        if item.output is None:
            raise refuse(f"cannot use `{where}.output`: it is missing")
        return ChatMessage(role="tool", content=_convert_content(item.output, f"{where}.output"), tool_call_id=call_id)
    if kind == "reasoning":
        return ChatMessage(role="assistant", content="", reasoning_content=_read_reasoning(item) or None)
    raise refuse(f"cannot use `{where}.type`: items of type {kind[:40]!r} are not known here")


def _make_calling(call: dict[str, Any]) -> ChatMessage:
    return ChatMessage(role="assistant", content="", tool_calls=[call])


def _require(value: str | None, where: str) -> str:
    if value is None:
        raise refuse(f"cannot use `{where}`: it is missing")
    return value


def _convert_content(content: str | list[Part] | None, where: str) -> str | list[ContentPart]:
    if content is None or isinstance(content, str):
        return content or ""
    return [_convert_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def _convert_part(part: Part, where: str) -> ContentPart:
    if part.type in ("input_text", "output_text", "text"):
        return ContentPart(type="text", text=_require(part.text, f"{where}.text"))
    if part.type == "refusal":
        return ContentPart(type="text", text=_require(part.refusal, f"{where}.refusal"))
    if part.type == "input_image":
        if part.image_url is None:
            raise refuse(f"cannot use `{where}.image_url`: it is missing, and no files are stored here")
        return make_image_part(part.image_url, part.detail)
    raise refuse(
        f"cannot use `{where}.type`: {part.type[:40]!r} is none of input_text, input_image, output_text and refusal"
    )


def _read_reasoning(item: Item) -> str:
    parts = item.content if isinstance(item.content, list) else []
    text = "\n".join(part.text for part in parts if part.text)
    return (
        text
        or open_reasoning(item.encrypted_content or "")
        or "\n".join(part.text for part in item.summary or () if part.text)
    )


def _choose_format(body: CountBody) -> ResponseFormat | None:
    form = body.text.format if body.text is not None else None
    if form is None:
        return None
    if form.type != "json_schema":
        return ResponseFormat(type=form.type)
    if form.schema is None:
        raise refuse("cannot use `text.format`: `schema` is missing")
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(form.name, form.schema, form.strict))
