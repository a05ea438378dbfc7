"""Which context does fitting pick?"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.instance.llama.fit import (
    ALIGN_TOKENS,
    choose_ctx_bound,
    choose_largest_ctx,
    choose_smallest_ctx,
    fits_anything,
    interpolate_ctx,
)
from llamactl.instance.llama.memory import (
    HOST,
    acquire_host_total_bytes,
    mapped_range_is_exact,
    places_alike,
    replace_host_model,
)
from llamactl.protocol.values import Breakdown, Row, RowKind
from llamactl.settings import TRAINED_CTX, ModelSettings


def make_breakdown(n_ctx: int, *, fixed: int = 1000, per_token: int = 10, device: str = "") -> Breakdown:
    host = Row(kind=RowKind.HOST, name=HOST, model=fixed, context=per_token * n_ctx if not device else 0)
    if not device:
        return Breakdown(n_ctx=n_ctx, devices=(host,))
    row = Row(kind=RowKind.DEVICE, name=device, model=fixed, context=per_token * n_ctx, total=1, free=1)
    return Breakdown(n_ctx=n_ctx, devices=(host, row))


@pytest.mark.parametrize(
    ("settings", "smallest"),
    [
        ({}, 4 * 4096),
        ({"parallel": 1}, 4096),
        ({"parallel": 8}, 20_000),
        ({"ctx": 100_000}, 100_000),
        ({"fit": False}, 20_000),
        ({"fit": False, "ctx": 512}, 512),
        ({"ctx_max": 8192}, 8192),
        ({"ctx_max": 8192, "fit": False}, 8192),
        ({"ctx_max": 8192, "ctx": 10_000}, 10_000),
    ],
)
def test_smallest_context_follows_the_settings(settings: dict[str, int], smallest: int) -> None:
    model = ModelSettings(name="m", path="/m", **settings)  # type: ignore[arg-type]
    assert choose_smallest_ctx(model, 20_000) == smallest


@pytest.mark.parametrize(
    ("settings", "n_ctx_train", "bound"),
    [
        ({}, 262_144, 65_536),
        ({}, 20_000, 20_000),
        ({"parallel": 32}, 262_144, 32 * 4096),
        ({"ctx_max": 8192}, 262_144, 8192),
        ({"ctx_max": 1000}, 262_144, 1024),
        ({"ctx_max": 8192, "parallel": 32}, 262_144, 8192),
        ({"ctx_max": TRAINED_CTX}, 262_144, 262_144),
    ],
)
def test_automatic_context_has_a_bound(settings: dict[str, int], n_ctx_train: int, bound: int) -> None:
    model = ModelSettings(name="m", path="/m", **settings)  # type: ignore[arg-type]
    assert choose_ctx_bound(model, n_ctx_train) == bound


def test_nothing_is_fitted_when_all_is_set_or_fitting_is_off() -> None:
    assert fits_anything(ModelSettings(name="m", path="/m"))
    assert fits_anything(ModelSettings(name="m", path="/m", ctx=512))
    assert not fits_anything(ModelSettings(name="m", path="/m", ctx=512, n_gpu_layers=3))
    assert not fits_anything(ModelSettings(name="m", path="/m", fit=False))


def test_all_of_the_trained_context_is_taken_when_it_fits() -> None:
    measured: list[int] = []

    def measure(n_ctx: int) -> Breakdown:
        measured.append(n_ctx)
        return make_breakdown(n_ctx)

    assert choose_largest_ctx(measure, 256, 4096, {HOST: 10**9}) == 4096
    assert measured == [4096]


@given(room=st.integers(min_value=0, max_value=60_000), device=st.sampled_from(["", "GPU0"]))
def test_fitted_context_fits_unless_even_the_smallest_does_not(room: int, device: str) -> None:
    name = device or HOST
    n_ctx = choose_largest_ctx(lambda n: make_breakdown(n, device=device), 512, 4096, {name: room})
    used = 1000 + 10 * n_ctx
    assert 512 <= n_ctx <= 4096
    assert used <= room or n_ctx == 512
    # Not needlessly small either: the next step up would be too large.
    assert n_ctx == 4096 or 1000 + 10 * (n_ctx + ALIGN_TOKENS) > room


@given(room=st.integers(min_value=0, max_value=60_000), step=st.integers(min_value=0, max_value=8_000))
def test_context_fits_also_where_memory_is_not_linear(room: int, step: int) -> None:
    def measure(n_ctx: int) -> Breakdown:
        return make_breakdown(n_ctx, fixed=1000 + (step if n_ctx > 512 else 0))

    n_ctx = choose_largest_ctx(measure, 512, 4096, {HOST: room})
    assert n_ctx == 512 or sum(row.used for row in measure(n_ctx).devices) <= room


def test_tightest_device_decides() -> None:
    low, high = make_breakdown(512, device="GPU0"), make_breakdown(4096, device="GPU0")
    assert interpolate_ctx(low, high, {"GPU0": 21_000, HOST: 10**9}) == 1792
    assert interpolate_ctx(low, high, {"GPU0": 10**9, HOST: 0}) == 512


def test_measured_model_replaces_a_mapped_range_that_covers_other_buffers() -> None:
    host = Row(kind=RowKind.HOST, name=HOST, model=900, context=5)
    amx = Row(kind=RowKind.BUFFER_TYPE, name="AMX", model=700)
    effective = Breakdown(n_ctx=1, devices=(host, amx))
    measured = Breakdown(n_ctx=1, devices=(Row(kind=RowKind.HOST, name=HOST, model=200), amx))
    assert not mapped_range_is_exact(effective)
    assert [row.model for row in replace_host_model(effective, measured).devices] == [200, 700]
    assert replace_host_model(effective, measured).devices[0].context == 5
    assert mapped_range_is_exact(Breakdown(n_ctx=1, devices=(host,)))


def test_measurement_serves_a_load_that_places_the_model_alike() -> None:
    def make(host: int, repacked: int) -> Breakdown:
        rows = [Row(kind=RowKind.HOST, name=HOST, model=host), Row(kind=RowKind.BUFFER_TYPE, name="R", model=repacked)]
        return Breakdown(n_ctx=256, devices=tuple(rows))

    assert places_alike(make(120, 20), make(100, 20))
    assert places_alike(make(120, 0), Breakdown(n_ctx=512))
    assert not places_alike(make(120, 20), make(100, 21))
    assert not places_alike(make(120, 20), Breakdown(n_ctx=256))


def test_host_total_is_the_smallest_limit_above_the_process(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       1000 kB\nMemFree: 1 kB\n")
    leaf = tmp_path / "a" / "b"
    leaf.mkdir(parents=True)
    assert acquire_host_total_bytes(meminfo, leaf) == 1000 * 1024
    (leaf / "memory.max").write_text("max\n")
    (tmp_path / "a" / "memory.max").write_text("4096\n")
    assert acquire_host_total_bytes(meminfo, leaf) == 4096
