"""Models as llama-server's router lists them."""

import msgspec
import pytest

from llamactl.front.listing import format_model, format_model_list, format_status
from llamactl.protocol.control_socket import ModelList
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.values import Breakdown, Facts, LoadFailure, ModelMemory, Stage, State


def test_model_is_listed_in_the_routers_words() -> None:
    model = ModelStatus(
        name="a",
        state=State.READY,
        aliases=("b",),
        tags=("small",),
        path="/m/a.gguf",
        created=1000,
        args=("--model", "/m/a.gguf"),
        memory=ModelMemory(effective=Breakdown(n_ctx=4096)),
        facts=Facts(
            n_ctx=4096,
            n_ctx_train=8192,
            n_embd=64,
            n_vocab=260,
            n_params=10,
            size_bytes=20,
            ftype="Q4_1",
            vocab_type=2,
        ),
    )
    listed = msgspec.json.decode(msgspec.json.encode(format_model(model)))
    memory = listed.pop("memory")
    assert listed == {
        "id": "a",
        "aliases": ["b"],
        "tags": ["small"],
        "object": "model",
        "owned_by": "llamactl",
        "created": 1000,
        "can_remove": False,
        "path": "/m/a.gguf",
        "context_length": 4096,
        "status": {"value": "loaded", "args": ["--model", "/m/a.gguf"]},
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "capabilities": [],
        "source": "preset",
        "meta": {
            "vocab_type": 2,
            "n_ctx": 4096,
            "n_ctx_train": 8192,
            "n_embd": 64,
            "n_vocab": 260,
            "n_params": 10,
            "size": 20,
            "ftype": "Q4_1",
        },
    }
    assert memory["effective"] == {"n_ctx": 4096, "devices": []}


def test_states_have_the_routers_values() -> None:
    values = {state: format_status(ModelStatus(name="a", state=state))["value"] for state in State}
    assert values == {
        State.UNLOADED: "unloaded",
        State.LOADING: "loading",
        State.READY: "loaded",
        State.SLEEPING: "sleeping",
        State.STOPPING: "loaded",
        State.FAILED: "unloaded",
    }


@pytest.mark.parametrize(("before", "value"), [("loading", "loading"), ("ready", "loaded"), ("sleeping", "sleeping")])
def test_model_that_stops_is_what_it_was_until_it_is_gone(before: str, value: str) -> None:
    status = format_status(ModelStatus(name="a", state=State.STOPPING, stopped_from=State(before)))
    assert status["value"] == value


def test_failed_model_says_how_it_ended() -> None:
    failure = LoadFailure(result="exit-code", exit_code=7, message="no such tensor")
    status = format_status(ModelStatus(name="a", state=State.FAILED, failure=failure))
    assert status == {"value": "unloaded", "args": [], "failed": True, "exit_code": 7, "reason": "no such tensor"}
    assert "failed" not in format_status(ModelStatus(name="a", state=State.READY, failure=failure))


def test_invalid_model_is_listed_with_the_reason() -> None:
    status = format_status(ModelStatus(name="a", state=State.UNLOADED, invalid="no file"))
    assert status == {"value": "unloaded", "args": [], "failed": True, "reason": "no file"}


def test_model_that_does_not_run_has_no_meta_and_one_found_in_a_directory_says_so() -> None:
    facts = Facts(n_ctx_train=8192, input_modalities=("text", "image"), capabilities=("completion", "tools"))
    listed = format_model(ModelStatus(name="a", state=State.UNLOADED, facts=facts, found=True))
    assert "meta" not in listed
    assert listed["source"] == "models_dir"
    assert listed["architecture"]["input_modalities"] == ["text", "image"]
    assert listed["capabilities"] == ["completion", "tools"]
    assert "meta" in format_model(ModelStatus(name="a", state=State.SLEEPING, facts=facts))


def test_load_that_has_not_begun_has_a_stage_and_a_number() -> None:
    progress = format_status(ModelStatus(name="a", state=State.LOADING))["progress"]
    assert (progress["current"], progress["value"]) == ("queued", 0.0)
    assert progress["current"] in progress["stages"]


def test_loading_model_says_how_far_it_is() -> None:
    model = ModelStatus(name="a", state=State.LOADING, stage=Stage.LOADING, progress=0.5, waiting_for=("b",))
    status = format_status(model)
    assert status["progress"]["current"] == "loading"
    assert status["progress"]["value"] == 0.5
    assert status["waiting_for"] == ["b"]


def test_context_length_is_what_is_known() -> None:
    assert format_model(ModelStatus(name="a", state=State.UNLOADED))["context_length"] is None
    trained = ModelStatus(name="a", state=State.UNLOADED, facts=Facts(n_ctx_train=8192))
    assert format_model(trained)["context_length"] == 8192
    fitted = msgspec.structs.replace(trained, memory=ModelMemory(max=Breakdown(n_ctx=6000), min=Breakdown(n_ctx=512)))
    assert format_model(fitted)["context_length"] == 6000
    configured = msgspec.structs.replace(trained, ctx=2048)
    assert format_model(configured)["context_length"] == 2048
    measured = msgspec.structs.replace(fitted, ctx=16384)
    assert format_model(measured)["context_length"] == 6000, "it was configured with more than there can be"
    running = msgspec.structs.replace(configured, memory=ModelMemory(effective=Breakdown(n_ctx=1024)))
    assert format_model(running)["context_length"] == 1024


def test_unlisted_models_are_not_listed() -> None:
    models = tuple(ModelStatus(name=name, state=State.UNLOADED, unlisted=name == "b") for name in "abc")
    listed = format_model_list(ModelList(id=1, now_s=0, models=models))
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["a", "c"]
