"""Who pays when something that was said cannot be handled?"""

import asyncio
from typing import Any

import pytest

from llamactl.names import Role
from llamactl.protocol.control_socket import Failure, LoadRequest, ReloadRequest, StatusRequest
from llamactl.protocol.lines import ErrorNotice
from llamactl.protocol.report_socket import Ack, ChildState
from llamactl.sched import scheduler
from llamactl.sched.events import InstanceReported, LoadRequested
from llamactl.supervisor.suspects import Suspect, format_suspect
from tests.socket.supervisor.stage import Stage


def break_handler(monkeypatch: pytest.MonkeyPatch, event: type, model: str) -> None:
    """Have the handling of such events raise for one model."""
    handler = scheduler._HANDLERS[event]

    def handle(core: Any, event: Any, now: float) -> None:
        if event.model == model:
            raise OverflowError("int too large to convert to float")
        handler(core, event, now)

    monkeypatch.setitem(scheduler._HANDLERS, event, handle)


async def load(stage: Stage, client: Any, name: str, number: int) -> Any:
    """A load of `name`, and its child when its unit has been started."""
    client.send(LoadRequest(id=number, model=name))
    return await stage.wait_start(name)


def test_report_that_cannot_be_handled_costs_its_unit_and_nothing_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        stage.write_models("bad", "good")
        supervisor = await stage.start()
        client = await stage.connect_client()
        bad = await load(stage, client, "bad", 1)
        break_handler(monkeypatch, InstanceReported, "bad")
        bad.send(stage.make_report(ChildState.READY))
        assert isinstance(await bad.receive_kind(ErrorNotice), ErrorNotice)
        assert await bad.receive() is None
        failure = await client.receive_kind(Failure)
        assert "cannot handle its report" in failure.message
        assert not supervisor.broken.done()
        good = await load(stage, client, "good", 2)
        good.send(stage.make_report(ChildState.READY))
        await good.receive_kind(Ack)
        assert await stage.list_states(client) == {"bad": "failed", "good": "ready"}
        await supervisor.stop()

    asyncio.run(play())


def test_request_that_cannot_be_handled_costs_its_connection(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        stage.write_models("bad")
        supervisor = await stage.start()
        break_handler(monkeypatch, LoadRequested, "bad")
        client, other = await stage.connect_client(), await stage.connect_client()
        client.send(LoadRequest(id=1, model="bad"))
        assert "LoadRequest" in (await client.receive_kind(ErrorNotice)).message
        other.send(StatusRequest(id=1))
        assert (await other.receive()).id == 1
        assert not supervisor.broken.done()
        await supervisor.stop()

    asyncio.run(play())


def test_question_that_cannot_be_answered_costs_its_connection(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        supervisor = await stage.start()
        monkeypatch.setattr(supervisor, "reload", lambda: asyncio.sleep(0, None))
        client = await stage.connect_client()
        client.send(ReloadRequest(id=1))
        assert "ReloadRequest" in (await client.receive_kind(ErrorNotice)).message
        assert not supervisor.broken.done()
        await supervisor.stop()

    asyncio.run(play())


def test_child_with_whose_report_supervisors_have_died_is_not_heard_again(stage: Stage) -> None:
    async def play() -> None:
        stage.write_models("bad")
        supervisor = await stage.start()
        client = await stage.connect_client()
        await load(stage, client, "bad", 1)
        await supervisor.stop()
        unit = "llamactl-model@bad.service"
        generation = stage.systemd.units[unit].environment["LLAMACTL_GENERATION"]
        stage.paths.suspects_file.write_bytes(format_suspect(Suspect(unit, generation, 2)).ljust(1024, b"\0"))
        supervisor = await stage.start()
        child = await stage.connect_child("bad", Role.MODEL)
        child.send(stage.make_report(ChildState.READY))
        await child.receive_kind(ErrorNotice)
        assert await asyncio.wait_for(stage.systemd.stopped.get(), 10) == unit
        await supervisor.stop()

    asyncio.run(play())
