"""What do the other APIs have in common on their way to a chat?"""

import base64
import binascii
import re
from typing import Any

from llamactl.bodies import ChatMessage, ContentPart, ImageUrl, SamplingBody
from llamactl.errors import LlamactlError

_HIGHEST = {"xhigh": "high", "max": "high"}
"""Efforts beyond those that templates know."""
_SEALED = "llamactl:"
_FIELD = re.compile(r"`(messages|max_tokens|response_format|stop|tools|tool_choice)(?:\[\d+\][^`]*)?`")


def copy_sampling(body: SamplingBody) -> dict[str, Any]:
    """What chats call by the same names."""
    return {name: getattr(body, name) for name in SamplingBody.__struct_fields__}


def make_image_part(url: str, detail: str | None = None) -> ContentPart:
    """Make the part of a chat message that shows the picture at `url`, a data URI as a rule."""
    return ContentPart(type="image_url", image_url=ImageUrl(url=url, detail=detail))


def make_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a tool, as a chat's history has it. `arguments`: JSON."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def make_tool(name: str, description: str | None, parameters: Any, strict: bool | None = None) -> dict[str, Any]:
    """Make a function that a model may call, as OpenAI's chats have it; without `parameters` it takes none."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = parameters if parameters is not None else {"type": "object", "properties": {}}
    if strict is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


def choose_effort(effort: str) -> str:
    """In a word that templates know."""
    return _HIGHEST.get(effort, effort)


def seal_reasoning(text: str) -> str:
    """Reasoning as a text that clients pass back unread. It is encoded, not encrypted: it is theirs."""
    return _SEALED + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def open_reasoning(sealed: str) -> str:
    """Empty where it was sealed by somebody else."""
    if not sealed.startswith(_SEALED):
        return ""
    try:
        return base64.b64decode(sealed.removeprefix(_SEALED), validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeDecodeError):
        return ""


def add_message(messages: list[ChatMessage], message: ChatMessage) -> None:
    """Turns of one role are one turn: many templates take no others. Results of tools stay apart, and so does what a
    system says later than in the beginning.
    """
    last = messages[-1] if messages else None
    if last is None or last.role != message.role or message.role == "tool" or not _joins(messages, message.role):
        messages.append(message)
        return
    messages[-1] = ChatMessage(
        role=last.role,
        content=_join(last.content, message.content),
        tool_calls=[*(last.tool_calls or ()), *(message.tool_calls or ())] or None,
        reasoning_content="\n".join(filter(None, (last.reasoning_content, message.reasoning_content))) or None,
    )


def _joins(messages: list[ChatMessage], role: str) -> bool:
    return role != "system" or len(messages) == 1


def _join(first: str | list[ContentPart] | None, second: str | list[ContentPart] | None) -> Any:
    if not first or not second:
        return first or second
    return [*_list_parts(first), *_list_parts(second)]


def _list_parts(content: str | list[ContentPart]) -> list[ContentPart]:
    return [ContentPart(type="text", text=content)] if isinstance(content, str) else content


def rename_fields(error: LlamactlError, names: dict[str, str]) -> LlamactlError:
    """The error of a chat, with its fields as the client knows them: `names` has those that are called otherwise.
    Which of the messages it was is not said: they are not the client's own.
    """
    message = _FIELD.sub(lambda field: f"`{names.get(field[1], field[1])}`", error.message)
    return LlamactlError(error.code, message, hint=error.hint, model=error.model, details=error.details)
