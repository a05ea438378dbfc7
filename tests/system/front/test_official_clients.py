"""Do the official clients of both APIs work through the front, with tools, streams and errors in their own shapes?"""

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.models import write_model
from tests.system import journal
from tests.system.harness import Llamactl

URL = "http://127.0.0.1:8080"
PLACES = {"type": "object", "properties": {"at": {"enum": ["sea"]}}, "required": ["at"], "additionalProperties": False}
LOOK = {"name": "look", "description": "looks", "parameters": PLACES}
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] -%}
{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Whose calls begin with a bracket."""
LONG = "How is the sea? " * 4000
"""More than the context."""


@pytest.fixture
def front(llamactl: Llamactl, tmp_models: Path) -> Llamactl:
    """With a model of random weights: what it calls is what its grammar leaves it."""
    path = write_model(tmp_models / "calling.gguf", chat_template=TEMPLATE, n_ctx_train=8192)
    llamactl.write_models(calling={"path": str(path), "ctx": 4096, "parallel": 2})
    llamactl.start()
    return llamactl


def find_bias(front: Llamactl) -> dict[str, Any]:
    """What makes the model begin a call wherever its grammar lets it."""
    tokens = front.post("/tokenize", {"model": "calling", "content": "{"}).json()["tokens"]
    return {"temperature": 0, "logit_bias": {str(tokens[-1]): 100}}


def test_openais_client_calls_streams_and_fails(front: Llamactl) -> None:
    question: Any = [{"role": "user", "content": "How is the sea?"}]
    tools: Any = [{"type": "function", "function": LOOK}]
    bias = find_bias(front)
    with openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0) as client:
        fields: Any = {"model": "calling", "tools": tools, "tool_choice": "required", "max_completion_tokens": 400}
        fields |= {"parallel_tool_calls": False, "extra_body": bias}
        whole = client.chat.completions.create(messages=question, **fields).choices[0]
        assert whole.message.tool_calls is not None
        (call,) = whole.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": "sea"})
        assert whole.finish_reason == "tool_calls"
        with client.chat.completions.stream(messages=question, **fields) as stream:
            final = stream.get_final_completion().choices[0]
        assert final.message.tool_calls is not None
        assert final.message.tool_calls[0].function.arguments == call.function.arguments
        tool: Any = {"type": "function", **LOOK}
        choice: Any = {"type": "function", "name": "look"}
        fields = {"model": "calling", "tools": [tool], "tool_choice": choice, "max_output_tokens": 400}
        fields |= {"parallel_tool_calls": False, "extra_body": bias}
        with client.responses.stream(input="How is the sea?", **fields) as events:
            response = events.get_final_response()
        assert [json.loads(item.arguments) for item in response.output if item.type == "function_call"] == [
            {"at": "sea"}
        ]
        kept = client.responses.retrieve(response.id)
        assert [item.id for item in kept.output] == [item.id for item in response.output]
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="calling", messages=[{"role": "user", "content": LONG}])
        assert refused.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError) as missing:
            client.responses.create(model="nobody", input="x")
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")


def test_anthropics_client_calls_streams_and_fails(front: Llamactl) -> None:
    cursor = journal.acquire_cursor()
    tool: Any = {"name": "look", "description": "looks", "input_schema": PLACES}
    fields: Any = {
        "model": "calling",
        "max_tokens": 400,
        "tools": [tool],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "messages": [{"role": "user", "content": "How is the sea?"}],
        "extra_body": find_bias(front),
    }
    with anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=0) as client:
        counted = client.messages.count_tokens(model="calling", messages=fields["messages"], tools=[tool]).input_tokens
        whole = client.messages.create(**fields, extra_headers={"X-Request-Id": "whole"})
        with client.messages.stream(**fields, extra_headers={"X-Request-Id": "streamed"}) as stream:
            final = stream.get_final_message()
        for message in (whole, final):
            made = message.content[-1]
            assert made.type == "tool_use"
            assert (made.name, made.input, message.stop_reason) == ("look", {"at": "sea"}, "tool_use")
        assert (final.usage.cache_read_input_tokens or 0) > 0, "the second time it was in memory"
        with pytest.raises(anthropic.BadRequestError) as refused:
            client.messages.create(**{**fields, "messages": [{"role": "user", "content": LONG}]})
        assert refused.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.messages.create(**{**fields, "model": "nobody"})
        assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    for request_id in ("whole", "streamed"):
        line = journal.wait_entry(cursor, LLAMACTL_REQUEST_ID=request_id)
        assert int(line["LLAMACTL_PROMPT_TOKENS"]) == counted, "whatever of it was in memory"
