"""Do Responses work with OpenAI's client and an instance on its socket?"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import openai
import pytest
from pydantic import BaseModel

from tests.socket.instance.harness import Child

FIXED: Any = {"model": "tiny", "max_output_tokens": 12, "temperature": 0}
GARBAGE: tuple[Any, ...] = (
    b"",
    b"{",
    b"[]",
    b"{}",
    b'{"input": 3}',
    b'{"input": []}',
    b'{"input": [3]}',
    b'{"input": [{}]}',
    b'{"input": [{"type": "message"}]}',
    b'{"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}',
    b'{"input": "x", "tools": [{}]}',
    b'{"input": "x", "tool_choice": 3}',
    b'{"input": "x", "previous_response_id": 3}',
    b'{"input": "x", "text": {"format": "json"}}',
    b'{"input": "\\ud800"}',
    b'{"input": ' + b"[" * 3000,
)


@pytest.fixture
def client(instance: Child) -> Iterator[openai.OpenAI]:
    transport = httpx.HTTPTransport(uds=str(instance.http_socket))
    http = httpx.Client(transport=transport)
    with openai.OpenAI(base_url="http://instance/v1", api_key="x", max_retries=0, http_client=http) as made:
        yield made


def test_response_with_all_that_openai_names(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="tiny",
        instructions="be short",
        input=[
            {"role": "developer", "content": "hello"},
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "message", "role": "assistant", "content": "yes?"},
            {"role": "user", "content": "hello"},
        ],
        max_output_tokens=8,
        temperature=1.1,
        top_p=0.9,
        top_logprobs=2,
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        metadata={"a": "b"},
        parallel_tool_calls=True,
        prompt_cache_key="k",
        safety_identifier="someone",
        service_tier="auto",
        store=False,
        text={"format": {"type": "text"}, "verbosity": "low"},
        truncation="disabled",
        user="someone",
    )
    assert (response.object, response.model, response.metadata) == ("response", "tiny", {"a": "b"})
    assert response.id.startswith("resp_")
    assert response.usage is not None
    assert 0 < response.usage.output_tokens <= 8
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    (item,) = response.output
    assert item.type == "message"
    assert item.id.startswith("msg_")
    (part,) = item.content
    assert part.type == "output_text"
    assert part.logprobs
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)


def test_stream_adds_up_to_the_whole(client: openai.OpenAI) -> None:
    whole = client.responses.create(**FIXED, input="hello")
    text, kinds, numbers, last = "", [], [], None
    for event in client.responses.create(**FIXED, input="hello", stream=True):
        kinds.append(event.type)
        numbers.append(event.sequence_number)
        if event.type == "response.output_text.delta":
            text += event.delta
        last = event
    assert numbers == list(range(len(numbers)))
    assert text == whole.output_text
    assert last is not None
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    middle = [kind for kind in kinds if kind != "response.output_text.delta"]
    assert middle == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]


def test_clients_own_accumulator_takes_the_stream(client: openai.OpenAI) -> None:
    fields: Any = {**FIXED, "extra_body": {"grammar": 'root ::= "hello"'}}
    with client.responses.stream(**fields, input="hello") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert (final.output_text, final.status) == ("hello", "completed")


class Answer(BaseModel):
    good: bool


def test_answer_is_parsed_into_a_type(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny", "temperature": 0, "max_output_tokens": 200}
    parsed = client.responses.parse(**fields, input="hello", text_format=Answer)
    assert isinstance(parsed.output_parsed, Answer)


def test_conversation_goes_on_with_what_is_kept(client: openai.OpenAI) -> None:
    first = client.responses.create(**FIXED, input="hello", instructions="be short")
    second = client.responses.create(**FIXED, input="the", previous_response_id=first.id, store=False)
    said: Any = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "the"},
    ]
    same = client.responses.create(**FIXED, input=said, store=False)
    assert second.output_text == same.output_text
    assert second.usage is not None
    assert same.usage is not None
    assert second.usage.input_tokens == same.usage.input_tokens
    assert second.previous_response_id == first.id
    with pytest.raises(openai.NotFoundError, match="previous_response_id"):
        client.responses.create(**FIXED, input="x", previous_response_id=second.id)


@pytest.mark.parametrize("streamed", [False, True])
def test_response_is_kept_until_it_is_deleted(client: openai.OpenAI, streamed: bool) -> None:
    given: Any = {**FIXED, "input": "hello", "stream": streamed}
    made = list(client.responses.create(**given))[-1].response if streamed else client.responses.create(**given)
    assert client.responses.retrieve(made.id).output_text == made.output_text
    items = client.responses.input_items.list(made.id).data
    assert [item.content[0].text for item in items] == ["hello"]  # type: ignore[union-attr]
    reference: Any = [{"type": "item_reference", "id": items[0].id}]
    again = client.responses.create(**FIXED, input=reference, store=False)
    assert again.output_text == made.output_text
    client.responses.delete(made.id)
    for gone in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="no response"):
            gone(made.id)


def test_tokens_are_counted_as_they_are_read(client: openai.OpenAI) -> None:
    first = client.responses.create(**FIXED, input="hello")
    for more in ({}, {"instructions": "be short"}, {"previous_response_id": first.id}):
        counted = client.responses.input_tokens.count(model="tiny", input="hello", **more)  # type: ignore[arg-type]
        assert counted.object == "response.input_tokens"
        usage = client.responses.create(**FIXED, input="hello", **more).usage
        assert usage.input_tokens == counted.input_tokens


@pytest.mark.parametrize("streamed", [False, True])
def test_refusal_is_the_clients_own_exception(client: openai.OpenAI, streamed: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size") as refused:
        client.responses.create(model="tiny", input="hello " * 3000, stream=streamed)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.BadRequestError, match="tools") as refused:
        client.responses.create(model="tiny", input="x", tools=[{"type": "code_interpreter", "container": "c"}])
    assert refused.value.param == "tools[0].type"


@pytest.mark.parametrize("body", GARBAGE, ids=lambda body: body[:40].decode())
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
def test_garbage_is_refused_in_openais_form(instance: Child, path: str, body: bytes) -> None:
    status, answer = instance.request("POST", path, body)
    assert status == 400, answer
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["code"] is None
    assert answer["error"]["message"].startswith("cannot ")


def read_events(child: Child, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with contextlib.closing(child.connect()) as connection:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        blocks = response.read().decode().split("\n\n")[:-1]
    return [json.loads(block.split("data: ", 1)[1]) for block in blocks]


def test_timings_and_progress_are_told_as_by_llama_server(instance: Child) -> None:
    body = {"input": "hello", "max_output_tokens": 4, "timings_per_token": True, "return_progress": True}
    events = read_events(instance, "/responses", {**body, "stream": True})
    progress = [event for event in events if "prompt_progress" in event]
    assert progress
    assert {event["type"] for event in progress} == {"response.in_progress"}
    assert any("timings" in event for event in events if event["type"] == "response.output_text.delta")
    assert "predicted_per_second" in events[-1]["timings"]
