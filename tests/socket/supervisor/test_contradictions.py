"""What if systemd, or D-Bus, does what the supervisor has not been told of?"""

import asyncio
from collections.abc import Callable

import pytest

from llamactl.names import Role
from llamactl.protocol.control_socket import Done, Failure, LoadRequest
from llamactl.protocol.report_socket import Ack, ChildState
from llamactl.settings import ModelSettings
from llamactl.supervisor import daemon
from llamactl.supervisor.comparison import find_contradictions
from llamactl.supervisor.run import Run
from llamactl.systemd.manager import ManagerError
from llamactl.systemd.replies import LOST, TIMED_OUT
from tests.socket.supervisor.stage import Connection, FakeUnit, Stage

UNIT = "llamactl-model@a.service"


async def load(stage: Stage, client: Connection) -> Connection:
    """Model `a`, ready; its child."""
    client.send(LoadRequest(id=1, model="a"))
    child = await stage.wait_start("a")
    child.send(stage.make_report(ChildState.READY))
    await client.receive_kind(Done)
    return child


@pytest.mark.parametrize("applied", [True, False])
def test_a_start_whose_reply_is_lost_is_looked_for_and_charged_to_nobody(stage: Stage, applied: bool) -> None:
    async def play() -> None:
        stage.write_models("a")
        supervisor = await stage.start()
        client = await stage.connect_client()
        lost = ManagerError("cannot start: lost the connection", name=LOST)
        stage.systemd.refusals.extend([(lost, False), (lost, applied)])
        client.send(LoadRequest(id=1, model="a"))
        if applied:
            await stage.wait_unit(UNIT)
            child = await stage.connect_child("a")
        else:
            child = await stage.wait_start("a")
        child.send(stage.make_report(ChildState.READY))
        assert (await client.receive_kind(Done)).model == "a"
        await supervisor.stop()

    asyncio.run(play())


def test_a_start_waits_for_the_end_of_a_stop_of_its_slice(stage: Stage) -> None:
    async def play() -> None:
        stage.write_models("a")
        supervisor = await stage.start()
        client = await stage.connect_client()
        name = "org.freedesktop.systemd1.TransactionIsDestructive"
        stage.systemd.refusals.append((ManagerError("cannot start: destructive", name=name), False))
        await load(stage, client)
        assert stage.systemd.slice_jobs == 1
        await supervisor.stop()

    asyncio.run(play())


def test_a_start_that_systemd_never_takes_is_no_failure_of_the_model(stage: Stage) -> None:
    async def play() -> None:
        stage.write_models("a")
        supervisor = await stage.start()
        client = await stage.connect_client()
        stage.systemd.refusals.append((ManagerError("cannot start: no answer", name=TIMED_OUT), False))
        client.send(LoadRequest(id=1, model="a"))
        failure = await client.receive_kind(Failure)
        assert (failure.details["result"], failure.details["failures"]) == ("systemd-unreachable", 0)
        assert await stage.list_states(client) == {"a": "unloaded"}
        await supervisor.stop()

    asyncio.run(play())


def test_a_unit_that_somebody_starts_by_hand_is_adopted(stage: Stage) -> None:
    async def play() -> None:
        stage.write_models("a")
        supervisor = await stage.start()
        client = await stage.connect_client()
        await load(stage, client)
        environment = stage.systemd.units[UNIT].environment
        stage.systemd.end(UNIT, "signal", 9)
        await stage.wait_state("a", "failed")
        stage.systemd.units[UNIT] = FakeUnit(environment)
        stage.systemd.become_active(UNIT)
        await stage.wait_state("a", "loading")
        child = await stage.connect_child("a")
        child.send(stage.make_report(ChildState.READY))
        await child.receive_kind(Ack)
        assert await stage.list_states(client) == {"a": "ready"}
        await supervisor.stop()

    asyncio.run(play())


@pytest.mark.parametrize("unit", ["llamactl-model@b.service", "llamactl-measure@a.service"])
def test_a_unit_of_our_names_that_is_of_no_use_is_stopped(stage: Stage, unit: str) -> None:
    async def play() -> None:
        stage.write_models("a")
        supervisor = await stage.start()
        stage.systemd.units[unit] = FakeUnit({})
        stage.systemd.become_active(unit)
        assert await asyncio.wait_for(stage.systemd.stopped.get(), 10) == unit
        await supervisor.stop()

    asyncio.run(play())


def start_unheard(stage: Stage) -> None:
    stage.systemd.units["llamactl-model@b.service"] = FakeUnit({}, "active")


def end_unheard(stage: Stage) -> None:
    del stage.systemd.units[UNIT]


@pytest.mark.parametrize("change", [start_unheard, end_unheard])
def test_what_no_signal_told_of_is_found_by_comparing_and_counted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, change: Callable[[Stage], None]
) -> None:
    async def play() -> None:
        monkeypatch.setattr(daemon, "COMPARE_S", 0.01)
        stage.write_models("a")
        supervisor = await stage.start()
        client = await stage.connect_client()
        await load(stage, client)
        change(stage)
        if change is start_unheard:
            await asyncio.wait_for(stage.systemd.stopped.get(), 10)
        else:
            await stage.wait_state("a", "unloaded")
        assert supervisor.machine_status().corrections == 1
        await supervisor.stop()

    asyncio.run(play())


def make_run(slug: str = "a", **state: bool) -> Run:
    return Run(Role.MODEL, slug, "g", ModelSettings(name=slug, path=""), **state)


def test_only_what_is_settled_on_both_sides_can_contradict() -> None:
    assert find_contradictions([make_run(begun=True)], {UNIT: True}) == []
    assert find_contradictions([make_run(begun=True)], {UNIT: False}) == [], "it stops"
    assert find_contradictions([make_run()], {}) == [], "its start is under way"
    assert find_contradictions([make_run(begun=True, over=True)], {}) == [], "its end is under way"
    assert find_contradictions([], {UNIT: False}) == [], "it stops, or its start job is still to come"
    assert find_contradictions([make_run(begun=True)], {}) == [UNIT]
    assert find_contradictions([], {UNIT: True}) == [UNIT]
    assert find_contradictions([], {"llamactl-model@.service": True}) == [], "no name of ours"
