"""What does the answer to a chat look like? OpenAI's chat completions, with reasoning as llama-server and others tell
it.

Thoughts have no field in OpenAI's form. `reasoning_content` is DeepSeek's word, which llama-server uses; `reasoning` is
that of OpenRouter and newer vLLM, and some clients look for it alone: both are told.
"""

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from llamactl.event_stream import DATA
from llamactl.instance.engine.jobs import FinishEvent, ProgressEvent, TextEvent, TokenInfo
from llamactl.instance.http.deltas import (
    TOOL_CALLS,
    ContentDelta,
    Delta,
    Message,
    PlainReader,
    Reader,
    ReasoningDelta,
    ToolCallDelta,
    read_message,
)
from llamactl.instance.http.formats import (
    Answer,
    EventFormat,
    FormatOptions,
    encode_json,
    end_stream,
    format_more,
    format_progress,
    format_sse,
    format_sums,
    format_timings,
)
from llamactl.instance.http.native_format import format_probs, format_verbose

FUNCTION_CALL = "function_call"
"""The end at which a function is to be called, in OpenAI's older form."""


class ChatFormat(EventFormat):
    """/v1/chat/completions."""

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self._readers: dict[int, Reader] = {}
        """Of each choice."""
        self._messages: dict[int, Message] = {}
        """Likewise: what has been told of it, where it may be more than content."""
        self._head = {
            "id": "chatcmpl-" + secrets.token_urlsafe(24),
            "created": int(time.time()),
            "model": options.model,
            "system_fingerprint": options.build,
        }
        self._stream_head = {**self._head, "object": "chat.completion.chunk"}
        self._before = DATA + encode_json(self._stream_head)[:-1] + b',"choices":[{"index":'
        self._is_plain = options.make_reader is PlainReader

    def first(self, index: int) -> bytes:
        return self._chunk(index, {"role": "assistant", "content": None})

    def text(self, index: int, event: TextEvent) -> bytes:
        if not self._is_plain:
            return self._tell(index, self._find_reader(index).read(event), **format_more(event.timings))
        if not event.infos and event.timings is None:
            return self._content(index, event.text) if event.text else b""  # of a character that never came to its end
        told = {"content": event.text} if event.text else {}
        return self._chunk(index, told, infos=event.infos, **format_more(event.timings))

    def progress(self, index: int, event: ProgressEvent) -> bytes:
        return self._chunk(index, {"role": "assistant", "content": None}, **format_progress(event))

    def last(self, index: int, finish: FinishEvent) -> bytes:
        rest = b"" if self._is_plain else self._tell(index, self._find_reader(index).end(finish))
        message = self._messages.get(index)
        reason = finish.reason if message is None else self._choose_reason(message, finish)
        more = {"timings": format_timings(finish.timings), **format_verbose(self._options, index, Answer(finish))}
        return rest + self._chunk(index, {}, reason, **more)

    def end(self, finishes: Sequence[FinishEvent]) -> bytes:
        return end_stream(self._stream_head, self._options, finishes)

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        choices = [self._format_choice(index, answer) for index, answer in enumerate(answers)]
        more = {**format_sums(answers, self._options), **format_verbose(self._options, 0, answers[0])}
        return {**self._head, "object": "chat.completion", "choices": choices, **more}

    def _format_choice(self, index: int, answer: Answer) -> dict[str, Any]:
        # In one piece: to parse it as it came would only take longer.
        parts = [TextEvent(answer.text, answer.finish.n_generated, infos=tuple(answer.infos))] if answer.parts else []
        message = read_message(self._options.make_reader(), parts, answer.finish)
        told: dict[str, Any] = {"role": "assistant", "content": message.content}
        if message.reasoning:
            told |= _format_reasoning(message.reasoning)
        if message.calls:
            told["content"] = message.content or None
            calls = [
                ToolCallDelta(number, call.id, call.name, call.arguments) for number, call in enumerate(message.calls)
            ]
            told |= self._format_calls(calls, is_whole=True)
        return {
            "index": index,
            "message": told,
            "logprobs": self._format_logprobs(message.infos),
            "finish_reason": self._choose_reason(message, answer.finish),
        }

    def _find_reader(self, index: int) -> Reader:
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = self._options.make_reader()
            self._messages[index] = Message()
        return reader

    def _choose_reason(self, message: Message, finish: FinishEvent) -> str:
        reason = message.choose_finish_reason(finish)
        return FUNCTION_CALL if reason == TOOL_CALLS and self._options.is_legacy else reason

    def _tell(self, index: int, deltas: Iterable[Delta], **more: Any) -> bytes:
        """Each as a chunk of its own, as llama-server does; `more` goes with the last."""
        chunks: list[bytes] = []
        deltas = list(deltas)
        self._messages[index].add(delta for delta in deltas if isinstance(delta, ToolCallDelta))
        for number, delta in enumerate(deltas):
            with_more = more if number == len(deltas) - 1 else {}
            if isinstance(delta, ContentDelta):
                if delta.infos or with_more:
                    chunks.append(self._chunk(index, {"content": delta.text}, infos=delta.infos, **with_more))
                else:
                    chunks.append(self._content(index, delta.text))
            elif isinstance(delta, ReasoningDelta):
                chunks.append(self._chunk(index, _format_reasoning(delta.text), **with_more))
            else:
                chunks.append(self._chunk(index, self._format_calls([delta]), **with_more))
        return b"".join(chunks)

    def _format_calls(self, calls: Sequence[ToolCallDelta], *, is_whole: bool = False) -> dict[str, Any]:
        if self._options.is_legacy:
            first = calls[0]
            named = {"name": first.name} if first.name else {}
            return {"function_call": {**named, "arguments": first.arguments}}
        told = []
        for call in calls:
            entry: dict[str, Any] = {} if is_whole else {"index": call.index}
            if call.name:
                entry |= {"id": call.id, "type": "function"}
            entry["function"] = {**({"name": call.name} if call.name else {}), "arguments": call.arguments}
            told.append(entry)
        return {"tool_calls": told}

    def _content(self, index: int, text: str) -> bytes:
        content = encode_json(text)
        return b'%b%d,"delta":{"content":%b},"finish_reason":null}]}\n\n' % (self._before, index, content)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        reason: str | None = None,
        infos: Sequence[TokenInfo] = (),
        **more: Any,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": reason}
        if infos:
            choice["logprobs"] = self._format_logprobs(infos)
        return format_sse({**self._stream_head, "choices": [choice], **more})

    def _format_logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any] | None:
        return None if self._options.n_top is None else {"content": format_probs(infos, self._options)}


def _format_reasoning(text: str) -> dict[str, str]:
    return {"reasoning_content": text, "reasoning": text}
