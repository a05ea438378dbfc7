"""What are the items of an answer to Responses, and what is told of them while they grow?

Each kind begins, grows and ends with its own events; together its pieces are what the finished item holds.
"""

import secrets
from collections.abc import Sequence
from typing import Any, Protocol

from llamactl.dialects.common import seal_reasoning
from llamactl.dialects.responses_tools import KnownTool, unwrap_input
from llamactl.instance.engine.jobs import TokenInfo

Event = tuple[str, dict[str, Any]]
"""Its type, and all else that it says but its number."""

_UNLIKELY = -9999.0
"""OpenAI's word for what hardly ever happens."""

COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"


class OutputItem(Protocol):
    """An item that grows."""

    def begin(self) -> list[Event]:
        """List the events that open the item."""

    def end(self, status: str) -> list[Event]:
        """List the events that close the item with this status."""

    def format(self, status: str) -> dict[str, Any]:
        """Format the whole item, as it stands in a response."""


def make_id(prefix: str) -> str:
    """Make an id that nobody can guess, as OpenAI's are made: 48 hexadecimal digits behind a prefix."""
    return f"{prefix}_{secrets.token_hex(24)}"


class _Place:
    """Where an item stands, as its events name it."""

    def __init__(self, prefix: str, output_index: int) -> None:
        self.id = make_id(prefix)
        self.output_index = output_index
        self.place: dict[str, Any] = {"item_id": self.id, "output_index": output_index}

    def tell(self, kind: str, item: dict[str, Any]) -> Event:
        return f"response.output_item.{kind}", {"output_index": self.output_index, "item": item}


class MessageItem(_Place):
    """Text for the user."""

    def __init__(self, output_index: int, *, tells_probabilities: bool) -> None:
        super().__init__("msg", output_index)
        self._part_place = {**self.place, "content_index": 0}
        self._tells = tells_probabilities
        self._text: list[str] = []
        self._probabilities: list[dict[str, Any]] = []

    def begin(self) -> list[Event]:
        added = self.tell("added", self._format(IN_PROGRESS, []))
        return [added, ("response.content_part.added", {**self._part_place, "part": self._format_part()})]

    def grow(self, text: str, infos: Sequence[TokenInfo], n_top: int | None) -> list[Event]:
        probabilities = [] if n_top is None else [_format_probability(info, n_top) for info in infos]
        self._text.append(text)
        self._probabilities += probabilities
        return [("response.output_text.delta", {**self._part_place, "delta": text, "logprobs": probabilities})]

    def end(self, status: str) -> list[Event]:
        text = {"text": "".join(self._text), "logprobs": self._probabilities}
        return [
            ("response.output_text.done", {**self._part_place, **text}),
            ("response.content_part.done", {**self._part_place, "part": self._format_part()}),
            self.tell("done", self.format(status)),
        ]

    def format(self, status: str) -> dict[str, Any]:
        return self._format(status, [self._format_part()])

    def _format(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _format_part(self) -> dict[str, Any]:
        part = {"type": "output_text", "text": "".join(self._text), "annotations": []}
        return {**part, "logprobs": self._probabilities if self._tells else []}


class ReasoningItem(_Place):
    """What the model thinks: as it is, or where a summary is asked for, as that. There is no shorter one."""

    def __init__(self, output_index: int, *, as_summary: bool, is_sealed: bool) -> None:
        super().__init__("rs", output_index)
        self._as_summary = as_summary
        self._is_sealed = is_sealed
        self._text: list[str] = []
        if as_summary:
            self._kind, self._part = "summary_text", "reasoning_summary_part"
            self._events = "response.reasoning_summary_text"
            self._part_place = {**self.place, "summary_index": 0}
        else:
            self._kind, self._part = "reasoning_text", "content_part"
            self._events = "response.reasoning_text"
            self._part_place = {**self.place, "content_index": 0}

    def begin(self) -> list[Event]:
        added = self.tell("added", self._format(IN_PROGRESS, []))
        return [added, (f"response.{self._part}.added", {**self._part_place, "part": self._format_part()})]

    def grow(self, text: str) -> list[Event]:
        self._text.append(text)
        return [(f"{self._events}.delta", {**self._part_place, "delta": text})]

    def end(self, status: str) -> list[Event]:
        return [
            (f"{self._events}.done", {**self._part_place, "text": "".join(self._text)}),
            (f"response.{self._part}.done", {**self._part_place, "part": self._format_part()}),
            self.tell("done", self.format(status)),
        ]

    def format(self, status: str) -> dict[str, Any]:
        return self._format(status, [self._format_part()])

    def _format(self, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        summary, content = (parts, []) if self._as_summary else ([], parts)
        sealed = seal_reasoning("".join(self._text)) if self._is_sealed else None
        item = {"id": self.id, "type": "reasoning", "summary": summary, "content": content}
        return {**item, "encrypted_content": sealed, "status": status}

    def _format_part(self) -> dict[str, Any]:
        return {"type": self._kind, "text": "".join(self._text)}


class CallItem(_Place):
    """A call of a tool, under the name by which the client knows it."""

    def __init__(self, output_index: int, call_id: str, tool: KnownTool) -> None:
        super().__init__("ctc" if tool.is_custom else "fc", output_index)
        self._call_id = call_id
        self._tool = tool
        self._arguments: list[str] = []

    def begin(self) -> list[Event]:
        return [self.tell("added", self.format(IN_PROGRESS))]

    def grow(self, arguments: str) -> list[Event]:
        """A custom tool's input is told when it is whole: until then it is within JSON."""
        self._arguments.append(arguments)
        if self._tool.is_custom:
            return []
        return [("response.function_call_arguments.delta", {**self.place, "delta": arguments})]

    def end(self, status: str) -> list[Event]:
        if self._tool.is_custom:
            text = unwrap_input("".join(self._arguments))
            told: list[Event] = [
                ("response.custom_tool_call_input.delta", {**self.place, "delta": text}),
                ("response.custom_tool_call_input.done", {**self.place, "input": text}),
            ]
        else:
            done = {**self.place, "name": self._tool.name, "arguments": "".join(self._arguments)}
            told = [("response.function_call_arguments.done", done)]
        return [*told, self.tell("done", self.format(status))]

    def format(self, status: str) -> dict[str, Any]:
        arguments = "".join(self._arguments)
        item: dict[str, Any] = {"id": self.id, "call_id": self._call_id, "name": self._tool.name}
        if self._tool.namespace is not None:
            item["namespace"] = self._tool.namespace
        if self._tool.is_custom:
            shown = "" if status == IN_PROGRESS else unwrap_input(arguments)
            return {**item, "type": "custom_tool_call", "status": status, "input": shown}
        return {**item, "type": "function_call", "status": status, "arguments": arguments}


def _format_probability(info: TokenInfo, n_top: int) -> dict[str, Any]:
    top = [_format_token(piece, value) for _, piece, value in info.top[:n_top]]
    return {**_format_token(info.piece, info.value or 0.0), "top_logprobs": top}


def _format_token(piece: bytes, value: float) -> dict[str, Any]:
    return {"token": piece.decode(errors="replace"), "bytes": list(piece), "logprob": max(value, _UNLIKELY)}
