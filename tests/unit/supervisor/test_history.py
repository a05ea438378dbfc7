"""What `status` tells of the past comes from the journal's lines, and is bounded."""

from llamactl.protocol.descriptions import Decision, Ending
from llamactl.sched.effects import Record
from llamactl.sched.instances import StopReason
from llamactl.supervisor.history import MAX_DECISIONS, MAX_ENDINGS, History


def make_history(*records: Record) -> History:
    history = History()
    for at, record in enumerate(records):
        history.add(record, float(at))
    return history


def need(model: str, device: str, needs: int, available: int) -> Record:
    fields = {"device": device, "needs_bytes": needs, "available_bytes": available, "margin_bytes": 0}
    return Record("load decided", model, fields=fields)


def test_evicted_model_says_for_whom() -> None:
    gone = Record("model unloaded", "a", fields={"reason": str(StopReason.EVICTED), "for_model": "b", "frees_bytes": 1})
    ending = make_history(gone).find_ending("a")
    assert ending == Ending(event="model unloaded", time_s=0.0, reason="evicted", for_model="b")


def test_last_end_counts_and_says_how_the_unit_ended() -> None:
    failed = Record("load failed", "a", "error", {"result": "exit-code", "exit_code": 1, "reason": "bad magic"})
    killed = Record(
        "model unloaded", "a", fields={"reason": str(StopReason.COMMAND), "result": "timeout", "exit_code": 9}
    )
    history = make_history(failed)
    assert history.find_ending("a") == Ending(event="load failed", time_s=0.0, reason="bad magic")
    history.add(killed, 5.0)
    reason = "by command; its unit ended with timeout 9"
    assert history.find_ending("a") == Ending(event="model unloaded", time_s=5.0, reason=reason)
    assert history.find_ending("b") is None


def test_refused_load_is_the_last_that_is_known() -> None:
    history = make_history(
        Record("load refused", "a", "warning", {"why": "cannot start 'a': needs 2 GiB", "code": "x"})
    )
    assert history.find_ending("a") == Ending(event="load refused", time_s=0.0, reason="cannot start 'a': needs 2 GiB")


def test_load_on_several_devices_is_one_decision() -> None:
    history = make_history(
        need("a", "CUDA0", 2 << 30, 8 << 30),
        need("a", "Host", 1 << 20, 4 << 30),
        Record("instance spawned", "a", fields={"generation": "1", "devices": []}),
        Record("load decided", "b", "warning", {"reason": "without memory checks: not measured"}),
        Record("instance spawned", "b", fields={"generation": "2", "devices": []}),
    )
    blind, load = history.list_decisions()
    why = "needs 2.00 GiB on CUDA0, 8.00 GiB available; needs 1.00 MiB on Host, 4.00 GiB available"
    assert load == Decision(event="load decided", model="a", why=why, time_s=2.0)
    assert (blind.model, blind.why) == ("b", "without memory checks: not measured")


def test_eviction_is_told_once_by_its_reason() -> None:
    history = make_history(
        Record("load waits", "b", fields={"waiting_for": ["a"], "why": "it needs 2 GiB"}),
        Record("victim chosen", "a", fields={"for_model": "b", "why": "idle for 4 s"}),
        Record("model unloaded", "a", fields={"reason": str(StopReason.EVICTED), "for_model": "b"}),
        Record("model unloaded", "c", fields={"reason": str(StopReason.IDLE)}),
        Record("model measured", "c"),
    )
    assert [(one.event, one.model, one.for_model, one.why) for one in history.list_decisions()] == [
        ("model unloaded", "c", "", "idle timeout"),
        ("victim chosen", "a", "b", "idle for 4 s"),
        ("load waits", "b", "", "for a: it needs 2 GiB"),
    ]


def test_load_that_goes_on_waiting_is_one_decision_with_the_last_figures() -> None:
    waits = [Record("load waits", "b", fields={"waiting_for": ["a"], "why": f"{at} free"}) for at in range(3)]
    [decision] = make_history(*waits).list_decisions()
    assert (decision.why, decision.time_s) == ("for a: 2 free", 2.0)


def test_what_is_remembered_is_bounded() -> None:
    history = make_history(
        *(Record("model unloaded", f"m{at}", fields={"reason": "by command"}) for at in range(MAX_ENDINGS + 2))
    )
    assert len(history.list_decisions()) == MAX_DECISIONS
    known = [at for at in range(MAX_ENDINGS + 2) if history.find_ending(f"m{at}") is not None]
    assert known == list(range(2, MAX_ENDINGS + 2))
