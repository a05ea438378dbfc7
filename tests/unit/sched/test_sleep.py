"""When does a model sleep, what is it charged meanwhile, and how does it wake?"""

from dataclasses import replace
from typing import Any

import pytest

from llamactl.protocol.control_socket import LeaseGone
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import Note
from llamactl.sched.effects import OrderSleep, OrderStop, OrderWake
from llamactl.sched.events import (
    Configured,
    InstanceDisconnected,
    InstanceEnded,
    InstanceReported,
    LeaseAnnounced,
    LeaseBusy,
    LeaseIdle,
    SleepAnswered,
    WaiterGone,
)
from llamactl.settings import InvalidModel
from tests.unit.sched.bench import CRASH, Bench, make_breakdown, make_config, make_settings


def make_bench(*names: str, sleep_after_s: float = 60.0, host: int = 60, **settings: Any) -> Bench:
    models = [make_settings(name, sleep_after_s=sleep_after_s) for name in names]
    bench = Bench(*models, **{"host_budget_bytes": 100, **settings})
    for name in names:
        bench.measure(name, host=host)
    return bench


def put_to_sleep(bench: Bench, name: str, residue: int = 5) -> None:
    """It has been idle for long enough, and everybody agrees."""
    bench.tick(60)
    bench.returned(name)
    assert [order.model for order in bench.list_last(OrderSleep)] == [name]
    bench.do(SleepAnswered(name, bench.generations[name], True))
    bench.report(name, ChildState.SLEEPING, effective=make_breakdown(host=residue))
    assert bench.state(name) == "sleeping"


def get_held(bench: Bench) -> dict[str, int]:
    return {account.name: account.held for account in bench.scheduler.list_devices()}


def woken(bench: Bench) -> list[str]:
    return [order.model for order in bench.list_last(OrderWake)]


def test_an_idle_model_is_put_to_sleep_and_charged_its_residue() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    assert bench.scheduler.next_deadline() == bench.now + 60
    put_to_sleep(bench, "a", residue=5)
    assert get_held(bench)["Host"] == 5
    assert bench.records("instance asleep", "a")


def test_a_busy_model_does_not_fall_asleep() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.lease("a")
    bench.tick(600)
    assert not bench.list_all(OrderSleep)


def test_a_refused_sleep_is_asked_for_again_later() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.tick(60)
    bench.returned("a")
    bench.do(SleepAnswered("a", bench.generations["a"], False))
    assert bench.state("a") == "ready"
    assert bench.granted() == []
    bench.lease("a", 2)
    assert len(bench.granted()) == 1, "it is not awake for requests"
    bench.idle("a", 2, after_s=1)
    bench.tick(60)
    bench.returned("a", 2)
    assert bench.list_last(OrderSleep)


def test_waking_reserves_what_it_held_and_grants_when_it_is_ready() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.ready("a", host=58)
    put_to_sleep(bench, "a")
    waiter = bench.lease("a", 2)
    assert woken(bench) == ["a"]
    assert get_held(bench)["Host"] == 58
    assert bench.state("a") == "loading"
    bench.report("a", ChildState.LOADING, stage="model", progress=0.5)
    assert bench.granted() == []
    bench.ready("a", host=58)
    assert bench.granted() == [waiter]


def test_waking_waits_for_room_like_a_load_and_evicts_like_one() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    bench.bring_up("b")
    waiter = bench.lease("a", 2)
    assert woken(bench) == []
    assert bench.recalled() == [(1, "b")]
    bench.take_down("b")
    assert woken(bench) == ["a"]
    bench.ready("a", host=60)
    assert bench.granted() == [waiter]


def test_waking_waits_behind_a_busy_model() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    bench.lease("b", 2)
    bench.ready("b")
    bench.lease("a", 3)
    assert woken(bench) == []
    assert bench.status("a").waiting_for == ("b",)
    bench.idle("b", 2)
    assert bench.recalled() == [(2, "b")]


def test_a_sleeping_model_counts_towards_max_loaded_and_needs_no_other_place() -> None:
    bench = make_bench("a", "b", host=10, max_loaded=1)
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    bench.lease("a", 2)
    assert woken(bench) == ["a"]
    bench.ready("a", host=10)
    bench.idle("a", 2)
    bench.tick(60)
    bench.returned("a", 2)
    bench.do(SleepAnswered("a", bench.generations["a"], True))
    bench.report("a", ChildState.SLEEPING)
    bench.lease("b", 3)
    assert bench.ordered() == ["a"]
    bench.stopping("a")
    bench.ended("a")
    assert bench.started() == ["b"]


def test_looking_neither_wakes_nor_refreshes() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    last_used_s = bench.status("a").last_used_s
    waiter = bench.lease("a", 2, passive=True)
    assert bench.refused() == {waiter: "not_loaded"}
    assert not bench.list_all(OrderWake)
    assert bench.status("a").last_used_s == last_used_s


def test_a_waking_that_nobody_waits_for_is_cancelled() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    bench.lease("b", 2)
    bench.ready("b")
    waiter = bench.lease("a", 3)
    bench.do(WaiterGone(waiter))
    bench.idle("b", 2)
    assert not bench.list_all(OrderWake)
    assert bench.state("a") == "sleeping"
    assert bench.recalled() == []


def test_a_failed_waking_is_a_failed_load() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    waiter = bench.lease("a", 2)
    bench.ended("a", CRASH)
    assert bench.refused() == {waiter: "load_failed"}
    assert bench.state("a") == "failed"
    assert get_held(bench)["Host"] == 0


def test_an_order_to_wake_that_was_lost_is_given_again() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    bench.lease("a", 2)
    assert woken(bench) == ["a"]
    bench.do(InstanceDisconnected("a", bench.generations["a"]))
    bench.report("a", ChildState.SLEEPING, effective=make_breakdown(host=5))
    assert woken(bench) == ["a"]


def test_settings_that_changed_while_it_slept_make_it_load_again() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    changed = make_settings("a", sleep_after_s=60.0, ctx=8192)
    bench.do(Configured(make_config(changed, host_budget_bytes=100)))
    bench.measure("a", host=60)
    bench.lease("a", 2)
    assert woken(bench) == []
    assert [order.model for order in bench.list_last(OrderStop)] == ["a"]
    bench.stopping("a")
    bench.ended("a")
    assert bench.started() == ["a"]


def test_unloading_while_it_falls_asleep_unloads_it() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.tick(60)
    bench.returned("a")
    waiter = bench.unload("a")
    bench.do(SleepAnswered("a", bench.generations["a"], True))
    bench.report("a", ChildState.SLEEPING)
    assert bench.ordered() == ["a"]
    bench.stopping("a")
    bench.ended("a")
    assert bench.completed() == [waiter]


def test_a_lease_on_a_sleeping_model_is_revoked() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    bench.do(LeaseAnnounced(7, "a", bench.generations["a"], False, bench.now))
    assert [revoked.holder for revoked in bench.list_notices(LeaseGone)] == [7]


def test_a_lease_announced_before_it_says_that_it_sleeps_is_revoked_then() -> None:
    bench = Bench(make_settings("a"), start=False, host_budget_bytes=100)
    bench.found("a")
    bench.recover(fronts=1)
    bench.do(LeaseAnnounced(7, "a", "found-a", False, bench.now))
    bench.report("a", ChildState.SLEEPING)
    assert [revoked.holder for revoked in bench.list_notices(LeaseGone)] == [7]


def test_two_that_need_the_same_place_do_not_wait_for_each_other() -> None:
    bench = make_bench("a", "b", host=60, max_loaded=1)
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    bench.lease("b", 2)
    first = bench.lease("a", 3)
    assert bench.list_all(OrderStop)[-1].model == "a"
    bench.stopping("a")
    bench.ended("a")
    assert bench.started() == ["b"]
    bench.ready("b")
    bench.idle("b", 2)
    bench.take_down("b", 2)
    assert bench.started() == ["a"]
    bench.ready("a")
    assert bench.granted() == [first]


def test_a_sleeping_model_that_becomes_invalid_has_nobody_wait_for_it() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    bench.lease("b", 2)
    bench.ready("b")
    waiter = bench.lease("a", 3)
    invalid = InvalidModel(name="a", reason="broken")
    bench.do(Configured(make_config(make_settings("b"), invalid=(invalid,), host_budget_bytes=100)))
    assert bench.refused() == {waiter: "invalid_model"}


@pytest.mark.parametrize("pin", [False, True])
def test_pinned_and_kept_models_do_not_sleep(pin: bool) -> None:
    bench = Bench(make_settings("a", sleep_after_s=10.0, pin=pin), host_budget_bytes=100)
    bench.measure("a", host=60)
    bench.lease("a")
    bench.ready("a")
    kept_s = None if pin else -1.0
    bench.do(LeaseIdle(1, "a", bench.generations["a"], bench.now, kept_s))
    bench.tick(1000)
    assert not bench.list_all(OrderSleep)


def test_a_new_supervisor_finds_it_asleep_and_wakes_it_by_what_was_measured() -> None:
    bench = Bench(make_settings("a"), start=False, host_budget_bytes=100)
    bench.found("a")
    bench.recover()
    report = InstanceReported("a", "found-a", ChildState.SLEEPING, effective=make_breakdown(host=5), note=Note())
    bench.do(report)
    bench.do(replace(report))
    bench.measure("a", host=60)
    assert bench.state("a") == "sleeping"
    assert get_held(bench)["Host"] == 5
    bench.tick(6)
    bench.lease("a")
    assert woken(bench) == ["a"]
    assert get_held(bench)["Host"] == 60


def test_the_end_of_a_sleeping_unit_by_hand_is_no_failure() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    bench.do(InstanceEnded("a", bench.generations["a"]))
    assert bench.state("a") == "unloaded"


def test_front_whose_lease_was_revoked_while_it_said_busy_gets_none_on_a_sleeping_model() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    bench.do(LeaseBusy(1, "a", bench.generations["a"]))
    assert [revoked.holder for revoked in bench.list_notices(LeaseGone)] == [1]
    assert bench.status("a").busy == 0
    bench.lease("a", 2)
    assert woken(bench) == ["a"]


def test_a_sleeping_model_that_waits_for_room_is_not_ticked_for_its_idle_time_out() -> None:
    models = [make_settings("a", sleep_after_s=60.0, idle_timeout_s=90.0), make_settings("b")]
    bench = Bench(*models, host_budget_bytes=100, max_wait_s=0.0)
    for name in ("a", "b"):
        bench.measure(name, host=60)
    bench.bring_up("a")
    put_to_sleep(bench, "a")
    bench.lease("b")
    bench.ready("b", host=60)
    bench.lease("a", front=2)
    bench.tick(200)
    assert bench.state("a") == "loading"
    deadline = bench.scheduler.next_deadline()
    assert deadline is None or deadline > bench.now, "the supervisor's timer would fire again and again"
