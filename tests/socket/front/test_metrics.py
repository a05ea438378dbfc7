"""`GET /metrics` and the access log, of requests that really went through."""

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llamactl.front import probe
from llamactl.protocol.control_socket import (
    CancelRequest,
    IdleNotice,
    LeaseRequest,
    ListRequest,
    MachineStatus,
    ModelList,
    ModelsChanged,
    StatusRequest,
)
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.values import State
from llamactl.settings import FrontSettings
from tests.socket.front.conftest import format_post, read_chunk, read_head

CHAT = "/v1/chat/completions"
MODELS = (
    ModelStatus(name="a", state=State.READY, aliases=("alias",)),
    ModelStatus(name="b", state=State.SLEEPING),
    ModelStatus(name="c", state=State.UNLOADED),
)
USAGE = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}'


def answer_questions(world: Any) -> None:
    world.supervisor.replies[ListRequest] = lambda message: ModelList(id=message.id, now_s=1, models=MODELS)
    world.supervisor.replies[StatusRequest] = lambda message: MachineStatus(
        id=message.id, llamactl="1", pid=1, since_s=0, now_s=0, devices=(), loaded=1, max_loaded=3
    )


async def scrape(world: Any, query: str = "") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    response = await (await world.connect()).get("/metrics" + query)
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.body.decode())
        for sample in family.samples
    }


def key(name: str, **labels: str) -> Any:
    return (name, tuple(sorted(labels.items())))


def test_requests_are_counted_with_their_tokens(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        answer_questions(world)
        instance = await world.add_model("a")
        world.supervisor.grants["alias"] = world.grant("a")
        client = await world.connect()
        instance.auto = lambda call: call.answer(USAGE, "Content-Type: application/json")
        for name in ("a", "alias"):
            assert (await client.post(CHAT, {"model": name})).status == 200
        instance.auto = None
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        during = await scrape(world)
        assert during[key("llamactl_requests_in_flight", model="a")] == 1
        call.begin_stream()
        await read_head(client.reader)
        for piece in (b"data: {}\n\n", b"data: " + USAGE[:40], USAGE[40:] + b"\n\n", b"data: [DONE]\n\n"):
            call.chunk(piece)
            assert await read_chunk(client.reader) == piece
        call.write(b"0\r\n\r\n")
        assert await read_chunk(client.reader) == b""
        values = await scrape(world)
        assert values[key("llamactl_requests_total", model="a", status="200")] == 3
        assert values[key("llamactl_prompt_tokens_total", model="a")] == 9
        assert values[key("llamactl_completion_tokens_total", model="a")] == 12
        assert values[key("llamactl_requests_in_flight", model="a")] == 0
        assert values[key("llamactl_requests_total", model="", status="200")] == 1  # the first scrape
        assert values[key("llamactl_response_bytes_total", model="a")] >= 3 * len(USAGE)
        assert values[key("llamactl_time_to_first_byte_seconds_count", model="a")] == 3
        assert values[key("llamactl_supervisor_up")] == 1
        assert values[key("llamactl_model_state", model="b", state="sleeping")] == 1

    stage(scenario)


def test_waiting_requests_are_the_queue_and_their_wait_is_told(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        answer_questions(world)
        instance = await world.add_model("a", granted=False)
        clients = [await world.connect() for _ in range(3)]
        for client in clients:
            client.writer.write(format_post(CHAT, {"model": "alias"}))
        request = await world.supervisor.expect(LeaseRequest)
        while len(world.front.leases.queue) < 3:
            await asyncio.sleep(0)
        assert (await scrape(world))[key("llamactl_queue_length", model="a")] == 3
        instance.answer_all()
        world.supervisor.send(world.grant("a", request_id=request.id))
        for client in clients:
            assert (await client.read_response()).status == 200
        values = await scrape(world)
        assert values[key("llamactl_queue_length", model="a")] == 0
        assert values[key("llamactl_queue_wait_seconds_count", model="a")] == 3
        assert values[key("llamactl_queue_wait_seconds_sum", model="a")] > 0

    stage(scenario)


def test_scrape_neither_waits_for_a_supervisor_nor_fails_without_one(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        client.writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await world.supervisor.expect(StatusRequest)
        await world.supervisor.stop()  # with the questions unanswered
        response = await client.read_response()
        assert (response.status, b"llamactl_supervisor_up 0.0" in response.body) == (200, True)
        values = await asyncio.wait_for(scrape(world), 5)
        assert values[key("llamactl_supervisor_up")] == 0

    stage(scenario)


def test_only_ready_instances_are_asked_for_theirs_and_it_is_no_use_of_them(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        answer_questions(world)
        instance = await world.add_model("a")
        for name in ("b", "c"):
            (await world.add_model(name)).answer_all(b"x 1\n")
        instance.answer_all(b"# TYPE tokens_total counter\ntokens_total 5\n")
        assert key("tokens_total", model="a") not in await scrape(world)
        assert world.supervisor.count(LeaseRequest) == 0
        values = await scrape(world, "?instances=1")
        assert values[key("tokens_total", model="a")] == 5
        assert [name for name, _ in values if name == "x"] == []
        request = await world.supervisor.expect(LeaseRequest)
        assert (request.model, request.autoload, request.passive) == ("a", False, True)
        assert (await world.supervisor.expect(IdleNotice)).last_used_s == 0

    stage(scenario)


def test_instance_that_tells_nothing_does_not_spoil_the_scrape(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LIMIT_S", 0.05)

    async def scenario(world: Any) -> None:
        answer_questions(world)
        instance = await world.add_model("a")
        instance.auto = lambda call: call.answer(b"x 1\n", status="404 Not Found")
        assert (await scrape(world, "?instances=1"))[key("llamactl_instance_scraped", model="a")] == 0
        instance.auto = lambda call: call.die()
        assert (await scrape(world, "?instances=1"))[key("llamactl_instance_scraped", model="a")] == 0
        instance.auto = None  # it hangs
        assert (await scrape(world, "?instances=1"))[key("llamactl_instance_scraped", model="a")] == 0
        await (await instance.call()).closed()
        assert world.front.leases.leases()[0].in_flight == 0

    stage(scenario)


def test_instance_that_tells_without_end_is_given_up(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LIMIT_BYTES", 1000)

    async def scenario(world: Any) -> None:
        answer_questions(world)
        instance = await world.add_model("a")
        scraping = asyncio.ensure_future(scrape(world, "?instances=1"))
        call = await instance.call()
        call.begin_stream()
        call.chunk(b"# x\n" * 300)
        await call.closed()
        assert (await asyncio.wait_for(scraping, 4))[key("llamactl_instance_scraped", model="a")] == 0

    stage(scenario)


def test_client_that_leaves_while_a_scrape_waits_leaves_no_question_and_no_place_in_a_queue(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        client.writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await world.supervisor.expect(StatusRequest)
        client.close()
        while world.front.clients:
            await asyncio.sleep(0)
        assert world.front.control._questions == {}
        answer_questions(world)
        await world.add_model("a", granted=False)
        client = await world.connect()
        client.writer.write(b"GET /metrics?instances=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await world.supervisor.expect(LeaseRequest)
        client.close()
        await world.supervisor.expect(CancelRequest)
        assert len(world.front.leases.queue) == 0

    stage(scenario)


def test_client_that_leaves_a_scrape_leaves_nothing_behind(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        answer_questions(world)
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(b"GET /metrics?instances=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        call = await instance.call()
        client.close()
        await call.closed()
        assert world.front.leases.leases()[0].in_flight == 0

    stage(scenario)


def list_lines(world: Any) -> list[dict[str, Any]]:
    return [event for event in world.events if event["event"].startswith("request ")]


def test_each_request_is_a_line_in_the_log(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        instance.auto = lambda call: call.answer(USAGE, "Content-Type: application/json")
        client = await world.connect()
        response = await client.post(CHAT + "?secret=1", b'{"model":"a"}', "X-Request-Id: mine")
        assert response.headers["x-request-id"] == "mine"
        (line,) = list_lines(world)
        assert (line["model"], line["status"], line["path"], line["request_id"]) == ("a", 200, CHAT, "mine")
        assert (line["prompt_tokens"], line["completion_tokens"], line["received_bytes"]) == (3, 4, 13)
        assert 0 < line["waited_s"] <= line["first_byte_s"] <= line["duration_s"]
        response = await client.get("/nothing")
        assert list_lines(world)[1]["request_id"] == response.headers["x-request-id"]
        assert (list_lines(world)[1]["status"], list_lines(world)[1]["model"]) == (404, None)
        response = await client.request(b"nonsense\r\n\r\n")
        assert (list_lines(world)[2]["status"], response.status) == (400, 400)

    stage(scenario)


def test_clients_that_leave_are_lines_too(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        first, second, third = [await world.connect() for _ in range(3)]
        first.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        first.close()
        await call.closed()
        second.writer.write(format_post(CHAT, {"model": "unheard-of"}))
        await world.supervisor.expect(LeaseRequest)
        await world.supervisor.expect(LeaseRequest)
        second.close()
        await world.supervisor.expect(CancelRequest)
        third.writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n12")
        (connection,) = world.front.clients
        while connection.requests.head is None:
            await asyncio.sleep(0)
        third.close()
        while world.front.clients:
            await asyncio.sleep(0)
        assert [(line["event"], line["status"], line["model"]) for line in list_lines(world)] == [
            ("request broken off", 499, "a"),
            ("request broken off", 499, None),
            ("request broken off", 499, None),
        ]
        assert world.front.tally.models["a"].cut == 1

    stage(scenario)


def test_level_of_the_log_is_a_setting_that_a_reload_changes(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client = await world.connect()
        for level, expected in (("off", []), ("debug", ["debug"])):
            world.events.clear()
            settings = FrontSettings(access_log=level)
            world.supervisor.send(ModelsChanged(front=settings))
            while world.front.settings != settings:
                await asyncio.sleep(0)
            await client.get("/nothing")
            assert [line["level"] for line in list_lines(world)] == expected

    stage(scenario)
