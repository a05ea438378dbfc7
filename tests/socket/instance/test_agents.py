"""Can agents do their work, in the words that each of them speaks? Codex by Responses, Claude Code by Messages,
opencode and Qwen Code by chats: requests as they send them, a task of calls and their results each. The model is
scripted; template, grammar and parser are the real ones.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx2 as httpx
import openai
import pytest

from tests.socket.instance.scripted import ScriptedModel, run_scripted

Turn = dict[str, Any]

EPHEMERAL = {"type": "ephemeral"}
THOUGHT = "<think>\nI must look at it.\n</think>\n\n"
CODEX_FIELDS = {"content-type": "application/json", "originator": "codex_cli_rs", "session_id": "0199"}
CLAUDE_FIELDS = {
    "content-type": "application/json",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "x-api-key": "sk-none",
    "x-app": "cli",
}
LOOK_SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedModel]:
    with run_scripted(tmp_path_factory.mktemp("agents"), ctx=65536) as running:
        yield running


def read_events(model: ScriptedModel, path: str, body: Any, fields: dict[str, str]) -> list[dict[str, Any]]:
    with contextlib.closing(model.child.connect()) as connection:
        connection.request("POST", path, json.dumps(body), fields)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        blocks = response.read().decode().split("\n\n")[:-1]
    return [json.loads(block.split("data: ", 1)[1]) for block in blocks]


# --- Codex ---


def make_codex(*items: dict[str, Any]) -> dict[str, Any]:
    """`items`: of earlier turns."""
    exec_command = {
        "type": "function",
        "name": "exec_command",
        "description": "runs a command",
        "strict": False,
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
    }
    look = {"type": "function", "name": "look", "description": "looks", "strict": False, "parameters": LOOK_SCHEMA}
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: begin_patch"}
    patch = {"type": "custom", "name": "apply_patch", "description": "patches files", "format": grammar}
    developer = [{"type": "input_text", "text": "Be careful."}, {"type": "input_text", "text": "Be kind."}]
    return {
        "model": "scripted",
        "instructions": "You are Codex.",
        "input": [
            {"type": "message", "role": "developer", "content": developer},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "How is the sea?"}]},
            *items,
        ],
        "tools": [
            exec_command,
            {"type": "namespace", "name": "mcp__coast", "description": "the coast", "tools": [look]},
            patch,
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-0000",
        "text": {"verbosity": "medium"},
        "client_metadata": {"x-codex-installation-id": "y"},
    }


def pass_back(item: dict[str, Any]) -> dict[str, Any]:
    """An item as Codex keeps it: reasoning without its text."""
    kept = {key: value for key, value in item.items() if key not in ("id", "status")}
    return {**kept, "content": None} if item["type"] == "reasoning" else kept


def ask_codex(model: ScriptedModel, *items: dict[str, Any]) -> dict[str, Any]:
    events = read_events(model, "/v1/responses", make_codex(*items), CODEX_FIELDS)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    response = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == response["output"]
    return dict(response)


def test_codex_does_a_task(model: ScriptedModel) -> None:
    model.say(("How is the sea?", f"{THOUGHT}I look.{call('mcp__coast__look', at='sea')}"), ("wild", "It is wild."))
    first = ask_codex(model)
    reasoning, message, made = first["output"]
    assert reasoning["summary"][0]["text"].strip() == "I must look at it."
    assert message["content"][0]["text"].strip() == "I look."
    assert (made["type"], made["namespace"], made["name"]) == ("function_call", "mcp__coast", "look")
    assert json.loads(made["arguments"]) == {"at": "sea"}
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "wild"}
    second = ask_codex(model, *map(pass_back, first["output"]), result)
    assert [item["type"] for item in second["output"]] == ["message"]
    assert second["output"][0]["content"][0]["text"] == "It is wild."
    cached = second["usage"]["input_tokens_details"]["cached_tokens"]
    assert cached > 0.8 * second["usage"]["input_tokens"], "the first turn was in memory"
    assert [tool["type"] for tool in second["tools"]] == ["function", "namespace", "custom"], "the web is not searched"


def test_reasoning_that_codex_passes_back_is_read_again(model: ScriptedModel) -> None:
    model.say(("How is the sea?", f"{THOUGHT}{call('exec_command', cmd='ls')}"))
    reasoning, made = ask_codex(model)["output"]
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "wild"}
    counts = []
    for items in ([reasoning, made, result], [made, result]):
        body = {**make_codex(*map(pass_back, items)), "stream": False}
        counts.append(model.child.request("POST", "/v1/responses/input_tokens", body)[1]["input_tokens"])
    assert counts[0] > counts[1]


def test_codex_gets_the_text_of_a_patch(model: ScriptedModel) -> None:
    patch = '*** Begin Patch\n*** Add File: a "b"\n*** End Patch'
    model.say(("How is the sea?", call("apply_patch", input=patch)), ("Success", "Done."))
    (made,) = ask_codex(model)["output"]
    assert (made["type"], made["name"], made["input"]) == ("custom_tool_call", "apply_patch", patch)
    result = {"type": "custom_tool_call_output", "call_id": made["call_id"], "output": "Success"}
    second = ask_codex(model, pass_back(made), result)
    assert second["output"][0]["content"][0]["text"] == "Done."


def test_openais_client_adds_up_reasoning_and_calls(model: ScriptedModel) -> None:
    model.say(("the sea", f"{THOUGHT}I look.{call('look', at='sea')}\n{call('look', at='sky')}"))
    tool: Any = {"type": "function", "name": "look", "parameters": LOOK_SCHEMA}
    fields: Any = {"model": "scripted", "input": "How is the sea?", "tools": [tool], "parallel_tool_calls": True}
    with model.open_client() as client:
        whole = client.responses.create(**fields)
        with client.responses.stream(**fields) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_response()
    assert {"response.reasoning_text.delta", "response.function_call_arguments.delta"} <= kinds
    for response in (whole, final):
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
        calls = [json.loads(item.arguments) for item in response.output if item.type == "function_call"]
        assert calls == [{"at": "sea"}, {"at": "sky"}]
        assert response.usage is not None
        assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens


def test_stored_call_is_gone_on_with(model: ScriptedModel) -> None:
    model.say(("the sea", call("look", at="sea")), ("wild", "It is wild."))
    tool: Any = {"type": "function", "name": "look", "parameters": LOOK_SCHEMA}
    with model.open_client() as client:
        first = client.responses.create(model="scripted", input="How is the sea?", tools=[tool])
        made = first.output[0]
        assert made.type == "function_call"
        result: Any = [{"type": "function_call_output", "call_id": made.call_id, "output": "wild"}]
        second = client.responses.create(model="scripted", input=result, previous_response_id=first.id, tools=[tool])
    assert second.output_text == "It is wild."


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "look"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]},
    ],
    ids=str,
)
def test_call_that_a_response_has_to_make(model: ScriptedModel, choice: Any) -> None:
    model.say(("the sea", call("look", at="sea")))
    tool: Any = {"type": "function", "name": "look", "parameters": LOOK_SCHEMA}
    with model.open_client() as client:
        response = client.responses.create(
            model="scripted", input="How is the sea?", tools=[tool], tool_choice=choice, max_output_tokens=400
        )
    assert response.output[-1].type == "function_call"


def test_tool_that_is_left_out_cannot_be_demanded(model: ScriptedModel) -> None:
    with model.open_client() as client, pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(
            model="scripted", input="x", tools=[{"type": "web_search"}], tool_choice={"type": "web_search_preview"}
        )
    assert refused.value.param == "tool_choice.type"


# --- Claude Code ---


def make_claude_code(*turns: dict[str, Any]) -> dict[str, Any]:
    """`turns`: behind the first."""
    tools = [
        {
            "name": f"Tool{number}" if number else "Read",
            "description": "does something useful",
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {"path": {"type": "string", "description": "where"}},
                "required": ["path"],
                "additionalProperties": False,
            },
        }
        for number in range(24)
    ]
    head = "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;"
    return {
        "model": "scripted",
        "system": [
            {"type": "text", "text": head},
            {"type": "text", "text": "You are Claude Code.", "cache_control": EPHEMERAL},
            {"type": "text", "text": "Be careful.", "cache_control": EPHEMERAL},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>"}]},
            {"role": "system", "content": "the date has changed"},
            {"role": "user", "content": [{"type": "text", "text": "What is in a.txt?", "cache_control": EPHEMERAL}]},
            *turns,
        ],
        "tools": tools,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": json.dumps({"device_id": "0" * 64})},
        "max_tokens": 32000,
        "stream": True,
    }


def ask_claude_code(model: ScriptedModel, body: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The blocks, and the last delta."""
    events = read_events(model, "/v1/messages?beta=true", body, CLAUDE_FIELDS)
    assert events[0]["type"] == "message_start"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[-2]["context_management"] == {"applied_edits": []}
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            texts.append("")
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "signature_delta":
                blocks[-1]["signature"] = delta["signature"]
            else:
                texts[-1] += next(value for key, value in delta.items() if key != "type")
    for block, text in zip(blocks, texts, strict=True):
        field = {"tool_use": "input"}.get(block["type"], block["type"])
        block[field] = json.loads(text) if field == "input" else text
    return blocks, events[-2]


def test_claude_code_does_a_task(model: ScriptedModel) -> None:
    model.say(("What is in a.txt?", f"{THOUGHT}I look.{call('Read', path='a.txt')}"), ("forty-two", "It is 42."))
    blocks, end = ask_claude_code(model, make_claude_code())
    thinking, text, made = blocks
    assert end["delta"]["stop_reason"] == "tool_use"
    assert thinking["thinking"].strip() == "I must look at it."
    assert thinking["signature"]
    assert text["text"].strip() == "I look."
    assert (made["type"], made["name"], made["input"]) == ("tool_use", "Read", {"path": "a.txt"})
    result = {"type": "tool_result", "tool_use_id": made["id"], "content": [{"type": "text", "text": "forty-two"}]}
    turns = [
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [{**result, "cache_control": EPHEMERAL}]},
    ]
    blocks, end = ask_claude_code(model, make_claude_code(*turns))
    assert [(block["type"], block["text"]) for block in blocks] == [("text", "It is 42.")]
    assert end["delta"]["stop_reason"] == "end_turn"
    assert end["usage"]["cache_read_input_tokens"] > end["usage"]["input_tokens"], "the first turn was in memory"


def test_number_in_claude_codes_first_line_does_not_cost_the_memory_of_what_follows(model: ScriptedModel) -> None:
    model.say(("What is in", "Nothing."))
    ask_claude_code(model, make_claude_code())
    body = make_claude_code()
    body["system"][0]["text"] = body["system"][0]["text"].replace("a5145", "0f2e1")
    usage = ask_claude_code(model, body)[1]["usage"]
    assert usage["cache_read_input_tokens"] > 10 * usage["input_tokens"]


@pytest.fixture
def client(model: ScriptedModel) -> Iterator[anthropic.Anthropic]:
    http = httpx.Client(transport=httpx.HTTPTransport(uds=str(model.child.http_socket)))
    with anthropic.Anthropic(base_url="http://instance", api_key="x", max_retries=0, http_client=http) as made:
        yield made


LOOK: Any = {"name": "look", "description": "looks", "input_schema": LOOK_SCHEMA}
ASK: Any = {
    "model": "scripted",
    "max_tokens": 400,
    "tools": [LOOK, {**LOOK, "name": "go"}],
    "messages": [{"role": "user", "content": "How is the sea?"}],
}


def test_anthropics_client_adds_up_thinking_and_calls(model: ScriptedModel, client: anthropic.Anthropic) -> None:
    model.say(("the sea", f"{THOUGHT}I look.{call('look', at='sea')}\n{call('go', at='sky')}"))
    whole = client.messages.create(**ASK)
    with client.messages.stream(**ASK) as stream:
        final = stream.get_final_message()
    for message in (whole, final):
        assert message.stop_reason == "tool_use"
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        calls = [(block.name, block.input) for block in message.content if block.type == "tool_use"]
        assert calls == [("look", {"at": "sea"}), ("go", {"at": "sky"})]


def test_only_one_call_where_one_is_wanted(model: ScriptedModel, client: anthropic.Anthropic) -> None:
    model.say(("the sea", f"{call('look', at='sea')}\n{call('go', at='sky')}"))
    message = client.messages.create(**ASK, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.type for block in message.content] == ["tool_use"]


@pytest.mark.parametrize(
    ("choice", "name"), [({"type": "any"}, "look"), ({"type": "tool", "name": "go"}, "go")], ids=str
)
def test_call_that_a_message_has_to_make(
    model: ScriptedModel, client: anthropic.Anthropic, choice: Any, name: str
) -> None:
    model.say(("the sea", call(name, at="sea")))
    message = client.messages.create(**ASK, tool_choice=choice)
    assert [(block.type, getattr(block, "name", "")) for block in message.content] == [("tool_use", name)]


def test_no_call_where_none_is_wanted(model: ScriptedModel, client: anthropic.Anthropic) -> None:
    model.say(("the sea", "It is blue."))
    message = client.messages.create(**ASK, tool_choice={"type": "none"})
    assert [block.type for block in message.content] == ["text"]


def test_thinking_can_be_off_hidden_and_short(model: ScriptedModel, client: anthropic.Anthropic) -> None:
    long = "<think>\n" + "I wonder. " * 40 + "\n</think>\n\nIt is blue."
    model.say(("the sea", long))
    hidden = client.messages.create(**ASK, thinking={"type": "adaptive", "display": "omitted"}).content[0]
    assert hidden.type == "thinking"
    assert hidden.thinking == ""
    assert len(hidden.signature) > 400, "it holds the thoughts"
    short = client.messages.create(**ASK, thinking={"type": "enabled", "budget_tokens": 8})
    assert short.content[0].type == "thinking"
    assert len(short.content[0].thinking) < 100
    model.say(("the sea", "It is blue."))
    off = client.messages.create(**ASK, thinking={"type": "disabled"})
    assert [block.type for block in off.content] == ["text"]


def test_failed_call_is_told_as_one(model: ScriptedModel, client: anthropic.Anthropic) -> None:
    model.say(("Error: no such sea", "I am sorry."))
    made: Any = [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "sea"}}]
    failed: Any = [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "no such sea", "is_error": True}]
    turns = [*ASK["messages"], {"role": "assistant", "content": made}, {"role": "user", "content": failed}]
    message = client.messages.create(**{**ASK, "messages": turns})
    assert message.content[0].type == "text"
    assert message.content[0].text == "I am sorry."


def test_tokens_of_tools_are_counted_as_they_are_read(model: ScriptedModel, client: anthropic.Anthropic) -> None:
    model.say(("the sea", "It is blue."))
    counted = client.messages.count_tokens(model="scripted", messages=ASK["messages"], tools=ASK["tools"])
    usage = client.messages.create(**ASK).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


# --- opencode, Qwen Code ---

OPENCODE_FIELDS = {"content-type": "application/json", "authorization": "Bearer none", "user-agent": "ai-sdk/5"}
EDITORS_TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name}s " * 200,
            "parameters": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {argument: {"type": "string", "description": "what"} for argument in arguments},
                "required": arguments,
                "additionalProperties": False,
            },
        },
    }
    for name, arguments in (("read", ["path"]), ("edit", ["path", "old", "new"]), ("run", ["command"]))
]
TASK = [
    (THOUGHT + "First." + call("read", path="a.txt"), "1: forty-one"),
    ("Second." + call("edit", path="a.txt", old="forty-one", new="forty-two"), "Edit applied."),
    (THOUGHT + "Third." + call("run", command="wc a.txt"), "10\n"),
    ("Done.", ""),
]
"""What is said, and what comes of it."""


def make_opencode(*turns: Turn) -> Turn:
    opening = [{"role": "system", "content": "You are opencode."}, {"role": "user", "content": "Say forty-two."}]
    return {"max_tokens": 32000, "messages": [*opening, *turns], "tools": EDITORS_TOOLS, "tool_choice": "auto"}


def make_qwen_code(*turns: Turn) -> Turn:
    """Every text in parts, results too, and an answer of its own making in the beginning."""
    opening = [
        {"role": "system", "content": "You are Qwen Code."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "We are setting up."}, {"type": "text", "text": "Linux"}],
        },
        {"role": "assistant", "content": "Got it. Thanks for the context!"},
        {"role": "user", "content": [{"type": "text", "text": "Say forty-two."}]},
    ]
    results = [
        {**turn, "content": [{"type": "text", "text": turn["content"]}]} if turn["role"] == "tool" else turn
        for turn in turns
    ]
    return {"max_tokens": 8000, "messages": [*opening, *results], "tools": EDITORS_TOOLS}


def ask_editor(model: ScriptedModel, body: Turn) -> tuple[Turn, str, Any]:
    """The message as such a client passes it back, why it ended, and the usage."""
    streamed = {"model": "scripted", "stream": True, "stream_options": {"include_usage": True}, **body}
    with contextlib.closing(model.child.connect()) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(streamed), OPENCODE_FIELDS)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        events = [line[6:] for line in response.read().decode().splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    content, reasoning, reason, usage = "", "", "", None
    calls: dict[int, Turn] = {}
    for chunk in map(json.loads, events):
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
            reason = choice["finish_reason"] or reason
            for piece in delta.get("tool_calls", ()):
                new = {"id": piece.get("id"), "type": "function", "function": {"name": "", "arguments": ""}}
                function = calls.setdefault(piece["index"], new)["function"]
                for key, text in piece["function"].items():
                    function[key] += text
    message: Turn = {"role": "assistant", "content": content, "tool_calls": list(calls.values())}
    if reasoning:
        message["reasoning_content"] = reasoning.strip()
    return {key: value for key, value in message.items() if value}, reason, usage


@pytest.mark.parametrize("make", [make_opencode, make_qwen_code])
def test_editor_does_a_task_of_several_calls(model: ScriptedModel, make: Callable[..., Turn]) -> None:
    keys = ("Say forty-two.", "First.", "Second.", "Third.")
    model.say(*((key, said) for key, (said, _) in zip(keys, TASK, strict=True)))
    turns: list[Turn] = []
    for number, (said, result) in enumerate(TASK):
        message, reason, usage = ask_editor(model, make(*turns))
        assert message["content"].strip() == ("First.", "Second.", "Third.", "Done.")[number]
        assert message.get("reasoning_content", "") == ("I must look at it." if "<think>" in said else "")
        if number:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached > 0.8 * usage["prompt_tokens"], "the turns before were in memory"
        if not result:
            assert reason == "stop"
            assert "tool_calls" not in message
            break
        (made,) = message["tool_calls"]
        assert reason == "tool_calls"
        assert call(made["function"]["name"], **json.loads(made["function"]["arguments"])) in said
        turns += [message, {"role": "tool", "tool_call_id": made["id"], "content": result}]


def test_agents_send_no_field_that_nothing_knows(model: ScriptedModel) -> None:
    model.say(("", "It is."))
    ask_codex(model)
    ask_claude_code(model, make_claude_code())
    for make in (make_opencode, make_qwen_code):
        ask_editor(model, make())
    assert "field ignored" not in model.child.errors


REFUSES_LATER_SYSTEM = """\
{%- for message in messages %}
{%- if message.role == "system" and not loop.first %}{{ raise_exception("System message must be at the beginning.") }}
{%- endif %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


def test_system_in_the_middle_reaches_models_whatever_their_template(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    body = {**make_claude_code(), "tools": [], "max_tokens": 40}
    codex = {"input": [{"role": "user", "content": "x"}, {"role": "developer", "content": "the date has changed"}]}
    with run_scripted(tmp_path_factory.mktemp("refusing"), template=REFUSES_LATER_SYSTEM) as model:
        model.say(("the date has changed", "So it has."))
        blocks, _ = ask_claude_code(model, body)
        assert blocks[0]["text"] == "So it has."
        assert model.child.request("POST", "/v1/responses", codex)[1]["output"][0]["content"][0]["text"] == "So it has."
        chat = {"messages": [*body["messages"][:1], {"role": "system", "content": "x"}]}
        assert model.child.request("POST", "/v1/chat/completions", chat)[0] == 400, "in chats it is the client's matter"
