"""Which chat does a request for Messages become?"""

import json
from typing import Any

import pytest

from llamactl.bodies import ChatBody, ContentPart, ImageUrl, SamplingBody, parse_body
from llamactl.dialects.check import check_body
from llamactl.dialects.common import open_reasoning, seal_reasoning
from llamactl.dialects.messages import MessagesBody
from llamactl.dialects.messages_chat import convert_messages
from llamactl.errors import LlamactlError
from llamactl.instance.http.parameters import choose_max_tokens

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "look", "description": "looks", "input_schema": {"type": "object", "properties": {"at": {}}}}


def convert(**fields: Any) -> ChatBody:
    return convert_messages(
        parse_body(json.dumps({"max_tokens": 9, "messages": [USER], **fields}).encode(), MessagesBody)
    )


def refuse(**fields: Any) -> str:
    with pytest.raises(LlamactlError) as refused:
        convert(**fields)
    assert refused.value.kind.http_status == 400
    return str(refused.value)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}


def roles(chat: ChatBody) -> list[str]:
    return [message.role for message in chat.messages]


def test_system_blocks_are_one_message_before_all_others() -> None:
    chat = convert(system=[text("one"), text("two")])
    assert roles(chat) == ["system", "user"]
    assert chat.messages[0].content == [ContentPart(type="text", text="one"), ContentPart(type="text", text="two")]
    assert convert(system="one").messages[0].content == "one"


def test_system_in_the_middle_stays_where_it_is() -> None:
    turns = [USER, {"role": "assistant", "content": "yes"}, {"role": "system", "content": "be short"}, USER]
    assert roles(convert(system="x", messages=turns)) == ["system", "user", "assistant", "system", "user"]


def test_number_that_claude_code_changes_each_time_is_always_the_same() -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch={};You are"
    first, second = (convert(system=line.format(word)).messages[0] for word in ("a5145", "00b1e"))
    assert first == second
    said = "quoting x-anthropic-billing-header: cch=a5145;"
    assert convert(system=said).messages[0].content == said


def test_results_follow_their_calls_and_what_is_said_beside_them_follows_these() -> None:
    calls = [
        {"type": "thinking", "thinking": "I must look", "signature": "xyz"},
        {"type": "redacted_thinking", "data": "secret"},
        text("I look"),
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "sea"}},
        {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [text("blue"), text("wide")]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "no such file", "is_error": True},
        text("so?"),
    ]
    chat = convert(messages=[USER, {"role": "assistant", "content": calls}, {"role": "user", "content": results}])
    assert roles(chat) == ["user", "assistant", "tool", "tool", "user"]
    _, answer, first, second, user = chat.messages
    assert answer.reasoning_content == "I must look"
    assert answer.content == [ContentPart(type="text", text="I look")]
    assert [call["id"] for call in answer.tool_calls or ()] == ["t1", "t2"]
    assert (answer.tool_calls or [])[0]["function"] == {"name": "look", "arguments": '{"at":"sea"}'}
    assert (first.tool_call_id, second.tool_call_id) == ("t1", "t2")
    assert first.content == [ContentPart(type="text", text="blue"), ContentPart(type="text", text="wide")]
    assert second.content == "Error: no such file"
    assert user.content == [ContentPart(type="text", text="so?")]


def test_turns_of_one_role_are_one_turn() -> None:
    turns = [USER, {"role": "user", "content": [text("there")]}, {"role": "assistant", "content": "a"}]
    turns += [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}]
    chat = convert(messages=turns)
    assert roles(chat) == ["user", "assistant"]
    assert chat.messages[0].content == [ContentPart(type="text", text="hi"), ContentPart(type="text", text="there")]
    assert chat.messages[1].content == "a"
    assert chat.messages[1].tool_calls


def test_images_become_parts_wherever_they_stand() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    linked = {"type": "image", "source": {"type": "url", "url": "file:///x.png"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [picture]}
    chat = convert(messages=[{"role": "user", "content": [result, linked]}])
    part = ContentPart(type="image_url", image_url=ImageUrl(url="data:image/png;base64,AAAA"))
    assert chat.messages[0].content == [part]
    assert chat.messages[1].content == [ContentPart(type="image_url", image_url=ImageUrl(url="file:///x.png"))]


def test_documents_and_search_results_are_their_text() -> None:
    plain = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "body"}}
    nested = {"type": "document", "source": {"type": "content", "content": [text("inner")]}}
    found = {"type": "search_result", "source": "http://x", "title": "S", "content": [text("hit")]}
    chat = convert(messages=[{"role": "user", "content": [plain, nested, found]}])
    content = chat.messages[0].content
    assert isinstance(content, list)
    assert [part.text for part in content] == ["T", "body", "inner", "S\nhttp://x\nhit"]


def test_tools_and_choices_are_those_of_chats() -> None:
    chat = convert(
        tools=[{**TOOL, "cache_control": {"type": "ephemeral"}, "strict": True}], tool_choice={"type": "any"}
    )
    function = {"name": "look", "description": "looks", "parameters": TOOL["input_schema"], "strict": True}
    assert chat.tools == [{"type": "function", "function": function}]
    assert chat.tool_choice == "required"
    named = convert(tools=[TOOL], tool_choice={"type": "tool", "name": "look"})
    assert named.tool_choice == {"type": "function", "function": {"name": "look"}}
    assert [convert(tool_choice={"type": word}).tool_choice for word in ("auto", "none")] == ["auto", "none"]


def test_thinking_and_effort_are_those_of_chats() -> None:
    for kind, thinks in (("enabled", True), ("adaptive", True), ("disabled", False)):
        assert convert(thinking={"type": kind}).enable_thinking is thinks
    chat = convert(thinking={"type": "enabled", "budget_tokens": 2000}, output_config={"effort": "max"})
    assert (chat.thinking_budget_tokens, chat.reasoning_effort) == (2000, "high")
    chat = convert(chat_template_kwargs='{"a": 1}')
    assert (chat.enable_thinking, chat.reasoning_effort, chat.chat_template_kwargs) == (None, None, '{"a": 1}')


def test_one_call_at_a_time_can_be_asked_for() -> None:
    assert convert(tool_choice={"type": "auto", "disable_parallel_tool_use": True}).parallel_tool_calls is False
    assert convert(tool_choice={"type": "auto"}).parallel_tool_calls is None


def test_format_is_a_schema() -> None:
    form = {"type": "json_schema", "schema": {"type": "string"}}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        chat = convert(**fields)
        assert chat.response_format is not None
        assert chat.response_format.json_schema is not None
        assert chat.response_format.json_schema.schema == {"type": "string"}


def test_answer_without_max_tokens_is_as_long_as_a_chats() -> None:
    """Anthropic demands it; llama-server, whose clients come here, too, does not."""
    chat = convert(max_tokens=None)
    assert choose_max_tokens(chat, -1) is None
    assert choose_max_tokens(chat, 7) == 7, "the model's `n_predict`"
    check_body("messages", json.dumps({"messages": [USER]}).encode())


def test_how_tokens_are_chosen_is_said_in_the_same_words() -> None:
    given = {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 4, "logit_bias": {"1": 2}}
    chat = convert(**given, stop_sequences=["x"], stream=True)
    assert {name: getattr(chat, name) for name in given} == given
    assert (chat.max_tokens, chat.stop, chat.stream) == (9, ["x"], True)
    assert set(SamplingBody.__struct_fields__) <= set(MessagesBody.__struct_fields__)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": []}, "`messages`"),
        ({"messages": "hello"}, "`$.messages`"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "`messages[0].role`"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "$.messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "", "name": "", "input": {}}]}]},
            "tool_use",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
            "tool_result",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "`tools[0].type`"),
        ({"tool_choice": {"type": "tool", "name": "gone"}}, "`tool_choice.name`"),
        ({"tool_choice": {"type": "some"}}, "`tool_choice.type`"),
        ({"thinking": {"type": "sometimes"}}, "`thinking.type`"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "`thinking.budget_tokens`"),
        ({"thinking": {"type": "adaptive", "display": "loud"}}, "`thinking.display`"),
        ({"output_config": {"format": {"type": "xml"}}}, "`output_config.format`"),
        ({"mcp_servers": [{"url": "http://x"}]}, "`mcp_servers`"),
        ({"container": "c"}, "`container`"),
        ({"logprobs": True}, "`logprobs`"),
        ({"max_tokens": "many"}, "`$.max_tokens`"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}
                ]
            },
            "source",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "document",
                                "source": {"type": "base64", "media_type": "application/pdf", "data": ""},
                            }
                        ],
                    }
                ]
            },
            "a PDF",
        ),
    ],
    ids=str,
)
def test_what_nobody_here_can_do_is_refused_by_its_name(fields: dict[str, Any], field: str) -> None:
    assert field in refuse(**fields)


def test_sealed_reasoning_is_opened_and_that_of_others_is_not() -> None:
    assert open_reasoning(seal_reasoning("thought \ud83d 🙂")) == "thought \ud83d 🙂"
    assert open_reasoning("EqQBCkYIBBgCKkA") == ""
    assert open_reasoning("llamactl:%%%") == ""
    hidden = [{"type": "thinking", "thinking": "", "signature": seal_reasoning("quiet")}]
    chat = convert(messages=[USER, {"role": "assistant", "content": hidden}, USER])
    assert chat.messages[1].reasoning_content == "quiet"
