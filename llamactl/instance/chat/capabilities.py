"""What does a template know besides roles and texts? Found out by rendering, under llama-server's names.

llama.cpp watches which values its interpreter touches; here each value is a mark, and what matters is whether the mark
comes out. A template that takes long for a probe is taken to know nothing.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 1.0
"""For all probes together; each has the bound of any rendering besides."""

Write = Callable[[Sequence[dict[str, Any]], dict[str, Any]], str | None]
"""The text of messages with variables; None where the template refuses them."""

_MARK, _TOOL, _CALL, _SECOND, _VALUE = "MARK_TEXT", "mark_tool", "mark_call", "mark_second", "mark_value"
_USER = {"role": "user", "content": "User message"}
_ARGUMENTS = {"arg": _VALUE}
TOOLS = [
    {
        "name": "tool",
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "Tool description",
            "parameters": {
                "type": "object",
                "properties": {"arg": {"type": "string", "description": "Arg description"}},
                "required": ["arg"],
            },
        },
    }
]


@dataclass(frozen=True)
class Capabilities:
    """Of one template (llama.cpp: common/jinja/caps.h)."""

    supports_object_arguments: bool = False
    """Arguments of calls in the history are objects to it, not texts."""
    supports_parallel_tool_calls: bool = False
    supports_preserve_reasoning: bool = False
    """Thoughts of former answers are shown when it is told to keep them."""
    supports_reasoning_effort: bool = False
    supports_string_content: bool = True
    supports_system_role: bool = False
    supports_tool_calls: bool = False
    supports_tools: bool = False
    supports_typed_content: bool = False
    """Contents may be lists of parts."""


class _Slow(Exception):
    """The template takes too long."""


def probe_capabilities(write: Write) -> Capabilities:
    """Renders up to ten conversations."""
    ends_s = time.monotonic() + PATIENCE_S

    def tell(messages: Sequence[dict[str, Any]], **variables: Any) -> str | None:
        if time.monotonic() > ends_s:
            raise _Slow
        return write(messages, {"add_generation_prompt": True, **variables})

    try:
        return _probe(tell)
    except _Slow:
        return Capabilities()


def _probe(tell: Callable[..., str | None]) -> Capabilities:
    plain = tell([{"role": "user", "content": _MARK}])
    parts = tell([{"role": "user", "content": [{"type": "text", "text": _MARK}]}])
    takes_parts = parts is not None and _MARK in parts and "'type'" not in parts and '"type"' not in parts
    system = tell([{"role": "system", "content": _MARK}, _USER])
    called = tell(make_history(_ARGUMENTS), tools=TOOLS)
    takes_objects = called is not None and _CALL in called and _VALUE in called and str(_ARGUMENTS) not in called
    if not takes_objects:
        called = tell(make_history(json.dumps(_ARGUMENTS)), tools=TOOLS) or called
    arguments = _ARGUMENTS if takes_objects else json.dumps(_ARGUMENTS)
    twice = tell(make_history(arguments, _SECOND), tools=TOOLS)
    kept = tell(
        [
            _USER,
            {"role": "assistant", "content": "Assistant message", "reasoning_content": _MARK},
            _USER,
            {"role": "assistant", "content": "Assistant message", "reasoning_content": "Reasoning content"},
            _USER,
        ],
        enable_thinking=True,
        preserve_thinking=True,
        clear_thinking=False,
        truncate_history_thinking=False,
        drop_thinking=False,
    )
    low, high = (
        tell([_USER], enable_thinking=True, reasoning_effort=effort, reasoning_strength=effort)
        for effort in ("low", "high")
    )
    unsaid = tell([_USER], enable_thinking=True)
    return Capabilities(
        supports_object_arguments=takes_objects,
        supports_parallel_tool_calls=twice is not None and _SECOND in twice,
        supports_preserve_reasoning=kept is not None and _MARK in kept,
        supports_reasoning_effort=not low == high == unsaid,
        supports_string_content=plain is not None and (_MARK in plain or not takes_parts),
        supports_system_role=system is not None and _MARK in system,
        supports_tool_calls=called is not None and _CALL in called,
        supports_tools=called is not None and _TOOL in called,
        supports_typed_content=takes_parts,
    )


def make_history(arguments: object, *others: str) -> list[dict[str, Any]]:
    """A conversation with a call, and with calls of `others` beside it."""
    calls = [
        {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, name in enumerate((_CALL, *others), start=1)
    ]
    return [
        _USER,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "Tool response", "tool_call_id": "call00001"},
        {"role": "assistant", "content": "The tool response was 'tool response'"},
        _USER,
    ]
