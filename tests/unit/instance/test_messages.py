"""How does an answer look to clients of Messages, whole and in pieces?"""

import json
from collections.abc import Sequence
from typing import Any

from llamactl.dialects.common import open_reasoning
from llamactl.dialects.messages import MessagesBody, Thinking, Turn
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.engine.jobs import FinishEvent, FinishReason, ProgressEvent, TextEvent, Timings
from llamactl.instance.http.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from llamactl.instance.http.formats import Answer, FormatOptions
from llamactl.instance.http.messages import PING, MessagesFormat

TIMINGS = Timings(0, 1, 1.0, 2, 1.0)
SCRIPT: list[list[Delta]] = [
    [ReasoningDelta("I ")],
    [ReasoningDelta("must"), ContentDelta("Let me")],
    [ContentDelta(" look")],
    [ToolCallDelta(0, "c0", "look", "")],
    [ToolCallDelta(0, arguments='{"at"'), ToolCallDelta(0, arguments=':"sea"}')],
    [ToolCallDelta(1, "c1", "go", "{}")],
]


class Scripted:
    """What a parser of tool calls would make of it."""

    def __init__(self, script: Sequence[Sequence[Delta]]) -> None:
        self._script = [list(deltas) for deltas in script]

    def read(self, event: TextEvent) -> Sequence[Delta]:
        return self._script.pop(0)

    def end(self, finish: FinishEvent) -> Sequence[Delta]:
        return self._script.pop(0) if self._script else []


def finish(reason: FinishReason = FinishReason.STOP, **more: Any) -> FinishEvent:
    return FinishEvent(reason, 12, 6, 4, TIMINGS, **more)


def count_words(text: str) -> int:
    return len(text.split())


def make_format(script: Sequence[Sequence[Delta]], **fields: Any) -> MessagesFormat:
    body = MessagesBody(messages=[Turn(role="user", content="hi")], **fields)
    return MessagesFormat(
        FormatOptions(
            "m", n_prompt=[12], make_reader=lambda: Scripted(script), count_tokens=lambda text: len(text.split())
        ),
        body,
    )


def parse(stream: bytes) -> list[dict[str, Any]]:
    events = []
    for block in stream.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def stream(script: Sequence[Sequence[Delta]], end: FinishEvent, **fields: Any) -> list[dict[str, Any]]:
    answer_format = make_format(script, **fields)
    chunks = [answer_format.first(0)]
    chunks += [answer_format.text(0, TextEvent("x", number + 1)) for number in range(len(script))]
    return parse(b"".join((*chunks, answer_format.last(0, end), answer_format.end([end]))))


def whole(script: Sequence[Sequence[Delta]], end: FinishEvent, **fields: Any) -> dict[str, Any]:
    parts = [TextEvent("x", number + 1) for number in range(len(script))]
    return make_format(script, **fields).whole([Answer(end, parts)])


def collect(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a stream, as its clients put them together."""
    blocks: list[dict[str, Any]] = []
    texts: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1, "only the last block grows"
            delta = event["delta"]
            field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
            if delta["type"] == "input_json_delta":
                texts[event["index"]] = texts.get(event["index"], "") + delta["partial_json"]
            else:
                blocks[-1][field[delta["type"]]] += delta[field[delta["type"]]]
    for index, text in texts.items():
        blocks[index]["input"] = json.loads(text)
    return blocks


def test_blocks_come_one_after_the_other_and_add_up_to_the_whole() -> None:
    events, answer = stream(SCRIPT, finish()), whole(SCRIPT, finish())
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == [
        "message_start",
        *["content_block_start", "content_block_stop"] * 4,
        "message_delta",
        "message_stop",
    ]
    assert collect(events) == answer["content"]
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    thinking, text, first, second = answer["content"]
    assert (thinking["thinking"], text["text"]) == ("I must", "Let me look")
    assert thinking["signature"]
    assert first == {"type": "tool_use", "id": "c0", "name": "look", "input": {"at": "sea"}}
    assert second["input"] == {}
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_usage_tells_what_was_in_memory() -> None:
    answer, events = whole(SCRIPT, finish()), stream(SCRIPT, finish())
    expected = {
        "input_tokens": 8,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 6,
        "output_tokens_details": {"thinking_tokens": 2},
    }
    assert answer["usage"] == events[-2]["usage"] == expected


def test_stream_begins_when_the_prompt_is_looked_up() -> None:
    answer_format = make_format(SCRIPT)
    (start,) = parse(answer_format.progress(0, ProgressEvent(12, 4, 4, 0.0)))
    assert start["message"]["usage"]["input_tokens"] == 8
    assert start["message"]["usage"]["cache_read_input_tokens"] == 4
    assert answer_format.progress(0, ProgressEvent(12, 4, 12, 0.0)) == answer_format.first(0) == b""


def test_end_says_why() -> None:
    plain: list[list[Delta]] = [[ContentDelta("hello")]]
    assert whole(plain, finish())["stop_reason"] == "end_turn"
    assert whole(plain, finish(FinishReason.LENGTH))["stop_reason"] == "max_tokens"
    full = finish(FinishReason.LENGTH, truncated=True)
    assert whole(plain, full)["stop_reason"] == "model_context_window_exceeded"
    stopped = whole(plain, finish(stopped_by="END"), stop_sequences=["END"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "END")
    assert whole(plain, finish(stopped_by="<|im_end|>"))["stop_reason"] == "end_turn", "the template's own"
    assert whole(SCRIPT, finish(FinishReason.LENGTH))["stop_reason"] == "max_tokens", "the last call is not whole"


def test_thinking_that_is_not_shown_can_still_be_passed_back() -> None:
    hides = Thinking(type="adaptive", display="omitted")
    for block in (
        whole(SCRIPT, finish(), thinking=hides)["content"][0],
        collect(stream(SCRIPT, finish(), thinking=hides))[0],
    ):
        assert block["thinking"] == ""
        assert open_reasoning(block["signature"]) == "I must"


def test_call_that_was_cut_off_has_no_arguments() -> None:
    cut: list[list[Delta]] = [[ToolCallDelta(0, "c", "look", '{"at": "s')]]
    assert whole(cut, finish(FinishReason.LENGTH))["content"][0]["input"] == {}


def test_text_after_a_call_is_a_block_of_its_own() -> None:
    script: list[list[Delta]] = [[ContentDelta("a")], [ToolCallDelta(0, "c", "go", "{}")], [ContentDelta("b")]]
    assert [block["type"] for block in collect(stream(script, finish()))] == ["text", "tool_use", "text"]


def test_edits_of_the_context_were_none() -> None:
    asked = {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}
    assert whole(SCRIPT, finish(), **asked)["context_management"] == {"applied_edits": []}
    assert stream(SCRIPT, finish(), **asked)[-2]["context_management"] == {"applied_edits": []}
    assert "context_management" not in whole(SCRIPT, finish())


def test_quiet_streams_ping_and_failures_are_named() -> None:
    assert parse(PING) == [{"type": "ping"}]
    error = LlamactlError(ErrorCode.SHUTTING_DOWN, "the instance is stopping")
    (event,) = parse(make_format(SCRIPT).fail(error, "/v1/messages"))
    assert event == {"type": "error", "error": {"type": "overloaded_error", "message": "the instance is stopping"}}
