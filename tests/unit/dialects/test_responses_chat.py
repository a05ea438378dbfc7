"""Which chat does a request for Responses become, and what are its tools called there?"""

import json
from typing import Any

import pytest

from llamactl.bodies import ChatBody, ContentPart, ImageUrl, SamplingBody, parse_body
from llamactl.dialects.common import seal_reasoning
from llamactl.dialects.responses import Item, ResponsesBody
from llamactl.dialects.responses_chat import Conversion, convert_responses
from llamactl.dialects.responses_tools import KnownTool, unwrap_input, wrap_input
from llamactl.errors import LlamactlError

LOOK = {"type": "function", "name": "look", "description": "looks", "parameters": {"type": "object"}, "strict": False}
PATCH = {"type": "custom", "name": "patch", "description": "patches", "format": {"type": "text"}}
SEA = {"type": "namespace", "name": "sea", "tools": [LOOK]}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}


def convert_all(**fields: Any) -> Conversion:
    body = parse_body(json.dumps({"input": "hi", **fields}).encode(), ResponsesBody)
    return convert_responses(body, find_item=lambda item_id: None)


def convert(**fields: Any) -> ChatBody:
    return convert_all(**fields).chat


def text(kind: str, words: str) -> dict[str, Any]:
    return {"type": kind, "text": words}


def say(role: str, *words: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [text(kind, word) for word in words]}


def show(part: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [part]}]}


def shape(chat: ChatBody) -> list[tuple[str, str]]:
    """Roles and texts."""
    told = []
    for message in chat.messages:
        content = message.content
        told.append(
            (message.role, content if isinstance(content, str) else "|".join(p.text or "" for p in content or []))
        )
    return told


def test_text_is_what_the_user_says() -> None:
    assert shape(convert(input="hello")) == [("user", "hello")]
    assert shape(convert(input="hello", instructions="short")) == [("system", "short"), ("user", "hello")]


def test_instructions_and_developers_are_one_message_before_all_others() -> None:
    items = [say("developer", "a", "b"), {"role": "system", "content": "c"}, say("user", "d"), say("developer", "e")]
    chat = convert(input=items, instructions="i")
    assert shape(chat) == [("system", "i|a|b|c"), ("user", "d"), ("system", "e")]


def test_reasoning_and_calls_are_one_turn() -> None:
    items = [
        say("user", "go"),
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [text("reasoning_text", "I must")]},
        say("assistant", "looking"),
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a":1}', "id": "fc_1"},
        {"type": "function_call", "call_id": "c2", "name": "look", "namespace": "mcp__sea", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "c1", "output": "blue"},
        {"type": "function_call_output", "call_id": "c2", "output": [text("input_text", "wide")]},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "done"},
    ]
    chat = convert(input=items)
    assert [message.role for message in chat.messages] == ["user", "assistant", "tool", "tool", "tool"]
    answer = chat.messages[1]
    assert (answer.reasoning_content, answer.content) == ("I must", [ContentPart(type="text", text="looking")])
    functions = [(call["id"], call["function"]) for call in answer.tool_calls or ()]
    assert functions == [
        ("c1", {"name": "look", "arguments": '{"a":1}'}),
        ("c2", {"name": "mcp__sea__look", "arguments": "{}"}),
        ("c3", {"name": "patch", "arguments": '{"input":"*** Begin"}'}),
    ]
    assert [message.tool_call_id for message in chat.messages[2:]] == ["c1", "c2", "c3"]


def test_reasoning_comes_back_sealed_or_as_a_summary() -> None:
    def think(**fields: Any) -> str | None:
        return (
            convert(input=[say("user", "x"), {"type": "reasoning", "summary": [], **fields}])
            .messages[1]
            .reasoning_content
        )

    assert think(encrypted_content=seal_reasoning("deep")) == "deep"
    assert think(summary=[text("summary_text", "short")]) == "short"
    assert think(encrypted_content="gAAAAABo") is None


def test_images_are_parts_also_of_results() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
    part = ContentPart(type="image_url", image_url=ImageUrl(url="data:image/png;base64,AA", detail="low"))
    chat = convert(input=[{"role": "user", "content": [picture]}])
    assert chat.messages[0].content == [part]
    chat = convert(input=[{"type": "function_call_output", "call_id": "c", "output": [picture]}])
    assert chat.messages[0].content == [part]


def test_history_comes_before_what_is_new_and_behind_the_instructions() -> None:
    history = [Item(role="user", content="one"), Item(type="message", role="assistant", content="two")]
    body = ResponsesBody(input="three", instructions="i", previous_response_id="r")
    conversion = convert_responses(body, history, lambda item_id: None)
    assert shape(conversion.chat) == [("system", "i"), ("user", "one"), ("assistant", "two"), ("user", "three")]
    assert [item.content for item in conversion.items] == ["three"]


def test_reference_is_the_item_itself() -> None:
    kept = {"m1": Item(type="message", role="user", content="kept", id="m1")}
    for reference in ({"type": "item_reference", "id": "m1"}, {"id": "m1"}):
        body = parse_body(json.dumps({"input": [reference]}).encode(), ResponsesBody)
        assert shape(convert_responses(body, find_item=kept.get).chat) == [("user", "kept")]
    with pytest.raises(LlamactlError, match=r"`input\[0\]`: no item 'm2' is kept"):
        convert_responses(
            parse_body(b'{"input":[{"type":"item_reference","id":"m2"}]}', ResponsesBody), find_item=kept.get
        )
    convert_responses(parse_body(b'{"input":[{"type":"item_reference","id":"m2"}]}', ResponsesBody))


def test_tools_of_a_namespace_bear_its_name_and_are_told_apart_again() -> None:
    inner = {"type": "namespace", "name": "mcp__sea__", "description": "d", "tools": [LOOK]}
    plain = {"type": "namespace", "name": "functions", "tools": [{**LOOK, "name": "go"}, PATCH]}
    conversion = convert_all(tools=[LOOK, inner, plain, {"type": "web_search"}])
    assert [tool["function"]["name"] for tool in conversion.chat.tools or ()] == [
        "look",
        "mcp__sea__look",
        "go",
        "patch",
    ]
    tools = conversion.tools
    assert tools.find("look") == KnownTool("look")
    assert tools.find("mcp__sea__look") == KnownTool("look", "mcp__sea__")
    assert tools.find("go") == KnownTool("go", "functions")
    assert tools.find("patch") == KnownTool("patch", "functions", is_custom=True)
    assert tools.find("invented") == KnownTool("invented")
    assert [tool.type for tool in tools.told] == ["function", "namespace", "namespace"], "the web is not searched"


def test_function_is_that_of_a_chat() -> None:
    (tool,) = convert(tools=[LOOK]).tools or ()
    function = {"name": "look", "description": "looks", "parameters": {"type": "object"}, "strict": False}
    assert tool == {"type": "function", "function": function}


def test_custom_tool_has_one_argument_and_tells_its_grammar() -> None:
    (tool,) = convert(tools=[{**PATCH, "format": GRAMMAR}]).tools or ()
    assert tool["function"]["description"] == "patches\n\nThe input follows this lark:\nstart: WORD"
    assert list(tool["function"]["parameters"]["properties"]) == ["input"]
    assert unwrap_input(wrap_input('a "b"\n')) == 'a "b"\n'
    assert unwrap_input("no JSON") == "no JSON"
    assert unwrap_input('{"other": 1}') == '{"other": 1}'


def test_choice_is_that_of_a_chat() -> None:
    inner = {"type": "namespace", "name": "ns", "tools": [LOOK]}
    fields = {"tools": [LOOK, PATCH, inner]}
    look = {"type": "function", "function": {"name": "look"}}
    assert convert(**fields, tool_choice="required").tool_choice == "required"
    assert convert(**fields, tool_choice={"type": "function", "name": "look"}).tool_choice == look
    assert convert(**fields, tool_choice={"type": "custom", "name": "patch"}).tool_choice == {
        "type": "function",
        "function": {"name": "patch"},
    }
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]}
    assert convert(**fields, tool_choice=allowed).tool_choice == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [look]},
    }


def test_options_have_their_names_in_chats() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "string"}, "strict": True}
    chat = convert(max_output_tokens=7, text={"format": form}, reasoning={"effort": "xhigh"}, top_logprobs=2, stop="x")
    assert (chat.max_tokens, chat.logprobs, chat.top_logprobs, chat.stop) == (7, True, 2, "x")
    assert (chat.reasoning_effort, convert(reasoning={"effort": "none"}).reasoning_effort) == ("high", "none")
    assert (convert(parallel_tool_calls=False).parallel_tool_calls, convert().parallel_tool_calls) == (False, None)
    assert chat.response_format is not None
    assert chat.response_format.json_schema is not None
    assert chat.response_format.json_schema.schema == {"type": "string"}
    assert convert(text={"format": {"type": "json_object"}}).response_format is not None
    assert convert(include=["message.output_text.logprobs"]).logprobs is True
    given = {"temperature": 0.5, "top_p": 0.4, "top_k": 3, "seed": 4, "grammar": 'root ::= "a"'}
    chat = convert(**given)
    assert {name: getattr(chat, name) for name in given} == given
    assert set(SamplingBody.__struct_fields__) <= set(ResponsesBody.__struct_fields__)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": None}, "`input`"),
        ({"input": []}, "`input`"),
        ({"input": 3}, "`$.input`"),
        ({"input": [{"type": "message", "role": "wizard", "content": "x"}]}, "`input[0].role`"),
        ({"input": [{"type": "message", "content": "x"}]}, "`input[0].role`"),
        ({"input": [{}]}, "`input[0].type`"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "`input[0].type`"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "`input[0].arguments`"),
        ({"input": [{"type": "function_call", "name": "x", "arguments": "{}"}]}, "`input[0].call_id`"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "`input[0].output`"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "`input[0].content[0].type`",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "`input[0].content[0].image_url`",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "`input[0].content[0].text`"),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "`tools[0].type`"),
        ({"tools": [{"type": "mcp", "server_url": "http://x"}]}, "`tools[0].type`"),
        ({"tools": [{"type": "function"}]}, "`tools[0].name`"),
        ({"tools": [LOOK, LOOK]}, "two tools 'look'"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "namespace", "name": "m"}]}]},
            "`tools[0].tools[0].type`",
        ),
        ({"tool_choice": {"type": "web_search"}}, "`tool_choice.type`"),
        ({"tool_choice": {"type": "function", "name": "gone"}}, "`tool_choice`"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "`text.format`"),
        ({"include": ["everything"]}, "`include`"),
        ({"background": True}, "`background`"),
        ({"conversation": "conv_1"}, "`conversation`"),
        ({"prompt": {"id": "p"}}, "`prompt`"),
        ({"truncation": "some"}, "`truncation`"),
        ({"max_output_tokens": "many"}, "`$.max_output_tokens`"),
        ({"metadata": {"a": 1}}, "`$.metadata"),
    ],
    ids=str,
)
def test_what_nobody_here_can_do_is_refused_by_its_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(LlamactlError) as refused:
        convert(**fields)
    assert refused.value.kind.http_status == 400
    assert field in str(refused.value)


def test_name_that_two_tools_would_share_is_refused() -> None:
    with pytest.raises(LlamactlError, match="two tools 'sea__look'"):
        convert(tools=[{**LOOK, "name": "sea__look"}, SEA])
