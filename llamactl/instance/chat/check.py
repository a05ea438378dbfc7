"""Does a library of the chat layer work here? Run once as a process of its own before it is put in place:

    python -m llamactl.instance.chat.check LIBRARY

A template is applied, an answer parsed, an error passed on; exit status 0, or 1 and one line that says why not. Headers
that do not match the library show as a crash.
"""

import sys
from pathlib import Path

from llamactl.errors import LlamactlError
from llamactl.instance.chat.layer import ApplyRequest, ChatLayer, ParseError
from llamactl.instance.llama.chat_library import ChatLibrary, ChatLibraryError

TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n# Tools\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n"
    '</tools>\nFor each call: <tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call><|im_end|>\n{% endif %}'
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}
ANSWER = 'Well.<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'


def find_fault(layer: ChatLayer) -> str:
    """What it does wrong; empty: nothing. Raises LlamactlError, ParseError."""
    template = layer.open_template(TEMPLATE, None)
    messages = [{"role": "user", "content": "Look at it."}]
    plain = template.apply(ApplyRequest(messages=messages)).prompt
    if plain != "<|im_start|>user\nLook at it.<|im_end|>\n<|im_start|>assistant\n":
        return f"it makes this prompt: {plain!r}"
    if not template.info.capabilities.get("supports_tool_calls"):
        return "it finds no calls in a template that writes them"
    applied = template.apply(ApplyRequest(messages=messages, tools=[TOOL]))
    if not applied.grammar:
        return "it makes no grammar for a tool"
    parser = template.start_answer(applied)
    told = [delta for character in ANSWER for delta in parser.feed(character, True)[0]]
    message = parser.feed("", False)[1]
    content = "".join(delta.content for delta in told)
    arguments = "".join(delta.call.arguments for delta in told if delta.call is not None)
    if message is None or content != message.content or [call.arguments for call in message.tool_calls] != [arguments]:
        return f"what it tells of an answer in parts is {told}, and of the whole {message}"
    if message.content != "Well." or message.tool_calls[0].name != "look":
        return f"it makes of an answer {message}"
    return ""


def main() -> int:
    """Try the library in the first argument; returns the exit status, and says on standard error what is wrong."""
    try:
        fault = find_fault(ChatLayer(ChatLibrary(Path(sys.argv[1]))))
    except (LlamactlError, ChatLibraryError, ParseError) as error:
        fault = str(error)
    if fault:
        print(fault, file=sys.stderr)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
