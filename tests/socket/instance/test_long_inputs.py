"""How long may an input of an embedding or reranking model be? As long as its context says, and that is the truth."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest

from llamactl.protocol.values import Breakdown
from llamactl.settings import ModelSettings
from tests.models import write_embedding_model
from tests.socket.instance.harness import Child, run_child

EMBEDDINGS = "/v1/embeddings"
TRAINED = 8192


@pytest.fixture(scope="module")
def long_file(model_dir: Path) -> Path:
    """An encoder that was trained for 8,192 tokens."""
    return write_embedding_model(model_dir / "long.gguf", n_ctx_train=TRAINED)


@pytest.fixture(scope="module")
def long_encoder(long_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    settings = ModelSettings(name="emb", path=str(long_file), ctx=TRAINED, threads=2)
    with run_child(tmp_path_factory.mktemp("long"), "serve", settings) as child:
        child.supervisor.wait_for("ready")
        yield child


def measure(directory: Path, settings: ModelSettings) -> Breakdown:
    directory.mkdir()
    with run_child(directory, "measure", settings) as child:
        least = child.supervisor.wait_for("measured").min
    assert least is not None
    return least


def sum_compute(breakdown: Breakdown) -> int:
    return sum(row.compute for row in breakdown.devices)


def embed(child: Child, text: Any) -> list[float]:
    status, answer = child.request("POST", EMBEDDINGS, {"input": text})
    assert status == 200, answer
    vector: list[float] = answer["data"][0]["embedding"]
    return vector


def refuse(child: Child, path: str, body: Any) -> dict[str, Any]:
    status, answer = child.request("POST", path, body)
    assert (status, answer["error"]["type"]) == (400, "exceed_context_size_error")
    error: dict[str, Any] = answer["error"]
    return error


@pytest.mark.parametrize("n_tokens", [2000, 2100, 8000, TRAINED])
def test_encoder_takes_inputs_as_long_as_its_context(long_encoder: Child, n_tokens: int) -> None:
    status, answer = long_encoder.request("POST", EMBEDDINGS, {"input": "a " * (n_tokens - 2)})
    assert status == 200, answer
    assert answer["usage"]["prompt_tokens"] == n_tokens


def test_encoder_sees_the_end_of_a_long_input(long_encoder: Child) -> None:
    text = "a " * 5000
    assert embed(long_encoder, f"{text} b") != pytest.approx(embed(long_encoder, f"{text} c"), abs=1e-7)


def test_one_token_more_than_the_context_is_refused_with_the_context_that_is_told(long_encoder: Child) -> None:
    error = refuse(long_encoder, EMBEDDINGS, {"input": "a " * (TRAINED - 1)})
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (TRAINED + 1, TRAINED)
    _, props = long_encoder.request("GET", "/props")
    _, models = long_encoder.request("GET", "/v1/models")
    assert props["default_generation_settings"]["n_ctx"] == TRAINED
    assert models["data"][0]["meta"]["n_ctx"] == TRAINED


def test_one_long_input_of_a_list_is_named_by_its_index(long_encoder: Child) -> None:
    error = refuse(long_encoder, EMBEDDINGS, {"input": ["a", "b", "a " * 9000, "c"]})
    assert "`input[2]`" in error["message"]


def test_one_long_document_of_a_reranker_is_named_by_its_index(model_dir: Path, tmp_path: Path) -> None:
    file = write_embedding_model(model_dir / "rank.gguf", pooling=gguf.PoolingType.RANK)
    with run_child(tmp_path, "serve", ModelSettings(name="rank", path=str(file), threads=1)) as child:
        child.supervisor.wait_for("ready")
        error = refuse(child, "/v1/rerank", {"query": "a", "documents": ["b", "a " * 600]})
        assert "`documents[1]`" in error["message"]
        status, _ = child.request("POST", "/v1/rerank", {"query": "a", "documents": ["b", "a " * 500]})
        assert status == 200


def test_an_encoders_batch_is_measured_and_taken_with_its_context(long_file: Path, tmp_path: Path) -> None:
    short = measure(tmp_path / "short", ModelSettings(name="emb", path=str(long_file), ctx=2048, threads=1))
    settings = ModelSettings(name="emb", path=str(long_file), ctx=TRAINED, threads=1)
    long = measure(tmp_path / "long", settings)
    assert sum_compute(long) > 3 * sum_compute(short)
    (tmp_path / "serve").mkdir()
    with run_child(tmp_path / "serve", "serve", settings) as child:
        assert child.supervisor.wait_for("ready").effective == long


def test_an_encoders_inputs_share_a_batch_that_was_measured(long_file: Path, tmp_path: Path) -> None:
    settings = ModelSettings(name="emb", path=str(long_file), ctx=512, batch=4096, parallel=4, threads=1)
    with run_child(tmp_path, "serve", settings) as child:
        child.supervisor.wait_for("ready")
        status, _ = child.request("POST", EMBEDDINGS, {"input": ["a " * 500] * 4 + ["a"] * 4})
        assert status == 200
        with contextlib.closing(child.connect()) as connection:
            connection.request("GET", "/metrics")
            metrics = connection.getresponse().read().decode()
    # Four of 502 tokens do not go together, whatever `batch` says: memory was measured for 512. Four short ones do.
    assert "llamacpp:n_decode_total 5.0\n" in metrics


def test_an_encoder_has_no_more_context_than_it_was_trained_for(tiny_embed: Path, tmp_path: Path) -> None:
    settings = ModelSettings(name="emb", path=str(tiny_embed), ctx=2048, threads=1)
    assert measure(tmp_path / "measure", settings).n_ctx == 512
    (tmp_path / "serve").mkdir()
    with run_child(tmp_path / "serve", "serve", settings) as child:
        ready = child.supervisor.wait_for("ready")
        assert ready.effective is not None
        assert ready.facts is not None
        assert (ready.effective.n_ctx, ready.facts.n_ctx) == (512, 512)
        assert refuse(child, EMBEDDINGS, {"input": "a " * 600})["n_ctx"] == 512
        embed(child, "a " * 510)  # the process is still there


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_decoder_takes_long_inputs_in_pieces_that_do_not_show(tiny: Path, tmp_path: Path, pooling: str) -> None:
    texts = ["hello world " * 30 + "1 2 3 " * 40, "short", "the end of " * 40 + "xyz" * 50, "another"]
    vectors = []
    for ubatch in (64, 2048):
        directory = tmp_path / str(ubatch)
        directory.mkdir()
        settings = ModelSettings(
            name="tiny", path=str(tiny), ctx=2048, batch=max(ubatch, 256), ubatch=ubatch, pooling=pooling, threads=1
        )
        with run_child(directory, "serve", settings) as child:
            child.supervisor.wait_for("ready")
            status, answer = child.request("POST", EMBEDDINGS, {"input": texts})
            assert status == 200, answer
            assert answer["usage"]["prompt_tokens"] > 1000
            vectors.append([entry["embedding"] for entry in answer["data"]])
            assert "`input[0]`" in refuse(child, EMBEDDINGS, {"input": ["hello " * 3000]})["message"]
    for pieces, whole in zip(*vectors, strict=True):
        likeness = sum(one * other for one, other in zip(pieces, whole, strict=True))
        assert likeness > 0.9995, "cosine of two vectors of length 1"
