"""The lease table: examples of each rule, and a supervisor that stops what it may, with events in any order.

The invariant: an instance whose lease was given back runs no request, and none begins on it. And nobody is forgotten.
"""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llamactl.errors import ErrorCode
from llamactl.front.lease import Asked, Granted, Lease, Refused
from llamactl.front.lease_queue import CONTROL_WAIT_S
from llamactl.front.leases import LeaseTable
from llamactl.protocol.control_socket import (
    BusyNotice,
    CancelRequest,
    Failure,
    IdleNotice,
    LeaseGone,
    LeaseGrant,
    LeaseRequest,
    Recall,
    RecallAnswer,
    RecallCancelled,
)


def make_table(connected: bool = True) -> LeaseTable:
    table = LeaseTable(itertools.count(1))
    if connected:
        table.handle_connected()
    return table


def pop_messages(table: LeaseTable) -> list[Any]:
    messages = table.outbox.copy()
    table.outbox.clear()
    return messages


def grant(request_id: int, model: str = "a", generation: str = "g1") -> LeaseGrant:
    return LeaseGrant(id=request_id, model=model, slug=model, generation=generation, socket=f"/{model}/{generation}")


def hold(table: LeaseTable, waiter: Any = "w", model: str = "a", generation: str = "g1") -> Lease:
    """A lease with one request on it."""
    assert table.acquire(waiter, Asked(model), 0) is None
    (request,) = pop_messages(table)
    (outcome,) = table.handle(grant(request.id, model, generation), 0)
    assert isinstance(outcome, Granted)
    return outcome.lease


def test_requests_for_a_cold_model_share_one_lease_request() -> None:
    table = make_table()
    for waiter in range(10):
        assert table.acquire(waiter, Asked("a"), 0) is None
    assert pop_messages(table) == [LeaseRequest(id=1, model="a")]
    outcomes = table.handle(grant(1), 0)
    assert [outcome.waiter for outcome in outcomes] == list(range(10))
    assert table.leases()[0].in_flight == 10
    assert len(table.queue) == 0


def test_warm_request_asks_nobody() -> None:
    table = make_table()
    lease = hold(table)
    assert table.acquire("x", Asked("a"), 0) is lease
    assert lease.in_flight == 2
    assert pop_messages(table) == []


def test_looking_does_not_share_a_load() -> None:
    table = make_table()
    table.acquire("x", Asked("a"), 0)
    table.acquire("y", Asked("a", autoload=False), 0)
    assert [message.autoload for message in pop_messages(table)] == [True, False]


def test_alias_is_remembered_until_the_configuration_changes() -> None:
    table = make_table()
    table.acquire("x", Asked("alias"), 0)
    table.handle(grant(1, "a"), 0)
    pop_messages(table)
    assert table.acquire("y", Asked("alias"), 0) is table.acquire("z", Asked("a"), 0)
    assert pop_messages(table) == []
    table.forget_aliases()
    assert table.acquire("y", Asked("alias"), 0) is None
    assert pop_messages(table) == [LeaseRequest(id=2, model="alias")]
    (outcome,) = table.handle(grant(2, "a"), 0)
    assert outcome == Granted("y", table.leases()[0])
    assert table.leases()[0].in_flight == 4


def test_idle_is_told_once_things_are_quiet() -> None:
    table = make_table()
    lease = hold(table)
    table.release(lease, 5.0)
    assert pop_messages(table) == []
    assert table.idle
    table.flush_idle()
    assert pop_messages(table) == [IdleNotice(model="a", generation="g1", last_used_s=5.0)]
    assert not table.idle
    table.acquire("x", Asked("a"), 6.0)
    assert pop_messages(table) == [BusyNotice(model="a", generation="g1")]


def test_requests_in_quick_succession_cost_no_messages() -> None:
    table = make_table()
    lease = hold(table)
    for _ in range(5):
        table.release(lease, 1.0)
        assert table.acquire("x", Asked("a"), 1.0) is lease
    table.flush_idle()
    assert pop_messages(table) == []
    table.release(lease, 2.0)
    table.flush_idle()
    assert pop_messages(table) == [IdleNotice(model="a", generation="g1", last_used_s=2.0)]


def test_looking_is_no_use() -> None:
    table = make_table()
    lease = hold(table)
    table.release(lease, 5.0)
    table.flush_idle()
    pop_messages(table)
    look = Asked("a", autoload=False, passive=True)
    assert table.acquire("x", look, 9.0) is lease
    table.release(lease, 9.0, passive=True)
    table.flush_idle()
    assert lease.last_used_s == 5.0
    assert pop_messages(table) == []


def test_lease_that_is_looked_at_is_not_given_back_under_it() -> None:
    table = make_table()
    lease = hold(table)
    table.release(lease, 5.0)
    table.flush_idle()
    table.acquire("x", Asked("a", autoload=False, passive=True), 9.0)
    pop_messages(table)
    table.handle(Recall(model="a", generation="g1"), 9.5)
    table.release(lease, 10.0, passive=True)
    assert pop_messages(table) == [
        RecallAnswer(model="a", generation="g1", returned=False, last_used_s=5.0),
        IdleNotice(model="a", generation="g1", last_used_s=5.0),
    ]


def test_idle_lease_is_given_back_at_once() -> None:
    table = make_table()
    table.release(hold(table), 5.0)
    table.handle(Recall(model="a", generation="g1"), 6.0)
    assert pop_messages(table) == [RecallAnswer(model="a", generation="g1", returned=True, last_used_s=5.0)]
    assert table.leases() == []
    table.flush_idle()
    assert pop_messages(table) == []
    assert table.acquire("x", Asked("a"), 7.0) is None


def test_busy_lease_is_kept_and_its_end_told_at_once() -> None:
    table = make_table()
    lease = hold(table)
    table.handle(Recall(model="a", generation="g1"), 6.0)
    assert pop_messages(table) == [RecallAnswer(model="a", generation="g1", returned=False)]
    assert table.acquire("x", Asked("a"), 7.0) is lease
    table.release(lease, 8.0)
    assert pop_messages(table) == []
    table.release(lease, 9.0)
    assert pop_messages(table) == [IdleNotice(model="a", generation="g1", last_used_s=9.0)]


def test_recall_between_grant_and_first_byte_finds_the_lease_busy() -> None:
    table = make_table()
    table.acquire("x", Asked("a"), 0)
    table.handle(grant(1), 0)
    pop_messages(table)
    table.handle(Recall(model="a", generation="g1"), 0)
    assert [message.returned for message in pop_messages(table)] == [False]


def test_drain_holds_new_requests_back_and_returns_the_lease_at_the_end() -> None:
    table = make_table()
    lease = hold(table)
    table.handle(Recall(model="a", generation="g1", drain=True), 1.0)
    assert pop_messages(table) == [RecallAnswer(model="a", generation="g1", returned=False)]
    assert table.acquire("x", Asked("a"), 2.0) is None
    assert pop_messages(table) == []
    assert table.release(lease, 3.0) == []
    assert pop_messages(table) == [
        RecallAnswer(model="a", generation="g1", returned=True, last_used_s=3.0),
        LeaseRequest(id=2, model="a"),
    ]
    (outcome,) = table.handle(grant(2, generation="g2"), 4.0)
    assert outcome.waiter == "x"


def test_drain_called_off_lets_requests_go_on() -> None:
    table = make_table()
    lease = hold(table)
    table.handle(Recall(model="a", generation="g1", drain=True), 1.0)
    table.acquire("x", Asked("a"), 2.0)
    assert table.handle(RecallCancelled(model="a", generation="g1"), 3.0) == [Granted("x", lease)]
    assert lease.in_flight == 2
    assert table.acquire("y", Asked("a"), 3.0) is lease


def test_recall_of_a_lease_not_held_is_answered_as_returned() -> None:
    table = make_table()
    hold(table, generation="g2")
    table.handle(Recall(model="a", generation="g1"), 0)
    table.handle(Recall(model="b", generation="g1"), 0)
    assert [message.returned for message in pop_messages(table)] == [True, True]
    assert len(table.leases()) == 1


def test_both_answers_to_a_drain_name_its_recall() -> None:
    table = make_table()
    lease = hold(table)
    table.handle(Recall(model="a", generation="g1", drain=True, id=7), 1.0)
    table.acquire("x", Asked("alias"), 2.0)
    table.release(lease, 3.0)
    answers = [message for message in pop_messages(table) if isinstance(message, RecallAnswer)]
    assert [(answer.returned, answer.recall) for answer in answers] == [(False, 7), (True, 7)]
    table.handle(RecallCancelled(model="a", generation="g1"), 4.0)
    table.handle(grant(2), 4.0)
    assert pop_messages(table) == []  # the grant itself says that the new lease is busy
    assert [lease.in_flight for lease in table.leases()] == [1]


def test_gone_instance_takes_its_lease_and_held_back_requests_wait_for_the_next() -> None:
    table = make_table()
    lease = hold(table)
    table.handle(Recall(model="a", generation="g1", drain=True), 1.0)
    table.acquire("x", Asked("a"), 2.0)
    pop_messages(table)
    assert table.handle(LeaseGone(model="a", generation="g1"), 3.0) == []
    assert pop_messages(table) == [LeaseRequest(id=2, model="a")]
    table.release(lease, 4.0)
    assert pop_messages(table) == []


def test_stale_generation_is_named_and_its_lease_dropped() -> None:
    table = make_table()
    lease = hold(table)
    table.release(lease, 1.0)
    assert table.acquire("w", Asked("a", stale="g1"), 1.0) is None
    assert pop_messages(table) == [LeaseRequest(id=2, model="a", stale_generation="g1")]
    assert table.leases() == []
    table.handle(grant(2, generation="g2"), 2.0)
    assert table.acquire("x", Asked("a", stale="g1"), 2.0) is not None


def test_last_client_to_leave_cancels() -> None:
    table = make_table()
    table.acquire("x", Asked("a"), 0)
    table.acquire("y", Asked("a"), 0)
    pop_messages(table)
    table.queue.leave("x")
    assert pop_messages(table) == []
    table.queue.leave("y")
    assert pop_messages(table) == [CancelRequest(id=1)]
    table.acquire("z", Asked("a"), 0)
    assert pop_messages(table) == [LeaseRequest(id=2, model="a")]
    assert table.handle(Failure(id=1, code="cancelled", message=""), 0) == []
    assert len(table.queue) == 1


def test_grant_that_crosses_a_cancel_is_held_idle() -> None:
    table = make_table()
    table.acquire("x", Asked("a"), 0)
    table.queue.leave("x")
    pop_messages(table)
    assert table.handle(grant(1), 0) == []
    assert pop_messages(table) == [IdleNotice(model="a", generation="g1", last_used_s=0.0)]
    assert table.acquire("y", Asked("a"), 0) is not None


@pytest.mark.parametrize(("code", "expected"), [("does_not_fit", ErrorCode.DOES_NOT_FIT), ("new", ErrorCode.INTERNAL)])
def test_failure_reaches_everybody_who_waited(code: str, expected: ErrorCode) -> None:
    table = make_table()
    table.acquire("x", Asked("a"), 0)
    table.acquire("y", Asked("a"), 0)
    outcomes = table.handle(Failure(id=1, code=code, message="m", hint="h", details={"n": 1}), 0)
    assert [(outcome.waiter, outcome.error.code) for outcome in outcomes if isinstance(outcome, Refused)] == [
        ("x", expected),
        ("y", expected),
    ]
    assert len(table.queue) == 0


def test_supervisor_away_is_waited_for_and_then_refused() -> None:
    table = make_table()
    table.handle_lost(100.0)
    assert table.acquire("x", Asked("a"), 101.0) is None
    assert table.acquire("y", Asked("b"), 105.0) is None
    assert pop_messages(table) == []
    assert table.queue.next_deadline_s() == 101.0 + CONTROL_WAIT_S
    (refused,) = table.queue.expire(101.0 + CONTROL_WAIT_S)
    assert isinstance(refused, Refused)
    assert (refused.waiter, refused.error.code) == ("x", ErrorCode.NO_SUPERVISOR)
    assert table.queue.next_deadline_s() == 105.0 + CONTROL_WAIT_S
    table.handle_connected()
    assert pop_messages(table) == [LeaseRequest(id=1, model="b")]
    assert table.queue.next_deadline_s() is None
    assert table.queue.expire(999.0) == []


def test_requests_sent_before_the_loss_are_sent_again() -> None:
    table = make_table()
    table.acquire("x", Asked("a"), 0)
    pop_messages(table)
    table.handle_lost(1.0)
    assert table.handle(grant(1), 1.0) == []  # an answer from the past belongs to nobody
    table.handle(LeaseGone(model="a", generation="g1"), 1.0)
    pop_messages(table)
    table.handle_connected()
    assert pop_messages(table) == [LeaseRequest(id=2, model="a")]


def test_leases_survive_the_supervisor_and_are_announced() -> None:
    table = make_table()
    lease = hold(table)
    other = hold(table, model="b")
    table.release(other, 3.0)
    table.handle_lost(4.0)
    assert table.acquire("x", Asked("b"), 4.0) is other
    held = {item.model: item for item in table.announce()}
    assert (held["a"].busy, held["b"].busy) == (True, True)
    table.release(other, 5.0)
    table.release(lease, 6.0)
    assert pop_messages(table) == []
    table.handle_connected()
    assert sorted(pop_messages(table), key=lambda message: str(message.model)) == [
        IdleNotice(model="a", generation="g1", last_used_s=6.0),
        IdleNotice(model="b", generation="g1", last_used_s=5.0),
    ]


def test_drain_ends_with_the_supervisor() -> None:
    table = make_table()
    lease = hold(table)
    table.handle(Recall(model="a", generation="g1", drain=True), 1.0)
    table.acquire("x", Asked("a"), 1.0)
    assert table.handle_lost(2.0) == [Granted("x", lease)]


class LeaseMachine(RuleBasedStateMachine):
    """A front and a supervisor with one queue of messages each way, read at any time. It stops what it may stop."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(itertools.count(1))
        self.now_s = 0.0
        self.waiters = itertools.count(1)
        self.waiting: set[int] = set()
        self.running: dict[int, Lease] = {}
        self.refused: set[int] = set()
        # the supervisor's side
        self.up = False
        self.to_front: list[Any] = []
        self.generation = {"a": 1, "b": 1}
        self.alive: dict[str, bool] = {"a": False, "b": False}
        self.held: set[str] = set()
        self.busy: dict[str, bool] = {}
        self.recalled: dict[str, bool] = {}
        """Whether each recall drains."""
        self.recalls = 0
        self.granted_after: dict[str, int] = {}
        """The last recall before each lease."""
        self.open: dict[int, str] = {}
        self.stopped: set[tuple[str, str]] = set()

    def handle_outcomes(self, outcomes: list[Any]) -> None:
        for outcome in outcomes:
            self.waiting.remove(outcome.waiter)
            if isinstance(outcome, Granted):
                self.running[outcome.waiter] = outcome.lease
            else:
                self.refused.add(outcome.waiter)

    @initialize()
    def begin(self) -> None:
        self.connect()

    @precondition(lambda self: not self.up)
    @rule()
    def connect(self) -> None:
        self.up = True
        self.to_front.clear()
        self.open.clear()
        self.recalled.clear()
        self.granted_after.clear()
        announced = self.table.announce()
        self.held = {lease.model for lease in announced}
        self.busy = {lease.model: lease.busy for lease in announced}
        for lease in announced:
            if not self.alive[lease.model] or lease.generation != f"g{self.generation[lease.model]}":
                self.to_front.append(LeaseGone(model=lease.model, generation=lease.generation))
                self.held.discard(lease.model)
        self.table.handle_connected()

    @precondition(lambda self: self.up)
    @rule()
    def lose_supervisor(self) -> None:
        self.up = False
        self.to_front.clear()
        self.held.clear()
        self.handle_outcomes(self.table.handle_lost(self.now_s))

    @rule(name=st.sampled_from(["a", "b", "alias-a"]), autoload=st.booleans(), passive=st.booleans())
    def request(self, name: str, autoload: bool, passive: bool) -> None:
        waiter = next(self.waiters)
        lease = self.table.acquire(waiter, Asked(name, autoload, passive=passive), self.now_s)
        if lease is None:
            self.waiting.add(waiter)
        else:
            self.running[waiter] = lease

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(sorted(self.running)))
        self.handle_outcomes(self.table.release(self.running.pop(waiter), self.now_s))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.remove(waiter)
        self.table.queue.leave(waiter)

    @rule(elapsed_s=st.sampled_from([0.1, 3.0, 11.0]))
    def pass_time(self, elapsed_s: float) -> None:
        self.now_s += elapsed_s
        self.table.flush_idle()
        self.handle_outcomes(self.table.queue.expire(self.now_s))

    @precondition(lambda self: self.up)
    @rule()
    def read_front(self) -> None:
        """The supervisor reads all that the front has written."""
        for message in pop_messages(self.table):
            match message:
                case LeaseRequest():
                    self.open[message.id] = message.model.removeprefix("alias-")
                case CancelRequest():
                    if self.open.pop(message.id, None):
                        self.to_front.append(Failure(id=message.id, code="cancelled", message=""))
                case BusyNotice() if message.generation == f"g{self.generation[message.model]}":
                    self.held.add(message.model)
                    self.busy[message.model] = True
                case IdleNotice() if message.model in self.held:
                    self.busy[message.model] = False
                case RecallAnswer() if message.recall <= self.granted_after.get(message.model, 0):
                    pass  # about the lease before this one
                case RecallAnswer() if message.returned and message.model in self.held:
                    self.held.discard(message.model)
                    if message.model in self.recalled:
                        del self.recalled[message.model]
                        self.stop_instance(message.model)
                case RecallAnswer() if not message.returned and self.recalled.get(message.model) is False:
                    del self.recalled[message.model]  # one that is busy voids the recall

    def stop_instance(self, model: str) -> None:
        generation = f"g{self.generation[model]}"
        for lease in self.running.values():
            assert (lease.model, lease.generation) != (model, generation), "stopped under a running request"
        self.stopped.add((model, generation))
        self.alive[model] = False
        self.generation[model] += 1

    @precondition(lambda self: self.up and self.open)
    @rule(data=st.data(), refuse=st.booleans())
    def answer(self, data: st.DataObject, refuse: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        model = self.open[number]
        if model in self.recalled:
            return  # during a recall new lease requests wait
        del self.open[number]
        if refuse:
            self.to_front.append(Failure(id=number, code="load_failed", message=""))
            return
        self.alive[model] = True
        self.held.add(model)
        self.busy[model] = True
        self.granted_after[model] = self.recalls
        self.to_front.append(grant(number, model, f"g{self.generation[model]}"))

    @precondition(lambda self: self.up and self.held - set(self.recalled))
    @rule(data=st.data(), drain=st.booleans())
    def recall(self, data: st.DataObject, drain: bool) -> None:
        model = data.draw(st.sampled_from(sorted(self.held - set(self.recalled))))
        self.recalled[model] = drain
        self.recalls += 1
        generation = f"g{self.generation[model]}"
        self.to_front.append(Recall(model=model, generation=generation, drain=drain, id=self.recalls))

    @precondition(lambda self: self.up and self.recalled)
    @rule(data=st.data())
    def call_off(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(sorted(self.recalled)))
        del self.recalled[model]  # an answer may be on its way, and a new grant overtake it
        self.to_front.append(RecallCancelled(model=model, generation=f"g{self.generation[model]}"))

    @precondition(lambda self: self.up and self.to_front)
    @rule()
    def deliver(self) -> None:
        """The front reads one message."""
        message = self.to_front.pop(0)
        if isinstance(message, LeaseGrant):
            assert (message.model, message.generation) not in self.stopped
        self.handle_outcomes(self.table.handle(message, self.now_s))

    @invariant()
    def every_request_is_somewhere(self) -> None:
        assert len(self.table.queue) == len(self.waiting)
        for lease in self.table.leases():
            assert lease.in_flight == sum(held is lease for held in self.running.values())
            assert not lease.gone

    @invariant()
    def nothing_begins_on_a_stopped_instance(self) -> None:
        for lease in self.running.values():
            assert (lease.model, lease.generation) not in self.stopped

    @invariant()
    def questions_are_not_asked_twice(self) -> None:
        open_requests = [message for message in self.table.outbox if isinstance(message, LeaseRequest)]
        asked = [msgspec.structs.replace(message, id=0) for message in open_requests]
        cancelled = {message.id for message in self.table.outbox if isinstance(message, CancelRequest)}
        live = [item for item, message in zip(asked, open_requests, strict=True) if message.id not in cancelled]
        assert all(live.count(item) == 1 for item in live)

    def teardown(self) -> None:
        """In the end everybody gets an answer, and the supervisor knows the truth."""
        if not self.up:
            self.connect()
        for waiter in list(self.running):
            self.handle_outcomes(self.table.release(self.running.pop(waiter), self.now_s))
        for _ in range(100):
            self.read_front()
            while self.to_front:
                self.deliver()
            self.read_front()
            for number, model in list(self.open.items()):
                if model not in self.recalled:
                    del self.open[number]
                    self.to_front.append(Failure(id=number, code="load_failed", message=""))
            for waiter in list(self.running):
                self.handle_outcomes(self.table.release(self.running.pop(waiter), self.now_s))
        assert not self.waiting
        self.table.flush_idle()
        self.read_front()
        for model in self.held:
            assert not self.busy[model]


LeaseMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
test_leases_hold_whatever_happens = LeaseMachine.TestCase
