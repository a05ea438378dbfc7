"""Three client stacks, directly and behind two reverse proxies: whole answers, kept connections, streams, hang-ups."""

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.system import client, journal
from tests.system.client import TIMEOUT_S, join_text
from tests.system.front.test_nginx import CONFIG as NGINX
from tests.system.front.test_nginx import PORT as NGINX_PORT
from tests.system.harness import PATHS, Llamactl

HAPROXY_PORT = 8090
HAPROXY = """\
global
    maxconn 256
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout tunnel 1h
frontend in
    bind 127.0.0.1:{port}
    default_backend llamactl
backend llamactl
    server front unix@{socket}
"""
URLS = {
    "direct": "http://127.0.0.1:8080",
    "nginx": f"http://127.0.0.1:{NGINX_PORT}",
    "haproxy": f"http://127.0.0.1:{HAPROXY_PORT}",
}
CHAT = "/v1/chat/completions"


@contextlib.contextmanager
def run_nginx(directory: Path) -> Iterator[None]:
    config = directory / "nginx.conf"
    config.write_text(NGINX.format(directory=directory, port=NGINX_PORT, socket=PATHS.http_socket))
    command = ["nginx", "-e", str(directory / "error.log"), "-c", str(config)]
    subprocess.run(command, check=True)
    try:
        yield
    finally:
        subprocess.run([*command, "-s", "stop"], check=True)


@contextlib.contextmanager
def run_haproxy(directory: Path) -> Iterator[None]:
    """`haproxy -D` returns when it listens."""
    config, pid_file = directory / "haproxy.cfg", directory / "haproxy.pid"
    config.write_text(HAPROXY.format(port=HAPROXY_PORT, socket=PATHS.http_socket))
    subprocess.run(["haproxy", "-D", "-q", "-f", str(config), "-p", str(pid_file)], check=True)
    try:
        yield
    finally:
        for pid in map(int, pid_file.read_text().split()):
            pidfd = os.pidfd_open(pid)
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            assert select.select([pidfd], [], [], TIMEOUT_S)[0]
            os.close(pidfd)


@pytest.fixture(params=["direct", "nginx", "haproxy"])
def url(request: pytest.FixtureRequest, llamactl: Llamactl, tiny: dict[str, Path], tmp_models: Path) -> Iterator[str]:
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": 8192, "parallel": 1})
    llamactl.start()
    llamactl.cli("load", "a")
    proxies = {"direct": contextlib.nullcontext(), "nginx": run_nginx(tmp_models), "haproxy": run_haproxy(tmp_models)}
    with proxies[request.param]:  # type: ignore[attr-defined]
        yield URLS[request.param]


@pytest.fixture
def expected(llamactl: Llamactl, url: str) -> str:
    """What the model says to "hi", as the plainest of clients reads it."""
    answer = llamactl.chat("a", "hi", max_tokens=5, temperature=0).json()
    text: str = answer["choices"][0]["message"]["content"]
    return text


def check_hang_up(llamactl: Llamactl, cursor: str) -> None:
    """The generation of a client that has left ends at once: else the model would be busy for thousands of tokens."""
    journal.wait_entry(cursor, LLAMACTL_EVENT="request_broken_off")
    llamactl.cli("unload", "a")


def run_curl(*arguments: str, body: dict[str, Any]) -> list[str]:
    return ["curl", "-sS", "-N", "-H", "Content-Type: application/json", "-d", json.dumps(body), *arguments]


def test_curl(llamactl: Llamactl, url: str, expected: str) -> None:
    body = client.format_chat("a", "hi", max_tokens=5, temperature=0)
    three = ["-w", "\n%{http_code} %{num_connects}\n", *[url + CHAT] * 3]
    done = subprocess.run(run_curl(*three, body=body), capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    lines = done.stdout.split("\n")
    assert [json.loads(line)["choices"][0]["message"]["content"] for line in lines[0:6:2]] == [expected] * 3
    assert lines[1:6:2] == ["200 1", "200 0", "200 0"], "one connection for three requests"
    body = client.format_chat("a", "hi", max_tokens=40, ignore_eos=True, stream=True)
    done = subprocess.run(
        run_curl(url + CHAT, body=body), capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    events = [line[6:] for line in done.stdout.split("\n") if line.startswith("data: ")]
    assert len(join_text(events)) >= 1
    cursor = journal.acquire_cursor()
    body = client.format_chat("a", "hi", max_tokens=7000, ignore_eos=True, stream=True)
    with subprocess.Popen(run_curl(url + CHAT, body=body), stdout=subprocess.PIPE) as leaving:
        assert leaving.stdout is not None
        assert leaving.stdout.readline().startswith(b"data: ")
        leaving.kill()
    check_hang_up(llamactl, cursor)


def test_openai_client(llamactl: Llamactl, url: str, expected: str) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=TIMEOUT_S) as made:
        create = made.chat.completions.create
        for _ in range(3):
            answer = create(model="a", messages=messages, max_tokens=5, temperature=0)
            assert answer.choices[0].message.content == expected
        chunks = list(create(model="a", messages=messages, max_tokens=40, stream=True, extra_body={"ignore_eos": True}))
        assert chunks[-1].choices[0].finish_reason == "length"
        cursor = journal.acquire_cursor()
        stream = create(model="a", messages=messages, max_tokens=7000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
    check_hang_up(llamactl, cursor)


def run_node(url: str, mode: str) -> dict[str, Any]:
    script = str(Path(__file__).with_name("fetch.mjs"))
    done = subprocess.run(
        ["node", script, url, mode, "a"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_fetch_of_node(llamactl: Llamactl, url: str, expected: str) -> None:
    assert run_node(url, "whole")["texts"] == [expected] * 3
    streamed = run_node(url, "stream")
    assert streamed["type"].startswith("text/event-stream")
    assert len(join_text(streamed["events"])) >= 1
    cursor = journal.acquire_cursor()
    assert run_node(url, "abort")["got"] > 0
    check_hang_up(llamactl, cursor)
