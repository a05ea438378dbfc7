"""What follows from a load that failed for lack of memory?"""

from typing import Any

import pytest

from llamactl.protocol.values import LoadFailure
from llamactl.sched.shortage import find_buffers, lacked_memory
from tests.unit.sched.bench import CRASH, Bench, make_settings

OOM = LoadFailure(
    result="exit-code",
    exit_code=1,
    message="cannot load: ggml_gallocr_reserve_n_impl: failed to allocate G0 buffer of size 7",
)
KILLED = LoadFailure(result="oom-kill", exit_code=9, message="")


def make_bench(**settings: Any) -> Bench:
    bench = Bench(*(make_settings(name, n_gpu_layers=99) for name in "abc"), **{"margin_bytes": 0, **settings})
    for name in "abc":
        bench.measure(name, G0=30, total=100, free=100)
    return bench


@pytest.mark.parametrize(
    ("failure", "lacked"),
    [
        (OOM, True),
        (KILLED, True),
        (CRASH, False),
        (LoadFailure(result="exit-code", exit_code=1, message="CUDA error: out of memory"), True),
        (LoadFailure(result="exit-code", exit_code=1, message="unable to allocate CPU buffer"), True),
        (LoadFailure(result="exit-code", exit_code=1, message="invalid magic"), False),
        (LoadFailure(result="timeout", exit_code=0, message="no progress"), False),
    ],
)
def test_lack_of_memory_is_told_from_other_failures(failure: LoadFailure, lacked: bool) -> None:
    assert lacked_memory(failure) == lacked


def test_buffers_that_did_not_fit_are_read_from_the_message() -> None:
    text = "failed to allocate CUDA0 buffer of size 1024; unable to allocate CPU_REPACK buffer"
    assert find_buffers(text) == {"CUDA0": 1024, "CPU_REPACK": 0}


def test_the_need_is_raised_idle_models_go_and_it_is_tried_once_more() -> None:
    bench = make_bench()
    bench.bring_up("a")
    bench.bring_up("b")
    waiter = bench.lease("c", 2)
    assert bench.started() == ["c"]
    bench.ended("c", OOM)
    (raised,) = bench.records("memory need raised", "c")
    assert raised.fields["needs_g0_bytes"] == 100 - 60 + 7
    assert bench.recalled() == [(1, "a")], "it does not make room"
    bench.take_down("a")
    assert bench.started() == ["c"]
    bench.ready("c", G0=45, total=100, free=25)
    assert bench.granted() == [waiter]
    # What it really took is what it needs from now on.
    bench.idle("c", 2)
    bench.unload("c")
    bench.take_down("c", 2)
    plan = bench.scheduler.explain_load("c", bench.now)
    assert plan is not None
    assert plan.devices[0].needs == 45


def test_the_second_failure_is_final() -> None:
    bench = make_bench()
    bench.bring_up("a")
    bench.bring_up("b")
    waiter = bench.lease("c", 2)
    bench.ended("c", OOM)
    bench.take_down("a")
    bench.ended("c", OOM)
    assert bench.refused() == {waiter: "load_failed"}
    assert bench.state("c") == "failed"
    assert bench.status("c").failures == 1


def test_nothing_is_tried_again_where_nothing_of_ours_is_in_the_way() -> None:
    bench = make_bench()
    waiter = bench.lease("c", 2)
    bench.ended("c", OOM)
    assert bench.refused() == {waiter: "load_failed"}
    assert not bench.records("memory need raised")


def test_oom_kill_on_a_host_without_a_limit_unloads_what_is_idle() -> None:
    bench = Bench(*(make_settings(name) for name in "ab"))
    bench.measure("a", host=30)
    bench.measure("b", host=30)
    bench.bring_up("a")
    bench.lease("b", 2)
    bench.ended("b", KILLED)
    assert bench.recalled() == [(1, "a")]
    bench.take_down("a")
    assert bench.started() == ["b"]


@pytest.mark.parametrize("failure", [OOM, CRASH])
def test_back_off_is_visible_and_a_command_tries_at_once(failure: LoadFailure) -> None:
    bench = make_bench()
    bench.lease("c", 2)
    bench.ended("c", failure)
    status = bench.status("c")
    assert (status.failures, status.retry_at_s) == (1, bench.now + 1)
    refused = bench.lease("c", 2)
    assert bench.refused() == {refused: "load_failed"}
    bench.load("c")
    assert bench.started() == ["c"]
