"""Does a conversation get into the form that the chat layer takes, and is what it may not be told in the request's own
words?
"""

from typing import Any

import pytest

from llamactl.bodies import ChatMessage, ContentPart
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.chat.conversation import (
    choose_continuation,
    choose_variables,
    format_message,
    make_request,
    shorten_id,
    wants_short_ids,
)
from llamactl.instance.chat.layer import TemplateInfo
from llamactl.settings import Switch

USER, ANSWER = ChatMessage(role="user", content="hi"), ChatMessage(role="assistant", content="hello")
CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLING = ChatMessage(role="assistant", tool_calls=[CALL])
SHORT = "{% if call.id is not defined or call.id | length != 9 %}{{ raise_exception('no') }}{% endif %}"


def make_info(source: str = "", *, thinks: bool = True, for_tools: str = "") -> TemplateInfo:
    return TemplateInfo({}, thinks, True, source, for_tools)


# --- variables ---


def test_nobody_says_whether_to_think_then_the_template_decides() -> None:
    variables = choose_variables(Switch.AUTO, {}, {})
    assert variables == {"preserve_reasoning": True}
    for thinks in (True, False):
        assert make_request([USER], make_info(thinks=thinks), variables).enable_thinking is thinks


@pytest.mark.parametrize(
    ("reasoning", "configured", "given", "thinks"),
    [
        (Switch.ON, {}, {}, True),
        (Switch.OFF, {}, {}, False),
        (Switch.OFF, {"enable_thinking": True}, {}, True),
        (Switch.ON, {"enable_thinking": True}, {"enable_thinking": False}, False),
        (Switch.AUTO, {"enable_thinking": False}, {}, False),
    ],
)
def test_request_goes_before_the_table_of_variables_and_that_before_the_switch(
    reasoning: Switch, configured: dict[str, Any], given: dict[str, Any], thinks: bool
) -> None:
    variables = choose_variables(reasoning, configured, given)
    assert variables["enable_thinking"] is thinks
    assert make_request([USER], make_info(thinks=False), variables).enable_thinking is thinks


def test_thoughts_are_kept_unless_somebody_says_otherwise() -> None:
    assert choose_variables(Switch.AUTO, {"preserve_reasoning": False}, {})["preserve_reasoning"] is False
    assert choose_variables(Switch.AUTO, {}, {"preserve_reasoning": False})["preserve_reasoning"] is False


def test_what_the_conversation_says_is_no_variable() -> None:
    given = {"messages": [], "tools": [], "add_generation_prompt": False, "custom": 1}
    assert choose_variables(Switch.AUTO, {}, given) == {"preserve_reasoning": True, "custom": 1}


@pytest.mark.parametrize("value", ["false", 0, None, []])
def test_thinking_is_true_or_false_and_nothing_that_a_template_takes_for_true(value: Any) -> None:
    with pytest.raises(LlamactlError, match=r"chat_template_kwargs\.enable_thinking") as error:
        choose_variables(Switch.AUTO, {}, {"enable_thinking": value})
    assert error.value.code is ErrorCode.INVALID_REQUEST


# --- begun answers ---


@pytest.mark.parametrize(
    ("messages", "add", "asked", "expected"),
    [
        ([USER], None, None, False),
        ([USER, ANSWER], None, None, True),
        ([USER, ANSWER], False, None, True),
        ([ANSWER], None, None, True),
        ([USER, ANSWER, USER], None, None, False),
        ([USER, ANSWER], None, "content", "content"),
        ([USER, ANSWER], False, "reasoning_content", "reasoning_content"),
        ([USER, ANSWER, ANSWER], False, True, True),
        ([USER], None, "unknown", False),
    ],
)
def test_answer_at_the_end_is_continued(
    messages: list[ChatMessage], add: bool | None, asked: Any, expected: object
) -> None:
    assert choose_continuation(messages, add, asked) == expected
    request = make_request(messages, make_info(), {}, add_generation_prompt=add, continue_final_message=asked)
    assert request.continue_final_message == expected
    assert request.add_generation_prompt is (not expected and add is not False)


@pytest.mark.parametrize(
    ("messages", "add", "asked", "reason"),
    [
        ([], None, None, "`messages`: there are none"),
        ([USER, ANSWER], True, True, "`continue_final_message` together with `add_generation_prompt`"),
        ([USER, ANSWER, ANSWER], None, None, "two answers"),
        ([USER, CALLING], None, None, r"`messages\[1\]`: an answer that calls tools"),
        ([USER, CALLING], False, True, r"`messages\[1\]`: an answer that calls tools"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    messages: list[ChatMessage], add: bool | None, asked: Any, reason: str
) -> None:
    with pytest.raises(LlamactlError, match=reason):
        choose_continuation(messages, add, asked)


# --- messages ---


def test_message_is_whole() -> None:
    bare = ChatMessage(role="assistant", tool_calls=[{"function": {"name": "look"}}])
    assert format_message(bare, 0) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }
    empty = ChatMessage(role="assistant", content="x", tool_calls=[])
    assert format_message(empty, 0) == {"role": "assistant", "content": "x"}
    kept = ChatMessage(role="assistant", content="x", reasoning_content="y", name="z")
    assert format_message(kept, 0) == {"role": "assistant", "content": "x", "reasoning_content": "y", "name": "z"}


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}, "not JSON"])
def test_arguments_stay_as_they_were_sent(arguments: Any) -> None:
    call = {"function": {"name": "look", "arguments": arguments}}
    formatted = format_message(ChatMessage(role="assistant", tool_calls=[call]), 0)
    assert formatted["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("arguments", ['{"a": 1', "not JSON", '{"a": "\ud800"}', "{}{}"])
def test_arguments_that_are_cut_off_are_named_where_the_template_takes_them_apart(arguments: str) -> None:
    call = {"function": {"name": "look", "arguments": arguments}}
    messages = [USER, ChatMessage(role="assistant", tool_calls=[CALL, call]), USER]
    assert make_request(messages, make_info(), {}).messages
    info = TemplateInfo({"supports_object_arguments": True}, False, True, "", "")
    with pytest.raises(LlamactlError, match=r"messages\[1\]\.tool_calls\[1\]\.function\.arguments"):
        make_request(messages, info, {})


@pytest.mark.parametrize("arguments", ["{}", '{"a": [1, {"b": null}]}', {"a": 1}, "[" * 100_000])
def test_arguments_in_any_form_are_taken_apart_later(arguments: Any) -> None:
    call = {"function": {"name": "look", "arguments": arguments}}
    info = TemplateInfo({"supports_object_arguments": True}, False, True, "", "")
    messages = [ChatMessage(role="assistant", tool_calls=[call]), USER]
    assert make_request(messages, info, {}).messages[0]["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("call", [{}, {"function": "look"}, {"function": {}}, {"function": {"name": 1}}])
def test_call_of_nothing_is_refused_by_its_place(call: dict[str, Any]) -> None:
    message = ChatMessage(role="assistant", tool_calls=[CALL, call])
    with pytest.raises(LlamactlError, match=r"messages\[7\]\.tool_calls\[1\]\.function"):
        format_message(message, 7)


def test_parts_stay_parts_and_others_than_texts_are_refused() -> None:
    parts = [ContentPart(type="text", text="a"), ContentPart(type="media_marker", text="<m>")]
    formatted = format_message(ChatMessage(role="user", content=parts), 0)
    assert formatted["content"] == [{"type": "text", "text": "a"}, {"type": "media_marker", "text": "<m>"}]
    for part in (ContentPart(type="video"), ContentPart(type="text")):
        with pytest.raises(LlamactlError, match=r"messages\[2\]\.content"):
            format_message(ChatMessage(role="user", content=[part]), 2)


# --- ids ---


def test_short_ids_are_wanted_by_templates_that_measure_them() -> None:
    assert wants_short_ids(make_info(SHORT))
    assert wants_short_ids(make_info("", for_tools=SHORT))
    assert not wants_short_ids(make_info("{{ call.id }}{{ messages | length != 90 }}"))


def test_call_and_its_result_keep_one_id_where_it_is_shortened() -> None:
    result = ChatMessage(role="tool", content="x", tool_call_id="call_1")
    short = make_request([USER, CALLING, result], make_info(SHORT), {}).messages
    assert short[1]["tool_calls"][0]["id"] == short[2]["tool_call_id"] == shorten_id("call_1")
    plain = make_request([USER, CALLING, result], make_info(), {}).messages
    assert plain[1]["tool_calls"][0]["id"] == plain[2]["tool_call_id"] == "call_1"


@pytest.mark.parametrize("name", ["", "call_1", "toolu_01A09q90qw90lq917835lq9", "Größe-123", "\ud800", "x" * 10**6])
def test_shortened_id_has_nine_letters_and_digits(name: str) -> None:
    short = shorten_id(name)
    assert len(short) == 9
    assert short.isascii()
    assert short.isalnum()
    assert shorten_id(short) == short
