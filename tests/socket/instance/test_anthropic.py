"""Does the official client of Anthropic's work with an instance on its socket?"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2 as httpx
import pytest

from llamactl.settings import ModelSettings
from tests.socket.instance.harness import Child, run_child
from tests.socket.instance.scripted import TEMPLATE

MESSAGES: Any = [{"role": "user", "content": "hello"}]
FIXED: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "extra_body": {"temperature": 0}}
GARBAGE: tuple[Any, ...] = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"messages": 3}',
    b'{"messages": []}',
    b'{"max_tokens": 3}',
    b'{"messages": [{"role": "user"}]}',
    b'{"messages": [{"role": "user", "content": [{}]}]}',
    b'{"messages": [{"role": "user", "content": [{"type": []}]}]}',
    b'{"messages": [{"role": "wizard", "content": "x"}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "tools": {}}',
    b'{"messages": [{"role": "user", "content": "x"}], "tool_choice": "x"}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": ' + b"[" * 3000,
)


def connect(child: Child, **more: Any) -> anthropic.Anthropic:
    transport = httpx.HTTPTransport(uds=str(child.http_socket))
    return anthropic.Anthropic(
        base_url="http://instance",
        api_key="unused",
        max_retries=0,
        http_client=httpx.Client(transport=transport),
        **more,
    )


@pytest.fixture(scope="module")
def instance(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """Of a model that can be told of tools."""
    settings = ModelSettings(name="tiny", path=str(tiny), ctx=1024, parallel=4, threads=1, chat_template=TEMPLATE)
    with run_child(tmp_path_factory.mktemp("instance"), "serve", settings) as child:
        child.supervisor.wait_for("ready")
        yield child


@pytest.fixture
def client(instance: Child) -> Iterator[anthropic.Anthropic]:
    with connect(instance) as made:
        yield made


def test_message_with_all_that_anthropic_names(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="tiny",
        system=[{"type": "text", "text": "be short", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [{"type": "text", "text": "yes?"}]},
            {"role": "user", "content": "hello"},
        ],
        max_tokens=8,
        stop_sequences=["\n\n"],
        extra_body={"temperature": 1.0, "top_k": 20, "top_p": 0.9},
        metadata={"user_id": "someone"},
        service_tier="auto",
        thinking={"type": "disabled"},
    )
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert message.id.startswith("msg_")
    assert message.stop_reason in ("end_turn", "max_tokens", "stop_sequence")
    assert message.usage.input_tokens > 0
    assert 0 < message.usage.output_tokens <= 8
    assert message.usage.cache_creation_input_tokens == 0
    assert [block.type for block in message.content] in (["text"], [])


def test_stream_adds_up_to_the_whole(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**FIXED)
    with client.messages.stream(**FIXED) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(texts) > 1
    assert "".join(texts) == whole.content[0].text == final.content[0].text  # type: ignore[union-attr]
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == whole.usage.output_tokens == 12
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) == (
        whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    )


def test_second_turn_reads_the_first_from_memory(client: anthropic.Anthropic) -> None:
    long: Any = [{"role": "user", "content": "hello world and the rest of it " * 8}]
    first = client.messages.create(**{**FIXED, "messages": long})
    again = client.messages.create(**{**FIXED, "messages": long})
    assert again.usage.cache_read_input_tokens
    assert again.usage.cache_read_input_tokens > first.usage.input_tokens // 2
    with client.messages.stream(**{**FIXED, "messages": long}) as stream:
        (start,) = [event for event in stream if event.type == "message_start"]
    assert start.message.usage.cache_read_input_tokens == again.usage.cache_read_input_tokens


def test_stop_sequence_is_told(client: anthropic.Anthropic) -> None:
    text = client.messages.create(**FIXED).content[0].text  # type: ignore[union-attr]
    stop = text[2:4]
    message = client.messages.create(**FIXED, stop_sequences=["never this", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == text[: text.index(stop)]  # type: ignore[union-attr]


def test_answer_that_was_begun_is_continued(client: anthropic.Anthropic, instance: Child) -> None:
    begun: Any = [*MESSAGES, {"role": "assistant", "content": "hello the"}]
    message = client.messages.create(**{**FIXED, "messages": begun})
    chat = instance.request(
        "POST", "/v1/chat/completions", {"messages": begun, "max_tokens": 12, "temperature": 0, "model": "tiny"}
    )[1]
    assert message.content[0].text == chat["choices"][0]["message"]["content"]  # type: ignore[union-attr]


def test_tokens_are_counted_as_they_are_read(client: anthropic.Anthropic) -> None:
    for more in ({}, {"system": "be short"}):
        counted = client.messages.count_tokens(model="tiny", messages=MESSAGES, **more)
        usage = client.messages.create(**FIXED, **more).usage
        assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_answer_follows_a_schema(client: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    message = client.messages.create(
        **{**FIXED, "max_tokens": 200}, output_config={"format": {"type": "json_schema", "schema": schema}}
    )
    assert isinstance(json.loads(message.content[0].text)["a"], bool)  # type: ignore[union-attr]


@pytest.mark.parametrize("streamed", [False, True])
def test_refusal_is_the_clients_own_exception(client: anthropic.Anthropic, streamed: bool) -> None:
    long: Any = [{"role": "user", "content": "hello " * 3000}]
    for messages, word in ((long, "prompt is too long: "), (long, " tokens > 1024 maximum"), ([], "there are none")):
        with pytest.raises(anthropic.BadRequestError) as refused:
            client.messages.create(model="tiny", messages=messages, max_tokens=3, stream=streamed)
        body: Any = refused.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        assert word in body["error"]["message"]
        assert "`messages`" in body["error"]["message"]


@pytest.mark.parametrize("body", GARBAGE, ids=lambda body: body[:40].decode())
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_garbage_is_refused_in_anthropics_form(instance: Child, path: str, body: bytes) -> None:
    status, answer = instance.request("POST", path, body)
    assert status == 400, answer
    assert answer["type"] == "error"
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"].startswith("cannot ")
