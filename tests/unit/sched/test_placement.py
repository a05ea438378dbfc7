"""On which device does a model go that may choose?"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.protocol.report_socket import ChildState
from llamactl.sched.breakdowns import HOST, sum_per_account
from llamactl.sched.effects import StartInstance
from llamactl.sched.events import InstanceFound
from llamactl.sched.evict import Candidate, Demand, Outcome, choose_victims
from llamactl.sched.placement import Choice, Option, choose_placement, list_options, may_choose
from tests.unit.sched.bench import Bench, make_breakdown, make_settings

TOTAL = 100


def make_gpu(name: str, **more: Any) -> Any:
    return make_settings(name, **{"n_gpu_layers": 99, **more})


def make_bench(sizes: dict[str, tuple[int, int]], settings: dict[str, Any] | None = None, **machine: Any) -> Bench:
    """Models by what they take on each of two devices of TOTAL bytes."""
    models = [make_gpu(name, **(settings or {})) for name in sizes]
    bench = Bench(*models, **{"margin_bytes": 0, **machine})
    for name, (first, second) in sizes.items():
        bench.measure(name, G0=first, G1=second, total=TOTAL, free=TOTAL)
    return bench


def get_holds(bench: Bench) -> dict[str, dict[str, int]]:
    return {account.name: account.holders for account in bench.scheduler.list_devices() if account.holders}


def bring_up(bench: Bench, name: str, front: int = 1) -> tuple[str, ...]:
    """Load it; where it was placed."""
    bench.lease(name, front)
    (started,) = bench.list_last(StartInstance)
    bench.ready(name)
    bench.idle(name, front, 1)
    return started.settings.devices


def test_a_model_that_fits_on_one_device_goes_on_one() -> None:
    bench = make_bench({"a": (20, 20)})
    assert bring_up(bench, "a") == ("G0",)
    assert get_holds(bench) == {"G0": {"a": 40}}
    assert bench.status("a").devices == ("G0",)


def test_it_goes_where_it_fills_best() -> None:
    bench = make_bench({"a": (30, 30), "b": (15, 15), "c": (35, 35)})
    assert bring_up(bench, "a") == ("G0",)
    assert bring_up(bench, "b") == ("G0",), "30 stay there, 70 on the other"
    assert bring_up(bench, "c") == ("G1",)


def test_what_fits_on_no_single_device_goes_on_all() -> None:
    bench = make_bench({"a": (60, 60)})
    assert bring_up(bench, "a") == ()
    assert get_holds(bench) == {"G0": {"a": 60}, "G1": {"a": 60}}


def test_no_room_anywhere_takes_the_device_where_least_must_go() -> None:
    bench = make_bench({"big": (45, 45), "small": (30, 30), "c": (25, 25)})
    assert bring_up(bench, "big") == ("G0",)
    assert bring_up(bench, "small") == ("G1",)
    bench.lease("c", 2)
    assert bench.recalled() == [(1, "small")]
    bench.take_down("small")
    (started,) = bench.list_last(StartInstance)
    assert started.settings.devices == ("G1",)


def test_a_choice_that_has_begun_is_kept() -> None:
    bench = make_bench({"big": (45, 45), "s1": (20, 20), "s2": (20, 20), "c": (40, 40)})
    assert bring_up(bench, "big") == ("G0",)
    assert bring_up(bench, "s1") == ("G1",)
    assert bring_up(bench, "s2") == ("G1",)
    bench.lease("c", 2)
    assert bench.recalled() == [(1, "s1"), (1, "s2")]
    bench.returned("s1")
    assert bench.recalled() == [], "it took turns"
    assert bench.records("victim spared") == []


@pytest.mark.parametrize(
    "pinned", [{"devices": ("G0", "G1")}, {"tensor_split": (1.0, 1.0)}, {"n_gpu_layers": 0}], ids=str
)
def test_pinned_placement_is_left_alone(pinned: dict[str, Any]) -> None:
    bench = make_bench({"a": (20, 20)}, pinned)
    assert bring_up(bench, "a") == pinned.get("devices", ())
    assert get_holds(bench) == {"G0": {"a": 20}, "G1": {"a": 20}}


def test_margins_count_on_the_chosen_device() -> None:
    bench = make_bench({"a": (20, 20)}, margins_bytes={"G0": 70})
    assert bring_up(bench, "a") == ("G1",)


def test_a_chosen_device_is_known_again_after_a_restart() -> None:
    bench = make_bench({"a": (20, 20)})
    bring_up(bench, "a")
    started = bench.list_all(StartInstance)[-1].settings
    after = Bench(make_gpu("a"), start=False, margin_bytes=0)
    after.generations["a"] = "g"
    after.do(InstanceFound("a", "g", started))
    after.recover()
    after.report("a", ChildState.READY, effective=make_breakdown(G0=40, G1=0, total=TOTAL, free=60))
    assert get_holds(after) == {"G0": {"a": 40}}
    assert after.status("a").devices == ("G0",)


def test_two_loads_go_on_at_once_on_two_devices() -> None:
    bench = make_bench({"a": (35, 35), "b": (35, 35)}, {"ctx": 0, "n_gpu_layers": -1})
    bench.lease("a")
    assert [started.settings.devices for started in bench.list_last(StartInstance)] == [("G0",)]
    bench.lease("b", 2)
    assert [started.settings.devices for started in bench.list_last(StartInstance)] == [("G1",)]


SIZES = st.sampled_from([0, 10, 20, 30])


@st.composite
def draw_choices(draw: st.DrawFn) -> list[Choice]:
    names = ["G0", "G1", "G2"][: draw(st.integers(1, 3))]
    needs = {name: draw(SIZES) for name in names} | {HOST: draw(SIZES)}
    breakdown = make_breakdown(host=needs[HOST], total=50, free=50, **{name: needs[name] for name in names})
    candidates = tuple(
        Candidate(
            model=f"m{index}",
            holds={name: draw(SIZES) for name in names},
            busy=draw(st.booleans()),
            pinned=draw(st.integers(0, 5)) == 0,
        )
        for index in range(draw(st.integers(0, 4)))
    )
    capacities = {name: draw(st.sampled_from([20, 40, 60])) for name in names}
    options = list_options(make_gpu("x"), breakdown, sum_per_account(breakdown), names)
    choices = []
    for option in options:
        room = Demand(option.needs, {name: capacities[name] for name in option.needs if name in capacities}, candidates)
        choices.append(Choice(option, room, choose_victims(room)))
    return choices


@given(choices=draw_choices())
def test_nothing_is_evicted_where_some_place_is_free(choices: list[Choice]) -> None:
    chosen = choose_placement(choices)
    fitting = [one for one in choices if one.plan.outcome is Outcome.FITS and not one.plan.hopeless]
    assert not fitting or chosen in fitting


@given(choices=draw_choices())
def test_no_other_way_loses_less(choices: list[Choice]) -> None:
    chosen = choose_placement(choices)
    others = [one for one in choices if one.plan.outcome is Outcome.EVICT and not one.plan.hopeless]
    if chosen.plan.outcome is Outcome.EVICT and not chosen.plan.hopeless:
        assert chosen.plan.frees == min(one.plan.frees for one in others)


@given(choices=draw_choices())
def test_the_same_bytes_are_placed_in_every_way(choices: list[Choice]) -> None:
    sums = {sum(one.option.needs.values()) for one in choices}
    assert len(sums) == 1
    assert choices[0].option.devices == ()


@given(choices=draw_choices(), data=st.data())
def test_who_is_kept_stays_chosen_while_it_can_be_carried_out(choices: list[Choice], data: st.DataObject) -> None:
    kept = data.draw(st.sampled_from(choices))
    chosen = choose_placement(choices, kept.option.devices)
    fitting = [one for one in choices if one.plan.outcome is Outcome.FITS and not one.plan.hopeless]
    if not fitting and kept.plan.outcome is Outcome.EVICT and not kept.plan.hopeless:
        assert chosen is kept


def test_only_open_placements_are_chosen() -> None:
    assert may_choose(make_gpu("a"))
    breakdown = make_breakdown(G0=10, total=50, free=50)
    assert list_options(make_gpu("a"), breakdown, {"G0": 10}, ["G0"]) == (Option({"G0": 10}),)
    assert list_options(make_gpu("a"), None, {}, ["G0", "G1"]) == (Option({}),)
