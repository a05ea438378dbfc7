"""`GET /models/sse`: what a client gets, when it comes, comes back, does not read, and when the supervisor goes."""

import asyncio
from typing import Any

import msgspec
import pytest

from llamactl.front import subscribers
from llamactl.protocol.control_socket import ModelList, ModelNotice, ModelRemoved, ModelsChanged, SubscribeRequest
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.values import Stage, State
from tests.socket.front.conftest import Client, read_chunk, read_head

A = ModelStatus(name="a", state=State.UNLOADED)


class Watcher:
    """A client that listens."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.headers: dict[str, str] = {}
        self.ids: list[str] = []
        self._events: list[str] = []

    async def open(self, *fields: str) -> "Watcher":
        lines = ["GET /models/sse HTTP/1.1", "Host: localhost", *fields, "", ""]
        self.client.writer.write("\r\n".join(lines).encode())
        line, headers = await read_head(self.client.reader)
        assert line == "HTTP/1.1 200 OK"
        self.headers = {name.lower(): value for name, value in headers}
        return self

    async def read_raw(self) -> str:
        while not self._events:
            self._events = (await read_chunk(self.client.reader)).decode().split("\n\n")[:-1]
        return self._events.pop(0)

    async def read(self) -> tuple[str, str, Any]:
        first, second = (await self.read_raw()).split("\n")
        self.ids.append(first.removeprefix("id: "))
        event = msgspec.json.decode(second.removeprefix("data: "))
        return event["model"], event["event"], event["data"]


async def watch(world: Any, *fields: str) -> Watcher:
    world.supervisor.replies.setdefault(
        SubscribeRequest, lambda message: ModelList(id=message.id, now_s=0, models=(A,))
    )
    return await Watcher(await world.connect()).open(*fields)


def tell(world: Any, state: State) -> None:
    world.supervisor.send(ModelNotice(model=ModelStatus(name="a", state=state)))


def test_snapshot_comes_first_then_changes(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        watcher = await watch(world)
        assert watcher.headers["content-type"] == "text/event-stream"
        assert watcher.headers["x-accel-buffering"] == "no"
        assert watcher.headers["cache-control"] == "no-cache"
        model, event, data = await watcher.read()
        assert (model, event, [listed["id"] for listed in data["models"]]) == ("*", "snapshot", ["a"])
        tell(world, State.READY)
        assert [(await watcher.read())[:2] for _ in range(2)] == [("a", "model_status"), ("a", "status_change")]
        world.supervisor.send(ModelsChanged())
        assert await watcher.read() == ("*", "models_reload", {})
        world.supervisor.send(ModelRemoved(model="a"))
        assert await watcher.read() == ("a", "model_remove", {})
        assert len(set(watcher.ids)) == 5
        second = await watch(world)
        assert (await second.read())[2]["models"] == []
        assert world.supervisor.count(SubscribeRequest) == 1

    stage(scenario)


def test_client_that_comes_back_gets_what_it_missed(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        watcher = await watch(world)
        await watcher.read()
        watcher.client.close()
        tell(world, State.READY)
        tell(world, State.UNLOADED)
        again = await watch(world, f"Last-Event-ID: {watcher.ids[-1]}")
        told = [await again.read() for _ in range(4)]
        assert [(event, data["status"]) for _, event, data in told] == [
            ("model_status", "loaded"),
            ("status_change", "loaded"),
            ("model_status", "unloaded"),
            ("status_change", "unloaded"),
        ]
        again = await watch(world, "Last-Event-ID: elsewhere-1")
        assert (await again.read())[1] == "snapshot"

    stage(scenario)


def test_progress_that_was_put_off_is_told_without_another_notice(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        watcher = await watch(world)
        await watcher.read()
        for progress in (0.1, 0.2, 0.3):
            model = ModelStatus(name="a", state=State.LOADING, stage=Stage.LOADING, progress=progress)
            world.supervisor.send(ModelNotice(model=model))
        values = [(await watcher.read())[2]["progress"]["value"] for _ in range(4)]
        assert values == [0.1, 0.1, 0.3, 0.3]

    stage(scenario)


def test_supervisor_that_comes_back_is_asked_what_has_changed(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        watcher = await watch(world)
        await watcher.read()
        await world.supervisor.stop()
        world.supervisor.replies[SubscribeRequest] = lambda message: ModelList(
            id=message.id, now_s=0, models=(ModelStatus(name="a", state=State.READY),)
        )
        await world.supervisor.start()
        assert await watcher.read() == (
            "a",
            "model_status",
            {"status": "loaded", "info": {"id": "a", "context_length": None}},
        )

    stage(scenario)


def test_quiet_stream_is_kept_alive(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "KEEP_ALIVE_S", 0.01)

    async def scenario(world: Any) -> None:
        watcher = await watch(world)
        await watcher.read()
        for _ in range(3):
            assert await watcher.read_raw() == ": keep-alive"

    stage(scenario)


def test_client_that_does_not_read_is_sent_the_picture_and_not_the_past(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        watcher = await watch(world)
        await watcher.read()
        (connection,) = world.front.clients
        transport = connection.transport
        watcher.client.writer.transport.pause_reading()
        number = 0
        while not connection.congested:
            for _ in range(200):
                number += 1
                path = f"{'x' * 500}{number}"
                world.supervisor.send(ModelNotice(model=ModelStatus(name=path, state=State.UNLOADED)))
                world.supervisor.send(ModelRemoved(model=path))
            await asyncio.sleep(0)
        held = transport.get_write_buffer_size()
        for _ in range(2000):
            world.supervisor.send(ModelsChanged())
        world.supervisor.send(ModelNotice(model=ModelStatus(name="last", state=State.READY)))
        while "last" not in world.front.subscribers.log.known:
            await asyncio.sleep(0)
        assert transport.get_write_buffer_size() <= held
        watcher.client.writer.transport.resume_reading()
        while True:
            model, event, data = await watcher.read()
            if event == "snapshot":
                break
            assert model != "*"
        assert [listed["id"] for listed in data["models"]][-1] == "last"

    stage(scenario)


def test_stop_ends_streams_at_once(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        watcher = await watch(world)
        await watcher.read()
        assert await world.front.stop(20.0) == 0
        assert await read_chunk(watcher.client.reader) == b""
        assert await watcher.client.reader.read() == b""

    stage(scenario)


def test_client_that_leaves_is_forgotten(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        watcher = await watch(world)
        await watcher.read()
        watcher.client.close()
        while world.front.clients:
            await asyncio.sleep(0)
        assert not world.front.subscribers._streams
        tell(world, State.READY)
        second = await watch(world)
        await second.read()

    stage(scenario)


def test_old_http_gets_the_stream_bare_and_head_its_head(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await watch(world)
        old = await world.connect()
        old.writer.write(b"GET /models/sse HTTP/1.0\r\n\r\n")
        _, headers = await read_head(old.reader)
        assert "transfer-encoding" not in {name.lower() for name, _ in headers}
        assert (await old.reader.readuntil(b"\n\n")).startswith(b"id: ")
        client = await world.connect()
        client.writer.write(b"HEAD /models/sse HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await client.read_response(to_head=True)).status == 200
        assert (await client.get("/health")).status == 200

    stage(scenario)


def test_supervisor_that_cannot_be_reached_is_a_503(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        client.writer.write(b"GET /models/sse HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await world.supervisor.expect(SubscribeRequest)
        await world.supervisor.stop()
        assert (await client.read_response()).status == 503

    stage(scenario)
