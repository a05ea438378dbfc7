"""Where may a system message stand, other than first?

Claude Code and Codex send some in the middle of a conversation. Of the templates that llama.cpp's sources have, a
quarter refuse that, leave it out without a word, or let it replace the first one: for those it becomes what the user
says. A template is tried once, when the first such message comes.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from llamactl.bodies import ChatBody, ChatMessage
from llamactl.dialects.common import add_message
from llamactl.errors import LlamactlError

_PROBES = (("system", "PROBEONE"), ("user", "PROBETWO"), ("system", "PROBETHREE"), ("user", "PROBEFOUR"))


class LaterSystem:
    """Of one template."""

    def __init__(self, write: Callable[[ChatBody], Awaitable[str]]) -> None:
        """`write`: the prompt of a chat."""
        self._write = write
        self._is_told: bool | None = None

    async def settle(self, body: ChatBody) -> ChatBody:
        """The chat in a form in which nothing of it is lost."""
        if not any(message.role == "system" for message in body.messages[1:]):
            return body
        if self._is_told is None:
            self._is_told = await self._try()
        return body if self._is_told else msgspec.structs.replace(body, messages=move_system(body.messages))

    async def _try(self) -> bool:
        probe = ChatBody(messages=[ChatMessage(role=role, content=text) for role, text in _PROBES])
        try:
            prompt = await self._write(probe)
        except LlamactlError:
            return False
        return all(text in prompt for _, text in _PROBES)


def move_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """What a system says later than first becomes part of what the user says there."""
    moved: list[ChatMessage] = []
    for index, message in enumerate(messages):
        if index and message.role == "system":
            message = msgspec.structs.replace(message, role="user")
        add_message(moved, message)
    return moved
