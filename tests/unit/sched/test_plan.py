"""What does `llamactl plan` answer, and is it what a load then does?"""

from typing import Any

import pytest

from llamactl.protocol.descriptions import LoadPlan
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import MemoryStatus
from llamactl.sched.effects import OrderStop, StartInstance, StartMeasure
from llamactl.sched.events import Tick
from tests.unit.sched.bench import Bench, make_breakdown, make_settings


def make_bench(*names: str, size: int = 60, **settings: Any) -> Bench:
    bench = Bench(*(make_settings(name) for name in names), **{"host_budget_bytes": 100, **settings})
    for name in names:
        bench.measure(name, host=size)
    return bench


def ask(bench: Bench, name: str) -> LoadPlan:
    plan = bench.scheduler.explain_load(name, bench.now)
    assert plan is not None
    assert bench.do(Tick()) == [], "asking has changed something"
    return plan


def test_plan_of_what_fits_has_the_figures_of_the_account() -> None:
    plan = ask(make_bench("a"), "a")
    assert (plan.outcome, plan.words) == ("fits", "it would be loaded at once")
    (host,) = plan.devices
    assert (host.name, host.needs, host.total, host.held, host.available, host.missing) == ("Host", 60, 100, 0, 100, 0)


def test_what_others_use_is_all_that_a_measure_child_does_not_see_as_free() -> None:
    bench = Bench(make_settings("a"), margin_bytes=5)
    bench.measure("a", G0=30, total=100, free=60)
    (device,) = ask(bench, "a").devices
    assert (device.total, device.external, device.available, device.margin) == (100, 40, 60, 5)


def test_plan_names_who_would_go_and_why_each_other_would_not() -> None:
    bench = Bench(*(make_settings(name) for name in "abcde"), host_budget_bytes=100)
    for name, size in (("a", 40), ("b", 20), ("c", 20), ("d", 10), ("e", 50)):
        bench.measure(name, host=size)
    for name in "abc":
        bench.bring_up(name)
    bench.lease("d", 3)
    bench.ready("d")
    bench.now += 50
    plan = ask(bench, "e")
    assert (plan.outcome, plan.victims) == ("evict", ("a",))
    assert plan.words == "it would be loaded after 'a' would have been unloaded"
    whys = {one.model: (one.goes, one.why) for one in plan.instances}
    assert whys == {
        "a": (True, "idle for 52 s, least recently used of those that help"),
        "b": (False, "not needed: enough others go before it"),
        "c": (False, "not needed: enough others go before it"),
        "d": (False, "serves a request"),
    }
    assert {one.model: one.frees for one in plan.instances}["a"] == {"Host": 40}
    assert plan.devices[0].missing == 40
    bench.lease("e", 4)
    assert [recall.model for recall in bench.recalls()] == ["a"], "the plan was another one"


def test_plan_asks_nobody_to_do_anything() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    assert ask(bench, "b").outcome == "evict"
    assert not bench.recalls()
    assert bench.state("a") == "ready"
    assert bench.scheduler.queue_names() == ()


def test_plan_of_a_loaded_model_says_so() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    assert ask(bench, "a").words == "it is loaded already: requests go to it at once"


def test_plan_where_the_other_is_busy_waits_for_it() -> None:
    bench = make_bench("a", "b")
    bench.lease("a")
    bench.ready("a")
    plan = ask(bench, "b")
    assert (plan.outcome, plan.waiting_for) == ("wait", ("a",))
    assert plan.words == "it would wait for 'a': it needs 60 B on Host, 40 B free"


def test_an_idle_model_whose_going_is_not_enough_stays_and_the_plan_says_so() -> None:
    bench = Bench(*(make_settings(name) for name in "abc"), host_budget_bytes=100)
    for name, size in (("a", 30), ("b", 60), ("c", 80)):
        bench.measure(name, host=size)
    bench.bring_up("a")
    bench.lease("b", 2)
    bench.ready("b")
    plan = ask(bench, "c")
    whys = {one.model: one.why for one in plan.instances}
    assert whys["a"] == "it could go, but that would not be enough: nothing is stopped in vain"


def test_plan_where_only_pins_are_in_the_way_is_refused() -> None:
    bench = Bench(make_settings("a", pin=True), make_settings("b"), host_budget_bytes=100)
    bench.measure("a", host=60)
    bench.measure("b", host=60)
    bench.bring_up("a")
    plan = ask(bench, "b")
    assert plan.outcome == "pinned"
    assert "'a' cannot go: pinned" in plan.words


@pytest.mark.parametrize("strict", [False, True])
def test_plan_of_what_never_fits_depends_on_strict(strict: bool) -> None:
    bench = make_bench("a", size=200, strict=strict)
    plan = ask(bench, "a")
    assert plan.outcome == ("refused" if strict else "fits")
    assert ("more than there is" in plan.words) != strict


def test_plan_of_what_is_not_measured_says_so() -> None:
    bench = Bench(make_settings("a"), host_budget_bytes=100)
    assert ask(bench, "a").outcome == "measure"
    assert bench.list_all(StartMeasure)
    bench.fail_measure("a")
    assert bench.status("a").memory.status is MemoryStatus.FAILED
    assert ask(bench, "a").outcome == "blind"


def test_plan_behind_a_queue_says_who_is_first() -> None:
    bench = make_bench("a", "b", "c")
    bench.lease("a")
    bench.ready("a")
    bench.lease("b", 2)
    plan = ask(bench, "c")
    assert (plan.outcome, plan.words) == ("wait", "it would wait behind 'b', which is first in the queue")


def test_plan_of_unknown_and_invalid_models() -> None:
    bench = make_bench("a")
    assert bench.scheduler.explain_load("nothing", bench.now) is None


def test_the_journal_gets_the_record_when_it_is_real_and_once() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    planned = ask(bench, "b")
    bench.lease("b", 2)
    bench.tick(1)
    (record,) = bench.records("load planned", "b")
    assert record.fields["outcome"] == planned.outcome
    assert record.fields["why"] == planned.words
    assert record.fields["victims"] == ["a"]
    assert record.fields["instances"] == {one.model: one.why for one in planned.instances}
    assert record.fields["needs_host_bytes"] == 60
    assert record.fields["available_host_bytes"] == 40
    bench.take_down("a")
    assert [one.fields["outcome"] for one in bench.records("load planned", "b")] == ["evict", "wait", "fits"]
    assert bench.list_last(StartInstance)
    assert not bench.list_last(OrderStop)


def test_plan_of_a_sleeping_model_is_about_waking() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    bench.report("a", ChildState.SLEEPING, effective=make_breakdown(host=5))
    plan = ask(bench, "a")
    assert (plan.outcome, plan.words) == ("fits", "it would be woken at once")
    assert plan.devices[0].needs == 55
