"""What subscribers of `GET /models/sse` are told, by what the supervisor tells."""

from typing import Any

import msgspec
import pytest

from llamactl.front.events import HISTORY, PROGRESS_INTERVAL_S, EventLog
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.values import Breakdown, Facts, LoadFailure, ModelMemory, Stage, State

A = ModelStatus(name="a", state=State.UNLOADED, created=7)
B = ModelStatus(name="b", state=State.READY)


def loading(progress: float, stage: Stage = Stage.LOADING) -> ModelStatus:
    return ModelStatus(name="a", state=State.LOADING, stage=stage, progress=progress)


def read(events: bytes | None) -> list[dict[str, Any]]:
    assert events is not None
    found = []
    for event in events.decode().split("\n\n")[:-1]:
        first, second = event.split("\n")
        found.append({"id": first.removeprefix("id: "), **msgspec.json.decode(second.removeprefix("data: "))})
    return found


def tell(log: EventLog, since: int = 0) -> list[tuple[str, str, Any]]:
    return [(event["model"], event["event"], event["data"]) for event in read(log.format_since(since))]


@pytest.fixture
def log() -> EventLog:
    made = EventLog("ep")
    made.on_models((A, B), 0.0)
    return made


def test_nothing_is_told_of_models_that_were_there(log: EventLog) -> None:
    assert log.number == 0
    (snapshot,) = read(log.format_snapshot())
    assert (snapshot["id"], snapshot["model"], snapshot["event"]) == ("ep-0", "*", "snapshot")
    listed = snapshot["data"]["models"]
    assert [(model["id"], model["status"]["value"]) for model in listed] == [("a", "unloaded"), ("b", "loaded")]
    assert listed[0]["created"] == 7


def test_end_is_told_with_its_exit_code_when_the_memory_is_free(log: EventLog) -> None:
    log.on_model(ModelStatus(name="b", state=State.STOPPING, stopped_from=State.READY), 1.0)
    assert tell(log) == []
    log.on_model(ModelStatus(name="b", state=State.UNLOADED, exit_code=9), 2.0)
    for _, _, data in tell(log):
        assert (data["status"], data["exit_code"]) == ("unloaded", 9)


def test_load_and_unload_in_one_moment_are_told_as_two(log: EventLog) -> None:
    for state in (State.LOADING, State.READY, State.STOPPING, State.UNLOADED):
        log.on_model(ModelStatus(name="a", state=state), 1.0)
    told = [data for _, event, data in tell(log) if event == "model_status"]
    assert [data["status"] for data in told] == ["loading", "loaded", "unloaded"]
    assert told[-1]["exit_code"] == 0


def test_change_of_state_has_both_names(log: EventLog) -> None:
    log.on_model(loading(0.0), 1.0)
    facts = Facts(n_ctx_train=99)
    ready = ModelStatus(name="a", state=State.READY, facts=facts, memory=ModelMemory(effective=Breakdown(n_ctx=64)))
    log.on_model(ready, 2.0)
    told = tell(log)
    assert [(model, event, data.get("status")) for model, event, data in told] == [
        ("a", "model_status", "loading"),
        ("a", "status_change", "loading"),
        ("a", "model_status", "loaded"),
        ("a", "status_change", "loaded"),
        ("a", "model_memory", None),
    ]
    assert told[0][2] == told[1][2]
    assert told[0][2]["progress"] == {"stages": told[0][2]["progress"]["stages"], "current": "loading", "value": 0.0}
    assert told[3][2]["info"]["context_length"] == 64
    assert told[3][2]["info"]["meta"]["n_ctx_train"] == 99
    assert told[4][2]["memory"]["effective"]["n_ctx"] == 64
    assert [event["id"] for event in read(log.format_since(0))] == [f"ep-{number}" for number in range(1, 6)]


def test_failure_says_how_it_ended(log: EventLog) -> None:
    failure = LoadFailure(result="exit-code", exit_code=7, message="bad file")
    log.on_model(ModelStatus(name="a", state=State.FAILED, failure=failure), 1.0)
    data = tell(log)[0][2]
    assert data == {"status": "unloaded", "failed": True, "exit_code": 7, "reason": "bad file"}


def test_progress_is_told_at_most_every_interval_and_its_last_is_not_lost(log: EventLog) -> None:
    log.on_model(loading(0.0), 10.0)
    start = log.number
    for step in range(1, 10):
        log.on_model(loading(step / 100), 10.0 + step / 100)
    assert log.number == start
    assert log.next_due_s() == pytest.approx(10.0 + PROGRESS_INTERVAL_S)
    log.tell_due(10.1)
    assert log.number == start
    log.tell_due(10.0 + PROGRESS_INTERVAL_S)
    told = tell(log, start)
    assert [data["progress"]["value"] for _, _, data in told] == [0.09, 0.09]
    assert log.next_due_s() is None
    log.on_model(loading(0.5), 11.0)
    assert tell(log, start + 2)[0][2]["progress"]["value"] == 0.5


def test_change_of_state_is_not_put_off_and_ends_what_was(log: EventLog) -> None:
    log.on_model(loading(0.0), 10.0)
    log.on_model(loading(0.9), 10.01)
    log.on_model(ModelStatus(name="a", state=State.READY), 10.02)
    assert tell(log)[-1][2]["status"] == "loaded"
    assert log.next_due_s() is None
    before = log.number
    log.tell_due(11.0)
    assert log.number == before


def test_requests_are_no_events(log: EventLog) -> None:
    log.on_model(msgspec.structs.replace(B, busy=3, last_used_s=5.0, queued=1), 1.0)
    assert log.number == 0


def test_models_come_and_go(log: EventLog) -> None:
    log.on_reload()
    log.on_removed("b")
    log.on_removed("never")
    log.on_model(ModelStatus(name="c", state=State.UNLOADED), 1.0)
    told = tell(log)
    assert told[:2] == [("*", "models_reload", {}), ("b", "model_remove", {})]
    assert [(model, event) for model, event, _ in told[2:]] == [("c", "model_status"), ("c", "status_change")]


def test_unlisted_models_are_not_told_of_and_one_that_becomes_so_is_gone(log: EventLog) -> None:
    log.on_model(ModelStatus(name="secret", state=State.READY, unlisted=True), 1.0)
    assert log.number == 0
    log.on_model(msgspec.structs.replace(B, unlisted=True), 1.0)
    assert tell(log) == [("b", "model_remove", {})]
    assert len(read(log.format_snapshot())[0]["data"]["models"]) == 1


def test_second_picture_tells_what_has_changed_meanwhile(log: EventLog) -> None:
    log.on_models((ModelStatus(name="a", state=State.READY), ModelStatus(name="c", state=State.UNLOADED)), 5.0)
    assert [(model, event) for model, event, _ in tell(log)] == [
        ("b", "model_remove"),
        ("a", "model_status"),
        ("a", "status_change"),
        ("c", "model_status"),
        ("c", "status_change"),
    ]


def test_client_goes_on_behind_its_last_id(log: EventLog) -> None:
    log.on_model(loading(0.0), 1.0)
    log.on_removed("b")
    assert log.parse_id(b"ep-2") == 2
    assert [event["event"] for event in read(log.format_since(2))] == ["model_remove"]
    assert log.format_since(3) == b""


@pytest.mark.parametrize("last", [None, b"", b"ep", b"other-1", b"ep-", b"ep-x", b"ep--1", "ep-\u0661".encode(), b"1"])
def test_id_of_another_process_or_none_begins_anew(log: EventLog, last: bytes | None) -> None:
    assert log.parse_id(last) is None


@pytest.mark.parametrize("number", [99, 10**15])
def test_id_that_was_never_given_begins_anew(log: EventLog, number: int) -> None:
    assert log.format_since(number) is None


def test_client_that_missed_too_much_begins_anew(log: EventLog) -> None:
    for _ in range(HISTORY + 1):
        log.on_reload()
    assert log.format_since(0) is None
    assert len(read(log.format_since(1))) == HISTORY


def test_log_that_knows_nothing_tells_nothing() -> None:
    log = EventLog("ep")
    log.on_model(loading(0.5), 1.0)
    log.on_removed("a")
    log.on_reload()
    log.tell_due(2.0)
    assert (log.number, log.known) == (0, None)
