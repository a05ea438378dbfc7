"""How does an answer look to clients of Responses, whole and in pieces?"""

import json
from collections.abc import Sequence
from typing import Any

from llamactl.bodies import parse_body
from llamactl.dialects.common import open_reasoning
from llamactl.dialects.responses import Item, ResponsesBody
from llamactl.dialects.responses_chat import convert_responses
from llamactl.endpoints import find_keeper
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.engine.jobs import FinishEvent, FinishReason, ProgressEvent, TextEvent, Timings, TokenInfo
from llamactl.instance.http.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from llamactl.instance.http.formats import Answer, FormatOptions
from llamactl.instance.http.openai_responses import ResponseSettings, ResponsesFormat, make_response_id
from llamactl.settings import Sampling

TIMINGS = Timings(4, 8, 1.0, 6, 1.0)
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
SEA = {"type": "namespace", "name": "mcp__sea", "tools": [LOOK]}
PATCH = {"type": "custom", "name": "patch"}
SCRIPT: list[list[Delta]] = [
    [ReasoningDelta("I ")],
    [ReasoningDelta("must"), ContentDelta("Let me")],
    [ContentDelta(" look")],
    [ToolCallDelta(0, "c0", "mcp__sea__look", "")],
    [ToolCallDelta(0, arguments='{"at"'), ToolCallDelta(0, arguments=':"sea"}')],
    [ToolCallDelta(1, "c1", "patch", '{"input":'), ToolCallDelta(1, arguments='"*** x"}')],
]


class Scripted:
    """What a parser of tool calls would make of it."""

    def __init__(self, script: Sequence[Sequence[Delta]]) -> None:
        self._script = [list(deltas) for deltas in script]

    def read(self, event: TextEvent) -> Sequence[Delta]:
        return self._script.pop(0)

    def end(self, finish: FinishEvent) -> Sequence[Delta]:
        return self._script.pop(0) if self._script else []


def finish(reason: FinishReason = FinishReason.STOP) -> FinishEvent:
    return FinishEvent(reason, 12, 6, 4, TIMINGS)


def count_words(text: str) -> int:
    return len(text.split())


def make_format(script: Sequence[Sequence[Delta]], n_top: int | None = None, **fields: Any) -> ResponsesFormat:
    given = {"input": "hi", "tools": [LOOK, SEA, PATCH], **fields}
    body = parse_body(json.dumps(given).encode(), ResponsesBody)
    kept = KEPT.append if body.store is not False else None
    keep = None if kept is None else lambda response, items: kept((response, list(items)))
    options = FormatOptions(
        "m",
        n_prompt=[12],
        n_top=n_top,
        make_reader=lambda: Scripted(script),
        count_tokens=lambda text: len(text.split()),
    )
    return ResponsesFormat(options, ResponseSettings(body, convert_responses(body), Sampling(), keep))


KEPT: list[tuple[dict[str, Any], list[Item]]] = []


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
    events = parse(b"".join((*chunks, answer_format.last(0, end), answer_format.end([end]))))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def whole(script: Sequence[Sequence[Delta]], end: FinishEvent, **fields: Any) -> dict[str, Any]:
    parts = [TextEvent("x", number + 1) for number in range(len(script))]
    return make_format(script, **fields).whole([Answer(end, parts)])


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: without_ids(entry) for key, entry in value.items() if key not in ("id", "created_at", "completed_at")
        }
    return [without_ids(entry) for entry in value] if isinstance(value, list) else value


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_events_come_in_openais_order() -> None:
    assert kinds(stream(SCRIPT, finish())) == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"),
        "completed",
    ]


def test_items_of_a_stream_are_those_of_the_whole() -> None:
    events, answer = stream(SCRIPT, finish()), whole(SCRIPT, finish())
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert without_ids(events[-1]["response"]) == without_ids(answer)
    reasoning, message, call, custom = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "I must"}]
    assert reasoning["summary"] == []
    assert message["content"] == [{"type": "output_text", "text": "Let me look", "annotations": [], "logprobs": []}]
    assert {**call, "id": ""} == {
        "id": "",
        "type": "function_call",
        "status": "completed",
        "call_id": "c0",
        "name": "look",
        "namespace": "mcp__sea",
        "arguments": '{"at":"sea"}',
    }
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "patch", "*** x")
    assert "namespace" not in custom
    assert answer["status"] == "completed"
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == done[event["output_index"]]["id"]


def test_pieces_add_up_to_what_is_done() -> None:
    events = stream(SCRIPT, finish())
    texts: dict[tuple[str, int], str] = {}
    for event in events:
        kind = event["type"].removesuffix(".delta")
        if event["type"].endswith(".delta"):
            texts[kind, event["output_index"]] = texts.get((kind, event["output_index"]), "") + event["delta"]
        elif (event["type"].removesuffix(".done"), event.get("output_index")) in texts:
            told = event.get("text", event.get("arguments", event.get("input")))
            assert told == texts[event["type"].removesuffix(".done"), event["output_index"]]
    assert len(texts) == 4


def test_usage_tells_what_was_in_memory_and_what_was_thought() -> None:
    assert whole(SCRIPT, finish())["usage"] == {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 18,
    }
    first = stream(SCRIPT, finish())[0]["response"]
    assert (first["usage"], first["status"], first["output"]) == (None, "in_progress", [])


def test_answer_that_was_cut_off_is_incomplete() -> None:
    events = stream(SCRIPT[:3], finish(FinishReason.LENGTH))
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


def test_reasoning_is_told_as_a_summary_where_one_is_asked_for() -> None:
    events = stream(SCRIPT[:3], finish(), reasoning={"effort": "low", "summary": "auto"})
    assert kinds(events)[2:9] == [
        *("output_item.added", "reasoning_summary_part.added"),
        *("reasoning_summary_text.delta", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
    ]
    item = events[-1]["response"]["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "I must"}]
    assert item["content"] == []
    assert events[-1]["response"]["reasoning"] == {"effort": "low", "summary": "auto"}


def test_reasoning_can_be_passed_back_by_those_who_keep_nothing_else() -> None:
    item = whole(SCRIPT[:3], finish(), include=["reasoning.encrypted_content"], store=False)["output"][0]
    assert open_reasoning(item["encrypted_content"]) == "I must"
    assert whole(SCRIPT[:3], finish())["output"][0]["encrypted_content"] is None


def test_probabilities_stand_beside_the_text() -> None:
    info = TokenInfo(5, b"hi", -0.5, [(5, b"hi", -0.5), (6, b"\xe6", float("-inf"))])
    script: list[list[Delta]] = [[ContentDelta("hi", (info,))]]
    expected = {
        "token": "hi",
        "bytes": [104, 105],
        "logprob": -0.5,
        "top_logprobs": [
            {"token": "hi", "bytes": [104, 105], "logprob": -0.5},
            {"token": "\ufffd", "bytes": [230], "logprob": -9999.0},
        ],
    }
    asked: dict[str, Any] = {"n_top": 2, "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    answer, events = whole(script, finish(), **asked), stream(script, finish(), **asked)
    assert answer["output"][0]["content"][0]["logprobs"] == [expected]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert deltas[0]["logprobs"] == [expected]


def test_response_tells_its_request() -> None:
    fields: dict[str, Any] = {
        "instructions": "be short",
        "metadata": {"a": "b"},
        "max_output_tokens": 9,
        "temperature": 0.25,
        "tool_choice": {"type": "function", "name": "look"},
        "text": {"format": {"type": "json_object"}},
        "parallel_tool_calls": False,
        "truncation": "auto",
        "store": False,
    }
    answer = whole(SCRIPT, finish(), **fields)
    assert {key: answer[key] for key in fields} == fields
    assert [tool["type"] for tool in answer["tools"]] == ["function", "namespace", "custom"]
    assert answer["top_p"] == Sampling().top_p


def test_only_what_is_stored_is_kept() -> None:
    KEPT.clear()
    whole(SCRIPT, finish(), store=False)
    assert not KEPT
    answer = whole(SCRIPT, finish())
    ((response, items),) = KEPT
    assert response == answer
    assert [(item.type, item.id) for item in items] == [(item["type"], item["id"]) for item in answer["output"]]
    stream(SCRIPT, finish())
    assert len(KEPT) == 2


def test_stream_begins_when_the_prompt_is_looked_up_and_tells_how_far_it_is_if_asked() -> None:
    answer_format = make_format(SCRIPT, return_progress=True)
    created, progress = parse(answer_format.progress(0, ProgressEvent(12, 4, 4, 0.0)))
    assert (created["type"], progress["prompt_progress"]["cache"]) == ("response.created", 4)
    (later,) = parse(answer_format.progress(0, ProgressEvent(12, 4, 12, 0.0)))
    assert (later["type"], later["prompt_progress"]["processed"]) == ("response.in_progress", 12)
    quiet = make_format(SCRIPT)
    assert len(parse(quiet.progress(0, ProgressEvent(12, 4, 4, 0.0)))) == 2
    assert quiet.progress(0, ProgressEvent(12, 4, 12, 0.0)) == quiet.first(0) == b""


def test_failure_is_told_twice() -> None:
    error, failed = parse(make_format(SCRIPT).fail(LlamactlError(ErrorCode.SHUTTING_DOWN, "it stops"), "/v1/responses"))
    assert (error["type"], error["message"], error["code"]) == ("error", "it stops", "unavailable_error")
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["message"] == "it stops"


def test_id_names_the_model_that_keeps_it() -> None:
    for name in ("m", "publisher/Model-7B:q4", "modèle"):
        response_id = make_response_id(name)
        assert find_keeper(f"/v1/responses/{response_id}".encode()) == name
        assert find_keeper(f"/v1/responses/{response_id}/input_items".encode()) == name
    for path in (b"/v1/responses/resp_1", b"/v1/responses", b"/v1/responses/resp_" + b"0" * 48 + b"_%2e"):
        assert find_keeper(path) is None
