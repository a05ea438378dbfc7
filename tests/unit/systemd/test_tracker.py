"""Does each run of a unit tell its story once, whatever order and staleness the signals come in?"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llamactl.names import Role
from llamactl.systemd.tracker import SERVICE_INTERFACE, UNIT_INTERFACE, Tracker
from llamactl.systemd.unit_state import UnitChanged, UnitEnded, UnitEvent, UnitGone, UnitSnapshot, UnitStarted

UNIT = "llamactl-model@a.service"
PID = 4711


def signal(tracker: Tracker, service: dict[str, Any], **unit: Any) -> list[UnitEvent]:
    """One change, as systemd sends it: the service's properties, then the unit's."""
    events = tracker.handle_properties(UNIT, SERVICE_INTERFACE, service)
    return events + tracker.handle_properties(UNIT, UNIT_INTERFACE, unit)


def send(
    tracker: Tracker, active: str, at_us: int, *, job: int = 0, pid: int = 0, entered_us: int = 0, **service: Any
) -> list[UnitEvent]:
    return signal(
        tracker,
        {"MainPID": pid, "Result": "success", "ExecMainCode": 0, "ExecMainStatus": 0, "StatusText": ""} | service,
        ActiveState=active,
        SubState="x",
        Job=job,
        StateChangeTimestampMonotonic=at_us,
        ActiveEnterTimestampMonotonic=entered_us,
    )


def begin() -> Tracker:
    """A run that has just begun: systemd says inactive first, with the start job."""
    tracker = Tracker()
    assert tracker.handle_begun(UNIT) == []
    assert send(tracker, "inactive", 0, job=17) == []
    return tracker


def begin_active() -> Tracker:
    tracker = begin()
    send(tracker, "activating", 10, job=17, pid=PID)
    assert send(tracker, "active", 20, pid=PID, entered_us=20) == [UnitStarted(UNIT, PID)]
    return tracker


def snapshot(active: str = "active", at_us: int = 20, entered_us: int = 20, **other: Any) -> UnitSnapshot:
    known = UnitSnapshot(
        unit=UNIT,
        role=Role.MODEL,
        slug="a",
        load_state="loaded",
        active_state=active,
        sub_state="x",
        result="success",
        exit_code=0,
        exit_kind=0,
        main_pid=PID if active == "active" else 0,
        invocation_id="",
        environment={},
        state_change_us=at_us,
        active_enter_us=entered_us,
    )
    return replace(known, **other)


def test_unit_that_is_just_loaded_has_not_ended() -> None:
    tracker = begin()
    assert tracker.knows(UNIT)


def test_load_tells_its_states_and_its_readiness() -> None:
    tracker = begin()
    assert send(tracker, "activating", 10, job=17, pid=PID) == [UnitChanged(UNIT, "activating", "x", PID, "")]
    progress = send(tracker, "activating", 10, job=17, pid=PID, StatusText="loading 45 %")
    assert progress == [UnitChanged(UNIT, "activating", "x", PID, "loading 45 %")]
    assert send(tracker, "active", 20, pid=PID, entered_us=20) == [UnitStarted(UNIT, PID)]
    assert send(tracker, "active", 20, pid=PID, entered_us=20) == []


def test_stop_ends_when_the_state_is_final() -> None:
    tracker = begin_active()
    (changed,) = send(tracker, "deactivating", 30, job=18, pid=PID, entered_us=20)
    assert isinstance(changed, UnitChanged)
    assert send(tracker, "inactive", 40, entered_us=20, ExecMainCode=1) == [UnitEnded(UNIT, "success", 0, 1, "", True)]
    assert tracker.handle_removed(UNIT, loaded=False) == [UnitGone(UNIT)]
    assert not tracker.knows(UNIT)


def test_failed_start_is_not_started_and_keeps_its_name() -> None:
    tracker = begin()
    send(tracker, "activating", 10, job=17, pid=PID)
    failure = {"Result": "exit-code", "ExecMainCode": 1, "ExecMainStatus": 3, "StatusText": "no such file"}
    assert send(tracker, "failed", 20, **failure) == [UnitEnded(UNIT, "exit-code", 3, 1, "no such file", False)]
    assert send(tracker, "failed", 20, **failure) == []
    assert tracker.knows(UNIT)


def test_properties_of_the_service_alone_end_nothing() -> None:
    tracker = begin_active()
    assert tracker.handle_properties(UNIT, SERVICE_INTERFACE, {"Result": "signal", "MainPID": 0}) == []


def test_reset_of_a_failed_unit_is_no_second_end() -> None:
    tracker = begin_active()
    assert len(send(tracker, "failed", 30, entered_us=20, Result="signal")) == 1
    assert send(tracker, "inactive", 40, entered_us=20) == []
    assert tracker.handle_removed(UNIT, loaded=False) == [UnitGone(UNIT)]


def test_start_and_end_within_one_signal_are_told_as_started() -> None:
    tracker = begin()
    assert send(tracker, "inactive", 30, entered_us=20) == [UnitEnded(UNIT, "success", 0, 0, "", True)]


def test_daemon_reload_is_no_news() -> None:
    tracker = begin_active()
    assert tracker.handle_removed(UNIT, loaded=True) == []
    assert tracker.handle_list([snapshot()], 50) == []
    assert send(tracker, "active", 20, pid=PID, entered_us=20) == []
    assert tracker.handle_list([snapshot()], 60) == []


def test_removal_without_a_final_state_still_ends_the_run() -> None:
    tracker = begin_active()
    assert tracker.handle_removed(UNIT, loaded=False) == [UnitEnded(UNIT, "unknown", 0, 0, "", True), UnitGone(UNIT)]


def test_new_run_before_the_old_ones_removal_was_delivered() -> None:
    tracker = begin_active()
    send(tracker, "inactive", 30, entered_us=20)
    assert tracker.handle_begun(UNIT) == [UnitGone(UNIT)]
    assert tracker.handle_removed(UNIT, loaded=True) == []
    assert send(tracker, "active", 50, pid=PID + 1, entered_us=50) == [UnitStarted(UNIT, PID + 1)]


def test_first_list_finds_what_runs() -> None:
    tracker = Tracker()
    assert tracker.handle_list([snapshot()], 100) == [UnitStarted(UNIT, PID)]
    assert send(tracker, "failed", 130, entered_us=20, Result="signal", ExecMainCode=2, ExecMainStatus=9) == [
        UnitEnded(UNIT, "signal", 9, 2, "", True)
    ]


def test_list_after_a_lost_connection_tells_what_was_missed() -> None:
    tracker = begin_active()
    failed = snapshot("failed", 40, result="oom-kill", exit_code=9, exit_kind=2)
    assert tracker.handle_list([failed], 100) == [UnitEnded(UNIT, "oom-kill", 9, 2, "", True)]
    assert tracker.handle_list([], 110) == [UnitGone(UNIT)]
    tracker = begin_active()
    assert tracker.handle_list([], 100) == [UnitEnded(UNIT, "unknown", 0, 0, "", True), UnitGone(UNIT)]


def test_list_shows_that_another_run_has_taken_the_place() -> None:
    tracker = begin_active()
    assert tracker.handle_list([snapshot(at_us=90, entered_us=90, main_pid=99)], 100) == [
        UnitEnded(UNIT, "unknown", 0, 0, "", True),
        UnitGone(UNIT),
        UnitStarted(UNIT, 99),
    ]


def test_signals_older_than_a_list_are_dropped() -> None:
    tracker = begin_active()
    tracker.handle_list([], 100)
    assert send(tracker, "deactivating", 30, entered_us=20) == []
    assert send(tracker, "failed", 40, entered_us=20, Result="signal") == []
    assert not tracker.knows(UNIT)


def test_signals_older_than_what_a_list_showed_of_a_run_are_dropped() -> None:
    tracker = begin()
    assert tracker.handle_list([snapshot()], 100) == [UnitStarted(UNIT, PID)]
    assert send(tracker, "activating", 10, job=17, pid=PID) == []
    assert send(tracker, "active", 20, pid=PID, entered_us=20) == []


def test_failed_unit_started_by_hand_is_a_new_run() -> None:
    tracker = begin_active()
    send(tracker, "failed", 30, entered_us=20, Result="signal")
    send(tracker, "failed", 30, job=19, entered_us=20, Result="signal")
    send(tracker, "activating", 40, job=19, entered_us=20, pid=5)
    assert send(tracker, "active", 50, entered_us=50, pid=5) == [UnitStarted(UNIT, 5)]


def test_unit_of_others_that_ends_is_no_news() -> None:
    assert send(Tracker(), "failed", 30, Result="signal") == []
    assert Tracker().handle_removed(UNIT, loaded=False) == []


# --- any history, any staleness -----------------------------------------------------------------


@dataclass(frozen=True)
class Life:
    """One run: how far it came, and how it ended."""

    activates: bool
    fails: bool


def write_history(lives: list[Life]) -> list[tuple[str, Any]]:
    """What the connection delivers, in order: begun, states (as snapshots), removed."""
    history: list[tuple[str, Any]] = []
    at_us = 1000
    for life in lives:
        history.append(("begun", None))
        history.append(("state", snapshot("inactive", 0, 0, job=1)))
        history.append(("state", snapshot("activating", at_us := at_us + 10, 0, job=1, main_pid=PID)))
        entered_us = 0
        if life.activates:
            entered_us = at_us = at_us + 10
            history.append(("state", snapshot("active", at_us, entered_us)))
        last, result = ("failed", "signal") if life.fails else ("inactive", "success")
        history.append(("state", snapshot(last, at_us := at_us + 10, entered_us, result=result)))
        history.append(("removed", None))
    return history


def read_world(history: list[tuple[str, Any]], position: int) -> list[UnitSnapshot]:
    """What a list shows when all of `history[:position]` has happened."""
    kind, value = history[position - 1] if position else ("removed", None)
    if kind == "begun":
        return [snapshot("inactive", 0, 0, job=1)]
    return [value] if kind == "state" else []


def choose_last_visible(history: list[tuple[str, Any]], position: int) -> int:
    """How far the world may be ahead of what was delivered: up to our own next start, which comes after the list."""
    starts = [index for index in range(position, len(history)) if history[index][0] == "begun"]
    return starts[0] if starts else len(history)


def moment_of(history: list[tuple[str, Any]], position: int) -> int:
    return max([1000, *(value.state_change_us for kind, value in history[:position] if kind == "state")]) + 1


@given(
    st.lists(st.builds(Life, st.booleans(), st.booleans()), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6), st.booleans()), max_size=6),
)
def test_every_run_ends_once_and_then_is_gone(lives: list[Life], lists: list[tuple[int, int, bool]]) -> None:
    history = write_history(lives)
    tracker = Tracker()
    told: list[UnitEvent] = []
    seen = 0

    def deliver_lists(position: int) -> Iterator[UnitEvent]:
        nonlocal seen
        for at, ahead, reload in lists:
            if at == position:
                # The world goes forward only: a later list shows no less than an earlier one.
                seen = visible = max(seen, min(position + ahead, choose_last_visible(history, position)))
                world = read_world(history, visible)
                if reload and world and visible == position:
                    yield from tracker.handle_removed(UNIT, loaded=True)
                yield from tracker.handle_list(world, moment_of(history, visible))

    for position, (kind, value) in enumerate(history):
        told += deliver_lists(position)
        if kind == "begun":
            told += tracker.handle_begun(UNIT)
        elif kind == "removed":
            told += tracker.handle_removed(UNIT, loaded=False)
        else:
            told += send(
                tracker,
                value.active_state,
                value.state_change_us,
                job=value.job,
                pid=value.main_pid,
                entered_us=value.active_enter_us,
                Result=value.result,
            )
    told += deliver_lists(len(history))

    stories: list[list[UnitEvent]] = [[]]
    for event in told:
        if not isinstance(event, UnitChanged):
            stories[-1].append(event)
        if isinstance(event, UnitGone):
            stories.append([])
    assert stories.pop() == []
    assert len(stories) == len(lives)
    for life, story in zip(lives, stories, strict=True):
        kinds = [type(event) for event in story]
        assert kinds in ([UnitStarted, UnitEnded, UnitGone], [UnitEnded, UnitGone])
        ended = next(event for event in story if isinstance(event, UnitEnded))
        assert ended.result in ("unknown", "signal" if life.fails else "success")
        assert not ended.started or life.activates
        if UnitStarted in kinds or ended.result != "unknown":
            assert ended.started == life.activates
    assert not tracker.knows(UNIT)
