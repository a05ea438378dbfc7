"""Does the official client work unchanged, over loopback TCP?"""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.system.harness import Llamactl


@pytest.fixture
def client(llamactl: Llamactl, tiny: dict[str, Path]) -> Iterator[openai.OpenAI]:
    llamactl.write_models(
        a={"path": str(tiny["a"]), "ctx": 1024, "aliases": ["gpt-4o"]}, b={"path": str(tiny["b"]), "ctx": 1024}
    )
    llamactl.start()
    with openai.OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="unused", max_retries=0) as made:
        yield made


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="a", messages=[{"role": "user", "content": "hi"}], max_tokens=6)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_chat_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="gpt-4o",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk for chunk in chunks if chunk.choices][-1].choices[0].finish_reason in ("stop", "length")
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens <= 6


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="a", prompt="once", max_tokens=5)
    assert answer.object == "text_completion"
    streamed = client.completions.create(model="a", prompt="once", max_tokens=5, stream=True)
    assert [chunk.object for chunk in streamed]


def test_embeddings_of_a_chat_model_are_refused_or_right(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.embeddings.create(model="a", input=["hello"])
    assert refused.value.status_code in (400, 501)
    assert isinstance(refused.value.body, dict)


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} >= {"a", "b"}


def test_unknown_model_is_the_clients_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "hi"}])
    assert "nobody" in refused.value.message


def test_client_that_stops_reading_frees_the_model(client: openai.OpenAI, llamactl: Llamactl) -> None:
    stream = client.chat.completions.create(
        model="a", messages=[{"role": "user", "content": "hi"}], max_tokens=900, stream=True
    )
    next(iter(stream))
    stream.close()
    llamactl.cli("unload", "a")
    assert llamactl.list_loaded() == {}
