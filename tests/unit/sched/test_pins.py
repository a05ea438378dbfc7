"""Pins by command, keep-alive of requests, idle time-outs and priorities: who stays, and for how long?"""

from typing import Any

import pytest

from llamactl.protocol.control_socket import Recall
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import Note
from llamactl.sched.effects import Notify, SendNote
from llamactl.sched.events import LeaseIdle, PinRequested
from tests.unit.sched.bench import Bench, make_settings


def make_bench(*names: str, **settings: Any) -> Bench:
    bench = Bench(*(make_settings(name) for name in names), **{"host_budget_bytes": 100, **settings})
    for name in names:
        bench.measure(name, host=60)
    return bench


def pin(bench: Bench, name: str, pinned: bool = True) -> Any:
    waiter = bench.make_waiter(92)
    bench.do(PinRequested(waiter, name, pinned))
    return waiter


def end_request(bench: Bench, name: str, keep_alive_s: float | None, front: int = 1) -> None:
    bench.do(LeaseIdle(front, name, bench.generations[name], bench.now, keep_alive_s))


def test_a_model_pinned_by_command_is_no_victim_and_the_refusal_names_it() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    waiter = pin(bench, "a")
    assert bench.completed() == [waiter]
    assert bench.status("a").pinned
    refused = bench.lease("b", 2)
    assert bench.refused() == {refused: "pinned"}
    assert "'a'" in bench.records("load refused", "b")[0].fields["why"]


def test_the_instance_keeps_the_pin_for_the_next_supervisor() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    pin(bench, "a")
    (note,) = [effect.note for effect in bench.list_last(SendNote)]
    assert note.pinned
    after = Bench(make_settings("a"), make_settings("b"), start=False, host_budget_bytes=100)
    after.found("a")
    after.recover()
    after.report("a", ChildState.READY, note=note)
    assert after.status("a").pinned


def test_unpin_overrules_the_configuration() -> None:
    bench = Bench(make_settings("a", pin=True), make_settings("b"), host_budget_bytes=100)
    bench.measure("a", host=60)
    bench.measure("b", host=60)
    bench.bring_up("a")
    pin(bench, "a", False)
    bench.lease("b", 2)
    assert bench.recalled() == [(1, "a")]


def test_a_pin_that_comes_in_time_calls_the_eviction_off() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    waiter = bench.lease("b", 2)
    assert bench.recalled() == [(1, "a")]
    pin(bench, "a")
    assert bench.refused() == {waiter: "pinned"}
    assert bench.status("a").state == "ready"
    assert not bench.ordered()


def test_pinning_what_is_not_loaded_is_refused() -> None:
    bench = make_bench("a")
    assert bench.refused() == {}
    waiter = pin(bench, "a")
    assert bench.refused() == {waiter: "not_loaded"}
    assert bench.refused() != {pin(bench, "nothing"): "unknown_model"} or bench.refused()
    assert list(bench.refused().values()) == ["unknown_model"]


@pytest.mark.parametrize(("keep_alive_s", "unloaded_after_s"), [(30.0, 30), (0.0, 0), (-1.0, None), (None, 100)])
def test_keep_alive_replaces_the_idle_timeout(keep_alive_s: float | None, unloaded_after_s: float | None) -> None:
    bench = Bench(make_settings("a", idle_timeout_s=100.0))
    bench.measure("a", host=1)
    bench.lease("a")
    bench.ready("a")
    end_request(bench, "a", keep_alive_s)
    if unloaded_after_s:
        assert bench.scheduler.next_deadline() == bench.now + unloaded_after_s
        assert not bench.recalled()
        bench.tick(unloaded_after_s)
    elif unloaded_after_s is None:
        assert bench.scheduler.next_deadline() is None
        bench.tick(100_000)
        assert not bench.recalled()
        return
    else:
        bench.tick(0)
    assert [e.message.model for e in bench.all if isinstance(e, Notify) and isinstance(e.message, Recall)] == ["a"]


def test_the_last_keep_alive_stays_when_a_later_request_says_nothing() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ready("a")
    end_request(bench, "a", 30.0)
    bench.lease("a")
    end_request(bench, "a", None)
    assert bench.scheduler.next_deadline() == bench.now + 30
    assert bench.status("a").keep_alive_s == 30.0


def test_keep_alive_survives_the_supervisor_and_ends_with_the_instance() -> None:
    bench = Bench(make_settings("a"), start=False)
    bench.found("a")
    bench.recover()
    bench.report("a", ChildState.READY, note=Note(last_used_s=bench.now, keep_alive_s=30.0))
    assert bench.status("a").keep_alive_s == 30.0
    bench.ended("a")
    assert bench.status("a").keep_alive_s is None


def test_keep_alive_is_no_pin() -> None:
    bench = make_bench("a", "b")
    bench.lease("a")
    bench.ready("a")
    end_request(bench, "a", -1.0)
    bench.lease("b", 2)
    assert bench.recalled() == [(1, "a")]


def test_lower_priority_goes_before_less_recently_used() -> None:
    bench = Bench(make_settings("a", priority=1), make_settings("b"), make_settings("c"), host_budget_bytes=100)
    for name in "abc":
        bench.measure(name, host=40)
    bench.bring_up("a")
    bench.bring_up("b")
    bench.lease("c", 2)
    assert bench.recalled() == [(1, "b")]
