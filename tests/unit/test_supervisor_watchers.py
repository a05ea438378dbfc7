"""What watchers are told, and what is counted."""

import asyncio

from llamactl.protocol import ModelNotice, ModelRemoved, ModelStatus, State
from llamactl.sched.events import Record
from llamactl.supervisor.counters import Counters
from llamactl.supervisor.watchers import Watchers, list_changes


def make_models(**states: State) -> dict[str, ModelStatus]:
    return {name: ModelStatus(name=name, state=state) for name, state in states.items()}


def test_only_what_changed_is_told_and_what_went_first() -> None:
    before = make_models(a=State.UNLOADED, b=State.READY, c=State.READY)
    after = make_models(b=State.STOPPING, c=State.READY, d=State.UNLOADED)
    assert list_changes(before, after) == [
        ModelRemoved(model="a"),
        ModelNotice(model=after["b"]),
        ModelNotice(model=after["d"]),
    ]
    assert list_changes(after, after) == []


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
        watchers.touch()
        snapshot = watchers.add(2)
        models.update(make_models(a=State.READY))
        watchers.touch()
        await asyncio.wait_for(both.wait(), 10)
        watchers.remove(1)
        watchers.remove(2)
        models.update(make_models(a=State.STOPPING))
        watchers.touch()
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
