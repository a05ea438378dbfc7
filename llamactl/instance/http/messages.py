"""How does an answer look to clients of Anthropic's Messages?

A message is a list of blocks: reasoning, text, calls of tools. In a stream each block begins, grows and ends before the
next one begins; usage stands at the beginning (what is read) and at the end (what was written).
"""

import base64
import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from llamactl import event_stream
from llamactl.dialects.common import seal_reasoning
from llamactl.dialects.messages import MessagesBody
from llamactl.endpoints import format_http_error
from llamactl.errors import LlamactlError
from llamactl.instance.engine.jobs import FinishEvent, FinishReason, ProgressEvent, TextEvent
from llamactl.instance.http.deltas import (
    TOOL_CALLS,
    ContentDelta,
    Delta,
    Message,
    ReasoningDelta,
    ToolCall,
)
from llamactl.instance.http.formats import Answer, FormatOptions, encode_json

_SIGNATURE_BYTES = 24


def format_event(kind: str, data: dict[str, Any]) -> bytes:
    """Format one event of a stream of Anthropic's Messages."""
    return event_stream.format_event(encode_json({"type": kind, **data}), kind)


PING = format_event("ping", {})


class MessagesFormat:
    """/v1/messages."""

    ping = PING

    def __init__(self, options: FormatOptions, body: MessagesBody) -> None:
        self._options = options
        self._stops = frozenset(body.stop_sequences or ())
        self._hides = body.thinking is not None and body.thinking.display == "omitted"
        self._edits = body.context_management is not None
        self._reader = options.make_reader()
        self._head = {
            "id": "msg_" + secrets.token_hex(12),
            "type": "message",
            "role": "assistant",
            "model": options.model,
        }
        self._message = Message()
        self._has_begun = False
        self._n_cached = 0
        self._open = ""
        """The kind of block that grows, or the number of the call."""
        self._index = -1
        self._thinking = ""
        """Of the block that grows."""

    # --- streams ---

    def first(self, index: int) -> bytes:
        return self._begin()

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        message: dict[str, Any] = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None}
        usage = self._format_usage(self._options.n_prompt[0], self._n_cached, 0)
        return format_event("message_start", {"message": {**message, "usage": usage}})

    def progress(self, index: int, event: ProgressEvent) -> bytes:
        """The stream begins as soon as it is known what of the prompt was in memory."""
        self._n_cached = event.n_cached
        return self._begin()

    def text(self, index: int, event: TextEvent) -> bytes:
        return b"".join([self._format_delta(delta) for delta in self._reader.read(event)])

    def last(self, index: int, finish: FinishEvent) -> bytes:
        chunks = [self._format_delta(delta) for delta in self._reader.end(finish)]
        chunks.append(self._close_block())
        usage = self._format_usage(finish.n_prompt, finish.n_cached, finish.n_generated)
        end = {"delta": self._format_stop(finish), "usage": usage, **self._format_edits()}
        return b"".join((*chunks, format_event("message_delta", end)))

    def end(self, finishes: Sequence[FinishEvent]) -> bytes:
        return format_event("message_stop", {})

    def fail(self, error: LlamactlError, path: str) -> bytes:
        return event_stream.format_event(encode_json(format_http_error(error, path)), "error")

    def _format_delta(self, delta: Delta) -> bytes:
        self._message.add([delta])
        if isinstance(delta, ContentDelta):
            if not delta.text:
                return b""
            return self._open_block("text", {"text": ""}) + self._grow("text_delta", text=delta.text)
        if isinstance(delta, ReasoningDelta):
            start = self._open_block("thinking", {"thinking": "", "signature": ""})
            self._thinking += delta.text
            return start if self._hides else start + self._grow("thinking_delta", thinking=delta.text)
        call = self._message.calls[delta.index]
        block = {"id": call.id, "name": call.name, "input": {}}
        start = self._open_block("tool_use", block, str(delta.index))
        return start + self._grow("input_json_delta", partial_json=delta.arguments) if delta.arguments else start

    def _open_block(self, kind: str, block: dict[str, Any], key: str = "") -> bytes:
        if self._open == (key or kind):
            return b""
        before = self._close_block()
        self._open = key or kind
        self._index += 1
        start = {"index": self._index, "content_block": {"type": kind, **block}}
        return before + format_event("content_block_start", start)

    def _grow(self, kind: str, **text: str) -> bytes:
        return format_event("content_block_delta", {"index": self._index, "delta": {"type": kind, **text}})

    def _close_block(self) -> bytes:
        if not self._open:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._grow("signature_delta", signature=self._sign(self._thinking))
            self._thinking = ""
        self._open = ""
        return signed + format_event("content_block_stop", {"index": self._index})

    # --- wholes ---

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        answer, message = answers[0], self._message
        for part in answer.parts:
            message.add(self._reader.read(part))
        message.add(self._reader.end(answer.finish))
        finish = answer.finish
        return {
            **self._head,
            "content": self._format_blocks(message),
            **self._format_stop(finish),
            "usage": self._format_usage(finish.n_prompt, finish.n_cached, finish.n_generated),
            **self._format_edits(),
        }

    def _format_blocks(self, message: Message) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if message.reasoning:
            shown = "" if self._hides else message.reasoning
            blocks.append({"type": "thinking", "thinking": shown, "signature": self._sign(message.reasoning)})
        if message.content:
            blocks.append({"type": "text", "text": message.content})
        for call in message.calls:
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _read_arguments(call)})
        return blocks

    # --- both ---

    def _sign(self, reasoning: str) -> str:
        """What clients pass back with it: a mark that there is something, or where it is not shown, itself."""
        if self._hides:
            return seal_reasoning(reasoning)
        digest = hashlib.sha256(reasoning.encode("utf-8", "surrogatepass")).digest()
        return base64.b64encode(digest[:_SIGNATURE_BYTES]).decode()

    def _format_stop(self, finish: FinishEvent) -> dict[str, Any]:
        reason, sequence = self._message.choose_finish_reason(finish), None
        if reason == TOOL_CALLS:
            word = "tool_use"
        elif reason == FinishReason.LENGTH:
            word = "model_context_window_exceeded" if finish.truncated else "max_tokens"
        elif finish.stopped_by in self._stops:
            word, sequence = "stop_sequence", finish.stopped_by
        else:
            word = "end_turn"
        return {"stop_reason": word, "stop_sequence": sequence}

    def _format_usage(self, n_prompt: int, n_cached: int, n_generated: int) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "input_tokens": n_prompt - n_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": n_cached,
            "output_tokens": n_generated,
        }
        if self._message.reasoning:
            n_thinking = min(self._options.count_tokens(self._message.reasoning), n_generated)
            usage["output_tokens_details"] = {"thinking_tokens": n_thinking}
        return usage

    def _format_edits(self) -> dict[str, Any]:
        return {"context_management": {"applied_edits": []}} if self._edits else {}


def _read_arguments(call: ToolCall) -> dict[str, Any]:
    """Empty where they were cut off."""
    try:
        return msgspec.json.decode(call.arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
