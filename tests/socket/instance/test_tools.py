"""Does the official client, unmodified, get calls of functions and thoughts, whole and streamed? The model is scripted;
template, grammar, samplers and parser are the real ones.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.socket.instance.scripted import ScriptedModel, run_scripted

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Tells the time.",
        "parameters": {"type": "object", "properties": {}},
    },
}
TOOLS = [WEATHER, TIME]
ASK: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
CALL_TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
ARGUMENTS = {"city": "Paris", "days": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedModel]:
    with run_scripted(tmp_path_factory.mktemp("scripted")) as running:
        yield running


@pytest.fixture
def client(model: ScriptedModel) -> Iterator[openai.OpenAI]:
    with model.open_client() as made:
        yield made


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        model="scripted", **{"messages": ASK, "tools": TOOLS, "temperature": 0, **fields}
    )


class Streamed:
    """What a client that adds up all deltas has at the end."""

    def __init__(self, chunks: Any) -> None:
        self.content, self.reasoning, self.reason = "", "", None
        self.calls: list[dict[str, str]] = []
        self.n_content = self.n_arguments = 0
        for chunk in chunks:
            for choice in chunk.choices:
                self.reason = choice.finish_reason or self.reason
                self.content += choice.delta.content or ""
                self.n_content += bool(choice.delta.content)
                self.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                for call in choice.delta.tool_calls or ():
                    self._add(call)

    def _add(self, call: Any) -> None:
        if call.index == len(self.calls):
            assert call.id, "the first piece of a call has its id"
            assert call.type == "function"
            assert call.function.name, "and its name"
            self.calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
        else:
            assert call.index == len(self.calls) - 1
            assert not call.id
            assert not call.function.name
        self.calls[call.index]["arguments"] += call.function.arguments or ""
        self.n_arguments += bool(call.function.arguments)


def test_call_whole(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", f"I look.{CALL}"))
    (choice,) = complete(client).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert json.loads(call.function.arguments) == ARGUMENTS
    assert len(call.id) == 9
    assert call.id.isalnum()


def test_call_streamed_adds_up(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", f"I look.{CALL}"))
    streamed = Streamed(complete(client, stream=True))
    assert (streamed.content, streamed.reason) == ("I look.", "tool_calls")
    ((call),) = streamed.calls
    assert call["name"] == "get_weather"
    assert json.loads(call["arguments"]) == ARGUMENTS
    assert streamed.n_content > 1, "content comes as it is written"
    assert streamed.n_arguments > 1, "and so do arguments"


def test_several_calls(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", f"{CALL}\n{CALL_TIME}"))
    message = complete(client).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["get_weather", "get_time"]
    assert len({call.id for call in message.tool_calls}) == 2
    assert message.content is None
    streamed = Streamed(complete(client, stream=True))
    assert [call["name"] for call in streamed.calls] == ["get_weather", "get_time"]


def test_one_call_where_parallel_ones_are_not_wanted(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", f"{CALL}\n{CALL_TIME}"))
    choice = complete(client, parallel_tool_calls=False, max_tokens=200).choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]


def test_conversation_goes_on_with_the_result(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris?", CALL), ("<tool_response>\n18 degrees\n</tool_response>", "It has 18 degrees."))
    first = complete(client).choices[0]
    messages = [
        *ASK,
        first.message,
        {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "18 degrees"},
    ]
    second = complete(client, messages=messages).choices[0]
    assert (second.finish_reason, second.message.content) == ("stop", "It has 18 degrees.")
    assert second.message.tool_calls is None


@pytest.mark.parametrize("content", ["18 degrees", [{"type": "text", "text": "18 degrees"}]])
def test_result_may_be_a_text_or_parts(model: ScriptedModel, client: openai.OpenAI, content: Any) -> None:
    model.say(("<tool_response>\n18 degrees\n</tool_response>", "So it is."))
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        *ASK,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": content},
    ]
    assert complete(client, messages=messages).choices[0].message.content == "So it is."


@pytest.mark.parametrize("result", [{"content": None}, {}, {"content": ""}, {"content": []}])
@pytest.mark.parametrize("answer", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_empty_contents_are_taken(
    model: ScriptedModel, client: openai.OpenAI, result: dict[str, Any], answer: dict[str, Any]
) -> None:
    model.say(("<tool_response>\n\n</tool_response>", "Nothing."))
    call = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": ""}}
    messages = [
        *ASK,
        {"role": "assistant", "tool_calls": [call], **answer},
        {"role": "tool", "tool_call_id": "a", **result},
    ]
    assert complete(client, messages=messages).choices[0].message.content == "Nothing."


def test_text_without_a_call_is_text(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", "I do not know <tool> of it."))
    choice = complete(client).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("I do not know <tool> of it.", "stop")
    streamed = Streamed(complete(client, stream=True))
    assert (streamed.content, streamed.reason) == ("I do not know <tool> of it.", "stop")


def test_grammar_lets_no_unknown_function_through(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", '<tool_call>\n{"name": "get_wx", "arguments": {}}\n</tool_call>'))
    choice = complete(client, max_tokens=300, tool_choice={"type": "function", "function": {"name": "get_time"}})
    calls = choice.choices[0].message.tool_calls
    assert calls is None or {call.function.name for call in calls} == {"get_time"}


def test_strict_arguments_follow_their_schema(model: ScriptedModel, client: openai.OpenAI) -> None:
    """The script's `days` is a text, which the grammar does not let it be."""
    model.say(
        ("Paris", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": "2"}}\n</tool_call>')
    )
    message = complete(client, max_tokens=200, logit_bias={"0": -100}).choices[0].message
    text = message.tool_calls[0].function.arguments if message.tool_calls else message.content
    assert '"days": "' not in text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_demanded_call_is_made(model: ScriptedModel, client: openai.OpenAI, choice: Any, stream: bool) -> None:
    model.say(("Paris", CALL))
    if stream:
        streamed = Streamed(complete(client, tool_choice=choice, stream=True))
        names, reason = [call["name"] for call in streamed.calls], streamed.reason
    else:
        whole = complete(client, tool_choice=choice).choices[0]
        names, reason = [call.function.name for call in whole.message.tool_calls], whole.finish_reason
    assert (names, reason) == (["get_weather"], "tool_calls")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_answer_does_not_end_before_a_demanded_call(model: ScriptedModel, client: openai.OpenAI, choice: Any) -> None:
    """The model would end it there. Text may come first, as in llama.cpp's grammar."""
    model.say(("Paris", "It rains."))
    message = complete(client, tool_choice=choice, max_tokens=40).choices[0]
    assert message.finish_reason == "length"
    assert message.message.content.startswith("It rains.")
    assert complete(client, max_tokens=40).choices[0].finish_reason == "stop"


def test_demanded_call_may_be_of_some_functions_only(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", CALL_TIME))
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    choice = complete(client, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}).choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == ["get_time"]


def test_no_call_where_none_is_wanted(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", "No."))
    choice = complete(client, tool_choice="none").choices[0]
    assert (choice.message.content, choice.message.tool_calls) == ("No.", None)


def test_call_that_is_cut_off_ends_with_length(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", CALL))
    whole = complete(client, max_tokens=55).choices[0]
    streamed = Streamed(complete(client, max_tokens=55, stream=True))
    assert whole.finish_reason == streamed.reason == "length"
    assert whole.message.tool_calls[0].function.arguments == streamed.calls[0]["arguments"]
    assert '{"city": "Paris", "days": 2}'.startswith(streamed.calls[0]["arguments"])
    assert whole.message.content is None


def test_tokens_of_a_chat_are_counted_as_they_are_read(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", "It rains."))
    counts = []
    for tools in (TOOLS, TOOLS[:1]):
        usage = complete(client, tools=tools).usage
        body = {"messages": ASK, "tools": tools, "stream": True}
        status, counted = model.child.request("POST", "/v1/chat/completions/input_tokens", body)
        assert (status, counted["input_tokens"]) == (200, usage.prompt_tokens)
        counts.append(usage.prompt_tokens)
    assert counts[0] > counts[1]


class GetWeather(BaseModel):
    """Tells the weather."""

    city: str
    days: int


def test_parse_with_pydantic_tools(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", CALL.replace("get_weather", "GetWeather")))
    tools = [openai.pydantic_function_tool(GetWeather)]
    answer = client.chat.completions.parse(model="scripted", messages=ASK, tools=tools, temperature=0)
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.parsed_arguments == GetWeather(city="Paris", days=2)


def test_stream_helper_of_the_client(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", CALL.replace("get_weather", "GetWeather")))
    tools = [openai.pydantic_function_tool(GetWeather)]
    with client.chat.completions.stream(model="scripted", messages=ASK, tools=tools, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.parsed_arguments == GetWeather(city="Paris", days=2)


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_told_apart(model: ScriptedModel, client: openai.OpenAI, stream: bool) -> None:
    model.say(("Paris", "<think>\nLet me think.</think>\n\nIt rains."))
    answer = complete(client, tools=openai.omit, stream=stream)
    if stream:
        streamed = Streamed(answer)
        assert (streamed.reasoning, streamed.content, streamed.reason) == ("Let me think.", "It rains.", "stop")
    else:
        message = answer.choices[0].message
        assert (message.reasoning_content, message.content) == ("Let me think.", "It rains.")
        assert message.reasoning == "Let me think."


def test_call_in_thoughts_calls_for_no_grammar(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", f"<think>\nI could write <tool_call>\nfoo\n</think>\n\n{CALL}"))
    message = complete(client).choices[0].message
    assert "foo" in message.reasoning_content
    assert json.loads(message.tool_calls[0].function.arguments) == ARGUMENTS


def test_thoughts_stay_where_they_are_on_request(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", "<think>\nSo.\n</think>\n\nIt rains."))
    message = complete(client, tools=openai.omit, extra_body={"reasoning_format": "none"}).choices[0].message
    assert message.content == "<think>\nSo.\n</think>\n\nIt rains."
    assert not hasattr(message, "reasoning_content")


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"extra_body": {"enable_thinking": False}},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    ],
)
def test_thinking_can_be_turned_off(model: ScriptedModel, client: openai.OpenAI, fields: dict[str, Any]) -> None:
    model.say(("<think>\n\n</think>", "At once."), ("Paris", "<think>\nSlow.\n</think>\n\nLater."))
    assert complete(client, tools=openai.omit, **fields).choices[0].message.content == "At once."
    assert complete(client, tools=openai.omit).choices[0].message.content == "Later."


@pytest.mark.parametrize("name", ["thinking_budget_tokens", "reasoning_budget_tokens"])
def test_thoughts_end_with_their_budget(model: ScriptedModel, client: openai.OpenAI, name: str) -> None:
    model.say(("Paris", "<think>\n" + "x" * 500))
    body = {name: 20, "reasoning_budget_message": " Enough."}
    message = complete(client, tools=openai.omit, max_tokens=60, extra_body=body).choices[0].message
    assert message.reasoning_content == "x" * 19 + " Enough."
    assert message.content.startswith("x")


def test_thoughts_do_not_begin_without_a_budget(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", "<think>\nNo.\n</think>\n\nYes."))
    message = (
        complete(client, tools=openai.omit, extra_body={"thinking_budget_tokens": 0}, max_tokens=40).choices[0].message
    )
    assert "No." not in (getattr(message, "reasoning_content", None) or "")


def test_former_thoughts_come_back(model: ScriptedModel, client: openai.OpenAI) -> None:
    for name in ("reasoning_content", "reasoning"):
        model.say((f"<think>\nOld {name}.\n</think>", "Seen."))
        messages = [*ASK, {"role": "assistant", "content": "Yes.", name: f"Old {name}."}, ASK[0]]
        assert complete(client, messages=messages, tools=openai.omit).choices[0].message.content == "Seen."


def test_probabilities_of_a_call_lose_no_token(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", f"Hm. {CALL}"))
    whole = complete(client, logprobs=True, top_logprobs=1).choices[0]
    assert whole.logprobs is not None
    chunks = list(complete(client, logprobs=True, top_logprobs=1, stream=True))
    told = [info for chunk in chunks for choice in chunk.choices if choice.logprobs for info in choice.logprobs.content]
    assert [info.token for info in told] == [info.token for info in whole.logprobs.content]
    assert len(told) > 60


def test_older_form_of_calls(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris?", CALL), ("<tool_response>\n18\n</tool_response>", "18 degrees."))
    functions = [tool["function"] for tool in TOOLS]
    first = complete(client, tools=openai.omit, functions=functions, function_call="auto").choices[0]
    assert first.finish_reason == "function_call"
    assert first.message.tool_calls is None
    assert json.loads(first.message.function_call.arguments) == ARGUMENTS
    messages = [*ASK, first.message, {"role": "function", "name": "get_weather", "content": "18"}]
    second = complete(client, tools=openai.omit, functions=functions, messages=messages).choices[0]
    assert second.message.content == "18 degrees."
    chunks = list(complete(client, tools=openai.omit, functions=functions, stream=True))
    calls = [choice.delta.function_call for chunk in chunks for choice in chunk.choices if choice.delta.function_call]
    assert json.loads("".join(call.arguments for call in calls)) == ARGUMENTS
    assert [call.name for call in calls if call.name] == ["get_weather"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tool_choice": "sometimes"}, "`tool_choice`"),
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "`tool_choice`"),
        ({"tool_choice": {"type": "function"}}, "`tool_choice.function.name`"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x"}}},
            "`tool_choice.allowed_tools.mode`",
        ),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "`tools[0].type`"),
        ({"tools": [{"type": "function"}]}, "`tools[0].function`"),
        ({"tools": [{"type": "function", "function": {}}]}, "`tools[0].function.name`"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "`tools[0].function.parameters`",
        ),
        ({"tools": [TIME, TIME]}, "'get_time'"),
        ({"tools": openai.omit, "tool_choice": "required"}, "`tool_choice`"),
        ({"extra_body": {"grammar": 'root ::= "a"'}}, "`grammar`"),
        ({"extra_body": {"reasoning_format": "x"}}, "`reasoning_format`"),
        ({"extra_body": {"thinking_budget_tokens": -2}}, "`thinking_budget_tokens`"),
        (
            {"messages": [*ASK, {"role": "assistant", "tool_calls": [{"type": "function"}]}]},
            "`messages[1].tool_calls[0]",
        ),
    ],
)
def test_what_makes_no_sense_is_named(client: openai.OpenAI, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, **fields)
    assert named in caught.value.message


def test_template_without_tools_refuses_them(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    with run_scripted(tmp_path, template=template) as model, model.open_client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            complete(client)
        assert "does not tell the model of them" in caught.value.message
        model.say(("Paris", "Plain."))
        assert complete(client, tools=openai.omit).choices[0].message.content == "Plain."


SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "weather",
        "schema": {
            "type": "object",
            "properties": {"rain": {"type": "boolean"}},
            "required": ["rain"],
            "additionalProperties": False,
        },
    },
}
RAIN = '{"rain": true}'


@pytest.mark.parametrize("answer", [RAIN, f"<think>\nHm {{x}}.\n</think>\n\n{RAIN}"])
def test_schema_holds_behind_thoughts(model: ScriptedModel, client: openai.OpenAI, answer: str) -> None:
    model.say(("Paris", answer))
    message = complete(client, tools=openai.omit, response_format=SCHEMA).choices[0].message
    assert json.loads(message.content) == {"rain": True}
    assert ("Hm {x}." in (getattr(message, "reasoning_content", None) or "")) == ("Hm" in answer)


def test_schema_holds_whatever_the_model_would_rather_say(model: ScriptedModel, client: openai.OpenAI) -> None:
    model.say(("Paris", "<think>\nNo JSON.\n</think>\n\nIt does not rain."))
    message = complete(client, tools=openai.omit, response_format=SCHEMA, max_tokens=300).choices[0].message
    assert "No JSON." in message.reasoning_content
    assert message.content.startswith("{")


@pytest.mark.parametrize("thought", ["", "<think>\nHm.\n</think>\n\n"])
def test_answer_may_be_a_call_or_follow_the_schema(model: ScriptedModel, client: openai.OpenAI, thought: str) -> None:
    model.say(("Paris", thought + CALL))
    called = complete(client, response_format=SCHEMA).choices[0]
    assert called.finish_reason == "tool_calls"
    assert json.loads(called.message.tool_calls[0].function.arguments) == ARGUMENTS
    model.say(("Paris", thought + RAIN))
    said = complete(client, response_format=SCHEMA).choices[0]
    assert (said.finish_reason, said.message.content) == ("stop", RAIN)
    model.say(("Paris", thought + "I do not know."))
    assert complete(client, response_format=SCHEMA, max_tokens=300).choices[0].message.content.startswith("{")


PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedModel]:
    """A model whose template knows no functions."""
    with run_scripted(tmp_path_factory.mktemp("prompted"), template=PLAIN, control=(), tools="prompt") as running:
        yield running


def test_system_prompt_tells_of_functions_where_the_template_cannot(prompted: ScriptedModel) -> None:
    prompted.say(
        ("Be brief.\n\nYou can call functions.", f"I look.{CALL}\n{CALL_TIME}"),
        ("<tool_response>\n18\n</tool_response>\n<tool_response>\nnoon\n</tool_response><|im_end|>", "18 at noon."),
    )
    messages = [{"role": "system", "content": "Be brief."}, *ASK]
    with prompted.open_client() as client:
        first = complete(client, messages=messages).choices[0]
        assert (first.finish_reason, first.message.content) == ("tool_calls", "I look.")
        assert [call.function.name for call in first.message.tool_calls] == ["get_weather", "get_time"]
        streamed = Streamed(complete(client, messages=messages, stream=True))
        assert json.loads(streamed.calls[0]["arguments"]) == ARGUMENTS
        messages += [first.message]
        for call, result in zip(first.message.tool_calls, ("18", "noon"), strict=True):
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        assert complete(client, messages=messages).choices[0].message.content == "18 at noon."
        assert complete(client, messages=messages, tools=openai.omit).choices[0].message.content == "18 at noon."


def test_call_of_a_prompted_model_can_be_demanded(prompted: ScriptedModel) -> None:
    prompted.say(("Paris", CALL_TIME))
    with prompted.open_client() as client:
        message = (
            complete(client, tool_choice={"type": "function", "function": {"name": "get_time"}}).choices[0].message
        )
    assert [call.function.name for call in message.tool_calls] == ["get_time"]
