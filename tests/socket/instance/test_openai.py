"""Does the official client work with every endpoint that it has here, against one instance on its socket?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from pydantic import BaseModel

from llamactl.settings import ModelSettings
from tests.socket.instance.harness import Child, run_child

MESSAGES: Any = [{"role": "system", "content": "short"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]


def connect(child: Child) -> openai.OpenAI:
    transport = httpx.HTTPTransport(uds=str(child.http_socket))
    return openai.OpenAI(
        base_url="http://instance/v1", api_key="unused", max_retries=0, http_client=httpx.Client(transport=transport)
    )


@pytest.fixture
def client(instance: Child) -> Iterator[openai.OpenAI]:
    with connect(instance) as made:
        yield made


def test_chat_with_all_that_openai_names(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_completion_tokens=8,
        n=2,
        seed=3,
        stop=["\n\n"],
        temperature=1.2,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={"9": -5},
        logprobs=True,
        top_logprobs=2,
        user="someone",
        store=False,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.message.role == "assistant"
        assert choice.finish_reason in ("stop", "length")
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16
    assert answer.usage.prompt_tokens_details is not None


def test_choices_of_a_stream_are_whole_each_for_itself(client: openai.OpenAI) -> None:
    fixed: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, "n": 3, "seed": 11, "temperature": 1.5}
    whole = client.chat.completions.create(**fixed)
    texts, reasons, usage = {0: "", 1: "", 2: ""}, {}, None
    roles = []
    for chunk in client.chat.completions.create(**fixed, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            roles += [choice.index] if choice.delta.role else []
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert sorted(roles) == [0, 1, 2]
    assert len(set(texts.values())) == 3, "choices with one seed are no copies of each other"
    assert usage is not None
    assert whole.usage is not None
    assert usage.total_tokens == whole.usage.total_tokens


class Person(BaseModel):
    name: str
    is_here: bool


def test_parsed_answer_is_the_class_that_was_asked_for(client: openai.OpenAI) -> None:
    """Names may be long: the model is asked until one ends within its context."""
    for seed in range(20):
        try:
            answer = client.chat.completions.parse(
                model="tiny", messages=MESSAGES, response_format=Person, seed=seed, temperature=1.5
            )
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(answer.choices[0].message.parsed, Person)
        return
    raise AssertionError("no answer came to an end")


def test_completions_of_several_prompts_in_all_forms(client: openai.OpenAI) -> None:
    fixed: Any = {"model": "tiny", "max_tokens": 6, "temperature": 0}
    several = client.completions.create(**fixed, prompt=["one", "two"], n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    alone = [client.completions.create(**fixed, prompt=prompt).choices[0].text for prompt in ("one", "two")]
    assert [choice.text for choice in several.choices] == [alone[0], alone[0], alone[1], alone[1]]
    tokens = client.completions.create(**fixed, prompt=[[1, 9, 10], [1, 11]])
    assert len(tokens.choices) == 2
    assert client.completions.create(**fixed, prompt=[1, 9, 10]).choices[0].text == tokens.choices[0].text
    assert several.usage is not None
    assert several.usage.completion_tokens <= 24


def test_echo_puts_the_prompt_before_the_text(client: openai.OpenAI) -> None:
    fixed: Any = {"model": "tiny", "prompt": "hello world", "max_tokens": 6, "temperature": 0}
    plain = client.completions.create(**fixed).choices[0].text
    assert client.completions.create(**fixed, echo=True).choices[0].text == "hello world" + plain
    streamed = client.completions.create(**fixed, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "hello world" + plain


def test_suffix_needs_a_model_that_fills_gaps(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="fill a gap"):
        client.completions.create(model="tiny", prompt="a", suffix="b", max_tokens=3)


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_refusals_are_the_clients_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 4000}])
    assert refused.value.type == "exceed_context_size_error"
    assert "exceeds the available context size (1024 tokens)" in refused.value.message
    assert "prompt is too long: " in refused.value.message
    with pytest.raises(openai.BadRequestError, match="cannot make embeddings"):
        client.embeddings.create(model="tiny", input="hello")


def test_embeddings_in_every_form(tiny_embed: Path, tmp_path: Path) -> None:
    model = ModelSettings(name="embed", path=str(tiny_embed), threads=1, batch=128, ubatch=128)
    with run_child(tmp_path, "serve", model) as child:
        child.supervisor.wait_for("ready")
        with connect(child) as client:
            coded = client.embeddings.create(model="embed", input=["hello", "world"])  # base64 on the wire
            plain = client.embeddings.create(model="embed", input=["hello", "world"], encoding_format="float")
            short = client.embeddings.create(model="embed", input="hello", dimensions=16)
            with pytest.raises(openai.BadRequestError, match="dimensions"):
                client.embeddings.create(model="embed", input="hello", dimensions=65)
    assert coded.data[1].embedding == pytest.approx(plain.data[1].embedding, abs=1e-6)
    vector = short.data[0].embedding
    assert len(vector) == 16
    assert sum(value * value for value in vector) == pytest.approx(1)
    scale = plain.data[0].embedding[0] / vector[0]
    assert [value * scale for value in vector] == pytest.approx(plain.data[0].embedding[:16], abs=1e-6)


def test_token_numbers_under_a_name_of_openais_are_warned_of_once(tiny_embed: Path, tmp_path: Path) -> None:
    """They are of another vocabulary, which nothing in a number says."""
    alias = "text-embedding-3-small"
    model = ModelSettings(name="embed", aliases=(alias,), path=str(tiny_embed), threads=1, batch=128, ubatch=128)
    with run_child(tmp_path, "serve", model) as child:
        child.supervisor.wait_for("ready")
        with connect(child) as client:
            client.embeddings.create(model=alias, input="hello")
            client.embeddings.create(model="embed", input=[[5, 6]])
            assert "another vocabulary" not in child.errors
            for _ in range(2):
                client.embeddings.create(model=alias, input=[[5, 6]])
            assert child.errors.count("token numbers of another vocabulary") == 1
            assert alias in child.errors
