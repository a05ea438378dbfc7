"""Leases on the wire: who is asked when, what a recall does, and what works while the supervisor is away."""

import asyncio
from typing import Any

import msgspec
import pytest

from llamactl.front import lease_queue
from llamactl.protocol.control_socket import (
    BusyNotice,
    CancelRequest,
    ClientHello,
    Failure,
    IdleNotice,
    LeaseRequest,
    ListRequest,
    ModelList,
    ModelsChanged,
    Recall,
    RecallAnswer,
    RecallCancelled,
)
from tests.http_errors import WORDS, check_error
from tests.socket.front.conftest import format_post, read_chunk, read_head

CHAT = "/v1/chat/completions"


def test_requests_for_a_cold_model_cause_one_lease_request(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a", granted=False)
        instance.answer_all(b"1")
        clients = [await world.connect() for _ in range(10)]
        answers = [asyncio.ensure_future(client.post(CHAT, {"model": "a"})) for client in clients]
        request = await world.supervisor.expect(LeaseRequest)
        while len(world.front.leases.queue) < 10:
            await asyncio.sleep(0)
        world.supervisor.send(world.grant("a", request_id=request.id))
        assert [(await answer).body for answer in answers] == [b"1"] * 10
        assert world.supervisor.count(LeaseRequest) == 1

    stage(scenario)


def test_warm_requests_say_nothing_but_busy_and_idle(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.answer_all()
        client = await world.connect()
        before = asyncio.get_running_loop().time()
        await client.post(CHAT, {"model": "a"})
        idle = await world.supervisor.expect(IdleNotice)
        assert (idle.model, idle.generation) == ("a", "g1")
        assert abs(idle.last_used_s - before) < 5  # both are CLOCK_MONOTONIC
        await client.post(CHAT, {"model": "a"})
        await world.supervisor.expect(BusyNotice)
        await world.supervisor.expect(IdleNotice)
        assert world.supervisor.count(LeaseRequest) == 1

    stage(scenario)


def test_queued_client_that_leaves_cancels(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client, other = await world.connect(), await world.connect(tcp=True)
        for each in (client, other):
            each.writer.write(format_post(CHAT, {"model": "a"}))
        request = await world.supervisor.expect(LeaseRequest)
        while len(world.front.leases.queue) < 2:
            await asyncio.sleep(0)
        client.close()
        while len(world.front.leases.queue) > 1:
            await asyncio.sleep(0)
        assert world.supervisor.count(CancelRequest) == 0
        other.close()
        assert (await world.supervisor.expect(CancelRequest)).id == request.id

    stage(scenario)


def test_alias_shares_the_lease_of_its_model(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.answer_all()
        world.supervisor.grants["alias"] = world.supervisor.grants["a"]
        client = await world.connect()
        for name in ("alias", "a", "alias"):
            assert (await client.post(CHAT, {"model": name})).status == 200
        assert world.supervisor.count(LeaseRequest) == 1
        world.supervisor.send(ModelsChanged())
        world.supervisor.send(Recall(model="none", generation=""))
        await world.supervisor.expect(RecallAnswer)
        assert (await client.post(CHAT, {"model": "alias"})).status == 200
        assert world.supervisor.count(LeaseRequest) == 2

    stage(scenario)


@pytest.mark.parametrize(
    ("code", "status", "retry_after"),
    [
        ("unknown_model", 404, None),
        ("invalid_model", 500, None),
        ("pinned", 409, None),
        ("queue_full", 429, "5"),
        ("does_not_fit", 503, "5"),
        ("queue_timeout", 504, None),
        ("load_failed", 500, None),
        ("from_the_future", 500, None),
    ],
)
def test_refusal_is_told_in_its_own_words(stage: Any, code: str, status: int, retry_after: str | None) -> None:
    async def scenario(world: Any) -> None:
        world.supervisor.replies[LeaseRequest] = lambda message: Failure(
            id=message.id, code=code, message="cannot load 'a': why", hint="do this", details={"needs_bytes": 7}
        )
        client = await world.connect()
        for _ in range(2):  # the connection goes on
            response = await client.post(CHAT, {"model": "a"})
            assert response.status == status
            assert response.headers.get("retry-after") == retry_after
            error = response.json()["error"]
            check_error(error, CHAT, status, WORDS.get(code))
            assert error["message"] == "cannot load 'a': why; do this"
            assert error["needs_bytes"] == 7

    stage(scenario)


def test_idle_lease_goes_back_and_its_connections_close(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        call.answer(b"1")
        await client.read_response()
        world.supervisor.send(Recall(model="a", generation="g1"))
        answer = await world.supervisor.expect(RecallAnswer)
        assert answer.returned
        assert answer.last_used_s > 0
        await call.closed()
        instance.answer_all(b"2")
        world.supervisor.grants["a"] = world.grant("a", "g2")
        assert (await client.post(CHAT, {"model": "a"})).body == b"2"
        assert world.supervisor.count(LeaseRequest) == 2

    stage(scenario)


def test_busy_lease_stays_and_its_stream_is_whole(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        world.supervisor.send(Recall(model="a", generation="g1"))
        assert not (await world.supervisor.expect(RecallAnswer)).returned
        call.answer(b"1")
        assert (await client.read_response()).body == b"1"
        await world.supervisor.expect(IdleNotice)

    stage(scenario)


def test_drain_holds_new_requests_back_until_the_next_instance(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        first, second = await world.connect(), await world.connect()
        first.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        world.supervisor.send(Recall(model="a", generation="g1", drain=True))
        assert not (await world.supervisor.expect(RecallAnswer)).returned
        second.writer.write(format_post(CHAT, {"model": "a"}))
        while len(world.front.leases.queue) < 1:
            await asyncio.sleep(0)
        del world.supervisor.grants["a"]
        call.answer(b"1")
        assert (await first.read_response()).body == b"1"
        assert (await world.supervisor.expect(RecallAnswer)).returned
        request = await world.supervisor.expect(LeaseRequest)
        assert instance.calls.empty()
        world.supervisor.send(world.grant("a", "g2", request.id))
        (await instance.call()).answer(b"2")
        assert (await second.read_response()).body == b"2"

    stage(scenario)


def test_drain_called_off_lets_held_back_requests_go_on(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        first, second = await world.connect(), await world.connect()
        first.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        world.supervisor.send(Recall(model="a", generation="g1", drain=True))
        await world.supervisor.expect(RecallAnswer)
        second.writer.write(format_post(CHAT, {"model": "a"}))
        while len(world.front.leases.queue) < 1:
            await asyncio.sleep(0)
        world.supervisor.send(RecallCancelled(model="a", generation="g1"))
        (await instance.call()).answer(b"2")
        assert (await second.read_response()).body == b"2"
        call.answer(b"1")
        assert (await first.read_response()).body == b"1"

    stage(scenario)


def test_loaded_models_are_served_while_the_supervisor_restarts(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        streaming, client = await world.connect(), await world.connect()
        streaming.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        call.begin_stream()
        await read_head(streaming.reader)
        await world.supervisor.stop()
        while world.front.control.connected:
            await asyncio.sleep(0)
        call.chunk(b"data: 1\n\n")
        assert await read_chunk(streaming.reader) == b"data: 1\n\n"
        instance.answer_all(b"warm")
        assert (await client.post(CHAT, {"model": "a"})).body == b"warm"
        assert (await client.get("/health")).status == 200
        await world.supervisor.start()
        hello = await world.supervisor.expect(ClientHello)
        assert [(lease.model, lease.generation, lease.busy) for lease in hello.leases] == [("a", "g1", True)]
        call.write(b"0\r\n\r\n")
        assert await read_chunk(streaming.reader) == b""
        await world.supervisor.expect(IdleNotice)
        assert world.supervisor.count(LeaseRequest) == 1

    stage(scenario)


def test_request_that_needs_a_lease_waits_for_the_supervisor(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.answer_all(b"1")
        await world.supervisor.stop()
        while world.front.control.connected:
            await asyncio.sleep(0)
        client, lister = await world.connect(), await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        lister.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while not (len(world.front.leases.queue) and world.front.control._questions):
            await asyncio.sleep(0)
        world.supervisor.replies[ListRequest] = lambda message: ModelList(id=message.id, now_s=0, models=())
        await world.supervisor.start()
        assert (await client.read_response()).body == b"1"
        assert (await lister.read_response()).json() == {"object": "list", "data": []}

    stage(scenario)


def test_supervisor_that_stays_away_is_told_with_a_time_to_retry(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_queue, "CONTROL_WAIT_S", 0.05)
    monkeypatch.setattr("llamactl.front.control.CONTROL_WAIT_S", 0.05)

    async def scenario(world: Any) -> None:
        await world.supervisor.stop()
        while world.front.control.connected:
            await asyncio.sleep(0)
        client = await world.connect()
        for response in (
            await client.post(CHAT, {"model": "a"}),
            await client.get("/v1/models"),
            await client.get("/health"),
        ):
            assert response.status == 503
            assert int(response.headers["retry-after"]) > 0
            assert response.json()["error"]["type"] == "unavailable_error"

    stage(scenario)


def test_question_whose_answer_was_lost_is_an_error(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        client.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await world.supervisor.expect(ListRequest)
        await world.supervisor.stop()
        assert (await client.read_response()).status == 503

    stage(scenario)


def test_junk_from_the_supervisor_ends_only_that_connection(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.answer_all(b"1")
        client = await world.connect()
        await client.post(CHAT, {"model": "a"})
        for writer in world.supervisor._writers:
            writer.write(b'{"type":"nonsense"}\n')
        hello = await world.supervisor.expect(ClientHello)
        assert [lease.model for lease in hello.leases] == ["a"]
        assert (await client.post(CHAT, {"model": "a"})).body == b"1"
        assert any("junk" in event.get("reason", "") for event in world.events)

    stage(scenario)


def test_limit_on_bodies_is_the_supervisors(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        response = await client.post(
            CHAT, msgspec.json.encode({"model": "a" * world.supervisor.settings.max_body_bytes})
        )
        assert response.status == 413

    stage(scenario)
