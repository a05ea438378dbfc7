"""How does an answer look to clients of OpenAI's Responses?

A response is a list of items: reasoning, messages, calls of tools. In a stream each one ends before the next begins,
and every event has a number. A whole answer is what its stream would have ended with.
"""

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from llamactl.dialects.responses import Item, Reasoning, ResponsesBody
from llamactl.dialects.responses_chat import ENCRYPTED, LOGPROBS, Conversion
from llamactl.errors import LlamactlError
from llamactl.event_stream import format_event
from llamactl.instance.engine.jobs import FinishEvent, FinishReason, ProgressEvent, TextEvent
from llamactl.instance.http.deltas import ContentDelta, Delta, ReasoningDelta
from llamactl.instance.http.formats import (
    Answer,
    EventFormat,
    FormatOptions,
    encode_json,
    format_progress,
    format_timings,
)
from llamactl.instance.http.output_items import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    CallItem,
    Event,
    MessageItem,
    OutputItem,
    ReasoningItem,
    make_id,
)
from llamactl.instance.http.stored import Keep
from llamactl.settings import Sampling


def make_response_id(model: str) -> str:
    """With the model's name in it: who asks for a stored response names nothing else."""
    return f"{make_id('resp')}_{base64.urlsafe_b64encode(model.encode()).decode().rstrip('=')}"


@dataclass(frozen=True)
class ResponseSettings:
    """What a response tells of its request."""

    body: ResponsesBody
    conversion: Conversion
    sampling: Sampling
    """For requests that say nothing else."""
    keep: Keep | None
    """None: it is not stored."""


class ResponsesFormat:
    """/v1/responses."""

    ping = EventFormat.ping

    def __init__(self, options: FormatOptions, settings: ResponseSettings) -> None:
        body = settings.body
        reasoning = body.reasoning or Reasoning()
        self._options = options
        self._settings = settings
        self._reader = options.make_reader()
        self._created_s = int(time.time())
        self._id = make_response_id(options.model)
        self._as_summary = (reasoning.summary or reasoning.generate_summary) is not None
        self._is_sealed = ENCRYPTED in (body.include or ())
        self._tells_probabilities = LOGPROBS in (body.include or ()) or body.top_logprobs is not None
        self._tells_progress = bool(body.return_progress)
        self._number = 0
        """Of the next event."""
        self._has_begun = False
        self._open: OutputItem | None = None
        self._open_call = -1
        """The call's index, where the item that grows is one."""
        self._done: list[dict[str, Any]] = []
        self._reasoning: list[str] = []

    # --- streams ---

    def first(self, index: int) -> bytes:
        return self._encode(self._begin())

    def _begin(self) -> list[Event]:
        if self._has_begun:
            return []
        self._has_begun = True
        response = self._format_response(IN_PROGRESS)
        return [("response.created", {"response": response}), ("response.in_progress", {"response": response})]

    def progress(self, index: int, event: ProgressEvent) -> bytes:
        """The stream begins with it, whether its client wants to know how far it is or not."""
        events = self._begin()
        if self._tells_progress:
            events = events or [("response.in_progress", {"response": self._format_response(IN_PROGRESS)})]
            events[-1][1].update(format_progress(event))
        return self._encode(events)

    def text(self, index: int, event: TextEvent) -> bytes:
        events = self._grow(self._reader.read(event))
        if events and event.timings is not None:
            events[-1][1]["timings"] = format_timings(event.timings)
        return self._encode(events)

    def last(self, index: int, finish: FinishEvent) -> bytes:
        events = self._finish(finish)
        status = _choose_status(finish)
        response = self._format_response(status, finish)
        events.append((f"response.{status}", {"response": response, "timings": format_timings(finish.timings)}))
        self._keep(response)
        return self._encode(events)

    def end(self, finishes: Sequence[FinishEvent]) -> bytes:
        return b""

    def fail(self, error: LlamactlError, path: str) -> bytes:
        """The error for those who read errors, and the response for those who wait for its end."""
        told = {"code": error.kind.openai_code or error.kind.type, "message": str(error)}
        response = {**self._format_response("failed"), "error": told}
        return self._encode([("error", {**told, "param": None}), ("response.failed", {"response": response})])

    def _encode(self, events: Sequence[Event]) -> bytes:
        chunks = []
        for kind, data in events:
            told = encode_json({"type": kind, **data, "sequence_number": self._number})
            chunks.append(format_event(told, kind))
            self._number += 1
        return b"".join(chunks)

    # --- items ---

    def _finish(self, finish: FinishEvent) -> list[Event]:
        events = self._grow(self._reader.end(finish))
        return [*events, *self._close(_choose_status(finish))]

    def _grow(self, deltas: Sequence[Delta]) -> list[Event]:
        events: list[Event] = []
        for delta in deltas:
            item = self._open
            if isinstance(delta, ContentDelta):
                if not delta.text and not (delta.infos and isinstance(item, MessageItem)):
                    continue
                if not isinstance(item, MessageItem):
                    events += self._close(COMPLETED)
                    item = MessageItem(len(self._done), tells_probabilities=self._tells_probabilities)
                    events += self._add(item)
                events += item.grow(delta.text, delta.infos, self._options.n_top)
            elif isinstance(delta, ReasoningDelta):
                if not isinstance(item, ReasoningItem):
                    events += self._close(COMPLETED)
                    item = ReasoningItem(len(self._done), as_summary=self._as_summary, is_sealed=self._is_sealed)
                    events += self._add(item)
                self._reasoning.append(delta.text)
                events += item.grow(delta.text)
            else:
                if not isinstance(item, CallItem) or delta.index != self._open_call:
                    events += self._close(COMPLETED)
                    item = CallItem(len(self._done), delta.id, self._settings.conversion.tools.find(delta.name))
                    events += self._add(item)
                    self._open_call = delta.index
                if delta.arguments:
                    events += item.grow(delta.arguments)
        return events

    def _add(self, item: OutputItem) -> list[Event]:
        self._open = item
        return item.begin()

    def _close(self, status: str) -> list[Event]:
        """The item that grows is whole, or as far as it came."""
        item, self._open = self._open, None
        if item is None:
            return []
        events = item.end(status)
        self._done.append(item.format(status))
        return events

    # --- the response ---

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        answer = answers[0]
        for part in answer.parts:
            self._grow(self._reader.read(part))
        self._finish(answer.finish)
        response = self._format_response(_choose_status(answer.finish), answer.finish)
        self._keep(response)
        return response

    def _keep(self, response: dict[str, Any]) -> None:
        if self._settings.keep is not None:
            self._settings.keep(response, msgspec.convert(self._done, list[Item]))

    def _format_response(self, status: str, finish: FinishEvent | None = None) -> dict[str, Any]:
        body, tools = self._settings.body, self._settings.conversion.tools
        defaults = self._settings.sampling
        reasoning = body.reasoning or Reasoning()
        form = body.text.format if body.text is not None else None
        choice = body.tool_choice
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_s,
            "completed_at": None if finish is None else int(time.time()),
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._options.model,
            "output": list(self._done),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary or reasoning.generate_summary},
            "store": self._settings.keep is not None,
            "temperature": defaults.temperature if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"} if form is None else msgspec.to_builtins(form)},
            "tool_choice": "auto" if choice is None else msgspec.to_builtins(choice),
            "tools": [msgspec.to_builtins(tool) for tool in tools.told],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": defaults.top_p if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None if finish is None else self._format_usage(finish),
        }

    def _format_usage(self, finish: FinishEvent) -> dict[str, Any]:
        n_reasoning = self._options.count_tokens("".join(self._reasoning)) if self._reasoning else 0
        return {
            "input_tokens": finish.n_prompt,
            "input_tokens_details": {"cached_tokens": finish.n_cached, "cache_write_tokens": 0},
            "output_tokens": finish.n_generated,
            "output_tokens_details": {"reasoning_tokens": min(n_reasoning, finish.n_generated)},
            "total_tokens": finish.n_prompt + finish.n_generated,
        }


def _choose_status(finish: FinishEvent) -> str:
    return INCOMPLETE if finish.reason is FinishReason.LENGTH else COMPLETED
