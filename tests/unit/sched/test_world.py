"""Do the rules hold whatever happens, in whichever order? A simulated world drives the scheduler.

The seeded driver gives the volume: LLAMACTL_TEST_EVENTS events (200,000 unless set), a failing seed is in the test's
name. Hypothesis finds the short stories and shrinks them. After each event the invariants are checked, and the world
checks every effect against what is really so.
"""

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.sched.world import World

EVENTS = int(os.environ.get("LLAMACTL_TEST_EVENTS", "200000"))
EVENTS_PER_SEED = 1000
STEPS_TO_SETTLE = 100


def make_world(seed: int) -> tuple[World, random.Random]:
    source = random.Random(seed)
    return World(source.randrange), source


@pytest.mark.parametrize("seed", range(max(1, EVENTS // EVENTS_PER_SEED)))
def test_no_rule_breaks_and_nobody_is_left_waiting(seed: int) -> None:
    world, source = make_world(seed)
    while world.count < EVENTS_PER_SEED:
        for _ in range(STEPS_TO_SETTLE):
            world.step(interrupt=source.randrange(40) == 0)
        world.settle()


@pytest.mark.parametrize("seed", range(20))
def test_a_supervisor_that_dies_in_the_middle_of_any_plan_is_followed_by_one_that_carries_on(seed: int) -> None:
    world, source = make_world(1_000_000 + seed)
    for _ in range(20):
        for _ in range(source.randrange(1, 12)):
            world.step()
        world.step(interrupt=True)
    world.settle()


@pytest.mark.parametrize("seed", range(5))
def test_the_same_story_gives_the_same_effects(seed: int) -> None:
    journals = []
    for _ in range(2):
        world, _ = make_world(seed)
        journal = []
        for _ in range(150):
            world.step()
            journal.append((world.now, tuple(world.units), world.scheduler.list_models(world.now)))
        journals.append(journal)
    assert journals[0] == journals[1]


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_hypothesis_finds_no_story_that_breaks_a_rule(data: st.DataObject) -> None:
    world = World(lambda n: data.draw(st.integers(0, n - 1)), models=3, fronts=2)
    for _ in range(data.draw(st.integers(1, 60))):
        world.step(interrupt=data.draw(st.integers(0, 30)) == 30)
    source = random.Random(0)
    world.choose = source.randrange
    world.settle()
