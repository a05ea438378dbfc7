"""Passive requests: granted by a model that is ready, refused by any other, and never the cause of anything."""

from llamactl.protocol.control_socket import Failure
from llamactl.protocol.report_socket import ChildState
from llamactl.sched.effects import StartInstance, Tell
from llamactl.sched.events import WaiterGone
from tests.unit.sched.test_loads import make_bench


def test_ready_model_may_be_looked_at() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    waiter = bench.lease("a", front=2, autoload=False, passive=True)
    assert bench.granted() == [waiter]


def test_looking_neither_loads_nor_waits_for_a_load() -> None:
    bench = make_bench("a")
    waiter = bench.lease("a", autoload=False, passive=True)
    assert bench.refused() == {waiter: "not_loaded"}
    assert bench.list_all(StartInstance) == []
    wants = bench.lease("a")
    bench.report("a", ChildState.LOADING, stage="model", progress=0.5)
    waiter = bench.lease("a", front=2, autoload=False, passive=True)
    assert bench.refused() == {waiter: "not_loaded"}
    bench.ready("a")
    assert bench.granted() == [wants]


def test_looking_does_not_wake_a_model_that_sleeps() -> None:
    bench = make_bench("a")
    bench.bring_up("a")
    bench.report("a", ChildState.SLEEPING)
    waiter = bench.lease("a", front=2, autoload=False, passive=True)
    assert bench.refused() == {waiter: "not_loaded"}
    assert bench.state("a") == "sleeping"


def test_model_that_sleeps_can_be_asked_how_it_was_and_no_other() -> None:
    bench = make_bench("a", "b")
    bench.bring_up("a")
    bench.report("a", ChildState.SLEEPING)
    asleep = bench.lease("a", front=2, autoload=False, passive=True)
    absent = bench.lease("b", front=2, autoload=False, passive=True)
    wakes = bench.lease("a", front=2, autoload=False)
    details = {told.waiter: told.message.details for told in bench.list_all(Tell) if isinstance(told.message, Failure)}
    assert details[asleep] == {"asleep": bench.list_all(StartInstance)[0].generation}
    assert details[absent] == {}
    assert wakes not in details or not details[wakes]


def test_looking_does_not_stand_in_a_queue_that_keeps_a_load_going() -> None:
    bench = make_bench("a", "b", size=60, budget=100)
    bench.lease("a")
    bench.ready("a")
    wants = bench.lease("b", front=2)
    bench.lease("b", front=2, autoload=False, passive=True)
    bench.do(WaiterGone(wants))
    assert bench.state("b") == "unloaded"
