"""What does an answer consist of, whichever API tells it? Content, reasoning and calls of tools, as pieces that add up.

A reader makes pieces of what the model writes; formats put them into the words of their API. Nothing is ever taken
back: what has been told stands. A call's `id` and `name` come whole with its first piece, then pieces of its
arguments, which need not be JSON before the last.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from llamactl.instance.engine.jobs import FinishEvent, FinishReason, TextEvent, TokenInfo

TOOL_CALLS = "tool_calls"
"""OpenAI's word for an end at which tools are to be called."""


class ContentDelta(msgspec.Struct, frozen=True):
    """Text for the user."""

    text: str
    infos: tuple[TokenInfo, ...] = ()
    """Of its tokens, where probabilities are asked for."""


class ReasoningDelta(msgspec.Struct, frozen=True):
    text: str


class ToolCallDelta(msgspec.Struct, frozen=True):
    index: int
    """Of the call within the answer, from 0 on; calls come one after the other."""
    id: str = ""
    name: str = ""
    arguments: str = ""


Delta = ContentDelta | ReasoningDelta | ToolCallDelta


class Reader(Protocol):
    """Reads one choice."""

    def read(self, event: TextEvent) -> Sequence[Delta]:
        """Read what an event adds to the answer: nothing while its meaning is open."""

    def end(self, finish: FinishEvent) -> Sequence[Delta]:
        """What has been held back."""


class PlainReader:
    """All is content: of templates that mark neither reasoning nor calls."""

    def read(self, event: TextEvent) -> Sequence[Delta]:
        return [ContentDelta(event.text, event.infos)] if event.text or event.infos else []

    def end(self, finish: FinishEvent) -> Sequence[Delta]:
        return []


@dataclass
class ToolCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class Message:
    """The whole, or as much of it as has come."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    infos: list[TokenInfo] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> None:
        """Add what a reader has told, in its order."""
        for delta in deltas:
            if isinstance(delta, ContentDelta):
                self.content += delta.text
                self.infos += delta.infos
            elif isinstance(delta, ReasoningDelta):
                self.reasoning += delta.text
            else:
                while len(self.calls) <= delta.index:
                    self.calls.append(ToolCall())
                call = self.calls[delta.index]
                call.id, call.name = call.id or delta.id, call.name or delta.name
                call.arguments += delta.arguments

    def choose_finish_reason(self, finish: FinishEvent) -> str:
        """In OpenAI's words."""
        return TOOL_CALLS if self.calls and finish.reason is FinishReason.STOP else finish.reason


def read_message(reader: Reader, parts: Iterable[TextEvent], finish: FinishEvent) -> Message:
    """The whole answer of a choice that has ended."""
    message = Message()
    for part in parts:
        message.add(reader.read(part))
    message.add(reader.end(finish))
    return message
