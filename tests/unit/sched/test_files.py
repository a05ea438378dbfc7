"""Does a load count on figures of files that are not there any more? And does an instance take what was measured?"""

import pytest

from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import LoadFailure, MemoryStatus, Note
from llamactl.sched.effects import LookAtFiles, StartInstance, StopMeasure
from llamactl.sched.events import (
    Configured,
    FilesSeen,
    InstanceReported,
    MeasureEnded,
    MeasureReported,
    MeasureRequested,
)
from tests.unit.sched.bench import Bench, make_breakdown, make_config, make_settings

OOM = LoadFailure(result="oom-kill", exit_code=9, message="")


class FileBench(Bench):
    """Models whose files are known by what `look` says."""

    def look(self, name: str, files: str, measuring: bool = False) -> None:
        self.do(FilesSeen(name, files, self.now, measuring))

    def looked_at(self) -> list[str]:
        return [effect.settings.name for effect in self.list_last(LookAtFiles)]

    def measure_file(self, name: str, files: str, host: int) -> None:
        self.look(name, files, measuring=True)
        self.last = self.measure(name, host=host)


def make_bench(*names: str, **settings: object) -> FileBench:
    """Models of 20 bytes each under a host budget of 100, all measured with the file `old`."""
    bench = FileBench(*(make_settings(name) for name in names), **{"host_budget_bytes": 100, **settings})
    for name in names:
        bench.measure_file(name, "old", 20)
    bench.now += 60
    return bench


# --- files ---


def test_files_are_looked_at_before_each_load_and_the_same_ones_are_loaded_at_once() -> None:
    bench = make_bench("a")
    for _ in range(2):
        bench.now += 0.1
        bench.load("a")
        assert (bench.looked_at(), bench.started()) == (["a"], [])
        bench.look("a", "old")
        assert bench.started() == ["a"]
        bench.ready("a", host=20)
        bench.unload("a", now=True)
        bench.ended("a")
    assert bench.records("model files replaced") == []


def test_a_replaced_file_is_measured_anew_before_it_is_loaded() -> None:
    bench = make_bench("a")
    waiter = bench.load("a")
    bench.look("a", "new")
    assert (bench.started(), bench.measured()) == ([], ["a"])
    assert bench.status("a").memory.min is None, "the old figure is still shown"
    bench.measure_file("a", "new", 60)
    assert bench.started() == ["a"]
    bench.ready("a", host=60)
    assert bench.completed() == [waiter]
    assert len(bench.records("model files replaced", "a")) == 1


def test_strict_refuses_a_file_that_was_replaced_by_one_too_large() -> None:
    bench = make_bench("a", strict=True)
    waiter = bench.load("a")
    bench.look("a", "new")
    bench.measure_file("a", "new", 150)
    assert bench.refused() == {waiter: "does_not_fit"}
    (refusal,) = bench.refusals()
    assert "needs 150 B on Host" in refusal.message


def test_room_is_made_for_what_the_new_file_needs() -> None:
    bench = make_bench("a", "b")
    bench.lease("b")
    bench.look("b", "old")
    bench.ready("b", host=20)
    bench.idle("b", after_s=1)
    bench.lease("a", front=2)
    assert bench.recalled() == []
    bench.look("a", "new")
    bench.measure_file("a", "new", 90)
    assert bench.recalled() == [(1, "b")]


def test_a_look_from_before_the_request_does_not_count() -> None:
    bench = make_bench("a")
    bench.look("a", "old")
    bench.now += 0.1
    bench.load("a")
    assert (bench.looked_at(), bench.started()) == (["a"], [])


def test_a_load_that_waited_looks_again_before_it_starts() -> None:
    bench = make_bench("a", "b", max_loaded=1)
    bench.lease("b")
    bench.look("b", "old")
    bench.ready("b", host=20)
    bench.lease("a", front=2)
    bench.look("a", "old")
    bench.idle("b", after_s=30)
    assert bench.looked_at() == ["a"]
    bench.look("a", "new")
    assert bench.measured() == ["a"]


def test_files_that_cannot_be_looked_at_leave_what_is_known() -> None:
    bench = make_bench("a")
    bench.load("a")
    bench.look("a", "")
    assert bench.started() == ["a"]
    bench.ended("a", OOM)
    bench.look("a", "new")
    assert bench.measured() == ["a"], "what was known before is compared with what is seen later"


def test_who_is_behind_the_head_is_looked_at_too() -> None:
    bench = FileBench(*(make_settings(name, n_gpu_layers=99) for name in "ade"), margin_bytes=0)
    for name, sizes in (("a", {"G0": 60}), ("d", {"G0": 70}), ("e", {"host": 20})):
        bench.look(name, "old", measuring=True)
        bench.measure(name, total=100, free=100, **sizes)
    bench.now += 2
    for name in ("a", "d"):
        bench.lease(name)
        bench.look(name, "old")
        if name == "a":
            bench.ready(name, G0=60, total=100, free=40)
    bench.lease("e")
    assert (bench.looked_at(), bench.started()) == (["e"], [])
    bench.look("e", "old")
    assert bench.started() == ["e"], "it takes nothing of what the head needs"


def test_figures_that_are_being_made_of_a_replaced_file_are_not_used() -> None:
    bench = FileBench(make_settings("a"), host_budget_bytes=100)
    bench.look("a", "old", measuring=True)
    bench.look("a", "new")
    assert [effect.model for effect in bench.list_last(StopMeasure)] == ["a"]
    bench.do(MeasureReported("a", make_breakdown(host=20), make_breakdown(host=20)))
    bench.do(MeasureEnded("a", "stopped"))
    assert bench.measured() == ["a"]
    assert bench.status("a").memory.min is None


def test_a_measurement_by_command_notices_a_replaced_file() -> None:
    bench = make_bench("a")
    bench.do(MeasureRequested((5, 5), "a"))
    bench.look("a", "new", measuring=True)
    assert (bench.status("a").memory.status, bench.status("a").memory.min) == (MemoryStatus.MEASURING, None)
    bench.measure("a", host=60)
    assert len(bench.records("model files replaced", "a")) == 1


def test_a_failed_load_of_the_old_file_says_nothing_of_the_new_one() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.look("a", "old")
    bench.ended("a", LoadFailure(result="exit-code", exit_code=1, message="bad magic"))
    assert bench.state("a") == "failed"
    bench.look("a", "new")
    assert bench.state("a") == "unloaded"
    bench.lease("a")
    assert bench.refused() == {}


def test_a_failed_measurement_is_made_again_for_a_new_file() -> None:
    bench = FileBench(make_settings("a"))
    bench.look("a", "bad", measuring=True)
    bench.fail_measure("a")
    bench.load("a")
    bench.look("a", "good")
    assert (bench.started(), bench.measured()) == ([], ["a"])


def test_files_that_never_stop_changing_do_not_keep_a_load_waiting_for_ever() -> None:
    bench = make_bench("a")
    bench.load("a")
    for version in range(5):
        if bench.list_all(StartInstance):
            break
        bench.look("a", f"v{version}")
        bench.look("a", f"v{version}", measuring=True)
        bench.now += 3  # while its child runs
        bench.measure("a", host=20)
    assert [effect.settings.name for effect in bench.list_all(StartInstance)] == ["a"]
    assert len(bench.records("model files replaced")) == 2


def test_a_new_supervisor_does_not_wake_an_instance_whose_files_were_replaced() -> None:
    bench = FileBench(make_settings("a"), start=False, host_budget_bytes=100)
    bench.found("a")
    bench.recover()
    bench.report("a", ChildState.SLEEPING, effective=make_breakdown(), note=Note(files="old", ready_since_s=1))
    bench.lease("a")
    bench.look("a", "new", measuring=True)
    assert bench.ordered() == ["a"]


def test_an_instance_of_replaced_files_goes_on_and_its_status_says_so() -> None:
    bench = make_bench("a")
    bench.lease("a")
    bench.look("a", "old")
    bench.ready("a", host=20)
    bench.look("a", "new")
    assert bench.state("a") == "ready"
    assert bench.status("a").waiting_settings == ("files",)
    bench.measure_file("a", "new", 70)
    assert bench.records("measurement not reached") == [], "it was measured of another file"


def test_a_sleeping_instance_of_replaced_files_is_loaded_anew_instead_of_woken() -> None:
    for noticed_before in (False, True):
        bench = make_bench("a")
        bench.lease("a")
        bench.look("a", "old")
        bench.ready("a", host=20)
        bench.idle("a", after_s=1)
        bench.report("a", ChildState.SLEEPING, effective=make_breakdown(host=0))
        if noticed_before:
            bench.look("a", "new")
        bench.lease("a")
        if not noticed_before:
            bench.look("a", "new")
        assert bench.ordered() == ["a"], "it would load another file by figures of the old one"


def test_a_new_supervisor_knows_from_which_files_an_instance_was_loaded() -> None:
    bench = FileBench(make_settings("a"), start=False, host_budget_bytes=100)
    bench.found("a")
    bench.recover()
    effective = make_breakdown(host=20)
    bench.do(
        InstanceReported(
            "a", bench.generations["a"], ChildState.READY, effective=effective, note=Note(files="old", ready_since_s=1)
        )
    )
    bench.look("a", "new", measuring=True)
    assert bench.status("a").waiting_settings == ("files",)


def test_another_path_is_a_change_of_settings_and_no_replaced_file() -> None:
    bench = make_bench("a")
    bench.do(Configured(make_config(make_settings("a", path="/models/other.gguf"), host_budget_bytes=100)))
    bench.look("a", "other", measuring=True)
    assert bench.records("model files replaced") == []


# --- what was taken ---


def bring_up(bench: Bench, name: str = "a", **breakdown: int) -> None:
    bench.load(name)
    bench.ready(name, **breakdown)
    bench.unload(name, now=True)
    bench.ended(name)


def make_measured(n_ctx: tuple[int, int] = (4096, 4096), sizes: tuple[int, int] = (1000, 1000)) -> Bench:
    bench = Bench(make_settings("a", ctx=0 if n_ctx[0] != n_ctx[1] else n_ctx[0]), host_budget_bytes=10_000)
    low, high = (make_breakdown(host=size, n_ctx=n, weights=500) for size, n in zip(sizes, n_ctx, strict=True))
    bench.do(MeasureReported("a", low, high))
    bench.do(MeasureEnded("a"))
    return bench


def read_needs(bench: Bench) -> int:
    plan = bench.scheduler.explain_load("a", bench.now)
    assert plan is not None
    (device,) = plan.devices
    return device.needs


def test_an_instance_that_takes_more_than_measured_is_decided_by_that_from_then_on() -> None:
    bench = make_measured()
    bring_up(bench, host=1100, weights=500)
    (record,) = bench.records("measurement exceeded", "a")
    assert record.level == "warning"
    assert (record.fields["measured_host_bytes"], record.fields["effective_host_bytes"]) == (1000, 1100)
    assert read_needs(bench) == 1100
    bench.do(Configured(make_config(make_settings("a", ctx=8192), host_budget_bytes=10_000)))
    bench.measure("a", host=2000, n_ctx=8192)
    assert read_needs(bench) == 2000, "the settings are others now"


def test_what_was_taken_of_the_old_file_is_forgotten_with_it() -> None:
    bench = make_bench("a")
    bench.load("a")
    bench.look("a", "old")
    bench.ready("a", host=40)
    assert len(bench.records("measurement exceeded", "a")) == 1
    bench.look("a", "new")
    bench.measure_file("a", "new", 25)
    bench.unload("a", now=True)
    bench.ended("a")
    assert read_needs(bench) == 25


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        (1000, []),
        (1019, []),
        (1021, ["measurement exceeded"]),
        (981, []),
        (979, ["measurement not reached"]),
    ],
)
def test_a_difference_of_more_than_two_percent_is_said(taken: int, said: list[str]) -> None:
    bench = make_measured()
    bring_up(bench, host=taken, weights=500)
    assert [r.event for r in bench.records("measurement exceeded") + bench.records("measurement not reached")] == said
    assert read_needs(bench) == max(1000, taken), "what was taken counts, however little more it is"


def test_a_fitted_context_is_compared_with_what_was_measured_for_as_much() -> None:
    bench = make_measured(n_ctx=(4000, 8000), sizes=(1000, 2000))
    bring_up(bench, host=1500, n_ctx=6000, weights=500)
    assert read_needs(bench) == 1000, "a larger context is no reason to ask for more"
    assert not bench.records("measurement exceeded")
    bring_up(bench, host=1700, n_ctx=6000, weights=500)
    assert read_needs(bench) == 1200
    (record,) = bench.records("measurement exceeded")
    assert (record.fields["measured_host_bytes"], record.fields["effective_host_bytes"]) == (1500, 1700)


def test_weights_that_fitting_moved_to_the_host_are_not_taken_for_a_difference() -> None:
    bench = Bench(make_settings("a", ctx=4096, n_gpu_layers=-1), host_budget_bytes=10_000)
    size = make_breakdown(host=100, G0=1000, total=5000, free=5000)
    bench.do(MeasureReported("a", size, size))
    bench.do(MeasureEnded("a"))
    bench.load("a")
    bench.ready("a", host=600, weights=500, G0=500, total=5000, free=4500)
    assert not bench.records("measurement exceeded")
    bench.unload("a", now=True)
    bench.ended("a")
    plan = bench.scheduler.explain_load("a", bench.now)
    assert plan is not None
    assert {device.name: device.needs for device in plan.devices} == {"G0": 1000, "Host": 100}


def test_figures_that_come_after_the_load_are_compared_then() -> None:
    bench = Bench(make_settings("a"), host_budget_bytes=10_000)
    bench.fail_measure("a")
    bench.load("a")
    bench.ready("a", host=1100, weights=500)
    bench.measure("a", host=1000, weights=500)
    assert len(bench.records("measurement exceeded", "a")) == 1
