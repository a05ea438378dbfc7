"""A supervisor starts while instances run: what does it know, when, and what must it not do before?"""

import itertools

import pytest

from llamactl.protocol.control_socket import LeaseGone
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import Note
from llamactl.sched.effects import Notify, SendNote, StartInstance
from llamactl.sched.events import (
    Event,
    FrontAnnounced,
    InstanceFound,
    InstanceReported,
    LeaseAnnounced,
    MeasureReported,
    WaiterGone,
)
from tests.unit.sched.bench import CRASH, Bench, make_breakdown, make_settings


def make_bench(*found: str, others: tuple[str, ...] = (), fronts: int = 0, **settings: object) -> Bench:
    names = [*found, *others]
    bench = Bench(*(make_settings(name) for name in names), start=False, host_budget_bytes=100, **settings)
    for name in found:
        bench.found(name)
    bench.recover(fronts)
    return bench


def test_instances_found_are_ready_again_after_their_report_and_nothing_is_started() -> None:
    bench = make_bench("a")
    assert bench.state("a") == "loading"
    bench.report("a", ChildState.READY, effective=make_breakdown(host=60), note=Note(last_used_s=990.0))
    assert bench.state("a") == "ready"
    assert bench.status("a").last_used_s == 990.0
    assert bench.scheduler.list_devices()[0].held == 60
    assert bench.records("instance adopted", "a")[0].fields["effective_bytes"] == 60
    assert bench.generations == {"a": "found-a"}


def test_a_new_supervisor_knows_since_when_an_instance_is_ready() -> None:
    before = Bench(make_settings("a"))
    before.measure("a", host=60)
    before.load("a")
    before.ready("a", host=60)
    (sent,) = before.list_all(SendNote)
    assert (sent.note.ready_since_s, sent.note.last_used_s) == (1000.0, 1000.0)
    after = make_bench("a")
    after.now = 5000.0
    after.report("a", ChildState.READY, effective=make_breakdown(host=60), note=sent.note)
    assert (after.status("a").ready_since_s, after.status("a").last_used_s) == (1000.0, 1000.0)


def test_an_instance_that_was_found_and_ends_unheard_may_have_been_ready() -> None:
    bench = make_bench("a")
    bench.ended("a")
    assert bench.records("model unloaded")[0].fields["reason"] == "its unit was stopped"


def test_a_lease_that_is_announced_is_a_lease() -> None:
    bench = make_bench("a", fronts=1)
    bench.ready("a", host=60)
    bench.do(LeaseAnnounced(7, "a", "found-a", busy=True, last_used_s=999.0))
    bench.do(FrontAnnounced(7))
    assert bench.status("a").busy == 1


def test_a_lease_on_an_instance_that_is_gone_is_revoked() -> None:
    bench = make_bench("a")
    bench.do(LeaseAnnounced(7, "a", "older", busy=True, last_used_s=0.0))
    bench.do(LeaseAnnounced(7, "b", "x", busy=True, last_used_s=0.0))
    assert [e.message.generation for e in bench.list_all(Notify) if isinstance(e.message, LeaseGone)] == ["older", "x"]


def test_requests_for_an_instance_found_are_granted_when_it_reports() -> None:
    bench = make_bench("a")
    waiter = bench.lease("a")
    assert bench.started() == []
    bench.ready("a")
    assert bench.granted() == [waiter]


def test_nothing_is_evicted_before_all_have_reported_and_all_fronts_have_announced_their_leases() -> None:
    bench = make_bench("a", "b", others=("c",), fronts=1)
    bench.lease("c", 5)
    bench.ready("a", host=60)
    assert bench.recalled() == []
    assert bench.ordered() == []
    bench.ready("b", host=20)
    bench.measure_next(host=60)
    assert bench.ordered() == []
    bench.do(LeaseAnnounced(7, "a", "found-a", busy=False, last_used_s=5.0))
    bench.measure_next(host=60)
    bench.measure_next(host=60)
    assert bench.recalled() == []
    bench.do(FrontAnnounced(7))
    assert bench.recalled() == [(7, "a")]


def test_nothing_is_started_beside_instances_of_which_nobody_knows_what_they_hold() -> None:
    bench = make_bench("a", others=("b",))
    cached = make_breakdown(host=60)
    bench.do(MeasureReported("b", cached, cached, cached=True))
    bench.lease("b", 5)
    assert bench.started() == []
    assert bench.status("b").waiting_for == ("a",)
    bench.ready("a", host=10)
    assert bench.started() == ["b"]


def test_after_the_deadline_decisions_go_on_and_what_stayed_silent_is_no_victim() -> None:
    bench = make_bench("a", "b", others=("c",), fronts=1, max_loaded=2)
    bench.ready("b", host=20)
    bench.lease("c", 5)
    assert bench.scheduler.next_deadline() == bench.now + 5
    bench.tick(5.0)
    for _ in range(3):
        bench.measure_next(host=60)
    assert bench.records("instances recovered")[0].fields["silent"] == ["a"]
    assert bench.state("b") == "ready"
    assert {r.model for r in bench.records("victim chosen")} == {"b"}


def test_models_that_load_on_start_do_so_once_everything_is_known() -> None:
    bench = Bench(make_settings("a"), make_settings("b", load_on_start=True), start=False)
    bench.found("a")
    bench.recover()
    assert bench.scheduler.queue_names() == ()
    bench.ready("a")
    assert bench.scheduler.queue_names() == ("b",)


def test_a_model_that_loads_on_start_and_runs_already_is_not_loaded_again() -> None:
    bench = Bench(make_settings("a", load_on_start=True), start=False)
    bench.found("a")
    bench.recover()
    bench.ready("a")
    assert bench.scheduler.queue_names() == ()


def test_an_instance_found_that_is_not_configured_any_more_ends_its_requests_and_goes() -> None:
    bench = Bench(make_settings("a"), start=False)
    bench.found("old")
    bench.recover(1)
    bench.ready("old")
    bench.do(LeaseAnnounced(7, "old", "found-old", busy=True, last_used_s=5.0))
    assert bench.recalled() == []
    bench.do(FrontAnnounced(7))
    assert bench.recalled() == [(7, "old")]
    waiter = bench.lease("old", 8)
    assert bench.refused() == {waiter: "unknown_model"}
    bench.take_down("old", 7)
    assert bench.scheduler.model_status("old") is None


def test_an_instance_found_while_it_loads_is_not_cancelled_and_no_other_load_runs_beside() -> None:
    bench = make_bench("a", others=("b",))
    bench.report("a", ChildState.LOADING, stage="model", progress=0.3)
    bench.fail_measure("a")
    bench.measure("b", host=1)
    bench.lease("b", 6)
    bench.tick(100.0)
    assert bench.stopped() == []
    assert bench.started() == []
    assert bench.status("b").waiting_for == ("a",)
    waiter = bench.lease("a", 5)
    bench.do(WaiterGone(waiter))
    assert bench.stopped() == []
    bench.ready("a")
    assert bench.state("a") == "ready"
    assert bench.started() == ["b"]


def test_an_instance_found_that_dies_in_its_warm_up_is_tried_again() -> None:
    bench = make_bench("a")
    bench.report("a", ChildState.LOADING, stage="warmup")
    bench.ended("a", CRASH)
    bench.measure_next(host=1)
    assert bench.state("a") == "loading"
    assert not bench.list_all(StartInstance)[-1].extra_bufts


def test_a_lease_announced_on_an_instance_that_is_being_taken_down_is_recalled() -> None:
    bench = make_bench("a")
    bench.ready("a", host=10)
    bench.do(LeaseAnnounced(7, "a", "found-a", busy=True, last_used_s=0.0))
    bench.unload("a")
    bench.do(LeaseAnnounced(8, "a", "found-a", busy=True, last_used_s=0.0))
    assert bench.recalled() == [(8, "a")]


def test_a_stop_under_way_goes_on() -> None:
    bench = make_bench("a", others=("b",))
    bench.report("a", ChildState.STOPPING)
    assert bench.stopped() == ["a"]
    bench.ended("a")
    assert bench.state("a") == "unloaded"


def test_an_instance_found_that_dies_before_it_reports_is_a_failed_load() -> None:
    bench = make_bench("a")
    bench.ended("a", CRASH)
    assert bench.state("a") == "failed"


def test_unload_of_an_instance_that_has_not_reported_waits_for_what_it_is_doing() -> None:
    bench = make_bench("a")
    waiter = bench.unload("a")
    assert bench.stopped() == []
    bench.ready("a")
    assert bench.ordered() == ["a"]
    bench.stopping("a")
    bench.ended("a")
    assert bench.completed() == [waiter]


def test_requests_that_an_instance_speaks_of_are_believed_for_a_while() -> None:
    bench = make_bench("a", others=("b",))
    bench.report("a", ChildState.READY, effective=make_breakdown(host=60), busy=2)
    assert bench.status("a").busy == 2
    bench.measure_next(host=60)
    bench.measure_next(host=60)
    bench.lease("b", 5)
    assert bench.ordered() == []
    bench.tick(5.0)
    assert bench.ordered() == ["a"]


def test_external_memory_is_not_counted_twice_for_instances_that_report_late() -> None:
    bench = make_bench("a", others=("b",), margin_bytes=0)
    bench.tick(5.0)
    bench.measure_next(total=100, free=60, G0=10)
    device = bench.scheduler.list_devices()[0]
    assert device.external + device.held == 40
    bench.ready("a", total=100, free=60, G0=40)
    device = bench.scheduler.list_devices()[0]
    assert (device.external, device.held) == (0, 40)


def test_repeated_reports_of_long_ago_do_not_lower_what_others_use() -> None:
    """Instance `a` last saw the device before `b` came: only the figures of `b` tell what is free now."""
    for order in (("a", "b"), ("b", "a")):
        bench = make_bench("a", "b")
        for name in order:
            free = {"a": 50, "b": 10}[name]
            bench.ready(name, total=100, free=free, G0={"a": 30, "b": 40}[name])
        device = bench.scheduler.list_devices()[0]
        assert (device.held, device.external) == (70, 20), order


@pytest.mark.parametrize("order", list(itertools.permutations(range(5))))
def test_the_same_state_follows_in_any_order_of_arrival(order: tuple[int, ...]) -> None:
    arrivals: list[Event] = [
        InstanceReported(
            "a", "found-a", ChildState.READY, effective=make_breakdown(host=30), note=Note(last_used_s=900.0)
        ),
        InstanceReported(
            "b", "found-b", ChildState.READY, effective=make_breakdown(host=20), note=Note(last_used_s=950.0)
        ),
        LeaseAnnounced(7, "a", "found-a", busy=True, last_used_s=990.0),
        LeaseAnnounced(8, "b", "found-b", busy=False, last_used_s=970.0),
        InstanceReported("c", "found-c", ChildState.LOADING, stage="model", progress=0.5),
    ]
    bench = make_bench("a", "b", "c", fronts=2)
    for index in order:
        bench.do(arrivals[index])
    bench.do(FrontAnnounced(7))
    bench.do(FrontAnnounced(8))
    models = {model.name: model for model in bench.scheduler.list_models(bench.now)}
    assert [models[name].state for name in "abc"] == ["ready", "ready", "loading"]
    assert [models[name].busy for name in "abc"] == [1, 0, 0]
    assert (models["a"].last_used_s, models["b"].last_used_s) == (990.0, 970.0)
    assert bench.scheduler.list_devices()[0].holders == {"a": 30, "b": 20}


def test_a_second_unit_for_a_model_that_runs_is_ignored() -> None:
    bench = make_bench("a")
    bench.do(InstanceFound("a", "another", make_settings("a")))
    bench.ready("a")
    assert bench.status("a").generation == "found-a"


def test_request_that_no_lease_covers_is_over_when_its_instance_says_so() -> None:
    bench = Bench(make_settings("a"), make_settings("b"), start=False, max_loaded=1)
    bench.found("a")
    bench.recover()
    size = make_breakdown(host=1)
    bench.report("a", ChildState.READY, effective=size, busy=1)
    for name in "ab":
        bench.measure(name, host=1)
    bench.lease("b")
    assert bench.status("a").busy == 1
    assert bench.ordered() == []
    bench.report("a", ChildState.READY, after_s=2.0, effective=size, busy=0)
    assert (bench.status("a").busy, bench.status("a").last_used_s) == (0, bench.now)
    assert bench.ordered() == ["a"], "it makes room at once"
