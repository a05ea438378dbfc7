"""How many may wait, who goes on beside the head, who is drained, and does traffic in turns thrash?"""

from typing import Any

import pytest

from llamactl.protocol.report_socket import ChildState
from llamactl.sched.effects import StartInstance
from llamactl.sched.events import HostRead, LeaseBusy, RecallAnswered
from llamactl.sched.queue import MAX_LOGGED, Entry
from tests.unit.sched.bench import CRASH, Bench, make_settings


def make_bench(*names: str, sizes: tuple[int, ...] = (), **settings: Any) -> Bench:
    bench = Bench(*(make_settings(name) for name in names), **{"host_budget_bytes": 100, **settings})
    for index, name in enumerate(names):
        bench.measure(name, host=sizes[index] if sizes else 60)
    return bench


def serve(bench: Bench, name: str, front: int = 1) -> None:
    """Load it, and have it serve a request from now on."""
    bench.lease(name, front)
    bench.ready(name)


def test_a_queue_that_is_full_in_all_refuses_with_a_time() -> None:
    bench = make_bench("a", "b", "c", max_queue_total=2)
    serve(bench, "a")
    bench.lease("b", 2)
    bench.lease("c", 3)
    third = bench.lease("b", 4)
    assert bench.refused() == {third: "queue_full"}
    (refusal,) = bench.refusals()
    assert refusal.details["retry_after_s"] > 0
    assert "`max_queue_total`" in refusal.message


def test_who_was_refused_waits_no_more() -> None:
    bench = make_bench("a", max_queue_total=2)
    first, second = bench.lease("a", 1), bench.lease("a", 2)
    bench.ended("a", CRASH)
    assert set(bench.refused()) == {first, second}
    bench.tick(100)
    bench.lease("a", 1)
    assert bench.refused() == {}


def test_requests_for_a_loaded_model_do_not_count_as_waiting() -> None:
    bench = make_bench("a", "b", max_queue_total=1)
    serve(bench, "a")
    bench.lease("b", 2)
    bench.lease("a", 3)
    assert len(bench.granted()) == 1


def test_the_model_whose_oldest_request_began_first_is_drained() -> None:
    bench = make_bench("a", "b", "c", sizes=(40, 40, 60), max_wait_s=60.0)
    serve(bench, "a", 1)
    bench.tick(1)
    serve(bench, "b", 2)
    bench.lease("c", 3)
    # The first request on `a` has ended: its oldest is a younger one than that on `b`.
    bench.do(LeaseBusy(1, "a", bench.generations["a"], since_s=bench.now + 5), after_s=10)
    bench.tick(60)
    drained = [recall.model for recall in bench.recalls() if recall.drain]
    assert drained == ["b"]


def test_the_answer_to_a_recall_tells_the_oldest_request_too() -> None:
    bench = make_bench("a", "b", "c", sizes=(40, 40, 60), max_wait_s=60.0)
    serve(bench, "a", 1)
    bench.tick(1)
    serve(bench, "b", 2)
    bench.lease("c", 3)
    bench.do(RecallAnswered(1, "a", bench.generations["a"], False, since_s=bench.now + 5), after_s=10)
    bench.tick(60)
    assert [recall.model for recall in bench.recalls() if recall.drain] == ["b"]


def test_an_entry_that_fits_goes_on_beside_the_head_and_one_that_takes_its_room_does_not() -> None:
    bench = Bench(*(make_settings(name) for name in ("a", "big", "small", "medium")), margin_bytes=0)
    for name, device, size in (("a", "G0", 60), ("big", "G0", 70), ("small", "G1", 10), ("medium", "G0", 35)):
        bench.measure(name, **{device: size}, total=100, free=100)
    serve(bench, "a")
    bench.lease("big", 2)
    bench.lease("medium", 3)
    assert bench.started() == []
    bench.lease("small", 4)
    assert bench.started() == ["small"]


def test_a_just_loaded_model_stays_while_another_waits() -> None:
    bench = make_bench("a", "b", min_resident_s=5.0)
    bench.bring_up("a", after_s=1)
    bench.lease("b", 2)
    assert bench.recalled() == []
    assert bench.status("b").waiting_for == ("a",)
    assert bench.scheduler.next_deadline() == bench.now + 4
    bench.tick(4)
    assert bench.recalled() == [(1, "a")]


def test_a_just_loaded_model_is_not_drained_either() -> None:
    bench = make_bench("a", "b", min_resident_s=50.0, max_wait_s=10.0)
    serve(bench, "a")
    bench.lease("b", 2)
    bench.tick(11)
    assert bench.recalled() == []
    bench.tick(39)
    assert [recall.drain for recall in bench.recalls()] == [True]


def test_traffic_in_turns_does_not_load_for_each_request() -> None:
    loads = {}
    for resident_s in (0.0, 5.0):
        bench = make_bench("a", "b", min_resident_s=resident_s, max_wait_s=60.0)
        running = ""
        for turn in range(40):
            bench.now += 0.5
            name = "ab"[turn % 2]
            bench.lease(name, turn % 2 + 1)
            running = advance(bench, running)
        loads[resident_s] = len(bench.list_all(StartInstance))
    assert loads[0.0] >= 20
    assert loads[5.0] <= 6


def advance(bench: Bench, running: str) -> str:
    """All that follows happens at once; requests last no time."""
    while True:
        for name, front in (("a", 1), ("b", 2)):
            if bench.state(name) == "loading" and bench.status(name).generation:
                bench.ready(name)
                running = name
            if bench.state(name) == "ready" and bench.status(name).busy:
                bench.idle(name, front)
        recalls = bench.recalled()
        if not recalls:
            return running
        holder, name = recalls[0]
        bench.take_down(name, holder)


def test_a_just_loaded_model_serves_all_that_is_queued_for_it() -> None:
    bench = make_bench("a", "b", min_resident_s=0.0)
    serve(bench, "a")
    first = bench.lease("b", 2)
    more = [bench.lease("b", 3), bench.lease("b", 4)]
    bench.lease("a", 5)
    bench.idle("a", 1)
    bench.idle("a", 5)
    bench.returned("a", 1)
    bench.take_down("a", 5)
    bench.lease("a", 6)
    bench.ready("b")
    assert sorted(bench.granted()) == sorted([first, *more])
    assert bench.recalled() == []


@pytest.mark.parametrize("limit", [1, 2])
def test_max_loaded_holds_beside_the_head(limit: int) -> None:
    bench = make_bench("a", "b", "c", sizes=(10, 10, 10), max_loaded=limit)
    serve(bench, "a")
    bench.lease("b", 2)
    bench.lease("c", 3)
    assert len([name for name in "abc" if bench.state(name) == "ready" or bench.status(name).generation]) == limit
    assert bench.report("a", ChildState.READY) is not None


def test_journal_is_told_once_what_a_load_waits_for_however_its_figures_move() -> None:
    bench = Bench(*(make_settings(name) for name in "ab"), host_margin_bytes=0)
    bench.do(HostRead(100, 100))
    for name in "ab":
        bench.measure(name, host=60)
    serve(bench, "a")
    bench.lease("b", 2)
    for available in range(40, 10, -1):
        bench.do(HostRead(100, available))
    assert len(bench.records("load waits")) == 1
    assert len(bench.records("load planned")) == 2, "of a and of b"


def test_journal_is_told_so_much_of_one_load_and_no_more() -> None:
    entry = Entry("a", 0.0)
    assert [entry.is_news(turn % 2) for turn in range(4)] == [True, True, False, False], "turns are told once"
    assert sum(entry.is_news((number,)) for number in range(100)) == MAX_LOGGED - 2
