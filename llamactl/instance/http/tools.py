"""Which functions may the model call, and must it? The fields of a request that say so, checked, in one form.

OpenAI's older fields (`functions`, `function_call`, messages of role `function`) are another spelling of the same, and
are answered in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from llamactl.bodies import ChatBody, ChatMessage, refuse

Choice = Literal["auto", "none", "required"]
MAX_TOOLS = 1024
_SHOWN_CHARS = 64


@dataclass(frozen=True)
class ToolPlan:
    """`tools`: those that may be called, in the form of chat completions."""

    tools: tuple[dict[str, Any], ...] = ()
    choice: Choice = "auto"
    is_parallel: bool | None = None
    """None: where the template can."""
    is_legacy: bool = False
    """Asked for, and to be answered, by OpenAI's older fields."""

    @property
    def are_callable(self) -> bool:
        """Whether the model may call any function."""
        return bool(self.tools) and self.choice != "none"

    @property
    def names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.tools]


def plan_tools(body: ChatBody) -> ToolPlan:
    """Raises LlamactlError(INVALID_REQUEST) that names the field."""
    is_legacy = not body.tools and body.functions is not None
    given, field = (body.functions or (), "functions") if is_legacy else (body.tools or (), "tools")
    if len(given) > MAX_TOOLS:
        raise refuse(f"cannot use `{field}`: {len(given)} functions, at most {MAX_TOOLS} are taken")
    tools = [
        _read_function({"type": "function", "function": entry} if is_legacy else entry, f"{field}[{index}]")
        for index, entry in enumerate(given)
    ]
    names = [tool["function"]["name"] for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise refuse(f"cannot use `{field}`: two functions are called {_show(name)}")
    choice, allowed = _read_legacy_choice(body) if is_legacy else _read_choice(body.tool_choice)
    where = "function_call" if is_legacy else "tool_choice"
    if choice == "required" and not tools:
        raise refuse(f"cannot use `{where}`: there are no functions to call")
    if allowed is not None:
        for name in allowed:
            if name not in names:
                raise refuse(f"cannot use `{where}`: {_show(name)} is none of the functions of `{field}`")
        tools = [tool for tool in tools if tool["function"]["name"] in allowed]
    return ToolPlan(tuple(tools), choice, False if is_legacy else body.parallel_tool_calls, is_legacy)


def _read_function(tool: dict[str, Any], where: str) -> dict[str, Any]:
    kind, function = tool.get("type", "function"), tool.get("function")
    if kind != "function":
        raise refuse(f"cannot use `{where}.type`: {_show(kind)} is no function; nothing else can be called here")
    if not isinstance(function, dict):
        raise refuse(f"cannot use `{where}.function`: it must be an object with a `name`")
    name, described = function.get("name"), function.get("description")
    parameters, strict = function.get("parameters"), function.get("strict")
    if not isinstance(name, str) or not name:
        raise refuse(f"cannot use `{where}.function.name`: it must be a text that is not empty")
    if not isinstance(described, str | None):
        raise refuse(f"cannot use `{where}.function.description`: it must be a text")
    if not isinstance(parameters, dict | None):
        raise refuse(f"cannot use `{where}.function.parameters`: it must be a JSON schema, which is an object")
    if not isinstance(strict, bool | None):
        raise refuse(f"cannot use `{where}.function.strict`: it must be true or false")
    return {
        "type": "function",
        "function": {"name": name, "description": described or "", "parameters": parameters or {}},
    }


def _read_choice(given: str | dict[str, Any] | None) -> tuple[Choice, Sequence[str] | None]:
    """With the names of the only functions that may be called; None: any."""
    if given is None or given == "auto":
        return "auto", None
    if given == "none":
        return "none", None
    if given in ("required", "any"):
        return "required", None
    if isinstance(given, dict) and given.get("type") == "function":
        return "required", [_read_name(given.get("function", given), "tool_choice.function.name")]
    if isinstance(given, dict) and given.get("type") == "allowed_tools":
        allowed = given.get("allowed_tools", given)
        mode, tools = (allowed.get("mode"), allowed.get("tools")) if isinstance(allowed, dict) else (None, None)
        if mode not in ("auto", "required"):
            raise refuse(f"cannot use `tool_choice.allowed_tools.mode`: {_show(mode)} is neither auto nor required")
        if not isinstance(tools, list) or not tools:
            raise refuse("cannot use `tool_choice.allowed_tools.tools`: it must be a list of functions")
        where = "tool_choice.allowed_tools.tools"
        names = [
            _read_name(
                tool.get("function", tool) if isinstance(tool, dict) else tool, f"{where}[{index}].function.name"
            )
            for index, tool in enumerate(tools)
        ]
        return ("required" if mode == "required" else "auto"), names
    kind = given.get("type") if isinstance(given, dict) else given
    raise refuse(
        f"cannot use `tool_choice`: {_show(kind)} is none of none, auto, required, a function and allowed_tools"
    )


def _read_legacy_choice(body: ChatBody) -> tuple[Choice, Sequence[str] | None]:
    given = body.function_call
    if given is None or given == "auto":
        return "auto", None
    if given == "none":
        return "none", None
    if isinstance(given, dict):
        return "required", [_read_name(given, "function_call.name")]
    raise refuse(f"cannot use `function_call`: {_show(given)} is none of none, auto and an object with a `name`")


def _read_name(function: Any, where: str) -> str:
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise refuse(f"cannot use `{where}`: it must be a text")
    return name


def _show(value: Any) -> str:
    return repr(value[:_SHOWN_CHARS] if isinstance(value, str) else value)


def unify_messages(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Calls and their results in the form that templates know: arguments are texts, each call has a type, a result of
    the role `function` belongs to the call before it. Raises LlamactlError that names the field.
    """
    unified: list[ChatMessage] = []
    last_id = ""
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        changes: dict[str, Any] = {}
        if message.reasoning is not None and message.reasoning_content is None:
            changes["reasoning_content"] = message.reasoning
        if message.tool_calls:
            changes["tool_calls"] = [
                _unify_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(message.tool_calls)
            ]
        elif message.function_call is not None:
            last_id = f"call{index:05d}"
            call = {"id": last_id, "type": "function", "function": message.function_call}
            changes["tool_calls"] = [_unify_call(call, f"{where}.function_call", "")]
        if message.role == "function":
            changes |= {"role": "tool", "tool_call_id": message.tool_call_id or last_id or None}
        if changes or message.reasoning is not None or message.function_call is not None:
            message = msgspec.structs.replace(message, **{**changes, "reasoning": None, "function_call": None})
        unified.append(message)
    return unified


def _unify_call(call: dict[str, Any], where: str, inner: str = ".function") -> dict[str, Any]:
    kind, function = call.get("type") or "function", call.get("function")
    if kind != "function":
        raise refuse(f"cannot use `{where}.type`: {_show(kind)} is no function; nothing else can be called here")
    if not isinstance(function, dict):
        raise refuse(f"cannot use `{where}{inner}`: it must be an object with `name` and `arguments`")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise refuse(f"cannot use `{where}{inner}.name`: it must be a text that is not empty")
    if arguments is None or arguments == "":
        arguments = "{}"
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments).decode()
    unified: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if isinstance(call.get("id"), str):
        unified["id"] = call["id"]
    return unified
