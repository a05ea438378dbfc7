"""Does every model that computes on the processors know with how many it shares them, and is nobody told twice?"""

import pytest

from llamactl.protocol.report_socket import ChildState
from llamactl.sched.effects import ShareProcessors
from llamactl.sched.events import ConnectionGone, InstanceDisconnected, LeaseBusy
from llamactl.sched.shares import computes_on_processors
from tests.unit.sched.bench import CRASH, Bench, make_breakdown, make_settings

ON_CPU = {"host": 10, "weights": 8}


def make_bench(*names: str) -> Bench:
    bench = Bench(*(make_settings(name) for name in names))
    for _ in names:
        bench.measure_next(**ON_CPU)
    return bench


def bring_up(bench: Bench, name: str, **size: int) -> None:
    bench.lease(name)
    bench.ready(name, **(size or ON_CPU))
    bench.idle(name)


def shares(bench: Bench) -> dict[str, int]:
    return {share.model: share.sharers for share in bench.list_last(ShareProcessors)}


def test_model_that_computes_alone_is_told_nothing() -> None:
    bench = make_bench("a", "b")
    bring_up(bench, "a")
    bring_up(bench, "b")
    for name in ("a", "b", "b"):
        bench.lease(name)
        bench.idle(name)
    assert bench.list_all(ShareProcessors) == []


def test_models_that_are_busy_together_share_until_one_is_idle() -> None:
    bench = make_bench("a", "b")
    bring_up(bench, "a")
    bring_up(bench, "b")
    bench.lease("a")
    bench.lease("b")
    assert shares(bench) == {"a": 2, "b": 2}
    bench.lease("b", front=2)
    assert shares(bench) == {}
    bench.idle("b")
    assert shares(bench) == {}
    bench.idle("b", front=2)
    assert shares(bench) == {"a": 1}
    bench.idle("a")
    assert shares(bench) == {}
    bench.lease("b")
    assert shares(bench) == {"b": 1}, "it heard nothing of the other's end while it was idle"


def test_busy_lease_of_a_front_counts_from_its_word_on() -> None:
    bench = make_bench("a", "b")
    bring_up(bench, "a")
    bring_up(bench, "b")
    bench.lease("a")
    bench.do(LeaseBusy(1, "b", bench.generations["b"]))
    assert shares(bench) == {"a": 2, "b": 2}


def test_model_on_a_device_neither_counts_nor_is_told() -> None:
    bench = make_bench("a", "b")
    bring_up(bench, "a")
    bring_up(bench, "b", host=2, weights=1, GPU0=50)
    bench.lease("a")
    bench.lease("b")
    assert bench.list_all(ShareProcessors) == []


@pytest.mark.parametrize("how", ["crash", "front gone"])
def test_model_whose_requests_are_lost_shares_no_more(how: str) -> None:
    bench = make_bench("a", "b")
    bring_up(bench, "a")
    bring_up(bench, "b")
    bench.lease("a")
    bench.lease("b", front=2)
    if how == "crash":
        bench.ended("b", CRASH)
    else:
        bench.do(ConnectionGone(2))
    assert shares(bench) == {"a": 1}


def test_silent_model_counts_and_is_told_when_it_is_back() -> None:
    bench = make_bench("a", "b")
    bring_up(bench, "a")
    bring_up(bench, "b")
    bench.lease("a")
    bench.do(InstanceDisconnected("a", bench.generations["a"]))
    bench.lease("b")
    assert shares(bench) == {"b": 2}
    bench.ready("a", **ON_CPU)
    assert shares(bench) == {"a": 2}


def test_new_supervisor_tells_those_whom_it_finds_busy() -> None:
    bench = Bench(make_settings("a"), start=False)
    bench.found("a")
    bench.recover()
    bench.report("a", ChildState.READY, effective=make_breakdown(**ON_CPU))
    assert shares(bench) == {}
    bench.lease("a")
    assert shares(bench) == {"a": 1}, "an earlier supervisor may have told it something else"


@pytest.mark.parametrize(
    ("size", "computes"),
    [
        ({"host": 10, "weights": 8}, True),
        ({"host": 10, "weights": 8, "GPU0": 24}, True),
        ({"host": 10, "weights": 8, "GPU0": 25}, False),
        ({"host": 10, "GPU0": 1}, False),
        ({"host": 10}, False),
    ],
)
def test_model_computes_on_processors_for_a_quarter_of_its_weights(size: dict[str, int], computes: bool) -> None:
    assert computes_on_processors(make_breakdown(**size)) is computes


def test_unknown_model_does_not_count() -> None:
    assert not computes_on_processors(None)
