"""What watchers are told, and what is counted."""

import asyncio
from typing import Any

import pytest

from llamactl.protocol.control_socket import ModelNotice, ModelRemoved
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.values import Stage, State
from llamactl.sched.effects import Record
from llamactl.supervisor.counters import Counters
from llamactl.supervisor.watchers import Watchers, list_changes


def make_models(**states: State) -> dict[str, ModelStatus]:
    return {name: ModelStatus(name=name, state=state) for name, state in states.items()}


def test_only_what_changed_is_told_and_what_went_first() -> None:
    before = make_models(a=State.UNLOADED, b=State.READY, c=State.READY)
    after = make_models(b=State.STOPPING, c=State.READY, d=State.UNLOADED)
    assert list_changes(before, after, {}) == [
        ModelRemoved(model="a"),
        ModelNotice(model=after["b"]),
        ModelNotice(model=after["d"]),
    ]
    assert list_changes(after, after, {}) == []


def list_told(known: State, passed: list[State], shown: State) -> list[State]:
    changes = list_changes(make_models(a=known), make_models(a=shown), {"a": passed})
    return [change.model.state for change in changes if isinstance(change, ModelNotice)]


@pytest.mark.parametrize(
    ("known", "passed", "shown", "told"),
    [
        ("loading", ["ready"], "ready", ["ready"]),
        ("loading", ["ready", "stopping"], "stopping", ["ready", "stopping"]),
        ("loading", ["ready", "stopping", "unloaded"], "unloaded", ["ready", "stopping", "unloaded"]),
        ("loading", ["loading"], "loading", []),  # it was shown as loading in the queue
        ("ready", ["failed"], "loading", ["failed", "loading"]),  # somebody waits for it
        ("ready", ["stopping", "unloaded", "loading"], "loading", ["stopping", "unloaded", "loading"]),
        (
            "unloaded",
            ["loading", "ready", "stopping", "unloaded"],
            "unloaded",
            ["loading", "ready", "stopping", "unloaded"],
        ),
    ],
)
def test_each_state_is_told_once_and_in_order(known: str, passed: list[str], shown: str, told: list[str]) -> None:
    assert list_told(State(known), [State(state) for state in passed], State(shown)) == told


def test_state_that_was_left_is_told_with_what_was_known_of_its_instance() -> None:
    known = {"a": ModelStatus(name="a", state=State.LOADING, generation="g", pid=3, stage=Stage.LOADING, progress=0.5)}
    first, last = list_changes(known, make_models(a=State.UNLOADED), {"a": [State.READY, State.UNLOADED]})
    assert first == ModelNotice(model=ModelStatus(name="a", state=State.READY, generation="g", pid=3))
    assert last == ModelNotice(model=ModelStatus(name="a", state=State.UNLOADED))


def test_state_is_told_at_once_and_not_gathered() -> None:
    async def watch() -> list[str]:
        models = make_models(a=State.LOADING)
        told: list[Any] = []
        watchers = Watchers(lambda: tuple(models.values()), lambda holder, notice: told.append(notice))
        watchers.add(1)
        for state in (State.READY, State.STOPPING, State.UNLOADED):
            models.update(make_models(a=state))
            watchers.touch({"a": [state]})
        watchers.close()
        return [notice.model.state for notice in told]

    assert asyncio.run(watch()) == ["ready", "stopping", "unloaded"]


def test_a_watcher_that_comes_in_between_hears_nothing_twice_and_misses_nothing() -> None:
    async def watch() -> tuple[list[tuple[int, str]], tuple[ModelStatus, ...]]:
        models = make_models(a=State.UNLOADED)
        told: list[tuple[int, str]] = []
        both = asyncio.Event()

        def tell(holder: int, notice: ModelNotice | ModelRemoved) -> None:
            assert isinstance(notice, ModelNotice)
            told.append((holder, notice.model.state))
            if (2, State.READY) in told:
                both.set()

        watchers = Watchers(lambda: tuple(models.values()), tell)
        watchers.add(1)
        models.update(make_models(a=State.LOADING))
        watchers.touch({})
        snapshot = watchers.add(2)
        models.update(make_models(a=State.READY))
        watchers.touch({})
        await asyncio.wait_for(both.wait(), 10)
        watchers.remove(1)
        watchers.remove(2)
        models.update(make_models(a=State.STOPPING))
        watchers.touch({})
        watchers.close()
        return sorted(told), snapshot

    told, snapshot = asyncio.run(watch())
    assert [model.state for model in snapshot] == [State.LOADING]
    assert told == [(1, State.LOADING), (1, State.READY), (2, State.READY)]


def test_counters_follow_the_journals_lines() -> None:
    counters = Counters()
    for event, fields in (
        ("instance ready", {"load_s": 1.5}),
        ("model unloaded", {"reason": "evicted"}),
        ("instance ready", {"load_s": 0.5}),
        ("model unloaded", {"reason": "evicted"}),
        ("model unloaded", {"reason": "by command"}),
        ("load failed", {}),
        ("instance crashed", {}),
        ("load decided", {}),
    ):
        counters.count(Record(event, "m", fields=fields))
    counted = counters.list_models()["m"]
    assert (counted.loads, counted.load_seconds, counted.load_failures, counted.crashes) == (2, 2.0, 1, 1)
    assert counted.unloads == {"evicted": 2, "by command": 1}
