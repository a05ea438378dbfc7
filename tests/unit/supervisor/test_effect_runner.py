"""What an effect says of a model reaches that model's unit, and its client with what only the supervisor knows."""

from pathlib import Path
from typing import Any

import pytest

from llamactl.names import Role, format_slug
from llamactl.paths import Paths
from llamactl.protocol.control_socket import Failure, LeaseGrant, Progress, Recall
from llamactl.protocol.values import Note, Stage
from llamactl.sched import effects
from llamactl.supervisor.effect_runner import EffectRunner

NAME = "lab/coder:q4"
SLUG = format_slug(NAME)
WAITER = (3, 7)


class Recorder:
    """Stands in for units, children and the control socket: keeps what is called, by name."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.waits = True

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> bool:
            self.calls.append((name, *args))
            return self.waits

        return call


@pytest.fixture
def edge() -> Recorder:
    return Recorder()


@pytest.fixture
def runner(edge: Recorder, tmp_path: Path) -> EffectRunner:
    paths = Paths(config_dir=tmp_path, runtime_dir=tmp_path, cache_dir=tmp_path)
    edges: Any = edge
    return EffectRunner(paths, edges, edges, edges, edges, edges, edges.dispatch, edges.look)


def test_grant_says_where_the_instance_listens(runner: EffectRunner, edge: Recorder) -> None:
    runner.run(effects.GrantLease(WAITER, NAME, "g1"))
    socket = str(runner.paths.instance_socket(SLUG))
    grant = LeaseGrant(id=7, model=NAME, slug=SLUG, generation="g1", socket=socket)
    assert edge.calls == [("tell_waiter", WAITER, grant)]


def test_grant_of_a_request_that_has_left_is_told_to_its_connection(runner: EffectRunner, edge: Recorder) -> None:
    edge.waits = False
    runner.run(effects.GrantLease(WAITER, NAME, "g1"))
    assert [call[:2] for call in edge.calls] == [("tell_waiter", WAITER), ("tell", 3)]


def test_refusal_of_a_model_that_sleeps_says_where_it_can_be_asked(runner: EffectRunner, edge: Recorder) -> None:
    refusal = Failure(id=7, code="not_loaded", message="cannot", model=NAME, details={"asleep": "g1"})
    runner.run(effects.Tell(WAITER, refusal))
    ((_, _, told),) = edge.calls
    assert told.details == {"asleep": "g1", "socket": str(runner.paths.instance_socket(SLUG))}


def test_messages_go_out_as_the_scheduler_made_them(runner: EffectRunner, edge: Recorder) -> None:
    progress, recall = Progress(id=7, stage=Stage.LOADING, fraction=0.5), Recall(model=NAME, generation="g1", id=4)
    runner.run(effects.Tell(WAITER, progress))
    runner.run(effects.Notify(3, recall))
    assert edge.calls == [("tell_waiter", WAITER, progress), ("tell", 3, recall)]


def test_what_is_asked_of_an_instance_reaches_its_unit(runner: EffectRunner, edge: Recorder) -> None:
    note = Note(last_used_s=1.0)
    runner.run(effects.OrderWake(NAME, "g1", {"": 5}, 9))
    runner.run(effects.StopUnit(NAME, "g1"))
    runner.run(effects.SendNote(NAME, "g1", note))
    runner.run(effects.ShareProcessors(NAME, "g1", 2))
    assert edge.calls == [
        ("order_wake", SLUG, "g1", {"": 5}, 9),
        ("stop", Role.MODEL, SLUG, "g1"),
        ("send_note", SLUG, "g1", note),
        ("order_share", SLUG, "g1", 2),
    ]
