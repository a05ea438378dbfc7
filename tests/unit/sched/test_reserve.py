"""Does a load that chooses its context leave room for those that will want memory, and no more than that?"""

from typing import Any

import pytest

from llamactl.protocol.report_socket import ChildState
from llamactl.sched.effects import OrderWake, StartInstance, StartMeasure
from llamactl.sched.reserve import DRIVER_BYTES
from tests.unit.sched.bench import Bench, make_breakdown, make_settings

GIB = 1 << 30


def make_bench(*names: str, size: int = 30, others: dict[str, Any] | None = None, **settings: Any) -> Bench:
    """`auto` chooses its context; the others have `size` bytes each, under a budget of 100."""
    models = [make_settings("auto", ctx=0), *(make_settings(name, **(others or {})) for name in names)]
    bench = Bench(*models, start=False, **{"host_budget_bytes": 100, **settings})
    bench.recover()
    for _ in models:  # those that are to be loaded come first
        name = bench.list_all(StartMeasure)[-1].settings.name
        bench.measure(name, host=20 if name == "auto" else size)
    return bench


def get_room(bench: Bench, name: str = "auto") -> int | None:
    return next(effect.host_room_bytes for effect in bench.list_all(StartInstance) if effect.settings.name == name)


def test_a_model_alone_may_take_all() -> None:
    bench = make_bench("b")
    bench.load("auto")
    assert get_room(bench) == 100


def test_what_runs_is_charged_already() -> None:
    bench = make_bench("b")
    bench.bring_up("b")
    bench.load("auto")
    assert get_room(bench) == 70


def test_room_is_left_for_models_of_load_on_start() -> None:
    bench = make_bench("b", "c", others={"load_on_start": True})
    started = [effect.settings.name for effect in bench.list_all(StartInstance)]
    assert started == ["b", "c"]
    for name in started:
        bench.ready(name, host=30)
    bench.unload("c", now=True)
    bench.ended("c")
    bench.load("auto")
    assert get_room(bench) == 100 - 30 - 30, "`c` is to come back"
    (spawned,) = bench.records("instance spawned", "auto")
    assert spawned.fields["leaves_room_for"] == ["c"]


def test_room_is_left_for_a_model_that_sleeps() -> None:
    bench = make_bench("b")
    bench.bring_up("b")
    bench.report("b", ChildState.SLEEPING, effective=make_breakdown(host=5))
    bench.load("auto")
    assert get_room(bench) == 100 - 30, "5 that it holds, 25 to wake"


def test_a_sleeping_model_that_wakes_leaves_room_too() -> None:
    bench = make_bench("b", others={"load_on_start": True})
    bench.ready("b", host=30)
    bench.bring_up("auto")
    bench.report("auto", ChildState.SLEEPING, effective=make_breakdown())
    bench.unload("b", now=True)
    bench.ended("b")
    bench.lease("auto", front=2)
    (wake,) = bench.list_last(OrderWake)
    assert wake.host_room_bytes == 70


def test_no_room_is_left_where_it_would_not_do() -> None:
    bench = make_bench("b", size=90, others={"load_on_start": True})
    bench.unload("b", now=True)
    bench.ended("b")
    bench.load("auto")
    assert get_room(bench) == 100, "90 do not fit beside 20"


def test_a_context_that_is_set_leaves_what_it_does_not_take_anyway() -> None:
    bench = make_bench("b", "set", others={"load_on_start": True}, max_loaded=3)
    for name in ("b", "set"):
        bench.ready(name, host=30)
        bench.unload(name, now=True)
        bench.ended(name)
    bench.load("set")
    assert bench.list_all(StartInstance)[-1].host_room_bytes == 100


@pytest.mark.parametrize(("free_gib", "left"), [(20, 6 * GIB), (10, 0)])
def test_on_a_device_room_is_left_beside_the_smallest_form_and_what_its_driver_takes(free_gib: int, left: int) -> None:
    models = [
        make_settings("auto", ctx=0, n_gpu_layers=-1),
        make_settings("b", n_gpu_layers=99, load_on_start=True, devices=("G0",)),
    ]
    bench = Bench(*models, margin_bytes=GIB)
    total = free_gib * GIB
    for name, size in (("b", 6 * GIB), ("auto", 3 * GIB)):
        bench.measure(name, G0=size, total=total, free=total)
    bench.ready("b", G0=6 * GIB, total=total, free=total - 6 * GIB)
    bench.unload("b", now=True)
    bench.ended("b")
    bench.load("auto")
    start = bench.list_all(StartInstance)[-1]
    assert start.settings.name == "auto"
    fits_beside = total >= 3 * GIB + 6 * GIB + GIB + DRIVER_BYTES
    assert fits_beside == bool(left)
    assert start.margins_bytes.get("G0", GIB) == GIB + left


def test_a_model_that_can_go_elsewhere_needs_no_room_here() -> None:
    models = [
        make_settings("auto", ctx=0, n_gpu_layers=-1, devices=("G0",)),
        make_settings("b", n_gpu_layers=99, load_on_start=True),
    ]
    bench = Bench(*models, margin_bytes=GIB)
    bench.measure("b", G0=3 * GIB, G1=3 * GIB, total=20 * GIB, free=20 * GIB)
    bench.ready("b", G0=6 * GIB, total=20 * GIB, free=14 * GIB)
    bench.unload("b", now=True)
    bench.ended("b")
    bench.measure("auto", G0=3 * GIB, total=20 * GIB, free=20 * GIB)
    bench.load("auto")
    start = bench.list_all(StartInstance)[-1]
    assert (start.settings.name, start.margins_bytes.get("G0", GIB)) == ("auto", GIB)
