"""Does one model load, answer, report its memory and leave again?"""

from pathlib import Path

import pytest

from tests.http_errors import check_error
from tests.system.client import join_text
from tests.system.harness import PATHS, Llamactl, show

CTX = 2048


@pytest.fixture
def one(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    """A running llamactl with the model `a`, alias `first`, not loaded."""
    llamactl.write_models(a={"path": str(tiny["a"]), "aliases": ["first"], "ctx": CTX, "parallel": 1})
    llamactl.start()
    return llamactl


def test_load_blocks_until_the_model_serves(one: Llamactl) -> None:
    one.cli("load", "a")
    assert one.list_loaded()["a"]["state"] == "ready"
    assert show("llamactl-model@a.service", "ActiveState") == "active"
    answer = one.chat("a")
    assert answer.status == 200
    assert answer.json()["choices"][0]["message"]["role"] == "assistant"


def test_request_loads_the_model(one: Llamactl) -> None:
    assert one.list_loaded() == {}
    answer = one.chat("a", max_tokens=5, ignore_eos=True)
    assert answer.status == 200
    assert answer.json()["usage"]["completion_tokens"] == 5
    assert "a" in one.list_loaded()


def test_alias_reaches_the_model(one: Llamactl) -> None:
    assert one.chat("first").status == 200
    assert list(one.list_loaded()) == ["a"]


def test_streamed_answer_equals_the_whole_one(one: Llamactl) -> None:
    options = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    whole = one.chat("a", **options).json()["choices"][0]["message"]["content"]
    with one.stream("a", **options) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert join_text(stream.read_rest()) == whole


def test_completion_endpoint_answers(one: Llamactl) -> None:
    answer = one.post("/v1/completions", {"model": "a", "prompt": "once upon", "max_tokens": 4, "ignore_eos": True})
    assert answer.status == 200
    assert answer.json()["usage"]["completion_tokens"] == 4


def test_tokens_survive_the_round_trip(one: Llamactl) -> None:
    tokens = one.post("/tokenize", {"model": "a", "content": "hello"}).json()["tokens"]
    assert tokens
    assert one.post("/detokenize", {"model": "a", "tokens": tokens}).json()["content"].strip() == "hello"


def test_measurement_reports_bytes_without_loading(one: Llamactl) -> None:
    memory = one.cli_json("measure", "a")["memory"]
    assert memory["status"] == "measured"
    assert memory["min"]["n_ctx"] == memory["max"]["n_ctx"] == CTX, "a context that is set is not fitted"
    rows = memory["min"]["devices"]
    assert any(row["kind"] == "host" for row in rows)
    for part in ("model", "context", "compute"):
        assert sum(row[part] for row in rows) > 0, f"no bytes for {part}"
    assert one.list_loaded() == {}


def test_loaded_model_reports_what_it_took(one: Llamactl) -> None:
    one.cli("load", "a")
    effective = one.list_loaded()["a"]["memory"]["effective"]
    assert effective["n_ctx"] == CTX
    minimum = one.cli_json("measure", "a")["memory"]["min"]
    context = [sum(row["context"] for row in breakdown["devices"]) for breakdown in (effective, minimum)]
    assert context[0] == context[1], "measured and allocated context differ"


def test_unload_ends_the_unit(one: Llamactl) -> None:
    one.cli("load", "a")
    one.cli("unload", "a")
    assert one.list_loaded() == {}
    assert show("llamactl-model@a.service", "LoadState") == "not-found"
    assert one.list_models()["a"]["state"] == "unloaded"


def test_unload_waits_for_a_running_answer(one: Llamactl) -> None:
    with one.stream("a", max_tokens=400) as stream:
        first = stream.read_event()
        one.cli("unload", "--no-wait", "a")
        events = [first, *stream.read_rest()]
    join_text(events)
    one.wait_event("model_unloaded", LLAMACTL_MODEL="a")
    assert one.list_loaded() == {}


def test_unload_now_cuts_a_running_answer(one: Llamactl) -> None:
    with one.stream("a", max_tokens=1500) as stream:
        stream.read_event()
        one.cli("unload", "--now", "a")
        assert "[DONE]" not in stream.read_rest()
    assert one.list_loaded() == {}


def test_model_loads_on_start(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": CTX, "load_on_start": True})
    llamactl.start()
    llamactl.wait_event("instance_ready", LLAMACTL_MODEL="a")
    assert llamactl.list_loaded()["a"]["state"] == "ready"


def test_idle_model_leaves_after_its_timeout(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": CTX, "idle_timeout": "1s"})
    llamactl.start()
    llamactl.cli("load", "a")
    llamactl.wait_event("model_unloaded", LLAMACTL_MODEL="a")
    assert llamactl.list_models()["a"]["state"] == "unloaded"


# --- loads that fail ---


def test_corrupt_file_fails_with_its_reason(llamactl: Llamactl, tiny: dict[str, Path], tmp_models: Path) -> None:
    bad = tmp_models / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(range(256)) * 16)
    llamactl.write_models(a={"path": str(tiny["a"])}, bad={"path": str(bad)})
    llamactl.start()
    failed = llamactl.cli("load", "bad", status=1)
    assert "bad" in failed.stderr
    answer = llamactl.chat("bad")
    assert answer.status == 500
    check_error(answer.error, "/v1/chat/completions", 500)
    models = {model["id"]: model for model in llamactl.get("/models").json()["data"]}
    assert models["bad"]["status"]["value"] == "unloaded"
    assert models["bad"]["status"]["failed"] is True
    assert models["bad"]["status"]["exit_code"] != 0
    assert llamactl.chat("a").status == 200, "a bad neighbour must not matter"


def test_missing_file_is_invalid_and_the_rest_works(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.write_models(a={"path": str(tiny["a"])}, gone={"path": "/srv/models/gone.gguf"})
    llamactl.start()
    assert "/srv/models/gone.gguf" in llamactl.list_models()["gone"]["invalid"]
    assert "/srv/models/gone.gguf" in llamactl.cli("load", "gone", status=1).stderr
    answer = llamactl.chat("gone")
    assert answer.status == 500
    assert "/srv/models/gone.gguf" in answer.error["message"]
    assert llamactl.chat("a").status == 200


def test_file_that_vanished_fails_and_comes_back(llamactl: Llamactl, tiny: dict[str, Path], tmp_models: Path) -> None:
    path = tmp_models / "moved.gguf"
    path.write_bytes(tiny["a"].read_bytes())
    llamactl.write_models(moved={"path": str(path)})
    llamactl.start()
    content = path.read_bytes()
    path.unlink()
    llamactl.cli("load", "moved", status=1)
    assert llamactl.list_models()["moved"]["state"] == "failed"
    path.write_bytes(content)
    llamactl.cli("load", "moved")
    assert llamactl.chat("moved").status == 200


def test_sockets_of_a_stopped_model_are_no_obstacle(one: Llamactl) -> None:
    for _ in range(2):
        one.cli("load", "a")
        assert PATHS.instance_socket("a").is_socket()
        one.cli("unload", "a")
    assert one.chat("a").status == 200
