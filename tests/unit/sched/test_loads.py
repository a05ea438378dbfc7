"""Requests, grants, room and the queue: one example for each rule, from the first request to the last."""

from llamactl.protocol.control_socket import LeaseGone, Progress, RecallCancelled
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import LoadFailure, Stage
from llamactl.sched.effects import Record, SendNote, StartInstance
from llamactl.sched.events import Configured, ConnectionGone, LeaseBusy, UnloadRequested, WaiterGone
from tests.unit.sched.bench import Bench, make_config, make_settings, tell_progress


def make_bench(*names: str, size: int = 60, budget: int = 100, **settings: object) -> Bench:
    """Models of one size under a host budget, all measured."""
    bench = Bench(*(make_settings(name) for name in names), host_budget_bytes=budget, **settings)
    for name in names:
        bench.measure(name, host=size)
    return bench


LACK = "it needs 60 B on Host, 40 B free"

# --- a request ---


def test_an_unknown_model_is_refused_with_similar_names() -> None:
    bench = make_bench("qwen3-8b", "gemma")
    waiter = bench.lease("qwen3-8")
    assert bench.refused() == {waiter: "unknown_model"}
    (refusal,) = bench.refusals()
    assert refusal.message == "cannot find model 'qwen3-8'"
    assert refusal.hint == "did you mean 'qwen3-8b'?"


def test_a_first_request_starts_its_model_and_is_granted_when_it_is_ready() -> None:
    bench = make_bench("a")
    waiter = bench.lease("a")
    assert bench.started() == ["a"]
    assert bench.state("a") == "loading"
    bench.report("a", ChildState.LOADING, stage="model", progress=0.45)
    assert bench.list_told(Progress) == [tell_progress(waiter, Stage.LOADING, 0.45)]
    bench.ready("a", host=55)
    assert bench.granted() == [waiter]
    assert bench.status("a").busy == 1


def test_who_waits_hears_whether_the_others_are_busy_or_go() -> None:
    bench = make_bench("a", "b")
    bench.lease("a")
    bench.ready("a", host=60)
    waiter = bench.load("b")
    assert bench.list_told(Progress)[-1] == tell_progress(waiter, Stage.WAITING, None, ("a",), busy=("a",), why=LACK)
    bench.idle("a")
    assert bench.list_told(Progress) == [tell_progress(waiter, Stage.WAITING, None, ("a",), going=("a",), why=LACK)]


def test_requests_for_a_ready_model_are_granted_at_once() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    waiter = bench.lease("a", front=2)
    assert bench.granted() == [waiter]


def test_an_alias_is_the_model() -> None:
    bench = Bench(make_settings("a", aliases=("chat",)))
    bench.measure("a", host=1)
    waiter = bench.lease("chat")
    bench.ready("a")
    assert bench.granted() == [waiter]
    assert bench.list_last(type(bench.last[-1]))[-1].model == "a"  # type: ignore[attr-defined]
    assert bench.status("chat").name == "a"


def test_all_requests_for_a_model_share_one_load() -> None:
    bench = make_bench("a")
    waiters = [bench.lease("a", front) for front in (1, 1, 2)]
    assert len(bench.list_all(StartInstance)) == 1
    bench.ready("a")
    assert bench.granted() == waiters
    assert bench.status("a").busy == 2


def test_states_that_pass_within_one_decision_are_all_known() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    bench.unload("a", now=True)
    bench.lease("a", 2)
    bench.ended("a", LoadFailure(result="signal", exit_code=9, message="killed"))
    assert bench.scheduler.pop_passed() == {"a": ("loading", "ready", "stopping", "unloaded", "loading")}
    assert bench.status("a").exit_code == 9
    assert bench.scheduler.pop_passed() == {}


def test_without_autoload_only_what_runs_or_loads_is_given() -> None:
    bench = make_bench("a")
    waiter = bench.lease("a", autoload=False)
    assert bench.refused() == {waiter: "not_loaded"}
    bench.lease("a")
    waiter = bench.lease("a", autoload=False)
    bench.ready("a")
    assert waiter in bench.granted()


def test_a_load_by_command_is_done_when_the_model_is_ready_and_at_once_if_it_is() -> None:
    bench = make_bench("a")
    waiter = bench.load("a")
    bench.ready("a", after_s=2.0)
    assert bench.completed() == [waiter]
    again = bench.load("a")
    assert bench.completed() == [again]


def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    bench = make_bench("a", max_queue=2)
    bench.lease("a")
    bench.lease("a")
    waiter = bench.lease("a")
    assert bench.refused() == {waiter: "queue_full"}
    assert bench.refusals()[0].details["retry_after_s"] > 0


# --- memory ---


def test_a_load_waits_for_its_models_measurement_and_moves_it_to_the_front() -> None:
    bench = Bench(make_settings("a"), make_settings("b"), make_settings("c"), host_budget_bytes=100)
    assert bench.measured() == ["a"]
    waiter = bench.lease("c")
    assert tell_progress(waiter, Stage.MEASURING) in bench.last
    assert bench.started() == []
    bench.measure("a", host=1)
    assert bench.measured() == ["c"]
    effects = bench.measure("c", host=1)
    assert [e.settings.name for e in effects if isinstance(e, StartInstance)] == ["c"]


def test_an_instance_is_charged_its_minimum_then_what_it_took_then_nothing() -> None:
    bench = make_bench("a")
    bench.lease("a")
    assert bench.scheduler.list_devices()[0].holders == {"a": 60}
    bench.ready("a", host=75)
    assert bench.scheduler.list_devices()[0].holders == {"a": 75}
    bench.ended("a")
    assert bench.scheduler.list_devices()[0].holders == {}


def test_the_least_recently_used_idle_model_makes_room() -> None:
    bench = make_bench("a", "b", "c", size=40)
    bench.bring_up("a")
    bench.bring_up("b", after_s=5)
    waiter = bench.lease("c")
    assert bench.recalled() == [(1, "a")]
    bench.returned("a")
    assert bench.ordered() == ["a"]
    bench.stopping("a")
    assert bench.stopped() == ["a"]
    assert bench.state("a") == "stopping"
    assert bench.started() == []
    bench.ended("a")
    assert bench.started() == ["c"]
    bench.ready("c")
    assert bench.granted() == [waiter]
    assert bench.state("b") == "ready"


def test_the_journal_tells_the_story_of_an_eviction() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    bench.lease("b", front=2)
    bench.take_down("a")
    bench.ready("b", host=59, after_s=1.5)
    story = [(r.event, r.model) for r in bench.list_all(Record) if r.event != "load planned"]
    assert story[-8:] == [
        ("instance spawned", "a"),
        ("instance ready", "a"),
        ("victim chosen", "a"),
        ("load waits", "b"),
        ("model unloaded", "a"),
        ("load decided", "b"),
        ("instance spawned", "b"),
        ("instance ready", "b"),
    ]
    (victim,) = bench.records("victim chosen")
    assert victim.fields["for_model"] == "b"
    assert victim.fields["frees_bytes"] == 60
    assert victim.fields["device"] == "Host"
    assert "least recently used" in victim.fields["why"]
    (waits,) = bench.records("load waits")
    assert waits.fields["why"] == "it needs 60 B on Host, 40 B free"
    (unloaded,) = bench.records("model unloaded")
    assert (unloaded.fields["reason"], unloaded.fields["for_model"]) == ("evicted", "b")
    decided = bench.records("load decided", "b")[0]
    assert (decided.fields["needs_bytes"], decided.fields["available_bytes"]) == (60, 100)
    ready = bench.records("instance ready", "b")[0]
    assert (ready.fields["effective_bytes"], ready.fields["load_s"]) == (59, 1.5)


def test_a_busy_model_is_not_asked_and_the_request_waits_until_it_is_idle() -> None:
    bench = make_bench("a", "b")
    bench.lease("a")
    bench.ready("a")
    waiter = bench.lease("b", front=2)
    assert bench.recalled() == []
    assert tell_progress(waiter, Stage.WAITING, None, ("a",), busy=("a",), why=LACK) in bench.last
    assert bench.status("b").waiting_for == ("a",)
    bench.idle("a")
    assert bench.recalled() == [(1, "a")]


def test_a_model_between_its_load_and_its_first_request_is_busy() -> None:
    bench = make_bench("a", "b")
    first = bench.lease("a")
    second = bench.lease("b", front=2)
    bench.ready("a")
    assert bench.granted() == [first]
    assert bench.recalled() == []
    assert second not in bench.granted()


def test_one_busy_holder_calls_the_recall_off_for_all() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a", front=1)
    bench.lease("a", front=2)
    bench.idle("a", front=2)
    bench.lease("b", front=3)
    assert bench.recalled() == [(1, "a"), (2, "a")]
    bench.returned("a", front=2, returned=False)
    assert [effect.holder for effect in bench.list_notices(RecallCancelled)] == [1, 2]
    assert bench.ordered() == []
    bench.idle("a", front=2)
    assert bench.recalled() == [(1, "a"), (2, "a")]


def test_when_a_victim_turns_out_busy_the_next_one_is_taken() -> None:
    bench = make_bench("a", "b", "c", size=40)
    bench.bring_up("a")
    bench.bring_up("b", after_s=5)
    bench.lease("c")
    assert bench.recalled() == [(1, "a")]
    bench.do(LeaseBusy(1, "a", bench.generations["a"]))
    assert bench.recalled() == [(1, "b")]


def test_silence_of_five_seconds_counts_as_busy() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    bench.lease("b", front=2)
    assert bench.scheduler.next_deadline() == bench.now + 5
    bench.tick(4.9)
    assert bench.list_notices(RecallCancelled) == []
    bench.tick(0.2)
    assert [effect.holder for effect in bench.list_notices(RecallCancelled)] == [1]


def test_an_instance_that_refuses_to_stop_stays_and_is_asked_again_later() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    bench.lease("b", front=2)
    bench.returned("a")
    bench.stopping("a", False)
    assert bench.stopped() == []
    assert bench.state("a") == "ready"
    deadline = bench.scheduler.next_deadline()
    assert deadline is not None
    bench.tick(deadline - bench.now)
    assert bench.ordered() == ["a"]


def test_requests_for_a_model_that_is_being_recalled_wait_and_go_on_if_it_stays() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    bench.lease("b", front=2)
    waiter = bench.lease("a", front=3)
    assert bench.granted() == []
    bench.returned("a", returned=False)
    assert bench.granted() == [waiter]


def test_requests_for_a_model_that_has_agreed_to_stop_are_served_by_the_next_instance() -> None:
    bench = make_bench("a", "b", size=40)
    bench.bring_up("a")
    unloader = bench.unload("a")
    bench.returned("a")
    waiter = bench.lease("a", front=3)
    bench.stopping("a")
    first = bench.generations["a"]
    bench.ended("a")
    assert bench.completed() == [unloader]
    assert bench.started() == ["a"]
    assert bench.generations["a"] != first
    bench.ready("a")
    assert bench.granted() == [waiter]


def test_an_answer_to_a_recall_that_was_called_off_does_not_return_a_lease_granted_since() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a", front=1)
    bench.lease("b", front=2)
    waiter = bench.lease("a", front=1)
    bench.tick(5.0)
    assert bench.granted() == [waiter]
    bench.returned("a", front=1)
    assert bench.status("a").busy == 1


def test_the_second_answer_to_a_drain_that_was_called_off_does_not_return_a_lease_granted_since() -> None:
    bench = make_bench("a", "b", max_wait_s=60.0)
    bench.bring_up("a", front=1)
    waiter = bench.lease("b", front=2)
    bench.returned("a", front=1, returned=False)
    bench.tick(60.0)
    bench.returned("a", front=1, returned=False)  # the drain's first answer
    bench.do(WaiterGone(waiter))
    assert bench.list_notices(RecallCancelled)
    bench.lease("a", front=1)
    bench.returned("a", front=1)  # the second, which was on its way
    assert bench.status("a").busy == 1
    assert bench.lease("b", front=2)
    bench.tick(60.0)
    bench.returned("a", front=1)  # one of the new lease counts
    assert bench.status("a").busy == 0


def test_a_recall_that_is_not_needed_any_more_is_called_off() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    waiter = bench.lease("b", front=2)
    assert bench.recalled() == [(1, "a")]
    bench.do(WaiterGone(waiter))
    assert [effect.holder for effect in bench.list_notices(RecallCancelled)] == [1]
    assert bench.records("victim spared", "a")
    assert bench.scheduler.queue_names() == ()


def test_nothing_is_stopped_when_stopping_it_would_not_be_enough() -> None:
    bench = Bench(*(make_settings(name) for name in "abc"), host_budget_bytes=100)
    for name, size in (("a", 30), ("b", 60), ("c", 80)):
        bench.measure(name, host=size)
    bench.bring_up("a")
    bench.lease("b", front=2)
    bench.ready("b")
    bench.lease("c", front=3)
    assert bench.recalled() == []
    assert bench.status("c").waiting_for == ("b",)


def test_max_loaded_counts_instances_whatever_they_hold() -> None:
    bench = make_bench("a", "b", size=1, max_loaded=1)
    bench.bring_up("a")
    bench.lease("b")
    assert bench.recalled() == [(1, "a")]
    assert "`max_loaded` is 1" in bench.records("load waits")[0].fields["why"]
    bench.returned("a")
    bench.stopping("a")
    assert bench.started() == []
    bench.ended("a")
    assert bench.started() == ["b"]


def test_a_model_larger_than_everything_evicts_what_helps_and_loads_with_a_warning() -> None:
    bench = Bench(make_settings("a"), make_settings("big"), host_budget_bytes=100)
    bench.measure("a", host=60)
    bench.measure("big", host=150)
    bench.bring_up("a")
    bench.lease("big", front=2)
    bench.take_down("a")
    assert bench.started() == ["big"]
    (warning,) = bench.records("model does not fit")
    (told,) = [progress.warning for progress in bench.progress() if progress.warning]
    assert told.startswith("needs ")
    assert told.endswith("with everything unloaded; it is tried all the same, since `strict` is false")
    assert (warning.level, warning.fields["missing_host_bytes"]) == ("warning", 50)


def test_under_strict_a_model_larger_than_everything_is_refused_and_nothing_stopped() -> None:
    bench = Bench(make_settings("a"), make_settings("big"), host_budget_bytes=100, strict=True)
    bench.measure("a", host=60)
    bench.measure("big", host=150)
    bench.bring_up("a")
    waiter = bench.lease("big", front=2)
    assert bench.refused() == {waiter: "does_not_fit"}
    message = bench.refusals()[0].message
    assert message == "cannot start 'big': needs 150 B on Host, 100 B there with everything unloaded"
    assert bench.recalled() == []


def test_a_pinned_model_is_no_victim_and_is_named_when_only_it_could_go() -> None:
    bench = Bench(make_settings("p", pin=True), make_settings("b"), host_budget_bytes=100)
    bench.measure("p", host=60)
    bench.measure("b", host=60)
    bench.bring_up("p")
    waiter = bench.lease("b", front=2)
    assert bench.refused() == {waiter: "pinned"}
    refusal = bench.refusals()[0]
    assert "'p'" in refusal.message
    assert refusal.details["pinned"] == ["p"]


def test_what_takes_nobody_knows_how_much_loads_alone() -> None:
    bench = Bench(make_settings("a"), make_settings("b"), host_budget_bytes=100)
    bench.lease("a")
    bench.fail_measure("a")
    assert bench.started() == ["a"]
    bench.measure("b", host=10)
    bench.lease("b", front=2)
    assert bench.started() == []
    assert bench.status("b").waiting_for == ("a",)
    bench.ready("a", host=20)
    assert bench.started() == ["b"]


# --- fitting ---


def test_two_loads_that_fit_themselves_on_one_device_do_so_one_after_the_other() -> None:
    bench = Bench(make_settings("a", ctx=0), make_settings("b"), margin_bytes=10)
    bench.measure("a", total=100, free=100, G0=20)
    bench.measure("b", total=100, free=100, G0=20)
    bench.lease("a")
    bench.lease("b", front=2)
    assert bench.started() == []
    assert bench.status("b").waiting_for == ("a",)
    bench.ready("a", total=100, free=40, G0=60)
    assert bench.started() == ["b"]


def test_loads_with_a_pinned_context_and_loads_on_other_devices_go_side_by_side() -> None:
    bench = Bench(make_settings("a"), make_settings("b"), make_settings("c", ctx=0), margin_bytes=10)
    bench.measure("a", total=100, free=100, G0=20)
    bench.measure("b", total=100, free=100, G0=20)
    bench.measure("c", total=100, free=100, G1=20)
    for front, name in enumerate("abc"):
        bench.lease(name, front)
        assert bench.started() == [name]


def test_on_the_host_alone_loads_go_side_by_side_whatever_their_context() -> None:
    bench = Bench(make_settings("a", ctx=0), make_settings("b", ctx=0), host_budget_bytes=100)
    for name in "ab":
        bench.measure(name, host=40)
    bench.lease("a")
    bench.lease("b")
    assert bench.started() == ["b"]


def test_a_childs_margin_contains_what_loading_ones_were_promised() -> None:
    bench = Bench(make_settings("a"), make_settings("b"), margin_bytes=10, margins_bytes={"G1": 5})
    bench.measure("a", total=100, free=100, G0=20)
    bench.measure("b", total=100, free=100, G0=30)
    bench.lease("a")
    assert bench.list_last(StartInstance)[0].margins_bytes == {"": 10, "G1": 5}
    bench.lease("b")
    assert bench.list_last(StartInstance)[0].margins_bytes == {"": 10, "G1": 5, "G0": 30}


# --- the queue ---


def test_a_request_behind_one_that_waits_goes_first_only_if_it_takes_nothing_of_what_that_one_needs() -> None:
    bench = make_bench("a", "head", size=60)
    bench.do(Configured(make_config(*(make_settings(name) for name in ("a", "head", "late")), host_budget_bytes=100)))
    bench.measure("late", host=30)
    bench.lease("a", 1)
    bench.ready("a")
    bench.lease("head", 2)
    assert bench.status("head").waiting_for == ("a",)
    bench.lease("late", 3)
    assert bench.started() == []
    assert bench.scheduler.queue_names() == ("head", "late")
    assert bench.status("late").waiting_for == ("head",)


def test_a_request_that_needs_another_device_overtakes_one_that_waits() -> None:
    bench = Bench(*(make_settings(name) for name in ("a", "head", "other")), margin_bytes=0)
    bench.measure("a", total=100, free=100, G0=60)
    bench.measure("head", total=100, free=100, G0=60)
    bench.measure("other", total=100, free=100, G1=60)
    bench.lease("a", 1)
    bench.ready("a", total=100, free=40, G0=60)
    bench.lease("head", 2)
    bench.lease("other", 3)
    assert bench.started() == ["other"]


def test_what_overtakes_and_fits_itself_leaves_what_the_one_before_it_needs() -> None:
    bench = Bench(make_settings("a"), make_settings("head"), make_settings("other", ctx=0), margin_bytes=5)
    bench.measure("a", total=100, free=100, G0=60)
    bench.measure("head", total=100, free=100, G0=60, G1=30)
    bench.measure("other", total=100, free=100, G1=20)
    bench.lease("a", 1)
    bench.ready("a", total=100, free=40, G0=60)
    bench.lease("head", 2)
    bench.lease("other", 3)
    assert bench.started() == ["other"]
    assert bench.list_last(StartInstance)[0].margins_bytes["G1"] == 35


def test_nobody_overtakes_for_a_place_that_the_one_before_it_may_need() -> None:
    for max_loaded, started in ((2, []), (3, ["other"])):
        bench = Bench(*(make_settings(name) for name in ("a", "head", "other")), margin_bytes=0, max_loaded=max_loaded)
        bench.measure("a", total=100, free=100, G0=60)
        bench.measure("head", total=100, free=100, G0=60)
        bench.measure("other", total=100, free=100, G1=60)
        bench.lease("a", 1)
        bench.ready("a", total=100, free=40, G0=60)
        bench.lease("head", 2)
        bench.lease("other", 3)
        assert bench.started() == started


def test_nobody_overtakes_for_the_last_place() -> None:
    bench = make_bench("a", "head", "other", size=1, max_loaded=1)
    bench.lease("a", 1)
    bench.ready("a")
    bench.lease("head", 2)
    bench.lease("other", 3)
    bench.idle("a", 1)
    bench.take_down("a")
    assert bench.started() == ["head"]


def test_after_max_wait_the_model_that_is_busy_for_longest_is_drained() -> None:
    bench = make_bench("a", "b", "c", size=40, max_wait_s=60.0)
    bench.lease("b", 2)
    bench.ready("b")
    bench.lease("a", 1)
    bench.ready("a", after_s=3)
    waiter = bench.lease("c", 3)
    assert bench.scheduler.next_deadline() == bench.now + 60
    bench.tick(59.0)
    assert bench.recalled() == []
    bench.tick(1.0)
    assert bench.recalled() == [(2, "b")]
    blocked = bench.lease("b", 4)
    bench.returned("b", 2, returned=False)
    assert bench.granted() == []
    assert blocked not in bench.refused()
    bench.tick(30.0)
    assert bench.list_notices(RecallCancelled) == []
    bench.take_down("b", 2)
    assert bench.started() == ["c"]
    bench.ready("c")
    assert waiter in bench.granted()


def test_a_drain_is_called_off_when_the_waiting_request_leaves_or_fits() -> None:
    for leaves in (True, False):
        bench = make_bench("a", "b", "c", size=50, max_wait_s=10.0)
        for front, name in ((1, "a"), (2, "b")):
            bench.lease(name, front)
            bench.ready(name, after_s=1)
        waiter = bench.lease("c", 3)
        bench.tick(10.0)
        assert bench.recalled() == [(1, "a")]
        bench.returned("a", returned=False)
        held_back = bench.lease("a", 5)
        if leaves:
            bench.do(WaiterGone(waiter))
        else:
            bench.ended("b")
            assert bench.started() == ["c"]
        assert [effect.holder for effect in bench.list_notices(RecallCancelled)] == [1]
        assert bench.granted() == [held_back]


def test_a_drain_goes_on_for_the_next_in_the_queue_when_the_first_is_cancelled() -> None:
    bench = make_bench("a", "b", "c", max_wait_s=10.0)
    bench.lease("a", 1)
    bench.ready("a")
    bench.lease("b", 2)
    bench.lease("c", 3)
    bench.tick(10.0)
    assert bench.recalled() == [(1, "a")]
    bench.returned("a", returned=False)
    bench.unload("b")
    assert bench.list_notices(RecallCancelled) == []
    bench.take_down("a")
    assert bench.records("model unloaded", "a")[0].fields["for_model"] == "c"
    assert bench.started() == ["c"]


def test_max_wait_of_zero_waits_for_ever() -> None:
    bench = make_bench("a", "b", max_wait_s=0.0)
    bench.lease("a")
    bench.ready("a")
    bench.lease("b")
    assert bench.scheduler.next_deadline() is None
    bench.tick(100_000.0)
    assert bench.recalled() == []


# --- clients leave ---


def test_a_load_that_nobody_waits_for_any_more_is_cancelled() -> None:
    bench = make_bench("a")
    first, second = bench.lease("a"), bench.lease("a", 2)
    bench.do(WaiterGone(first))
    assert bench.stopped() == []
    bench.do(WaiterGone(second))
    assert bench.stopped() == ["a"]
    bench.ended("a")
    assert bench.state("a") == "unloaded"
    assert bench.records("model unloaded")[0].fields["reason"] == "nobody waits for it any more"


def test_a_load_by_command_goes_on_without_its_client() -> None:
    bench = make_bench("a")
    waiter = bench.load("a")
    bench.do(WaiterGone(waiter))
    assert bench.stopped() == []
    bench.ready("a")
    assert bench.state("a") == "ready"


def test_a_connection_that_ends_returns_its_leases_and_takes_its_requests_along() -> None:
    bench = make_bench("a", "b", "c")
    bench.lease("a", 1)
    bench.ready("a")
    bench.lease("c", 1)
    waiter = bench.lease("b", 2)
    bench.do(ConnectionGone(1))
    assert bench.ordered() == ["a"]
    assert bench.scheduler.queue_names() == ("b",)
    bench.stopping("a")
    bench.ended("a")
    bench.ready("b")
    assert bench.granted() == [waiter]


def test_a_connection_that_ends_during_a_recall_has_answered_it() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    bench.lease("b", 2)
    bench.do(ConnectionGone(1))
    assert bench.ordered() == ["a"]


# --- unload ---


def test_unload_drains_and_is_done_when_the_unit_is_gone() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ready("a")
    waiter = bench.unload("a")
    assert bench.recalled() == [(1, "a")]
    bench.returned("a", returned=False)
    assert bench.ordered() == []
    bench.tick(1000.0)
    assert bench.list_notices(RecallCancelled) == []
    bench.returned("a")
    bench.stopping("a")
    bench.ended("a")
    assert bench.completed() == [waiter]
    assert bench.records("model unloaded")[0].fields["reason"] == "by command"


def test_unload_asks_an_instance_that_refuses_again() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.unload("a")
    bench.returned("a")
    bench.stopping("a", False)
    bench.tick(5.0)
    assert bench.ordered() == ["a"]


def test_unload_now_cuts_and_tells_the_fronts() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ready("a")
    waiter = bench.unload("a", now=True)
    assert bench.stopped() == ["a"]
    assert [effect.holder for effect in bench.list_notices(LeaseGone)] == [1]
    bench.ended("a")
    assert bench.completed() == [waiter]


def test_unload_that_does_not_wait_is_refused_while_the_model_stops() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ready("a")
    first = bench.unload("a", now=True)
    second = bench.make_waiter(92)
    bench.do(UnloadRequested(second, "a", wait=False))
    assert bench.refused() == {second: "not_loaded"}
    third = bench.unload("a")
    bench.ended("a")
    assert bench.completed() == [first, third]


def test_unload_now_hastens_a_drain() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ready("a")
    first = bench.unload("a")
    second = bench.unload("a", now=True)
    assert bench.stopped() == ["a"]
    bench.ended("a")
    assert bench.completed() == [first, second]


def test_unload_of_what_does_not_run_is_refused() -> None:
    bench = make_bench("a")
    waiter = bench.unload("a")
    assert bench.refused() == {waiter: "not_loaded"}
    waiter = bench.unload("nothing")
    assert bench.refused() == {waiter: "unknown_model"}


def test_unload_cancels_a_load_that_runs_or_waits() -> None:
    bench = make_bench("a", "b")
    lease = bench.lease("a")
    queued = bench.lease("b")
    waiter = bench.unload("b")
    assert bench.refused() == {queued: "cancelled"}
    assert bench.completed() == [waiter]
    waiter = bench.unload("a")
    assert bench.refused() == {lease: "cancelled"}
    assert bench.stopped() == ["a"]
    bench.ended("a")
    assert bench.completed() == [waiter]


def test_an_idle_model_is_unloaded_after_its_time() -> None:
    bench = Bench(make_settings("a", idle_timeout_s=30.0), make_settings("b", idle_timeout_s=100.0))
    for name in "ab":
        bench.measure(name, host=1)
    bench.bring_up("a")
    bench.bring_up("b")
    bench.tick(28.0)
    assert bench.recalled() == []
    bench.tick(1.0)
    assert bench.recalled() == [(1, "a")]
    bench.take_down("a")
    assert bench.records("model unloaded", "a")[0].fields["reason"] == "idle timeout"
    bench.tick(70.0)
    assert bench.recalled() == []
    bench.tick(1.0)
    assert bench.recalled() == [(1, "b")]


def test_a_model_in_use_or_pinned_has_no_idle_time_out() -> None:
    bench = Bench(make_settings("a", idle_timeout_s=30.0), make_settings("p", idle_timeout_s=30.0, pin=True))
    for name in "ap":
        bench.measure(name, host=1)
    bench.bring_up("p")
    bench.lease("a")
    bench.ready("a")
    assert bench.scheduler.next_deadline() is None
    bench.tick(1000.0)
    assert bench.recalled() == []


def test_an_instance_is_told_its_last_use_when_it_turns_idle() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.ready("a")
    bench.idle("a", after_s=7.0)
    (note,) = bench.list_last(SendNote)
    assert note.note.last_used_s == bench.now
    bench.lease("a")
    assert bench.list_last(SendNote) == []
