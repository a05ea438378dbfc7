"""What does a new configuration change, and what is measured when?"""

import msgspec

from llamactl.protocol.control_socket import Progress, RecallCancelled
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import Facts, MemoryStatus, ModelMemory, Stage
from llamactl.sched.effects import StartMeasure, StopMeasure
from llamactl.sched.events import Configured, MeasureEnded, MeasureReported, MeasureRequested, WaiterGone
from llamactl.settings import InvalidModel
from tests.unit.sched.bench import CRASH, Bench, make_breakdown, make_config, make_settings, tell_progress


def make_bench(*names: str, **settings: object) -> Bench:
    bench = Bench(*(make_settings(name) for name in names), **settings)
    for name in names:
        bench.measure(name, host=10)
    return bench


# --- models come, go and change ---


def test_a_removed_model_ends_its_requests_gets_no_new_lease_and_goes() -> None:
    bench = make_bench("a", "b")
    bench.lease("a")
    bench.ready("a")
    bench.do(Configured(make_config(make_settings("b"))))
    assert bench.recalled() == [(1, "a")]
    waiter = bench.lease("a", 2)
    assert bench.refused() == {waiter: "unknown_model"}
    bench.returned("a", returned=False)
    assert bench.list_notices(RecallCancelled) == []
    bench.take_down("a")
    assert bench.scheduler.model_status("a") is None
    assert bench.records("model unloaded")[0].fields["reason"] == "removed from the configuration"


def test_requests_that_wait_for_a_removed_model_are_refused_and_its_load_is_cancelled() -> None:
    bench = make_bench("a", "b")
    waiter = bench.lease("a")
    bench.do(Configured(make_config(make_settings("b"))))
    assert bench.refused() == {waiter: "unknown_model"}
    assert bench.stopped() == ["a"]


def test_a_removed_model_that_is_back_in_time_stays() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ready("a")
    bench.do(Configured(make_config()))
    bench.do(Configured(make_config(make_settings("a"))))
    assert len(bench.list_notices(RecallCancelled)) == 1
    assert bench.state("a") == "ready"


def test_a_removed_running_model_can_be_unloaded_by_command() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ready("a")
    bench.do(Configured(make_config()))
    waiter = bench.unload("a", now=True)
    assert bench.stopped() == ["a"]
    bench.ended("a")
    assert bench.completed() == [waiter]


def test_changed_settings_wait_for_the_next_load_and_drop_the_measurement() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.do(Configured(make_config(make_settings("a", ctx=8192))))
    assert bench.recalled() == []
    assert bench.state("a") == "ready"
    assert bench.status("a").memory.min is None
    assert bench.measured() == ["a"]
    assert bench.list_last(StartMeasure)[0].settings.ctx == 8192


def test_settings_that_only_concern_decisions_count_at_once_and_keep_the_measurement() -> None:
    bench = Bench(make_settings("a"), make_settings("b"), host_budget_bytes=100)
    for name in "ab":
        bench.measure(name, host=60)
    bench.bring_up("a")
    bench.lease("b", 2)
    assert bench.recalled() == [(1, "a")]
    config = make_config(make_settings("a", pin=True, aliases=("x",)), make_settings("b"), host_budget_bytes=100)
    bench.do(Configured(config))
    assert len(bench.list_notices(RecallCancelled)) == 1
    assert len(bench.refusals()) == 1
    assert bench.status("x").pinned
    assert bench.measured() == []


def test_a_model_that_is_pinned_while_its_idle_time_out_recalls_it_stays() -> None:
    bench = Bench(make_settings("a", idle_timeout_s=10.0))
    bench.measure("a", host=1)
    bench.bring_up("a")
    bench.tick(10.0)
    assert bench.recalled() == [(1, "a")]
    bench.do(Configured(make_config(make_settings("a", idle_timeout_s=10.0, pin=True))))
    assert len(bench.list_notices(RecallCancelled)) == 1


def test_requests_that_wait_for_a_model_that_stops_and_turns_invalid_are_refused() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.unload("a")
    bench.returned("a")
    waiter = bench.lease("a", 2)
    bench.do(Configured(make_config(invalid=(InvalidModel(name="a", reason="typo"),))))
    bench.stopping("a")
    bench.ended("a")
    assert bench.refused() == {waiter: "invalid_model"}


def test_a_figure_under_way_for_old_settings_is_stopped_and_ignored() -> None:
    bench = Bench(make_settings("a"))
    assert bench.measured() == ["a"]
    bench.do(Configured(make_config(make_settings("a", ctx=8192))))
    assert bench.list_last(StopMeasure) == [StopMeasure("a")]
    bench.do(MeasureReported("a", make_breakdown(host=5), make_breakdown(host=5)))
    assert bench.status("a").memory.min is None
    bench.do(MeasureEnded("a", "stopped"))
    assert bench.measured() == ["a"]


def test_an_invalid_model_is_listed_and_refused_with_the_reason() -> None:
    bench = make_bench("a")
    bench.do(Configured(make_config(make_settings("a"), invalid=(InvalidModel(name="bad", reason="no such file"),))))
    assert bench.status("bad").invalid == "no such file"
    waiter = bench.lease("bad")
    assert bench.refused() == {waiter: "invalid_model"}
    assert "no such file" in bench.refusals()[0].message
    bench.do(MeasureRequested(bench.make_waiter(90), "bad"))
    assert bench.refusals()[0].message.startswith("cannot measure 'bad': its configuration is invalid")


def test_a_name_that_cannot_be_shown_is_refused_with_the_reason_of_its_model() -> None:
    bench = make_bench("a")
    reason = "cannot use model name 'x\\x1b'"
    bench.do(Configured(make_config(invalid=(InvalidModel(name="x\\x1b", reason=reason),))))
    waiter = bench.lease("x\x1b")
    assert bench.refused() == {waiter: "invalid_model"}
    assert reason in bench.refusals()[0].message


def test_a_running_model_whose_new_settings_are_invalid_goes_on() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.do(Configured(make_config(invalid=(InvalidModel(name="a", reason="typo"),))))
    waiter = bench.lease("a")
    assert bench.granted() == [waiter]
    bench.idle("a")
    bench.ended("a")
    assert bench.state("a") == "unloaded"


def test_a_failure_of_other_settings_is_forgotten() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ended("a", CRASH)
    bench.do(Configured(make_config(make_settings("a", mmap=False))))
    assert bench.state("a") == "unloaded"
    bench.lease("a")
    assert bench.refused() == {}


def test_more_room_in_a_new_configuration_lets_the_queue_go_on() -> None:
    bench = Bench(make_settings("a"), make_settings("b"), host_budget_bytes=100)
    for name in "ab":
        bench.measure(name, host=60)
    bench.lease("a")
    bench.ready("a")
    bench.lease("b", 2)
    bench.do(Configured(make_config(make_settings("a"), make_settings("b"), host_budget_bytes=200)))
    assert bench.started() == ["b"]


def test_changed_settings_wait_for_the_next_load_and_status_says_so() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    changed = make_settings("a", ctx=8192, fit_margin_bytes=5, pin=True, aliases=("b",), tags=("t",), seed=1)
    bench.do(Configured(make_config(changed)))
    status = bench.status("a")
    assert status.tags == ("t",)
    assert (status.waiting_settings, status.ctx, status.pinned, status.aliases) == (
        ("ctx", "fit_margin", "seed"),
        4096,
        True,
        ("b",),
    )
    bench.unload("a", now=True)
    bench.ended("a")
    assert (bench.status("a").waiting_settings, bench.status("a").ctx) == ((), 8192)


# --- measuring ---


def test_every_model_is_measured_one_after_the_other() -> None:
    bench = Bench(*(make_settings(name) for name in "abc"))
    order = []
    for _ in range(3):
        (current,) = [s.settings.name for s in bench.list_all(StartMeasure)][-1:]
        order.append(current)
        assert bench.status(current).memory.status is MemoryStatus.MEASURING
        bench.measure(current, host=1)
        assert bench.status(current).memory.status is MemoryStatus.MEASURED
    assert order == ["a", "b", "c"]
    assert bench.measured() == []


def test_a_failed_measurement_loads_without_checks_and_is_repeated_once_after_that() -> None:
    bench = Bench(make_settings("a"), host_budget_bytes=10)
    waiter = bench.lease("a")
    bench.fail_measure("a", "took too long and was killed")
    assert bench.status("a").memory.status is MemoryStatus.FAILED
    assert bench.started() == ["a"]
    assert bench.records("load decided", "a")[0].level == "warning"
    bench.ready("a", host=90)
    assert bench.granted() == [waiter]
    assert bench.measured() == ["a"]
    bench.fail_measure("a")
    assert bench.measured() == []
    bench.idle("a")
    bench.ended("a")
    bench.lease("a")
    bench.ready("a")
    assert bench.measured() == []


def test_a_failed_measurement_is_not_repeated_before_a_load() -> None:
    bench = Bench(make_settings("a"))
    bench.fail_measure("a")
    assert bench.measured() == []
    bench.lease("a")
    assert bench.measured() == []
    bench.ended("a", CRASH)
    assert bench.measured() == []


def test_a_measure_child_that_was_not_let_run_is_no_attempt_and_the_next_load_tries_again() -> None:
    bench = Bench(make_settings("a"), make_settings("b"))
    bench.do(MeasureEnded("a", "cannot start its unit: the slice is being stopped", untried=True))
    assert bench.status("a").memory == ModelMemory(error="cannot start its unit: the slice is being stopped")
    assert bench.measured() == ["b"]
    bench.measure("b", host=1)
    assert bench.measured() == []
    bench.lease("a")
    assert bench.measured() == ["a"]
    assert bench.started() == []
    bench.do(MeasureEnded("a", "cannot start its unit", untried=True))
    assert bench.started() == ["a"]
    bench.ready("a", host=1)
    assert bench.measured() == ["a"]
    bench.measure("a", host=1)
    assert bench.status("a").memory.error == ""


def test_a_measurement_by_command_is_answered_with_its_figures_or_its_failure() -> None:
    bench = make_bench("a")
    waiter = (90, 1)
    bench.do(MeasureRequested(waiter, "a"))
    assert bench.measured() == ["a"]
    bench.do(MeasureReported("a", make_breakdown(host=77), make_breakdown(host=77)))
    assert bench.completed() == [waiter]
    bench.do(MeasureEnded("a"))
    bench.do(MeasureRequested((90, 2), "a"))
    bench.fail_measure("a", "killed")
    assert bench.refused() == {(90, 2): "measure_failed"}
    assert "killed" in bench.refusals()[0].message
    assert bench.status("a").memory.min is not None


def test_a_measurement_by_command_joins_the_one_that_runs() -> None:
    bench = Bench(make_settings("a"))
    bench.do(MeasureRequested((90, 1), "a"))
    assert bench.measured() == []
    bench.do(MeasureReported("a", make_breakdown(host=1), make_breakdown(host=1)))
    assert bench.completed() == [(90, 1)]
    bench.do(MeasureEnded("a"))
    assert bench.measured() == []


def test_a_measurement_by_command_does_not_keep_a_load_waiting() -> None:
    bench = make_bench("a")
    bench.do(MeasureRequested((90, 1), "a"))
    bench.lease("a")
    assert bench.started() == ["a"]


def test_who_no_longer_waits_for_a_measurement_gets_no_answer() -> None:
    bench = make_bench("a")
    bench.do(MeasureRequested((90, 1), "a"))
    bench.do(WaiterGone((90, 1)))
    bench.do(MeasureReported("a", make_breakdown(host=1), make_breakdown(host=1)))
    assert bench.completed() == []


def test_cached_figures_spare_the_child_and_do_not_calibrate() -> None:
    bench = Bench(*(make_settings(name) for name in "abc"), margin_bytes=0)
    cached = make_breakdown(total=100, free=20, G0=10)
    for name in "abc":
        bench.do(MeasureReported(name, cached, cached, cached=True))
    assert bench.records("model measured")[0].fields["cached"] is True
    bench.do(MeasureEnded("a", "killed"))
    assert bench.measured() == []
    device = bench.scheduler.list_devices()[0]
    assert (device.total, device.external) == (100, 0)
    assert bench.status("a").memory.status is MemoryStatus.MEASURED


def test_a_measure_child_tells_what_other_programs_use() -> None:
    bench = Bench(make_settings("a"), make_settings("b"), margin_bytes=10)
    bench.measure("a", total=100, free=70, G0=20)
    bench.lease("a")
    bench.ready("a", total=100, free=50, G0=20)
    bench.measure("b", total=100, free=35, G0=20)
    device = bench.scheduler.list_devices()[0]
    assert (device.external, device.held, device.available, device.margin) == (45, 20, 35, 10)


def test_a_report_while_another_instance_loads_only_raises_what_others_use() -> None:
    bench = Bench(*(make_settings(name) for name in "abc"), margin_bytes=0)
    bench.measure("a", total=100, free=80, G0=10)
    bench.measure("b", total=100, free=80, G0=10)
    bench.lease("a")
    bench.measure("c", total=100, free=95, G0=10)
    assert bench.scheduler.list_devices()[0].external == 20


def test_an_instances_report_while_another_loads_only_raises_what_others_use() -> None:
    bench = Bench(make_settings("a"), make_settings("b"), margin_bytes=0)
    bench.measure("a", total=100, free=80, G0=10)
    bench.measure("b", total=100, free=80, G0=10)
    bench.lease("a")
    bench.lease("b")
    bench.ready("a", total=100, free=85, G0=10)
    assert bench.scheduler.list_devices()[0].external == 20
    bench.ready("b", total=100, free=75, G0=10)
    assert bench.scheduler.list_devices()[0].external == 5


def test_a_report_that_is_repeated_after_a_new_connection_does_not_calibrate_again() -> None:
    bench = Bench(make_settings("a"), make_settings("b"), margin_bytes=0)
    bench.measure("a", total=100, free=80, G0=30)
    bench.measure("b", total=100, free=80, G0=40)
    bench.lease("a")
    bench.ready("a", total=100, free=50, G0=30)
    bench.lease("b")
    bench.ready("b", total=100, free=10, G0=40)
    bench.ready("a", total=100, free=50, G0=30)
    assert bench.scheduler.list_devices()[0].external == 20


def test_a_model_whose_measurement_comes_while_it_loads_blind_is_charged_then() -> None:
    bench = Bench(make_settings("a"), make_settings("b"), host_budget_bytes=100)
    bench.lease("a")
    bench.fail_measure("a")
    bench.do(MeasureRequested((90, 1), "a"))
    bench.measure("b", host=10)
    bench.lease("b", 2)
    assert bench.started() == []
    bench.measure("a", host=30)
    assert {d.name: d.holders for d in bench.scheduler.list_devices()}["Host"] == {"a": 30, "b": 10}


def test_lists_show_a_queued_model_as_loading_with_its_stage() -> None:
    bench = Bench(make_settings("a"))
    bench.lease("a")
    assert (bench.status("a").state, bench.status("a").stage) == ("loading", Stage.MEASURING)
    bench.measure("a", host=1)
    assert bench.status("a").stage is Stage.STARTING
    bench.report("a", ChildState.LOADING, stage="model", progress=0.5)
    assert (bench.status("a").stage, bench.status("a").progress) == (Stage.LOADING, 0.5)
    bench.ready("a")
    assert (bench.status("a").state, bench.status("a").stage) == ("ready", None)


# --- what may have been the cause of a failed measurement has changed ---


def test_failed_measurement_is_made_again_when_the_unit_has_changed() -> None:
    bench = Bench(make_settings("a", extra={"SupplementaryGroups": "nosuchgroup"}), host_budget_bytes=100)
    bench.fail_measure("a", "exit-code 216")
    bench.do(Configured(make_config(make_settings("a"), host_budget_bytes=100)))
    assert bench.measured() == ["a"]
    bench.lease("a")
    assert bench.started() == [], "it waits for its figures"
    bench.measure("a", host=60)
    assert bench.records("load decided", "a")[0].fields["needs_bytes"] == 60


def test_failed_measurement_is_made_again_with_another_time_out() -> None:
    bench = Bench(make_settings("a"), measure_timeout_s=1.0)
    bench.fail_measure("a", "took too long and was killed")
    bench.do(Configured(make_config(make_settings("a"), measure_timeout_s=60.0)))
    assert bench.measured() == ["a"]


def test_measurement_that_runs_in_a_unit_that_has_changed_is_made_again() -> None:
    bench = Bench(make_settings("a", extra={"SupplementaryGroups": "nosuchgroup"}))
    bench.do(Configured(make_config(make_settings("a"))))
    assert [effect.model for effect in bench.list_last(StopMeasure)] == ["a"]
    bench.do(MeasureEnded("a", "exit-code 216"))
    assert bench.measured() == ["a"]


def test_failed_measurement_stands_where_only_decisions_have_changed() -> None:
    bench = Bench(make_settings("a"))
    bench.fail_measure("a")
    bench.do(Configured(make_config(make_settings("a", pin=True, aliases=("x",)))))
    assert bench.measured() == []


def test_figures_stay_when_only_the_unit_has_changed() -> None:
    bench = make_bench("a")
    bench.do(Configured(make_config(make_settings("a", extra={"MemoryMax": "8G"}))))
    assert bench.measured() == []
    assert bench.status("a").memory.min is not None


def test_unknown_name_is_refused_with_the_file_that_cannot_be_read() -> None:
    bench = make_bench("a")
    bench.do(Configured(msgspec.structs.replace(make_config(make_settings("a")), unread=("/etc/x.toml",))))
    waiter = bench.lease("b")
    assert bench.refused() == {waiter: "invalid_config"}
    assert "/etc/x.toml, which cannot be read" in bench.refusals()[0].message
    bench.do(Configured(make_config(make_settings("a"))))
    waiter = bench.lease("b")
    assert bench.refused() == {waiter: "unknown_model"}


def test_unknown_name_hints_at_one_that_is_spelt_with_other_capitals() -> None:
    bench = make_bench("smollm2")
    bench.lease("SMOLLM2")
    assert bench.refusals()[0].hint == "did you mean 'smollm2'?"
    assert bench.scheduler.hint_unknown("xyz") == "`llamactl list` shows all models"


def test_who_asks_for_a_measurement_is_told_that_it_is_made() -> None:
    bench = make_bench("a")
    bench.do(MeasureRequested((90, 1), "a"))
    assert bench.list_told(Progress) == [tell_progress((90, 1), Stage.MEASURING)]


def test_nothing_of_the_former_configuration_is_shown_of_an_invalid_model() -> None:
    bench = make_bench("a")
    bench.do(MeasureReported("a", make_breakdown(host=1), make_breakdown(host=1), Facts(n_ctx=4096), cached=True))
    bench.bring_up("a")
    bench.report("a", ChildState.READY, facts=Facts(n_ctx=4096))
    bench.take_down("a")
    assert bench.status("a").facts is not None
    bench.do(Configured(make_config(invalid=(InvalidModel(name="a", reason="typo"),))))
    status = bench.status("a")
    assert (status.facts, status.ctx, status.memory.min) == (None, 0, None)
