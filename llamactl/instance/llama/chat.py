"""Which chat templates does llama.cpp have built in, and what does one make of a conversation?

They know roles and texts, nothing else: llama.h, llama_chat_apply_template.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

from llamactl.instance.llama.library import llama


@cache
def list_builtin_templates() -> frozenset[str]:
    """Their names."""
    count = llama.llama_chat_builtin_templates(None, 0)
    names = (ctypes.c_char_p * count)()
    llama.llama_chat_builtin_templates(names, count)
    return frozenset(name.decode() for name in names if name is not None)


def apply_builtin_template(
    name: str, messages: Sequence[tuple[str, str]], *, add_generation_prompt: bool
) -> str | None:
    """The prompt of (role, text) pairs; None where llama.cpp has no such template."""
    chat = (llama.llama_chat_message * len(messages))(
        *((_encode(role), _encode(content)) for role, content in messages)
    )
    size = 1024 + 2 * sum(len(message.role) + len(message.content) for message in chat)
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = llama.llama_chat_apply_template(
            name.encode(), chat, len(messages), add_generation_prompt, buffer, size
        )
        if length < 0:
            return None
        if length <= size:
            return buffer.raw[:length].decode(errors="replace")
        size = length


def _encode(text: str) -> bytes:
    """For C, where NUL would end it."""
    return text.replace("\0", "").encode("utf-8", "replace")
