"""A model that begins to load before the orders are read is the model of the orders, or none."""

import json
import os
from pathlib import Path

import pytest

from llamactl.child.orders import ChildEnvironment
from llamactl.instance.llama import preload
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.params import build_model_params
from llamactl.instance.llama.preload import Preload, begin_preload
from llamactl.protocol.report_socket import ChildRole
from llamactl.settings import ModelSettings, encode_spec


def make_environment(settings: ModelSettings, extra_bufts: bool = True) -> ChildEnvironment:
    return ChildEnvironment(
        ChildRole.SERVE, "m", settings, "", socket=None, report=Path("/nowhere"), extra_bufts=extra_bufts
    )


def begin_with(settings: ModelSettings, **variables: str) -> Preload | None:
    return begin_preload({"LLAMACTL_SPEC": encode_spec(settings), **variables})


def gets_model(start: Preload, settings: ModelSettings, extra_bufts: bool = True) -> bool:
    """Whether there is a model, which is freed."""
    taken: list[object] = []
    params = build_model_params(make_environment(settings, extra_bufts), no_alloc=False)
    start.thread.run(lambda: taken.append(start.pop_model(settings.path, params.struct)))
    assert start.thread.end(30)
    if taken[0]:
        llama.llama_model_free(taken[0])
    return bool(taken[0])


def test_usual_model_is_taken(tiny: Path) -> None:
    settings = ModelSettings(name="m", path=str(tiny), parallel=2)
    start = begin_with(settings)
    assert start is not None
    assert gets_model(start, settings)


@pytest.mark.parametrize(
    "other",
    [{"n_gpu_layers": 1}, {"mmap": False}, {"devices": ("none",)}],
    ids=lambda other: next(iter(other)),
)
def test_model_with_other_orders_is_not(tiny: Path, other: dict[str, object]) -> None:
    usual = ModelSettings(name="m", path=str(tiny))
    unusual = ModelSettings(name="m", path=str(tiny), **other)  # type: ignore[arg-type]
    assert begin_with(unusual) is None
    start = begin_with(usual)
    assert start is not None
    assert not gets_model(start, unusual)


def test_other_file_or_other_buffers_are_not_taken(tiny: Path, tmp_path: Path) -> None:
    settings = ModelSettings(name="m", path=str(tiny))
    for other, extra_bufts in ((ModelSettings(name="m", path=str(tmp_path / "x.gguf")), True), (settings, False)):
        start = begin_with(settings)
        assert start is not None
        assert not gets_model(start, other, extra_bufts)
    start = begin_with(settings, LLAMACTL_EXTRA_BUFTS="0")
    assert start is not None
    assert gets_model(start, settings, extra_bufts=False)


def test_broken_file_gives_none_and_the_load_gives_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    settings = ModelSettings(name="m", path=str(broken))
    start = begin_with(settings)
    assert start is not None
    assert not gets_model(start, settings)


def test_large_files_are_left_to_a_load_that_tells_of_its_progress(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "QUICK_BYTES", os.stat(tiny).st_size - 1)
    assert begin_with(ModelSettings(name="m", path=str(tiny))) is None


def test_what_must_be_heard_or_reached_is_left_to_the_load(tiny: Path) -> None:
    assert begin_with(ModelSettings(name="m", path=str(tiny)), LLAMACTL_LLAMA_LOG="debug") is None
    assert begin_with(ModelSettings(name="m", path=str(tiny), rpc=("127.0.0.1:1",))) is None


@pytest.mark.parametrize(
    "spec", ["", "{", "[]", "null", "7", "{}", json.dumps({"path": 3}), json.dumps({"path": "/x"})]
)
def test_orders_that_make_no_sense_are_left_to_those_who_say_so(spec: str) -> None:
    assert begin_preload({"LLAMACTL_SPEC": spec}) is None
