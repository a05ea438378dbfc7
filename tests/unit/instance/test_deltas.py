"""Do pieces of an answer add up to it?"""

from llamactl.instance.engine.jobs import FinishEvent, FinishReason, TextEvent, Timings
from llamactl.instance.http.deltas import (
    ContentDelta,
    Message,
    PlainReader,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
    read_message,
)

FINISH = FinishEvent(FinishReason.STOP, 1, 2, 0, Timings(0, 1, 1.0, 2, 1.0))


def test_pieces_add_up_to_the_message() -> None:
    message = Message()
    message.add([ReasoningDelta("so "), ReasoningDelta("it is"), ContentDelta("I "), ContentDelta("look")])
    message.add([ToolCallDelta(0, "a", "look"), ToolCallDelta(0, arguments='{"x"'), ToolCallDelta(0, arguments=":1}")])
    message.add([ToolCallDelta(1, "b", "go", "{}")])
    assert (message.reasoning, message.content) == ("so it is", "I look")
    assert message.calls == [ToolCall("a", "look", '{"x":1}'), ToolCall("b", "go", "{}")]
    assert message.choose_finish_reason(FINISH) == "tool_calls"


def test_answer_that_was_cut_off_does_not_end_with_calls() -> None:
    message = Message()
    message.add([ToolCallDelta(0, "a", "look", '{"x"')])
    cut = FinishEvent(FinishReason.LENGTH, 1, 2, 0, FINISH.timings)
    assert message.choose_finish_reason(cut) == "length"


def test_text_without_marks_is_content() -> None:
    message = read_message(PlainReader(), [TextEvent("he", 1), TextEvent("", 2), TextEvent("llo", 3)], FINISH)
    assert (message.content, message.reasoning, message.calls) == ("hello", "", [])
    assert message.choose_finish_reason(FINISH) == "stop"
