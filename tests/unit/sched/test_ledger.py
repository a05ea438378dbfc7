"""Do the accounts say what is free? Breakdowns into charges, calibration, the host's two limits."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.protocol.values import Breakdown, Row, RowKind
from llamactl.sched.breakdowns import (
    HOST,
    is_self_fitting,
    list_claimed_devices,
    list_device_rows,
    strip_unmeasured,
    sum_per_account,
)
from llamactl.sched.evict import Candidate, Demand, choose_victims
from llamactl.sched.ledger import Ledger
from llamactl.settings import GlobalSettings
from tests.unit.sched.bench import make_breakdown, make_settings


def make_row(total: int | None, free: int | None, used: int = 0, name: str = "GPU0") -> Row:
    return Row(kind=RowKind.DEVICE, name=name, model=used, total=total, free=free)


def make_ledger(**settings: int | None) -> Ledger:
    ledger = Ledger()
    ledger.settings = GlobalSettings(**{"margin_bytes": 10, **settings})  # type: ignore[arg-type]
    return ledger


# --- memory ---


def test_host_and_other_buffer_types_are_one_account_and_devices_their_own() -> None:
    rows = (
        Row(kind=RowKind.DEVICE, name="GPU0", model=1, context=2, compute=4),
        Row(kind=RowKind.HOST, name="Host", model=8, context=16, compute=32),
        Row(kind=RowKind.BUFFER_TYPE, name="AMX", model=64),
        Row(kind=RowKind.DEVICE, name="GPU1"),
    )
    assert sum_per_account(Breakdown(n_ctx=1, devices=rows)) == {"GPU0": 7, HOST: 120}
    assert sum_per_account(None) == {}


def test_a_model_fits_itself_unless_context_and_layers_are_set_or_fitting_is_off() -> None:
    assert is_self_fitting(make_settings("a", ctx=0))
    assert is_self_fitting(make_settings("a", n_gpu_layers=-1))
    assert not is_self_fitting(make_settings("a", ctx=0, n_gpu_layers=-1, fit=False))
    assert not is_self_fitting(make_settings("a"))


def test_a_load_that_fits_itself_claims_devices_that_its_smallest_form_leaves_alone() -> None:
    breakdown = make_breakdown(G0=5, G1=0)
    assert list_claimed_devices(make_settings("a"), breakdown) == {"G0"}
    assert list_claimed_devices(make_settings("a", ctx=0), breakdown) == {"G0", "G1"}


def test_only_settings_that_change_memory_ask_for_another_measurement() -> None:
    before = strip_unmeasured(make_settings("a"))
    for same in (
        {"pin": True},
        {"priority": 3},
        {"aliases": ("x",)},
        {"extra": {"MemoryMax": "8G"}},
        {"idle_timeout_s": 5},
        {"seed": 1},
        {"n_predict": 1},
        {"context_shift": True},
        {"tags": ("x",)},
    ):
        assert strip_unmeasured(make_settings("a", **same)) == before
    for other in (
        {"ctx": 1},
        {"parallel": 1},
        {"cache_type_k": "q8_0"},
        {"devices": ("G0",)},
        {"env": {"A": "b"}},
        {"swa_full": True},
    ):
        assert strip_unmeasured(make_settings("a", **other)) != before


# --- charges ---


def test_a_charge_replaces_the_one_before_and_ends_with_the_instance() -> None:
    ledger = make_ledger()
    ledger.charge("a", {"GPU0": 30, HOST: 5})
    ledger.charge("b", {"GPU0": 10})
    ledger.charge("a", {"GPU0": 20})
    assert ledger.held == {"GPU0": 30}
    ledger.release("a")
    ledger.release("a")
    assert ledger.held == {"GPU0": 10}


# --- calibration ---


def test_what_a_measure_child_finds_missing_is_external_because_it_uses_nothing_itself() -> None:
    ledger = make_ledger()
    ledger.charge("a", {"GPU0": 30})
    ledger.calibrate(make_row(total=100, free=50, used=0), 0, "", only_raise=False)
    assert ledger.accounts["GPU0"].external == 20


def test_a_measure_child_of_a_running_model_counts_that_instance_as_another() -> None:
    ledger = make_ledger()
    ledger.charge("a", {"GPU0": 30})
    ledger.calibrate(make_row(total=100, free=70), 0, "", only_raise=False)
    assert ledger.accounts["GPU0"].external == 0


def test_an_instances_own_use_and_the_charges_of_the_others_are_not_external() -> None:
    ledger = make_ledger()
    ledger.charge("a", {"GPU0": 30})
    ledger.charge("b", {"GPU0": 15})
    ledger.calibrate(make_row(total=100, free=45), 30, "a", only_raise=False)
    assert ledger.accounts["GPU0"].external == 10


def test_where_free_does_not_show_other_processes_external_is_never_negative() -> None:
    ledger = make_ledger()
    ledger.charge("a", {"GPU0": 30})
    ledger.charge("b", {"GPU0": 15})
    ledger.calibrate(make_row(total=100, free=100), 30, "a", only_raise=False)
    assert ledger.accounts["GPU0"].external == 0
    assert ledger.get_capacity("GPU0") == 90


def test_external_only_rises_while_something_moves_on_the_device() -> None:
    ledger = make_ledger()
    ledger.calibrate(make_row(total=100, free=80), 0, "", only_raise=False)
    ledger.calibrate(make_row(total=100, free=95), 0, "", only_raise=True)
    assert ledger.accounts["GPU0"].external == 20
    ledger.calibrate(make_row(total=100, free=60), 0, "", only_raise=True)
    assert ledger.accounts["GPU0"].external == 40


def test_figures_without_total_or_free_teach_nothing() -> None:
    ledger = make_ledger()
    assert not ledger.calibrate(make_row(total=None, free=5), 0, "", only_raise=False)
    assert not ledger.calibrate(make_row(total=5, free=None), 0, "", only_raise=False)
    assert ledger.accounts == {}


def test_cached_figures_tell_how_large_a_device_is_and_change_nothing_that_is_known() -> None:
    ledger = make_ledger()
    ledger.learn_devices(list_device_rows(make_breakdown(total=100, free=10, G0=5)))
    assert (ledger.accounts["G0"].total, ledger.accounts["G0"].external) == (100, 0)
    ledger.learn_devices(list_device_rows(make_breakdown(total=200, free=10, G0=5)))
    assert ledger.accounts["G0"].total == 100


# --- does it fit ---


def test_needs_fit_exactly_up_to_the_margin() -> None:
    ledger = make_ledger()
    ledger.calibrate(make_row(total=100, free=100), 0, "", only_raise=False)
    ledger.charge("a", {"GPU0": 50})
    held = Candidate("a", holds=ledger.holds["a"], pinned=True)

    def find_shortages(**needs: int) -> Mapping[str, int]:
        return choose_victims(Demand(needs, ledger.list_capacities(needs), (held,))).shortages

    assert find_shortages(GPU0=40) == {}
    assert find_shortages(GPU0=41) == {"GPU0": 1}
    assert find_shortages(elsewhere=1 << 60) == {}


def test_a_device_can_have_its_own_margin() -> None:
    ledger = make_ledger()
    ledger.settings = GlobalSettings(margin_bytes=10, margins_bytes={"GPU0": 25})
    ledger.calibrate(make_row(total=100, free=100), 0, "", only_raise=False)
    assert ledger.get_capacity("GPU0") == 75


@pytest.mark.parametrize(
    ("margin", "budget", "capacity"), [(None, None, None), (20, None, 70), (None, 50, 50), (20, 90, 70)]
)
def test_the_host_is_limited_by_margin_and_budget_whichever_is_tighter(
    margin: int | None, budget: int | None, capacity: int | None
) -> None:
    ledger = make_ledger(host_margin_bytes=margin, host_budget_bytes=budget)
    ledger.read_host(total=100, available=90, only_raise=False)
    assert ledger.get_capacity(HOST) == capacity


def test_a_budget_shows_as_an_account_without_others() -> None:
    ledger = make_ledger(host_budget_bytes=50)
    ledger.read_host(total=1000, available=10, only_raise=False)
    ledger.charge("a", {HOST: 30})
    (status,) = ledger.format_status()
    assert (status.total, status.external, status.held, status.available) == (50, 0, 30, 20)
    assert status.holders == {"a": 30}


@given(
    total=st.integers(1, 1000),
    charges=st.lists(st.integers(0, 300), max_size=4),
    others=st.integers(0, 1000),
    reporter=st.booleans(),
)
def test_external_is_exact_whenever_charges_are(total: int, charges: list[int], others: int, reporter: bool) -> None:
    """What is really taken, seen through `free`, comes back as `external`, whoever reports."""
    ledger = make_ledger()
    for index, charge in enumerate(charges):
        ledger.charge(f"m{index}", {"GPU0": charge})
    others = min(others, max(0, total - sum(charges)))
    free = max(0, total - sum(charges) - others)
    by = bool(charges) and reporter
    ledger.calibrate(make_row(total, free), charges[0] if by else 0, "m0" if by else "", only_raise=False)
    assert ledger.accounts["GPU0"].external == others
