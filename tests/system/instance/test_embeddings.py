"""Does an embedding model serve through the front?"""

import math
from pathlib import Path

import openai
import pytest

from tests.models import write_embedding_model
from tests.system.harness import Llamactl


@pytest.fixture
def embedder(llamactl: Llamactl, tmp_models: Path) -> Llamactl:
    path = write_embedding_model(tmp_models / "embed.gguf", n_embd=64)
    llamactl.write_models(embed={"path": str(path)})
    llamactl.start()
    return llamactl


def test_embeddings_are_vectors_of_length_one(embedder: Llamactl) -> None:
    with openai.OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="unused", max_retries=0) as client:
        answer = client.embeddings.create(model="embed", input=["hello world", "hello"], encoding_format="float")
    assert [item.index for item in answer.data] == [0, 1]
    for item in answer.data:
        assert len(item.embedding) == 64
        assert math.isclose(math.fsum(value * value for value in item.embedding), 1, rel_tol=1e-3)


def test_chat_with_an_embedding_model_is_refused(embedder: Llamactl) -> None:
    refused = embedder.chat("embed")
    assert refused.status in (400, 501)
    assert refused.error["message"]
