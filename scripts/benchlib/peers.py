"""How many requests do other programs of the front's kind pass on? llama-server's router and llama-swap, by path.

Each is asked in turn with the front, over loopback TCP by 16 connections. llama-server's router reaches nothing but
children that it has started: it passes on POST /tokenize, the cheapest thing that such a child answers. llama-swap
passes the front's own request on to the static responder, by the port that this has for direct requests.
"""

import contextlib
import http.client
import json
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchlib import flows
from benchlib.processes import stop_process
from benchlib.report import BenchError, Result

READY_S = 60.0
CONNECTIONS = 16


@dataclass(frozen=True)
class Peer:
    """One of them. `path` and `body`: what it is asked; `command` and `files`: how it is started."""

    name: str
    command: list[str]
    port: int
    path: str
    body: str
    files: dict[str, str]


RunWrk = Callable[[int, str, str], float]
"""Requests per second of: port, path, body."""


def choose_router(program: Path, model: Path, directory: Path) -> Peer:
    models = directory / "models"
    models.mkdir()
    (models / "m.gguf").symlink_to(model.resolve())
    port = choose_port()
    command = [str(program), "--models-dir", str(models), "--host", "127.0.0.1", "--port", str(port), "-c", "512"]
    command.append("--no-repack")  # nothing is computed, and what repacks for AMX dies of it on some virtual machines
    return Peer("llama-server's router", command, port, "/tokenize", '{"model": "m", "content": "hello"}', {})


def choose_swap(program: Path, responder_port: int, body: str, directory: Path) -> Peer:
    port = choose_port()
    config = {
        "logLevel": "error",
        "models": {
            "m": {
                "cmd": "sleep infinity",
                "proxy": f"http://127.0.0.1:{responder_port}",
                "checkEndpoint": "none",
            }
        },
    }
    path = directory / "llama-swap.yaml"
    command = [str(program), "--config", str(path), "--listen", f"127.0.0.1:{port}"]
    return Peer("llama-swap", command, port, "/v1/completions", body, {str(path): json.dumps(config)})


def compare(peer: Peer, front_port: int, body: str, rounds: int, seconds: int, run_wrk: RunWrk) -> list[Result]:
    """The peer's CPU is without that of its children."""
    rates: list[float] = []
    front_rates: list[float] = []
    spent = answered = 0.0
    with run_peer(peer) as pid:
        for _ in range(rounds):
            before_s = flows.acquire_cpu_s(pid)
            rates.append(run_wrk(peer.port, peer.path, peer.body))
            spent += flows.acquire_cpu_s(pid) - before_s
            answered += rates[-1] * seconds
            front_rates.append(run_wrk(front_port, "/v1/completions", body))
    rate, front_rate = statistics.median(rates), statistics.median(front_rates)
    what = f"{CONNECTIONS} connections"
    return [
        Result("proxy", f"front, requests, {what}", front_rate, "1/s", front_rate / rate, peer.name),
        Result("proxy", f"{peer.name}, requests, {what}", rate, "1/s"),
        Result("proxy", f"{peer.name}, CPU per request, {what}", spent / answered * 1e6, "us"),
    ]


@contextlib.contextmanager
def run_peer(peer: Peer) -> Iterator[int]:
    """Its process id, once it has answered."""
    for path, text in peer.files.items():
        Path(path).write_text(text)
    process = subprocess.Popen(peer.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_answer(peer, process)
        yield process.pid
    finally:
        stop_process(process)


def wait_for_answer(peer: Peer, process: "subprocess.Popen[bytes]") -> None:
    """The first answer waits for the model, but the port is there only some time after the start."""
    end_s = time.monotonic() + READY_S
    what = "it does not answer"
    while time.monotonic() < end_s and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", peer.port, timeout=READY_S)
        try:
            connection.request("POST", peer.path, peer.body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status == 200:
                return
            what = f"it answers {response.status}: {response.read(200)!r}"
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    if process.poll() is not None:
        what = f"it has ended with status {process.returncode}"
    raise BenchError(f"cannot measure {peer.name}: {what}")


def choose_port() -> int:
    """A free one of the loopback interface."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port
