"""Thousands of streams with deaths on all sides, and garbage for a minute: nothing lies, nothing is left behind.

Seeds are fixed, so that a failure can be had again. LLAMACTL_FUZZ_S sets how long the fuzzing goes on (CI: 30).
"""

import asyncio
import contextlib
import os
import random
import resource
from typing import Any

import msgspec

from llamactl.protocol.control_socket import LeaseGone, Recall, RecallCancelled
from tests.http_errors import check_error
from tests.socket.front.conftest import Client, format_post, read_chunk, read_head

CHAT = "/v1/chat/completions"
STREAMS = 2000
FUZZ_S = float(os.environ.get("LLAMACTL_FUZZ_S", "5"))


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Chaos:
    """Instances that stream, pause and die, clients that read, stall and leave, and leases that are recalled."""

    def __init__(self, world: Any, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.outcomes: dict[str, int] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.generation = {"a": 1, "b": 1}

    def serve(self, call: Any) -> None:
        task = asyncio.ensure_future(self.answer_unless_left(call))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def answer_unless_left(self, call: Any) -> None:
        with contextlib.suppress(RuntimeError, ConnectionError):  # the loop's words for a transport that is closed
            await self.answer(call)

    async def answer(self, call: Any) -> None:
        fate = self.random.random()
        if fate < 0.05:
            call.die()  # before the first byte
            return
        count = self.random.randrange(1, 12)
        call.begin_stream()
        for number in range(count):
            if fate < 0.15 and number == count // 2:
                call.die()
                return
            call.chunk(b"data: %d of %d %b\n\n" % (number, count, b"x" * self.random.choice((10, 1000, 40_000))))
            await asyncio.sleep(0)
        call.chunk(b"data: [DONE]\n\n")
        call.write(b"0\r\n\r\n")

    async def ask(self, number: int) -> str:
        """One client's stream. What became of it; AssertionError when it was neither whole nor an error."""
        try:
            client: Client = await self.world.connect(tcp=bool(number % 2))
        except OSError:
            return "not connected"
        model = self.random.choice("ab")
        leaves_after = self.random.choice((None, None, None, 0, 1, 3))
        try:
            client.writer.write(format_post(CHAT, {"model": model, "stream": True, "n": number}))
            if leaves_after == 0:
                return "left"
            line, headers = await read_head(client.reader)
            status = int(line.split(" ")[1])
            if status != 200:
                length = next(int(value) for key, value in headers if key.lower() == "content-length")
                error = msgspec.json.decode(await client.reader.readexactly(length))["error"]
                check_error(error, CHAT, status, "model_not_found" if status == 404 else None)
                return f"refused with {status}"
            return await self.read_stream(client, leaves_after)
        finally:
            client.close()

    async def read_stream(self, client: Client, leaves_after: int | None) -> str:
        body = b""
        try:
            while chunk := await read_chunk(client.reader):
                body += chunk
                if leaves_after is not None and body.count(b"\n\n") >= leaves_after:
                    return "left"
        except (asyncio.IncompleteReadError, ConnectionError):
            assert b'data: {"error":' in body or b"[DONE]" not in body, "an error after the end"
            return "cut"
        events = [event for event in body.split(b"\n\n") if event]
        assert events[-1] == b"data: [DONE]", "a clean end that is no whole answer"
        total = int(events[0].split()[3])
        assert [int(event.split()[1]) for event in events[:-1]] == list(range(total))
        return "whole"

    async def recall(self) -> None:
        """Recalls, drains that are called off, and instances that are replaced."""
        world = self.world
        while True:
            await asyncio.sleep(0.01)
            model = self.random.choice("ab")
            generation = f"g{self.generation[model]}"
            what = self.random.random()
            if what < 0.4:
                world.supervisor.send(Recall(model=model, generation=generation))
            elif what < 0.7:
                world.supervisor.send(Recall(model=model, generation=generation, drain=True))
                await asyncio.sleep(0.01)
                world.supervisor.send(RecallCancelled(model=model, generation=generation))
            else:
                self.generation[model] += 1
                world.supervisor.grants[model] = world.grant(model, f"g{self.generation[model]}")
                world.supervisor.send(LeaseGone(model=model, generation=generation))

    async def run(self, count: int) -> None:
        for model in "ab":
            instance = await self.world.add_model(model)
            instance.auto = self.serve
        recalling = asyncio.ensure_future(self.recall())
        outcomes = await asyncio.gather(*(self.ask(number) for number in range(count)))
        recalling.cancel()
        for outcome in outcomes:
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


def test_two_thousand_streams_end_whole_or_in_an_error_and_leave_nothing_behind(stage: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))

    async def scenario(world: Any) -> None:
        client = await world.connect()
        assert (await client.get("/health")).status == 200
        before = count_descriptors()
        chaos = Chaos(world, seed=5)
        await chaos.run(STREAMS)
        assert sum(chaos.outcomes.values()) == STREAMS
        assert chaos.outcomes["whole"] > STREAMS // 4
        assert chaos.outcomes["cut"] > 20
        assert chaos.outcomes["refused with 502"] > 20
        assert set(chaos.outcomes) == {"whole", "cut", "left", "refused with 502"}
        for model in "ab":  # what is not given back is drained, then everything is at rest
            generation = f"g{chaos.generation[model]}"
            world.supervisor.send(Recall(model=model, generation=generation, drain=True))
        while world.front.leases.leases() or len(world.front.clients) > 1:
            await asyncio.sleep(0)
        assert len(world.front.leases.queue) == 0
        assert world.front.pool.list_keys() == []
        for model in "ab":
            await world.instances[model].close()
        while count_descriptors() > before:
            await asyncio.sleep(0)
        assert (await client.get("/health")).status in (200, 503)
        assert [event for event in world.events if event["level"] in ("error", "critical")] == []

    try:
        stage(scenario)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


PIECES = (
    b"GET /health HTTP/1.1\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\n",
    b"GET /x?model=a HTTP/1.1\r\n",
    b"OPTIONS * HTTP/1.1\r\n",
    b"Host: localhost\r\n",
    b"Content-Length: 13\r\n",
    b"Content-Length: 200000\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    b"Expect: 100-continue\r\n",
    b"\r\n",
    b'{"model":"a"}',
    b'{"model":"a","stream":true,"x":"',
    b'd\r\n{"model":"a"}\r\n0\r\n\r\n',
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"A" * 5000,
    b"\0\xff",
    b"\n",
    b" ",
)
ANSWERS = (
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\n",
    b"Content-Type: text/event-stream\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 2\r\n",
    b"\r\n",
    b"ok",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"\0",
)


def make_garbage(source: random.Random, pieces: tuple[bytes, ...], most: int) -> bytes:
    raw = b"".join(source.choice(pieces) for _ in range(source.randrange(1, most)))
    if source.random() < 0.3 and raw:
        at = source.randrange(len(raw))
        raw = raw[:at] + bytes([source.randrange(256)]) + raw[at + 1 :]
    return raw


def test_garbage_on_both_sides_breaks_nothing(stage: Any) -> None:
    async def attack(world: Any, source: random.Random) -> None:
        client = await world.connect(tcp=source.random() < 0.5)
        raw = make_garbage(source, PIECES, 14)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while raw:
                cut = source.choice((1, 7, 100, len(raw)))
                client.writer.write(raw[:cut])
                raw = raw[cut:]
                await asyncio.sleep(0)
            if source.random() < 0.5:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(client.reader.read(1000), 0.01)
        client.close()

    async def scenario(world: Any) -> None:
        source = random.Random(9)
        instance = await world.add_model("a")

        def answer(call: Any) -> None:
            if source.random() < 0.5:
                call.answer(b"{}")
                return
            call.write(make_garbage(source, ANSWERS, 8))
            if source.random() < 0.7:
                call.die()

        instance.auto = answer
        end_s = asyncio.get_running_loop().time() + FUZZ_S
        rounds = 0
        while asyncio.get_running_loop().time() < end_s:
            await asyncio.gather(*(attack(world, source) for _ in range(20)))
            world._clients.clear()
            rounds += 1
        assert rounds > 5
        while world.front.clients:
            await asyncio.sleep(0.01)
        assert all(lease.in_flight == 0 for lease in world.front.leases.leases())
        assert len(world.front.leases.queue) == 0
        instance.answer_all(b"still here")
        client = await world.connect()
        assert (await client.post(CHAT, {"model": "a"})).body == b"still here"
        assert [event for event in world.events if event["level"] in ("error", "critical")] == []

    stage(scenario, limit_s=FUZZ_S + 50)
