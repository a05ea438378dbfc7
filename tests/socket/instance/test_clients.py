"""What is left of two hundred clients at once, of which a third leave when they please? Nothing: no sequence, no cell,
no thread, no connection, no task.
"""

import asyncio
import contextlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llamactl.instance.engine.generate import Generator
from llamactl.instance.engine.jobs import FinishEvent, GenerationRequest, Job
from llamactl.instance.engine.sampling import SamplingParams
from llamactl.instance.llama.library import llama
from llamactl.settings import ModelSettings
from tests.socket.instance.harness import Child, join_text, parse_events, run_child
from tests.socket.instance.test_generate import N_CTX, load_tiny

N_CLIENTS = 200
TIMEOUT_S = 60.0
BODY: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def crowded(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    settings = ModelSettings(name="tiny", path=str(tiny), ctx=512, parallel=4, threads=1)
    with run_child(tmp_path_factory.mktemp("crowded"), "serve", settings) as child:
        child.supervisor.wait_for("ready")
        yield child


async def ask(socket: Path, body: dict[str, Any], patience: int | None) -> bytes | None:
    """The whole response; None for a client that left after `patience` bytes of it, or while it still sent."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        if patience is not None and patience < 0:
            writer.write((head.encode() + data)[:patience])
            await writer.drain()
            return None
        writer.write(head.encode() + data)
        if patience is None:
            return await asyncio.wait_for(reader.read(), TIMEOUT_S)
        await asyncio.wait_for(reader.read(patience) if patience else writer.drain(), TIMEOUT_S)
        return None
    finally:
        writer.close()


async def ask_all(socket: Path, seed: int) -> list[tuple[int, bytes | None]]:
    """Which clients stayed, with what each of them got."""
    chance = random.Random(seed)
    patience = [
        chance.choice([-20, 0, 1, 100, 400, 1500]) if chance.random() < 1 / 3 else None for _ in range(N_CLIENTS)
    ]
    answers = await asyncio.gather(
        *(ask(socket, {**BODY, "prompt": f"number {index}"}, wait) for index, wait in enumerate(patience))
    )
    return [(index, answer) for index, answer in enumerate(answers) if patience[index] is None]


def count_threads(child: Child) -> int:
    return len(os.listdir(f"/proc/{child.process.pid}/task"))


def test_a_crowd_leaves_nothing_behind(crowded: Child) -> None:
    # asyncio's pool grows to this many, when work comes at the same time.
    threads = count_threads(crowded) + min(32, (os.cpu_count() or 1) + 4)
    asyncio.run(ask_all(crowded.http_socket, 0))
    descriptors = count_descriptors_when_idle(crowded)
    stayed = asyncio.run(ask_all(crowded.http_socket, 1))
    assert N_CLIENTS / 2 < len(stayed) < N_CLIENTS
    texts = {}
    for index, answer in stayed:
        assert answer is not None
        events = parse_events(read_body(answer))
        assert events[-1] == "[DONE]", (index, events[-3:])
        texts[index] = join_text(events)
    assert count_descriptors_when_idle(crowded) <= descriptors
    assert count_threads(crowded) <= threads
    for index in list(texts)[::40]:
        assert texts[index] == join_text(crowded.stream("/v1/completions", {**BODY, "prompt": f"number {index}"}))


def read_body(answer: bytes) -> str:
    """Of a chunked response."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body.decode()


def count_descriptors_when_idle(child: Child) -> int:
    """A request that needs nearly the whole context comes last, and ends only when the engine has come to it. All on
    one connection, which is counted: what others have closed is gone by its last answer.
    """
    with contextlib.closing(child.connect()) as connection:

        def ask(method: str, path: str, body: dict[str, Any] | None = None) -> str:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            text = response.read().decode()
            assert response.status == 200, text
            return text

        ask("POST", "/v1/completions", {"prompt": "x" * 480, "max_tokens": 2, "ignore_eos": True})
        assert not any(slot["is_processing"] for slot in json.loads(ask("GET", "/slots")))
        metrics = ask("GET", "/metrics")
        assert "llamacpp:requests_processing 0" in metrics
        assert "llamacpp:requests_deferred 0" in metrics
        return len(os.listdir(f"/proc/{child.process.pid}/fd"))


def test_jobs_that_come_and_go_at_random_leave_llama_cpps_memory_as_the_slots_say(tiny: Path) -> None:
    loaded = load_tiny(tiny, parallel=4, n_ctx=N_CTX)
    memory = llama.llama_get_memory(loaded.context)
    generator = Generator(loaded.context, loaded.model.vocabulary, loaded.traits, 4, N_CTX, 64)
    chance, running, ended = random.Random(3), list[Job](), 0
    for _ in range(1500):
        if chance.random() < 0.2 and len(running) < 12:
            length, n_tokens = chance.randint(1, 120), chance.randint(1, 60)
            beginning = chance.choice(["x", "y"]) * length
            sampling = SamplingParams(temperature=0, ignore_eos=True)
            prompt = loaded.model.vocabulary.tokenize_prompt(beginning)
            job = Job(GenerationRequest(prompt=prompt, sampling=sampling, max_tokens=n_tokens))
            running.append(job)
            generator.accept(job)
        if running and chance.random() < 0.1:
            running.pop(chance.randrange(len(running))).cancelled = True
        for job, event in generator.step():
            if isinstance(event, FinishEvent) and job in running:
                running.remove(job)
                ended += 1
        for prefix in generator.cache.prefixes:
            assert llama.llama_memory_seq_pos_max(memory, prefix.id) == len(prefix.tokens) - 1
        assert generator.cache.n_used <= N_CTX
    for job in running:
        job.cancelled = True
    generator.step()
    assert ended > 50
    assert not generator.has_work()
    assert not any(prefix.busy for prefix in generator.cache.prefixes)
    llama.llama_free(loaded.context)
    loaded.model.close()
