"""How does a model call functions whose template knows none? As the Hermes models do: the system prompt tells of them,
calls and results stand in the text, between tags.

What such an answer means is read as if it followed a template that writes just that (`make_template`): from it
llama.cpp's chat layer makes the grammar and the parser.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from llamactl.bodies import ChatMessage, ContentPart

_INTRODUCTION = (
    "You can call functions. These are there, one a line, each as a JSON object:\n<tools>\n{tools}\n</tools>\n\n"
    "To call one, write a JSON object with its name and arguments between tags, and for several calls one after the "
    "other:\n<tool_call>\n"
    '{{"name": <function name>, "arguments": <object of arguments>}}\n</tool_call>\n'
    "Write nothing behind the last call: the results come between <tool_response> tags."
)


def write_tools(messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]) -> list[ChatMessage]:
    """The conversation in roles and texts alone."""
    written: list[ChatMessage] = []
    for message in messages:
        if message.role == "tool":
            result = _wrap(message.content)
            if written and written[-1].role == "user" and _is_result(written[-1]):
                written[-1] = msgspec.structs.replace(written[-1], content=_join(written[-1].content, result))
            else:
                written.append(ChatMessage(role="user", content=result))
        elif message.tool_calls:
            calls = "\n".join(_format_call(call["function"]) for call in message.tool_calls)
            content = _join(message.content, calls) if message.content else calls
            written.append(msgspec.structs.replace(message, content=content, tool_calls=None))
        else:
            written.append(message)
    if not tools:
        return written
    told = _INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if written and written[0].role in ("system", "developer"):
        head = written[0]
        return [msgspec.structs.replace(head, content=_join(head.content, told, "\n\n")), *written[1:]]
    return [ChatMessage(role="system", content=told), *written]


def _format_call(function: dict[str, Any]) -> str:
    return (
        f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}\n</tool_call>'
    )


def _wrap(content: str | list[ContentPart] | None) -> str | list[ContentPart]:
    before, behind = "<tool_response>\n", "\n</tool_response>"
    if isinstance(content, list):
        return [ContentPart(type="text", text=before), *content, ContentPart(type="text", text=behind)]
    return f"{before}{content or ''}{behind}"


def _is_result(message: ChatMessage) -> bool:
    content = message.content
    text = content if isinstance(content, str) else content[0].text if content else ""
    return (text or "").startswith("<tool_response>\n")


def _join(
    first: str | list[ContentPart] | None, second: str | list[ContentPart], between: str = "\n"
) -> str | list[ContentPart]:
    if isinstance(first, str | None) and isinstance(second, str):
        return f"{first}{between}{second}" if first else second
    parts: list[ContentPart] = []
    for content in (first, second):
        parts += [ContentPart(type="text", text=content)] if isinstance(content, str) else content or []
    return parts


def make_template(think_start: str, think_end: str, begun: str) -> str:
    """In Jinja, for a model that marks its thoughts so (empty: it has none). `begun`: what its prompts begin of an
    answer.
    """
    thoughts = ""
    if think_start and think_end:
        thoughts = (
            "{% if message.reasoning_content %}"
            f"{{{{ {json.dumps(think_start)} }}}}\n{{{{ message.reasoning_content }}}}\n"
            f"{{{{ {json.dumps(think_end)} }}}}\n\n{{% endif %}}"
        )
    return (
        "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>"
        "<|im_end|>\n{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n"
        f"{thoughts}{{{{ message.content }}}}"
        "{% for call in message.tool_calls or [] %}{% if message.content or not loop.first %}\n{% endif %}<tool_call>\n"
        '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
        "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
        f"{{{{ {json.dumps(begun)} }}}}{{% endif %}}"
    )
