"""What follows when devices come, go, or fill up by others' doing?"""

import pytest

from llamactl.protocol.control_socket import Failure
from llamactl.protocol.report_socket import ChildState
from llamactl.protocol.values import Row, RowKind
from llamactl.sched.effects import ReadDevices, StartMeasure, Tell
from llamactl.sched.events import (
    Configured,
    DevicesRead,
    DevicesReadEnded,
    HostRead,
    MeasureEnded,
    MeasureReported,
    MeasureRequested,
)
from llamactl.sched.readings import CHEAP_REFRESH_S
from tests.unit.sched.bench import Bench, make_breakdown, make_config, make_settings

RPC_A, RPC_B = "RPC0[127.0.0.1:1]", "RPC0[127.0.0.2:1]"


def make_row(name: str = "G0", free: int | None = 100, total: int | None = 100) -> Row:
    return Row(kind=RowKind.DEVICE, name=name, total=total, free=free)


def read(bench: Bench, *rows: Row, after_s: float = 0.0, **more: object) -> None:
    bench.do(DevicesRead(rows, **more), after_s)  # type: ignore[arg-type]


def answer(bench: Bench, *rows: Row, **more: object) -> list[str]:
    """The answer to a ReadDevices, and which models start after it."""
    if rows:
        read(bench, *rows, **more)
    started = bench.started()
    bench.do(DevicesReadEnded("" if rows else "no answer"))
    return started + bench.started()


def make_bench(*names: str, **settings: object) -> Bench:
    """Models that take 30 bytes each on G0, measured just now."""
    bench = Bench(*(make_settings(name) for name in names), margin_bytes=0, **settings)
    for name in names:
        bench.measure(name, total=100, free=100, G0=30)
    return bench


# --- how old a figure may be ---


def test_young_figures_decide_at_once() -> None:
    bench = make_bench("a")
    bench.tick(59.0)
    bench.load("a")
    assert bench.started() == ["a"]
    assert bench.list_all(ReadDevices) == []


def test_old_figures_are_read_anew_before_a_load() -> None:
    bench = make_bench("a")
    bench.tick(61.0)
    bench.load("a")
    assert bench.started() == []
    assert bench.list_last(ReadDevices) == [ReadDevices(("G0",))]
    assert answer(bench, make_row()) == ["a"]


def test_what_others_took_meanwhile_is_seen_before_the_decision() -> None:
    bench = make_bench("a", strict=True)
    bench.tick(61.0)
    waiter = bench.load("a")
    read(bench, make_row(free=20))
    assert bench.started() == []
    bench.do(DevicesReadEnded())
    assert waiter in {told.waiter for told in bench.list_all(Tell) if isinstance(told.message, Failure)}


def test_one_reading_serves_all_loads_that_wait() -> None:
    bench = make_bench("a", "b")
    bench.tick(61.0)
    bench.load("a")
    bench.load("b")
    assert len(bench.list_all(ReadDevices)) == 1
    assert answer(bench, make_row()) == ["a", "b"]


def test_reading_that_fails_is_said_and_nobody_waits_for_another() -> None:
    bench = make_bench("a")
    bench.tick(61.0)
    bench.load("a")
    assert answer(bench) == ["a"]
    assert bench.records("devices not read")


def test_refresh_of_zero_never_reads() -> None:
    bench = make_bench("a", refresh_s=0.0)
    bench.tick(1e6)
    bench.load("a")
    assert bench.started() == ["a"]


def test_what_is_cheap_to_read_is_read_before_each_decision() -> None:
    bench = make_bench("a", "b")
    read(bench, make_row(free=90, total=None), cheap=True)
    bench.tick(CHEAP_REFRESH_S / 2)
    bench.load("a")
    assert bench.started() == ["a"]
    bench.ready("a", total=100, free=70, G0=30)
    bench.tick(CHEAP_REFRESH_S * 2)
    bench.load("b")
    assert bench.list_last(ReadDevices) == [ReadDevices(("G0",))]
    assert answer(bench, make_row(free=70, total=None), cheap=True) == ["b"]


def test_models_on_the_host_alone_wait_for_no_device() -> None:
    bench = Bench(make_settings("a"))
    bench.measure("a", total=100, free=100, G0=0, host=5)
    bench.tick(1e6)
    bench.load("a")
    assert bench.started() == ["a"]


def test_free_alone_is_free_of_the_known_total() -> None:
    bench = make_bench("a")
    read(bench, make_row(free=40, total=None))
    (device,) = bench.scheduler.list_devices()
    assert (device.total, device.external, device.available) == (100, 60, 40)


def test_memory_that_others_give_back_is_available_again() -> None:
    bench = make_bench("a")
    for free, external in ((40, 60), (90, 10)):
        read(bench, make_row(free=free))
        assert [device.external for device in bench.scheduler.list_devices()] == [external]


def test_whatever_tells_what_is_free_makes_figures_young() -> None:
    bench = make_bench("a")
    read(bench, make_row(), after_s=61.0)
    bench.load("a")
    assert bench.started() == ["a"]


def test_host_memory_is_read_by_the_supervisor_itself() -> None:
    bench = Bench(make_settings("a"), host_margin_bytes=10)
    bench.measure("a", host=30)
    bench.do(HostRead(100, 100))
    bench.tick(61.0)
    bench.load("a")
    assert bench.started() == ["a"]


def test_free_of_an_unknown_device_says_nothing() -> None:
    bench = make_bench("a")
    read(bench, make_row("G7", free=40, total=None))
    assert [device.name for device in bench.scheduler.list_devices()] == ["G0"]


def test_whoever_lists_devices_uses_none_of_their_memory() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.ready("a", total=100, free=70, G0=30)
    read(bench, make_row(free=50), complete=True)
    (device,) = bench.scheduler.list_devices()
    assert (device.held, device.external, device.available) == (30, 20, 50)


# --- devices come and go ---


def test_new_device_is_said_and_models_that_would_use_it_are_measured_anew() -> None:
    bench = make_bench("a")
    read(bench, make_row(), make_row("G1", total=50), complete=True)
    assert [record.fields["device"] for record in bench.records("device found")] == ["G1"]
    assert bench.measured() == ["a"]
    assert bench.status("a").memory.min is None


@pytest.mark.parametrize(
    "settings", [{"devices": ("G0",)}, {"devices": ("none",)}, {"env": {"X": "1"}}, {"extra": {"MemoryMax": "1G"}}]
)
def test_models_that_would_not_use_the_new_device_keep_their_figures(settings: dict[str, object]) -> None:
    bench = Bench(make_settings("a", **settings))
    bench.measure("a", total=100, free=100, G0=30)
    read(bench, make_row(), make_row("G1"), complete=True)
    assert bench.status("a").memory.min is not None


def test_device_that_is_gone_is_said_with_those_who_hold_memory_there() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    read(bench, complete=True)
    (gone,) = bench.records("device gone")
    assert gone.level == "warning"
    assert (gone.fields["device"], gone.fields["held_bytes"], gone.fields["holders"]) == ("G0", 30, ["a"])
    (device,) = bench.scheduler.list_devices()
    assert device.available == 0
    assert "gone" in device.description


def test_nothing_is_promised_on_a_device_that_is_gone() -> None:
    bench = make_bench("a", "b", strict=True)
    bench.bring_up("a")
    read(bench, complete=True)
    bench.do(MeasureReported("b", make_breakdown(total=100, free=100, G0=30), make_breakdown(G0=30), cached=True))
    bench.load("b")
    assert bench.started() == []


def test_models_that_counted_on_it_are_measured_anew() -> None:
    bench = make_bench("a")
    read(bench, complete=True)
    assert bench.measured() == ["a"]


def test_device_that_is_gone_and_held_by_nobody_is_forgotten() -> None:
    bench = make_bench("a")
    read(bench, complete=True)
    assert bench.scheduler.list_devices() == ()


def test_device_that_comes_back_counts_again() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    read(bench, complete=True)
    read(bench, make_row(free=70), complete=True)
    assert len(bench.records("device found")) == 1
    (device,) = bench.scheduler.list_devices()
    assert (device.held, device.external, device.available) == (30, 0, 70)


def test_absence_from_an_incomplete_listing_means_nothing() -> None:
    bench = make_bench("a")
    read(bench)
    assert bench.records("device gone") == []


def test_servers_that_were_not_asked_are_not_missed() -> None:
    bench = Bench(make_settings("a", rpc=("127.0.0.1:1",)), make_settings("b", rpc=("127.0.0.2:1",)))
    read(bench, make_row(RPC_A), complete=True, rpc=("127.0.0.1:1",))
    read(bench, make_row(RPC_B), complete=True, rpc=("127.0.0.2:1",))
    assert bench.records("device gone") == []
    read(bench, make_row(RPC_A), complete=True, rpc=("127.0.0.1:1", "127.0.0.2:1"))
    assert [record.fields["device"] for record in bench.records("device gone")] == [RPC_B]


def test_device_that_has_another_size_now_is_said() -> None:
    bench = make_bench("a")
    read(bench, make_row(total=200, free=200), complete=True)
    assert [record.fields["total_bytes"] for record in bench.records("device changed")] == [200]


# --- figures from the cache ---


def test_cached_figures_do_not_calibrate_and_end_the_measurement() -> None:
    bench = Bench(make_settings("a"), make_settings("b"))
    figures = make_breakdown(total=100, free=10, G0=30)
    bench.do(MeasureReported("a", figures, figures, cached=True))
    bench.do(MeasureEnded("a"))
    assert bench.status("a").memory.status == "measured"
    assert [device.external for device in bench.scheduler.list_devices()] == [0]
    assert bench.measured() == ["b"]
    assert bench.records("measurement failed") == []


def test_who_asks_for_a_measurement_gets_no_cached_one() -> None:
    bench = Bench(make_settings("a"))
    assert [start.ignores_cache for start in bench.list_all(StartMeasure)] == [False]
    waiter = bench.make_waiter(90)
    bench.do(MeasureRequested(waiter, "a"))
    figures = make_breakdown(total=100, free=100, G0=30)
    bench.do(MeasureReported("a", figures, figures, cached=True))
    bench.do(MeasureEnded("a"))
    assert bench.completed() == []
    assert [start.ignores_cache for start in bench.list_last(StartMeasure)] == [True]
    bench.do(MeasureReported("a", figures, figures))
    assert bench.completed() == [waiter]


def test_changed_settings_may_be_answered_from_the_cache() -> None:
    bench = make_bench("a")
    bench.do(Configured(make_config(make_settings("a", ctx=512))))
    assert [start.ignores_cache for start in bench.list_last(StartMeasure)] == [False]


def test_fitting_leaves_the_larger_of_both_margins() -> None:
    models = [make_settings(name, fit_margin_bytes=size) for name, size in (("a", 50), ("b", 5))]
    bench = Bench(*models, margin_bytes=20, margins_bytes={"G1": 60})
    assert bench.list_all(StartMeasure)[0].margins_bytes == {"": 50, "G1": 60}
    bench.measure("a", total=1000, free=1000, G0=30)
    assert bench.list_all(StartMeasure)[1].margins_bytes == {"": 20, "G1": 60}


# --- what children say that may have become their file's ---


def make_listed_bench(*names: str) -> Bench:
    """As make_bench, with one device, G0 of 100 bytes, that has been listed; the listing is old."""
    bench = make_bench(*names)
    read(bench, make_row(), complete=True)
    bench.tick(120.0)
    return bench


def report_on(bench: Bench, model: str, **sizes: int) -> None:
    total, free = sizes.pop("total"), sizes.pop("free")
    bench.report(model, ChildState.READY, effective=make_breakdown(total=total, free=free, **sizes))


def accounts(bench: Bench) -> dict[str, tuple[int, int]]:
    return {device.name: (device.total, device.external) for device in bench.scheduler.list_devices()}


def test_an_instance_invents_no_device() -> None:
    bench = make_listed_bench("a")
    bench.load("a")
    answer(bench, make_row())
    report_on(bench, "a", total=100, free=70, G0=30, FAKE=50)
    assert accounts(bench) == {"G0": (100, 0)}
    bench.ended("a")
    assert accounts(bench) == {"G0": (100, 0)}


def test_an_instance_that_tells_of_another_device_has_devices_listed_once() -> None:
    bench = make_listed_bench("a")
    bench.load("a")
    read(bench, make_row())
    bench.do(DevicesReadEnded())
    for used in range(3):
        report_on(bench, "a", total=100, free=70, G0=30, FAKE=50 + used)
    assert bench.list_all(ReadDevices)[-1:] == [ReadDevices(())]
    before = len(bench.list_all(ReadDevices))
    read(bench, make_row(), make_row("FAKE"), complete=True)
    bench.do(DevicesReadEnded())
    report_on(bench, "a", total=100, free=20, G0=30, OTHER=50)
    assert len(bench.list_all(ReadDevices)) == before, "the listing is young"
    assert accounts(bench)["FAKE"] == (100, 0), "it is a device all the same"


def test_an_instance_changes_no_device_and_holds_no_more_than_there_is() -> None:
    bench = make_listed_bench("a")
    bench.load("a")
    answer(bench, make_row())
    report_on(bench, "a", total=1 << 60, free=0, G0=1 << 59)
    (device,) = bench.scheduler.list_devices()
    assert (device.total, device.external, device.held) == (100, 0, 100)


def test_what_an_instance_says_of_others_is_looked_at_before_it_keeps_a_load_waiting() -> None:
    bench = make_listed_bench("a", "b")
    bench.load("a")
    answer(bench, make_row())
    report_on(bench, "a", total=100, free=0, G0=30)
    assert accounts(bench) == {"G0": (100, 70)}
    bench.load("b")
    assert bench.started() == []
    assert bench.list_all(ReadDevices)[-1] == ReadDevices(("G0",))
    assert answer(bench, make_row(free=70)) == ["b"], "nobody else is there"


def test_only_who_reads_no_model_says_that_a_device_is_gone_or_there() -> None:
    bench = make_listed_bench("a")
    read(bench, make_row("FAKE"), complete=True, by_model=True)
    assert accounts(bench) == {"G0": (100, 0)}
    assert bench.list_all(ReadDevices) == [ReadDevices(())]
    read(bench, make_row("FAKE"), complete=True)
    assert accounts(bench) == {"FAKE": (100, 0)}


def test_accounts_of_servers_that_nobody_names_any_longer_are_closed() -> None:
    bench = make_bench("a")
    config = make_config(make_settings("a", rpc=("127.0.0.1:1",)))
    bench.do(Configured(config))
    read(bench, make_row(RPC_A), rpc=("127.0.0.1:1",))
    assert RPC_A in accounts(bench)
    bench.do(Configured(make_config(make_settings("a"))))
    assert RPC_A not in accounts(bench)
