"""Who goes and who stays? Examples for each rule of the choice of victims, and properties that hold for all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.sched.evict import Candidate, Demand, Outcome, VictimVerdict, choose_drains, choose_victims


def make(model: str, size: int = 30, last_used_s: float = 0.0, **flags: Any) -> Candidate:
    return Candidate(model=model, holds={"Host": size}, last_used_s=last_used_s, **flags)


def ask(need: int, *candidates: Candidate, capacity: int = 100, max_loaded: int = 0) -> Demand:
    return Demand({"Host": need}, {"Host": capacity}, candidates, max_loaded)


def test_what_fits_needs_no_victim() -> None:
    plan = choose_victims(ask(40, make("a"), make("b")))
    assert (plan.outcome, plan.victims, plan.shortages) == (Outcome.FITS, (), {})


def test_the_least_recently_used_goes_and_no_more_than_needed() -> None:
    plan = choose_victims(ask(40, make("a", last_used_s=3), make("b", last_used_s=1), make("c", last_used_s=2)))
    assert (plan.outcome, plan.victims) == (Outcome.EVICT, ("b",))
    assert plan.shortages == {"Host": 30}
    assert plan.reasons == {"a": VictimVerdict.NOT_NEEDED, "b": VictimVerdict.CHOSEN, "c": VictimVerdict.NOT_NEEDED}


def test_lower_priority_goes_before_less_recent_use() -> None:
    plan = choose_victims(ask(60, make("old", last_used_s=1, priority=1), make("new", last_used_s=9)))
    assert plan.victims == ("new",)


def test_a_model_that_is_in_the_configuration_no_more_goes_first() -> None:
    plan = choose_victims(ask(60, make("old", last_used_s=1), make("gone", last_used_s=9, priority=5, goes_first=True)))
    assert plan.victims == ("gone",)


def test_a_small_victim_is_spared_when_a_later_larger_one_is_enough() -> None:
    plan = choose_victims(ask(70, make("small", 10, last_used_s=1), make("large", 80, last_used_s=2)))
    assert plan.victims == ("large",)
    assert plan.reasons["small"] is VictimVerdict.NOT_NEEDED


def test_of_two_that_could_be_spared_the_more_recently_used_is() -> None:
    candidates = (make("a", 20, last_used_s=1), make("b", 20, last_used_s=2), make("c", 40, last_used_s=3))
    assert choose_victims(ask(70, *candidates)).victims == ("a", "c")


def test_what_holds_nothing_on_the_short_device_stays_even_if_it_is_least_recently_used() -> None:
    elsewhere = Candidate("elsewhere", {"GPU1": 90}, last_used_s=1)
    here = Candidate("here", {"GPU0": 60}, last_used_s=9)
    plan = choose_victims(Demand({"GPU0": 50, "GPU1": 0}, {"GPU0": 100, "GPU1": 100}, (elsewhere, here)))
    assert plan.victims == ("here",)
    assert plan.reasons["elsewhere"] is VictimVerdict.NO_HELP


def test_two_short_devices_take_a_victim_each() -> None:
    first, second = Candidate("g0", {"G0": 60}), Candidate("g1", {"G1": 60})
    plan = choose_victims(Demand({"G0": 50, "G1": 50}, {"G0": 100, "G1": 100}, (first, second)))
    assert set(plan.victims) == {"g0", "g1"}


def test_a_place_is_freed_by_anything_even_if_it_holds_no_memory() -> None:
    plan = choose_victims(ask(0, make("a", 0, last_used_s=2), make("b", 0, last_used_s=1), max_loaded=2))
    assert (plan.outcome, plan.victims, plan.slots_short) == (Outcome.EVICT, ("b",), 1)


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ({"busy": True}, VictimVerdict.BUSY),
        ({"wanted": True}, VictimVerdict.WANTED),
        ({"loading": True}, VictimVerdict.LOADING),
        ({"silent": True}, VictimVerdict.SILENT),
        ({"draining": True, "busy": True}, VictimVerdict.DRAINING),
    ],
)
def test_what_cannot_go_now_is_waited_for_and_nothing_is_stopped_in_vain(
    flag: dict[str, bool], why: VictimVerdict
) -> None:
    plan = choose_victims(ask(90, make("stays", 50, **flag), make("idle", 20)))
    assert (plan.outcome, plan.victims, plan.waiting_for) == (Outcome.WAIT, (), ("stays",))
    assert plan.reasons["stays"] is why


def test_what_cannot_go_is_left_alone_when_others_are_enough() -> None:
    plan = choose_victims(ask(40, make("busy", busy=True), make("pinned", pinned=True), make("idle", last_used_s=99)))
    assert (plan.outcome, plan.victims) == (Outcome.EVICT, ("idle",))


def test_what_is_leaving_already_is_waited_for_and_nothing_else_is_stopped() -> None:
    plan = choose_victims(ask(60, make("leaving", 50, leaving=True), make("idle", 20)))
    assert (plan.outcome, plan.victims, plan.waiting_for) == (Outcome.WAIT, (), ("leaving",))


def test_what_is_leaving_counts_when_more_must_go() -> None:
    plan = choose_victims(ask(90, make("leaving", 30, leaving=True), make("a", 30, 1), make("b", 5, 2)))
    assert (plan.outcome, plan.victims) == (Outcome.EVICT, ("a",))


def test_a_recalled_victim_stays_one_while_it_is_needed() -> None:
    recalled, older = make("recalled", last_used_s=9, recalled=True, wanted=True), make("older", last_used_s=1)
    assert choose_victims(ask(40, recalled, older)).victims == ()
    assert choose_victims(ask(60, recalled, older)).victims == ("recalled",)
    assert choose_victims(ask(80, recalled, older)).victims == ("recalled", "older")


def test_only_pins_in_the_way_are_named() -> None:
    plan = choose_victims(ask(50, make("p", 60, pinned=True), make("idle", 20)))
    assert (plan.outcome, plan.victims, plan.waiting_for) == (Outcome.PINNED, (), ("p",))


def test_busy_models_that_would_be_enough_are_waited_for_although_a_pin_helps_too() -> None:
    plan = choose_victims(ask(50, make("pinned", 30, pinned=True), make("busy", 50, busy=True)))
    assert (plan.outcome, plan.waiting_for) == (Outcome.WAIT, ("busy",))


def test_what_would_not_fit_even_alone_gets_all_there_is_and_says_what_is_missing() -> None:
    plan = choose_victims(ask(150, make("a", 30), make("b", 0), make("pinned", 10, pinned=True)))
    assert (plan.outcome, plan.victims, plan.hopeless) == (Outcome.EVICT, ("a",), {"Host": 50})
    plan = choose_victims(ask(150, make("b", 0), make("pinned", 10, pinned=True)))
    assert (plan.outcome, plan.hopeless) == (Outcome.FITS, {"Host": 50})


def test_what_would_not_fit_even_alone_waits_for_busy_ones_too() -> None:
    plan = choose_victims(ask(150, make("a", 30, busy=True)))
    assert (plan.outcome, plan.waiting_for) == (Outcome.WAIT, ("a",))


def test_pins_that_fill_every_place_refuse_even_what_needs_no_memory() -> None:
    plan = choose_victims(ask(0, make("p", 0, pinned=True), max_loaded=1))
    assert (plan.outcome, plan.waiting_for) == (Outcome.PINNED, ("p",))


def test_an_account_without_a_limit_is_never_short() -> None:
    assert choose_victims(Demand({"Host": 1 << 60}, {}, (make("a"),))).outcome is Outcome.FITS


def test_the_one_that_is_busy_for_longest_is_drained_and_only_as_many_as_needed() -> None:
    long, short = make("long", 40, busy=True, busy_since_s=1), make("short", 40, busy=True, busy_since_s=5)
    assert choose_drains(ask(50, short, long)) == ("long",)
    assert choose_drains(ask(90, short, long)) == ("long", "short")


def test_nothing_is_drained_that_does_not_help_or_is_pinned() -> None:
    elsewhere = Candidate("elsewhere", {"G1": 50}, busy=True, busy_since_s=1)
    pinned = make("pinned", 20, busy=True, pinned=True, busy_since_s=2)
    assert choose_drains(ask(50, elsewhere, pinned, make("here", 40, busy=True, busy_since_s=3))) == ("here",)


def test_a_drain_goes_on_though_another_is_busy_for_longer_now() -> None:
    draining = make("draining", 40, busy=True, draining=True, busy_since_s=5)
    assert choose_drains(ask(50, make("other", 40, busy=True, busy_since_s=1), draining)) == ("draining",)


# --- properties ---

FLAGS = ("loading", "busy", "wanted", "pinned", "silent", "leaving", "draining", "recalled", "goes_first")
SIZES = st.sampled_from([0, 10, 30, 50])


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    candidates = tuple(
        Candidate(
            f"m{index}",
            {"A": draw(SIZES), "B": draw(SIZES)},
            priority=draw(st.integers(0, 1)),
            last_used_s=draw(st.integers(0, 2)),
            busy_since_s=draw(st.integers(0, 2)),
            **{flag: draw(st.integers(0, 3)) == 0 for flag in FLAGS},  # type: ignore[arg-type]
        )
        for index in range(draw(st.integers(0, 5)))
    )
    capacities = {name: draw(st.sampled_from([20, 60, 100])) for name in draw(st.sampled_from(["", "A", "AB"]))}
    return Demand({"A": draw(SIZES), "B": draw(SIZES)}, capacities, candidates, draw(st.integers(0, 4)))


def fits_without(demand: Demand, gone: set[str]) -> bool:
    """The rule said plainly, to hold the plan against."""
    left = [candidate for candidate in demand.candidates if candidate.model not in gone]
    if demand.max_loaded and len(left) >= demand.max_loaded:
        return False
    for name, capacity in demand.capacities.items():
        need = demand.needs[name]
        if need > capacity:
            if any(c.holds[name] > 0 and (not c.pinned or c.leaving) for c in left):
                return False
        elif need > 0 and need + sum(candidate.holds[name] for candidate in left) > capacity:
            return False
    return True


def list_movable(demand: Demand) -> set[str]:
    """Those that may be victims, said plainly."""
    return {
        c.model
        for c in demand.candidates
        if not (c.leaving or c.pinned or c.loading or c.silent or c.draining or c.busy or (c.wanted and not c.recalled))
    }


@given(demands())
def test_a_plan_is_what_the_rule_says(demand: Demand) -> None:
    plan = choose_victims(demand)
    leaving = {c.model for c in demand.candidates if c.leaving}
    movable = list_movable(demand)
    pinned = {c.model for c in demand.candidates if c.pinned and not c.leaving}
    everything = {c.model for c in demand.candidates}
    if fits_without(demand, set()):
        assert plan.outcome is Outcome.FITS
    elif fits_without(demand, leaving):
        assert plan.outcome is Outcome.WAIT
    elif fits_without(demand, leaving | movable):
        assert plan.outcome is Outcome.EVICT
    elif fits_without(demand, everything - pinned):
        assert plan.outcome is Outcome.WAIT
    else:
        assert plan.outcome is Outcome.PINNED
        assert set(plan.waiting_for) <= pinned
        assert plan.waiting_for
    assert bool(plan.victims) == (plan.outcome is Outcome.EVICT)
    assert set(plan.victims) <= movable


@given(demands())
def test_victims_are_enough_and_none_is_too_many(demand: Demand) -> None:
    plan = choose_victims(demand)
    leaving = {c.model for c in demand.candidates if c.leaving}
    if plan.outcome is Outcome.EVICT:
        assert fits_without(demand, leaving | set(plan.victims))
        for victim in plan.victims:
            assert not fits_without(demand, leaving | (set(plan.victims) - {victim})), f"{victim} was not needed"


@given(demands())
def test_every_instance_gets_a_reason(demand: Demand) -> None:
    plan = choose_victims(demand)
    assert set(plan.reasons) == {c.model for c in demand.candidates}
    assert {model for model, why in plan.reasons.items() if why is VictimVerdict.CHOSEN} == set(plan.victims)


@given(demands(), st.randoms())
def test_the_order_in_which_instances_are_listed_does_not_matter(demand: Demand, random: Any) -> None:
    shuffled = list(demand.candidates)
    random.shuffle(shuffled)
    other = Demand(demand.needs, demand.capacities, tuple(shuffled), demand.max_loaded)
    assert choose_victims(other) == choose_victims(demand)
    assert choose_drains(other) == choose_drains(demand)


@given(demands())
def test_drains_are_busy_not_pinned_and_needed(demand: Demand) -> None:
    drains = choose_drains(demand)
    by_name = {c.model: c for c in demand.candidates}
    for name in drains:
        assert by_name[name].busy or by_name[name].draining
        assert not by_name[name].pinned
    gone = {c.model for c in demand.candidates if c.leaving} | list_movable(demand)
    assert not drains or not fits_without(demand, gone)
