"""Does each setting that counts for memory reach llama.cpp? What is measured must change as it says."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llamactl.instance.llama.params import ModelTraits, build_context_params
from llamactl.protocol.values import Breakdown, Row, RowKind
from llamactl.settings import ModelSettings, Switch
from tests.models import write_model
from tests.socket.instance.harness import ROOT, run_child

N_CTX_TRAIN = 2048
BASE: dict[str, Any] = {"ctx": 1024, "parallel": 1, "threads": 1, "mmap": False, "devices": ("none",)}


@pytest.fixture(scope="module")
def file(model_dir: Path) -> Path:
    """Heads wide enough for quantised caches."""
    return write_model(model_dir / "wide.gguf", n_embd=128, n_ctx_train=N_CTX_TRAIN)


def measure(directory: Path, file: Path, **settings: Any) -> Breakdown:
    directory.mkdir(exist_ok=True)
    with run_child(directory, "measure", ModelSettings(name="m", path=str(file), **{**BASE, **settings})) as child:
        report = child.supervisor.wait_for("measured")
        assert child.wait() == 0, child.errors
    assert report.min is not None
    return report.min


@pytest.fixture(scope="module")
def base(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Row:
    return get_host(measure(tmp_path_factory.mktemp("base"), file))


def get_host(breakdown: Breakdown) -> Row:
    return next(row for row in breakdown.devices if row.kind is RowKind.HOST)


@pytest.mark.parametrize(
    ("setting", "is_right"),
    [
        # f16 has 32 bytes where q8_0 has 17 and f32 has 64.
        ({"cache_type_k": "q8_0"}, lambda base, row: row.context * 64 == base.context * (32 + 17)),
        ({"cache_type_v": "q8_0"}, lambda base, row: row.context * 64 == base.context * (32 + 17)),
        ({"cache_type_k": "f32", "cache_type_v": "f32"}, lambda base, row: row.context == 2 * base.context),
        ({"ctx": 512}, lambda base, row: 2 * row.context == base.context),
        ({"flash_attn": Switch.OFF}, lambda base, row: row.compute > base.compute and row.context == base.context),
        ({"ubatch": 64}, lambda base, row: row.compute < base.compute // 2),
        ({"batch": 64}, lambda base, row: row.compute < base.compute // 2),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_setting_changes_what_is_measured(
    tmp_path: Path, file: Path, base: Row, setting: dict[str, Any], is_right: Callable[[Row, Row], bool]
) -> None:
    row = get_host(measure(tmp_path, file, **setting))
    assert is_right(base, row), f"{base} -> {row}"
    assert row.model == base.model


@pytest.mark.parametrize(
    ("setting", "n_ctx"),
    [
        ({"ctx": 0, "fit": False}, N_CTX_TRAIN),
        ({"ctx": 0, "fit_ctx": 256, "parallel": 3}, 3 * 256),
        ({"ctx": 0, "fit_ctx": 4096}, N_CTX_TRAIN),
        ({"ctx": 768, "fit_ctx": 256}, 768),
    ],
)
def test_smallest_context_is_the_one_that_is_pinned_or_what_fitting_may_go_down_to(
    tmp_path: Path, file: Path, setting: dict[str, Any], n_ctx: int
) -> None:
    assert measure(tmp_path, file, **setting).n_ctx == n_ctx


def test_full_context_of_a_sliding_window_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "fetch-models"), "gemma3"]
    file = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    windows = get_host(measure(tmp_path / "windows", file, ctx=8192))
    full = get_host(measure(tmp_path / "full", file, ctx=8192, swa_full=True))
    assert full.context > 2 * windows.context
    assert full.model == windows.model


def test_full_context_is_asked_of_llama_cpp() -> None:
    traits = ModelTraits(n_ctx_train=8192, n_swa=512)
    assert build_context_params(ModelSettings(name="m", path="/m", swa_full=True), traits, 1024).swa_full
    assert not build_context_params(ModelSettings(name="m", path="/m"), traits, 1024).swa_full
