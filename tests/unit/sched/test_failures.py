"""Crashes, failed loads, instances that vanish, and news that comes too late."""

import pytest

from llamactl.errors import ErrorCode
from llamactl.protocol.control_socket import LeaseGone, Progress
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import Facts, LoadFailure
from llamactl.sched.effects import Effect, Notify, Record, StartInstance, StartMeasure, StopUnit
from llamactl.sched.events import (
    ConnectionGone,
    Event,
    FrontAnnounced,
    HostRead,
    InstanceDisconnected,
    InstanceEnded,
    InstanceReported,
    LeaseBusy,
    LeaseIdle,
    LeaseRequested,
    LoadRequested,
    MeasureEnded,
    MeasureReported,
    RecallAnswered,
    StopAnswered,
    Tick,
    WaiterGone,
)
from tests.unit.sched.bench import CRASH, Bench, make_breakdown, make_settings

ABORT = LoadFailure(result="signal", exit_code=6, message="GGML_ASSERT(...) failed")
CORRUPT = LoadFailure(result="exit-code", exit_code=1, message="cannot read file: bad magic")
NEWS = (Record, StartInstance)


def make_bench(*names: str, size: int = 10, **settings: object) -> Bench:
    bench = Bench(*(make_settings(name) for name in names), host_budget_bytes=100, **settings)
    for name in names:
        bench.measure(name, host=size)
    return bench


# --- loads that fail ---


def test_a_failed_load_refuses_all_who_wait_with_its_result_and_message() -> None:
    bench = make_bench("a")
    waiters = {bench.lease("a"), bench.lease("a", 2), bench.load("a")}
    bench.ended("a", CORRUPT)
    refusals = bench.refusals()
    assert set(bench.refused()) == waiters
    assert {refusal.code for refusal in refusals} == {ErrorCode.LOAD_FAILED}
    assert refusals[0].message == "cannot start 'a': cannot read file: bad magic (exit-code 1)"
    assert refusals[0].details["exit_code"] == 1
    assert refusals[0].details["retry_after_s"] == 1.0
    assert bench.state("a") == "failed"
    assert bench.status("a").failure == CORRUPT
    assert bench.records("load failed", "a")[0].level == "error"


def test_what_the_instance_said_explains_a_unit_that_ended_without_words() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.report("a", ChildState.FAILED, error="out of memory on GPU0")
    bench.ended("a", LoadFailure(result="exit-code", exit_code=3, message=""))
    assert "out of memory on GPU0" in bench.refusals()[0].message


def test_requests_are_refused_while_it_backs_off_and_each_failure_doubles_the_time() -> None:
    bench = make_bench("a")
    for delay_s in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        bench.lease("a")
        assert bench.started() == ["a"]
        bench.ended("a", CORRUPT)
        waiter = bench.lease("a")
        assert bench.refused() == {waiter: "load_failed"}
        assert bench.refusals()[0].details["retry_after_s"] == delay_s
        assert "tries at once" in bench.refusals()[0].hint
        bench.now += delay_s - 0.25
        bench.lease("a")
        assert bench.refusals()[0].hint.startswith("requests may try again in 1 s; ")
        bench.now += 0.25


def test_a_load_by_command_tries_at_once() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ended("a", CORRUPT)
    bench.load("a")
    assert bench.started() == ["a"]


def test_a_load_that_succeeds_shows_no_failure_any_more() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ended("a", CORRUPT)
    bench.load("a")
    bench.ready("a")
    assert bench.status("a").failure is None


def test_a_failed_load_frees_its_memory_for_the_next_in_the_queue() -> None:
    bench = make_bench("a", "b", size=60)
    bench.lease("a")
    bench.lease("b", 2)
    bench.ended("a", CORRUPT)
    assert bench.started() == ["b"]


def test_a_unit_that_is_stopped_by_hand_while_it_loads_is_no_failure() -> None:
    bench = make_bench("a")
    waiter = bench.lease("a")
    bench.ended("a")
    assert bench.refused() == {waiter: "cancelled"}
    assert bench.state("a") == "unloaded"
    bench.lease("a")
    assert bench.started() == ["a"]


# --- warm-up ---


def test_a_warm_up_that_dies_by_signal_is_tried_once_without_extra_buffer_types_and_remembered_for_it_alone() -> None:
    bench = make_bench("a", "b")
    waiter = bench.lease("a")
    assert bench.list_last(StartInstance)[0].extra_bufts
    bench.report("a", ChildState.LOADING, stage="warmup")
    bench.ended("a", CRASH)
    (again,) = bench.list_last(StartInstance)
    assert (again.settings.name, again.extra_bufts) == ("a", False)
    assert bench.refused() == {}
    (record,) = bench.records("warm-up died")
    assert "it is loaded again without them" in record.fields["next"]
    [told] = [progress for progress in bench.progress() if progress.warning]
    assert told.warning == f"the load failed (segmentation fault): {record.fields['next']}"
    bench.ready("a")
    assert bench.granted() == [waiter]
    bench.measure("b", host=1)
    bench.lease("b")
    assert bench.list_last(StartInstance)[0].extra_bufts
    bench.ended("a", CRASH)
    bench.measure("a", host=1)
    bench.load("a")
    assert not bench.list_last(StartInstance)[-1].extra_bufts


def test_what_was_measured_with_extra_buffer_types_is_measured_again_when_it_works_without() -> None:
    bench = make_bench("a", "b")
    bench.lease("a")
    bench.report("a", ChildState.LOADING, stage="warmup")
    bench.ended("a", CRASH)
    assert bench.list_last(StartMeasure) == [], "nobody knows yet that they were the reason"
    bench.ready("a")
    assert [(effect.settings.name, effect.extra_bufts) for effect in bench.list_last(StartMeasure)] == [("a", False)]


def test_buffer_types_that_were_not_the_reason_are_used_again() -> None:
    bench = make_bench("a")
    bench.lease("a")
    for _ in range(2):
        bench.report("a", ChildState.LOADING, stage="warmup")
        bench.ended("a", CRASH)
    bench.load("a")
    assert bench.list_last(StartInstance)[-1].extra_bufts


@pytest.mark.parametrize(
    ("stage", "failure", "repack"),
    [("model", CRASH, True), ("warmup", CORRUPT, True), ("warmup", ABORT, True), ("warmup", CRASH, False)],
    ids=["before warm-up", "not by signal", "by a check of llama.cpp", "already without"],
)
def test_other_deaths_are_not_retried(stage: str, failure: LoadFailure, repack: bool) -> None:
    bench = Bench(make_settings("a", repack=repack))
    bench.measure("a", host=1)
    bench.lease("a")
    bench.report("a", ChildState.LOADING, stage=stage)
    bench.ended("a", failure)
    assert bench.started() == []
    assert bench.state("a") == "failed"


def test_a_second_death_in_warm_up_is_final() -> None:
    bench = make_bench("a")
    waiter = bench.lease("a")
    for _ in range(2):
        bench.report("a", ChildState.LOADING, stage="warmup")
        bench.ended("a", CRASH)
    assert bench.refused() == {waiter: "load_failed"}


def test_an_instance_found_without_extra_buffer_types_tells_what_it_needs() -> None:
    bench = Bench(make_settings("a"), make_settings("b"), start=False)
    bench.found("a")
    bench.recover()
    bench.report("a", ChildState.READY, facts=Facts(extra_bufts=False))
    bench.measure("a", host=1)
    bench.ended("a", CRASH)
    bench.load("a")
    assert not bench.list_last(StartInstance)[0].extra_bufts


# --- crashes ---


def test_a_crash_revokes_leases_and_the_next_request_starts_it_again() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ready("a")
    generation = bench.generations["a"]
    bench.ended("a", CRASH)
    assert bench.list_notices(LeaseGone) == [
        Notify(1, LeaseGone(model="a", generation=generation, reason="segmentation fault"))
    ]
    assert bench.state("a") == "failed"
    assert bench.records("instance crashed", "a")[0].fields["result"] == "signal"
    bench.lease("a")
    assert bench.started() == ["a"]


def test_a_model_that_crashes_again_and_again_backs_off() -> None:
    bench = make_bench("a")
    for refused in (False, True):
        bench.load("a")
        bench.ready("a")
        bench.ended("a", CRASH, after_s=1.0)
        waiter = bench.lease("a")
        assert (waiter in bench.refused()) is refused
        if not refused:
            bench.do(WaiterGone(waiter))
            bench.ended("a")
            bench.load("a")
            bench.ready("a")
            bench.ended("a", CRASH, after_s=1.0)


def test_a_crash_after_a_long_good_time_is_forgiven() -> None:
    bench = make_bench("a")
    for _ in range(3):
        bench.lease("a")
        assert bench.started() == ["a"]
        bench.ready("a")
        bench.ended("a", CRASH, after_s=120.0)


def test_a_unit_stopped_by_hand_is_unloaded_and_its_leases_are_revoked() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.ended("a")
    assert bench.state("a") == "unloaded"
    assert len(bench.list_notices(LeaseGone)) == 1


def test_a_front_that_is_faster_than_systemd_waits_for_the_next_instance() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    generation = bench.generations["a"]
    waiter = bench.lease("a", stale_generation=generation)
    assert bench.granted() == []
    bench.ended("a", CRASH)
    assert bench.started() == ["a"]
    bench.ready("a")
    assert bench.granted() == [waiter]


def test_a_front_that_was_wrong_gets_the_same_instance_after_a_while() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    waiter = bench.lease("a", stale_generation=bench.generations["a"])
    bench.tick(4.9)
    assert bench.granted() == []
    bench.tick(0.2)
    assert bench.granted() == [waiter]


def test_an_instance_that_may_be_gone_is_no_victim() -> None:
    bench = make_bench("a", "b", size=60)
    bench.bring_up("a")
    bench.idle("a")
    bench.lease("a", 1, stale_generation=bench.generations["a"])
    bench.idle("a")
    bench.lease("b", 2)
    assert bench.recalled() == []


def test_a_doubt_that_ends_during_an_unload_grants_nothing() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.lease("a", stale_generation=bench.generations["a"])
    bench.do(LeaseBusy(1, "a", bench.generations["a"]))
    bench.unload("a", client=91)
    waiter = bench.lease("a", 3)
    bench.returned("a", returned=False)
    bench.tick(6.0)
    assert waiter not in bench.granted()


def test_requests_that_wait_when_it_crashes_again_are_refused_as_it_backs_off() -> None:
    bench = make_bench("a")
    bench.load("a")
    bench.ready("a")
    bench.ended("a", CRASH)
    bench.load("a")
    bench.ready("a")
    waiter = bench.lease("a", stale_generation=bench.generations["a"])
    bench.ended("a", CRASH)
    assert bench.refused() == {waiter: "load_failed"}


def test_an_older_stale_generation_is_no_reason_to_wait() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    waiter = bench.lease("a", stale_generation="older")
    assert bench.granted() == [waiter]


# --- silence ---


def test_an_instance_whose_report_connection_is_down_is_no_victim() -> None:
    bench = make_bench("a", "b", size=60)
    bench.bring_up("a")
    bench.do(InstanceDisconnected("a", bench.generations["a"]))
    bench.lease("b", 2)
    assert bench.recalled() == []
    assert bench.status("b").waiting_for == ("a",)
    bench.report("a", ChildState.READY)
    assert bench.recalled() == [(1, "a")]


def test_a_recall_is_called_off_when_the_report_connection_goes_down() -> None:
    bench = make_bench("a", "b", size=60)
    bench.bring_up("a")
    bench.lease("b", 2)
    bench.do(InstanceDisconnected("a", bench.generations["a"]))
    assert bench.records("victim spared", "a")[0].fields["why"] == "its report connection is down"


def test_what_an_operator_unloads_ends_though_it_cannot_be_asked() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.do(InstanceDisconnected("a", bench.generations["a"]))
    bench.unload("a")
    assert bench.stopped() == []
    bench.returned("a")
    assert bench.stopped() == ["a"]


def test_a_silent_instance_still_gets_requests() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.do(InstanceDisconnected("a", bench.generations["a"]))
    waiter = bench.lease("a", 2)
    assert bench.granted() == [waiter]


# --- late and senseless news ---


def test_an_instance_that_agreed_to_stop_after_all_is_believed() -> None:
    """Its answer comes after the eviction was called off: it takes no request from now on, whatever we want."""
    bench = make_bench("a", "b", size=60)
    bench.bring_up("a")
    waiter = bench.lease("b", 2)
    bench.returned("a")
    bench.do(WaiterGone(waiter))
    waiter = bench.lease("a", 3)
    bench.stopping("a")
    assert bench.stopped() == ["a"]
    bench.ended("a")
    assert bench.started() == ["a"]
    bench.ready("a")
    assert bench.granted() == [waiter]


def test_an_instance_that_ends_before_its_answer_to_the_stop_was_unloaded() -> None:
    bench = make_bench("a", "b", size=60)
    bench.bring_up("a")
    bench.lease("b", 2)
    bench.returned("a")
    bench.ended("a")
    assert bench.records("model unloaded")[0].fields["reason"] == "evicted"
    assert bench.started() == ["b"]


def test_a_bad_end_of_a_stop_is_unloaded_and_not_failed() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.unload("a", now=True)
    bench.ended("a", LoadFailure(result="timeout", exit_code=0, message=""))
    assert bench.state("a") == "unloaded"
    assert bench.records("model unloaded")[0].level == "warning"


def list_late_news(generation: str) -> list[Event]:
    size = make_breakdown(host=5, total=100, free=50, G0=5)
    return [
        InstanceReported("a", generation, ChildState.READY, effective=size, busy=3),
        InstanceReported("a", generation, ChildState.STOPPING),
        InstanceReported("nobody", generation, ChildState.LOADING),
        InstanceDisconnected("a", generation),
        InstanceEnded("a", generation, CRASH),
        StopAnswered("a", generation, True),
        StopAnswered("nobody", generation, False),
        LeaseBusy(55, "a", generation),
        LeaseIdle(55, "a", generation, 5.0),
        RecallAnswered(55, "a", generation, True),
        RecallAnswered(55, "a", generation, False),
        MeasureReported("nobody", size, size),
        MeasureReported("a", size, size),
        MeasureEnded("a", "late"),
        MeasureEnded("nobody"),
        WaiterGone((55, 5)),
        ConnectionGone(55),
        FrontAnnounced(55),
        HostRead(1000, 500),
        Tick(),
    ]


@pytest.mark.parametrize("state", ["unloaded", "loading", "ready", "stopping", "failed"])
@pytest.mark.parametrize("index", range(20))
def test_late_news_changes_nothing(state: str, index: int) -> None:
    bench = make_bench("a")
    if state != "unloaded":
        bench.lease("a")
    if state in ("ready", "stopping"):
        bench.ready("a")
    if state == "stopping":
        bench.unload("a", now=True)
    if state == "failed":
        bench.ended("a", CORRUPT)
    before = bench.status("a")
    news = list_late_news("another generation")[index]
    effects: list[Effect] = bench.do(news)
    assert effects == []
    assert bench.status("a") == before


def test_answers_that_nobody_asked_for_change_nothing() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    generation = bench.generations["a"]
    for event in (
        StopAnswered("a", generation, False),
        RecallAnswered(77, "a", generation, False),
        LeaseIdle(77, "a", generation, 5.0),
        InstanceReported("a", generation, ChildState.LOADING, stage="model", progress=0.1),
        InstanceReported("a", generation, ChildState.MEASURED),
        InstanceReported("a", generation, ChildState.READY),
    ):
        assert bench.do(event) == []
        assert bench.state("a") == "ready"


def test_a_front_that_says_busy_has_a_lease_whatever_we_thought() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.do(LeaseBusy(77, "a", bench.generations["a"]))
    assert bench.status("a").busy == 1


def test_a_request_that_asks_twice_under_one_id_is_answered_once() -> None:
    bench = make_bench("a", "b")
    waiter = bench.lease("a")
    bench.do(LeaseRequested(waiter, "b"))
    bench.do(LoadRequested(waiter, "b"))
    assert bench.started() == []
    bench.ready("a")
    assert bench.granted() == [waiter]
    assert bench.completed() == []


def test_a_last_use_in_the_future_is_nonsense() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ready("a")
    bench.do(LeaseIdle(1, "a", bench.generations["a"], 1e12))
    assert bench.status("a").last_used_s <= bench.now


# --- an instance that hangs ---


def answer_silently(bench: Bench, name: str) -> None:
    bench.do(StopAnswered(name, bench.generations[name], stopping=False, silent=True), after_s=5.0)


def test_unit_of_an_instance_that_does_not_answer_an_unload_is_stopped_and_told_so() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    waiter = bench.unload("a")
    bench.returned("a")
    assert bench.ordered() == ["a"]
    answer_silently(bench, "a")
    assert bench.stopped() == ["a"]
    warned = [told for told in bench.list_told(Progress) if told.message.warning]
    assert [(told.waiter, told.message.going) for told in warned] == [(waiter, ("a",))]
    assert "does not answer" in warned[0].message.warning
    bench.ended("a", LoadFailure(result="watchdog", exit_code=9, message=""))
    assert bench.completed() == [waiter]
    assert bench.state("a") == "unloaded"
    assert bench.records("instance crashed") == []
    assert bench.records("model unloaded", "a")[-1].fields["reason"] == "by command"


def test_instance_that_answers_busy_to_an_unload_is_asked_again() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.unload("a")
    bench.returned("a")
    bench.stopping("a", False)
    assert bench.stopped() == []
    bench.tick(5.0)
    assert bench.ordered() == ["a"]


def test_instance_that_does_not_answer_an_eviction_is_not_stopped() -> None:
    bench = make_bench("a", "b", max_loaded=1)
    bench.bring_up("a")
    bench.lease("b")
    bench.returned("a")
    assert bench.ordered() == ["a"]
    answer_silently(bench, "a")
    assert bench.list_all(StopUnit) == []
    assert bench.state("a") == "ready"


def test_unload_is_told_that_requests_have_to_end_first() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ready("a")
    waiter = bench.unload("a")
    told = bench.list_told(Progress)
    assert [(each.waiter, each.message.busy) for each in told] == [(waiter, ("a",))]
    assert bench.ordered() == [], "a lease is busy: nobody is asked, whoever hangs"
