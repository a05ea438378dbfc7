"""What are the tools of a request for Responses called in a chat, and what was meant by a call in its answer?

A chat knows functions alone. A namespace's functions get its name before their own, and a custom tool, whose input is
any text, becomes a function with one argument for it; in the answer each is called again by what the client knows.
Searching the web is left out where the model may do without: Codex lists it in every request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from llamactl.bodies import refuse
from llamactl.dialects.common import make_tool
from llamactl.dialects.responses import Tool, ToolChoice

INPUT = "input"
"""The one argument of a custom tool."""
_LEFT_OUT = ("web_search",)
"""How the types of tools begin that nobody here can run, and without which an answer is one all the same."""
_PLAIN = "functions"
"""A namespace that adds nothing to a name."""
_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class KnownTool:
    """As the client knows it."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


class Tools:
    """Of one request."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        """Raises LlamactlError for tools that nobody here can run."""
        self.known: dict[str, KnownTool] = {}
        """By their names in the chat."""
        self.functions: list[dict[str, Any]] = []
        """For the chat."""
        self.told: list[Tool] = []
        """Those that there are, as the answer tells them."""
        for index, tool in enumerate(tools):
            if not tool.type.startswith(_LEFT_OUT):
                self._add(tool, f"tools[{index}]", None)
                self.told.append(tool)

    def _add(self, tool: Tool, where: str, namespace: str | None) -> None:
        if tool.type == "namespace" and namespace is None:
            if not tool.name:
                raise refuse(f"cannot use `{where}.name`: it is missing")
            for index, inner in enumerate(tool.tools or ()):
                self._add(inner, f"{where}.tools[{index}]", tool.name)
            return
        if tool.type not in ("function", "custom"):
            raise refuse(
                f"cannot use `{where}.type`: nobody here can run a tool of type {tool.type[:40]!r}, only the client's "
                "own (function, custom, namespace of these) can be called"
            )
        if not tool.name:
            raise refuse(f"cannot use `{where}.name`: it is missing")
        name = join_name(namespace, tool.name)
        if name in self.known:
            raise refuse(f"cannot use `{where}.name`: there are two tools {name[:64]!r}")
        is_custom = tool.type == "custom"
        self.known[name] = KnownTool(tool.name, namespace, is_custom)
        if is_custom:
            self.functions.append(make_tool(name, _describe_custom(tool), _CUSTOM_PARAMETERS))
        else:
            self.functions.append(make_tool(name, tool.description, tool.parameters, tool.strict))

    def find(self, name: str) -> KnownTool:
        """What a model means by the name, which may be none of these."""
        return self.known.get(name) or KnownTool(name)

    def convert_choice(self, choice: str | ToolChoice | None) -> str | dict[str, Any] | None:
        """As chats have it."""
        if choice is None or isinstance(choice, str):
            return choice
        if choice.type == "allowed_tools":
            allowed = [self._name_function(entry.get("name"), entry) for entry in choice.tools or ()]
            return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode or "auto", "tools": allowed}}
        if choice.type not in ("function", "custom"):
            raise refuse(f"cannot use `tool_choice.type`: nobody here can run a tool of type {choice.type[:40]!r}")
        return self._name_function(choice.name, {"namespace": choice.namespace})

    def _name_function(self, name: Any, entry: dict[str, Any]) -> dict[str, Any]:
        joined = join_name(entry.get("namespace"), str(name))
        if joined not in self.known:
            raise refuse(f"cannot use `tool_choice`: {joined[:64]!r} is none of the `tools`")
        return {"type": "function", "function": {"name": joined}}


def join_name(namespace: Any, name: str) -> str:
    """What a chat calls a tool of a namespace."""
    if not isinstance(namespace, str) or namespace in ("", _PLAIN):
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def _describe_custom(tool: Tool) -> str:
    """No grammar binds its input: the model is told of it."""
    definition = (tool.format or {}).get("definition")
    syntax = (tool.format or {}).get("syntax")
    told = f"The input follows this {syntax or 'format'}:\n{definition}" if definition else ""
    return "\n\n".join(filter(None, (tool.description, told)))


def wrap_input(text: str) -> str:
    """A custom tool's input as a function's arguments."""
    return msgspec.json.encode({INPUT: text}).decode()


def unwrap_input(arguments: str) -> str:
    """And back. Arguments that are none of ours are the input."""
    try:
        text = msgspec.json.decode(arguments, type=dict[str, Any]).get(INPUT)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return text if isinstance(text, str) else arguments
