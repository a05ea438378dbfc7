"""How does a conversation, as clients send it, get into the form that llama.cpp's chat layer takes? With the same
outcome as llama-server's, for what both take; what clients are known to leave out is filled in.

An answer that the conversation ends with is begun: it is continued, inside its thoughts if that is all it has. Some
templates (Mistral's) refuse ids of calls that are not nine letters and digits, and clients bring ids of other servers:
those get such ids, the same one for a call and its result.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from llamactl.bodies import ChatMessage, ContentPart, refuse
from llamactl.instance.chat.layer import ApplyRequest, TemplateInfo
from llamactl.settings import TEMPLATE_RESERVED, Switch

Continuation = bool | Literal["content", "reasoning_content"]

ID_LENGTH = 9
_WANTS_SHORT_IDS = re.compile(r"\|\s*length\s*!=\s*9\b")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_TYPES = ("text", "media_marker")


def wants_short_ids(info: TemplateInfo) -> bool:
    """Whether the template refuses ids of calls that are not nine characters long."""
    return bool(_WANTS_SHORT_IDS.search(info.source) or _WANTS_SHORT_IDS.search(info.tool_use_source))


def choose_variables(reasoning: Switch, configured: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What the template is told besides the conversation: as the request says, else as the model's configuration, else
    as llama-server. Raises LlamactlError(INVALID_REQUEST).

    `enable_thinking` is among them only where somebody says so.
    """
    chosen: dict[str, Any] = {"preserve_reasoning": True}
    if reasoning is not Switch.AUTO:
        chosen["enable_thinking"] = reasoning is Switch.ON
    chosen |= {name: value for name, value in {**configured, **given}.items() if name not in TEMPLATE_RESERVED}
    if not isinstance(chosen.get("enable_thinking", True), bool):
        raise refuse("cannot use `chat_template_kwargs.enable_thinking`: it must be true or false")
    return chosen


def make_request(
    messages: Sequence[ChatMessage],
    info: TemplateInfo,
    variables: dict[str, Any],
    *,
    tools: list[dict[str, Any]] | None = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: Any = None,
    **options: Any,
) -> ApplyRequest:
    """`options`: more fields of ApplyRequest. Raises LlamactlError(INVALID_REQUEST) that names the field."""
    continuation = choose_continuation(messages, add_generation_prompt, continue_final_message)
    formatted = [format_message(message, index) for index, message in enumerate(messages)]
    if wants_short_ids(info):
        _shorten_ids(formatted)
    if info.capabilities.get("supports_object_arguments"):
        _check_arguments(formatted)
    return ApplyRequest(
        messages=formatted,
        tools=tools or None,
        add_generation_prompt=not continuation and add_generation_prompt is not False,
        continue_final_message=continuation,
        enable_thinking=variables.get("enable_thinking", info.supports_thinking),
        chat_template_kwargs=variables,
        **options,
    )


def choose_continuation(
    messages: Sequence[ChatMessage], add_generation_prompt: bool | None, asked: Any
) -> Continuation:
    """Whether the last message goes on, and with which of its parts; true: with the last that it has. Raises
    LlamactlError(INVALID_REQUEST).
    """
    if not messages:
        raise refuse("cannot use `messages`: there are none")
    if asked and add_generation_prompt:
        raise refuse("cannot use `continue_final_message` together with `add_generation_prompt`")
    last = messages[-1]
    chosen: Continuation = asked if asked in ("content", "reasoning_content") else asked is True
    if not chosen and last.role == "assistant":
        if len(messages) > 1 and messages[-2].role == "assistant":
            raise refuse("cannot use `messages`: two answers stand at the end, and only one can be continued")
        chosen = True
    if chosen and last.role == "assistant" and last.tool_calls:
        raise refuse(f"cannot use `messages[{len(messages) - 1}]`: an answer that calls tools cannot be continued")
    return chosen


def format_message(message: ChatMessage, index: int) -> dict[str, Any]:
    """As chat completions have it, and whole: a call has its type and its arguments, a text is there or null."""
    entry: dict[str, Any] = msgspec.to_builtins(message)
    entry["content"] = _format_content(message.content, f"messages[{index}].content")
    if message.tool_calls:
        entry["tool_calls"] = [
            _format_call(call, f"messages[{index}].tool_calls[{number}]")
            for number, call in enumerate(message.tool_calls)
        ]
    else:
        entry.pop("tool_calls", None)
    return {name: value for name, value in entry.items() if value is not None or name == "content"}


def _format_content(content: str | list[ContentPart] | None, where: str) -> str | list[dict[str, Any]] | None:
    if content is None or isinstance(content, str):
        return content
    parts = []
    for part in content:
        if part.type not in _TYPES or part.text is None:
            raise refuse(f"cannot use `{where}`: parts of type {part.type!r} are not supported")
        parts.append({"type": part.type, "text": part.text})
    return parts


def _format_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise refuse(f"cannot use `{where}.function`: it must be an object with `name` and `arguments`")
    arguments = function.get("arguments")
    if arguments is None or arguments == "":  # of a function without parameters
        arguments = "{}"
    formatted = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {**formatted, "id": call["id"]} if isinstance(call.get("id"), str) else formatted


def _check_arguments(messages: list[dict[str, Any]]) -> None:
    """Of a template that takes them apart: an answer that was cut off may have none that can be."""
    for index, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls", ())):
            arguments = call["function"]["arguments"]
            if not isinstance(arguments, str):
                continue
            try:
                msgspec.json.decode(arguments.encode("utf-8", "surrogatepass"))
            except RecursionError:
                continue  # how deep it is counts the chat layer
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                where = f"messages[{index}].tool_calls[{number}].function.arguments"
                raise refuse(f"cannot use `{where}`: it must be the text of a JSON object: {error}") from None


def _shorten_ids(messages: list[dict[str, Any]]) -> None:
    for message in messages:
        if "tool_call_id" in message:
            message["tool_call_id"] = shorten_id(message["tool_call_id"])
        for call in message.get("tool_calls", ()):
            call["id"] = shorten_id(call.get("id", ""))


def shorten_id(name: str) -> str:
    """Nine letters and digits: itself, if it is that already."""
    if _SHORT_ID.fullmatch(name):
        return name
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:ID_LENGTH]
