"""What does the front cost, beside nginx doing the same?

Both proxy the same POST to the same static responder on a Unix socket (an nginx of its own), with one worker each, on
loopback TCP because that is what wrk speaks. Rounds alternate between the two, so that a busy machine hurts both; the
figures are medians. Added latency is the median through the proxy minus the median straight to the responder. Other
programs of the kind are measured where their paths are given: see `peers`.
"""

import contextlib
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchlib import flows, peers
from benchlib.cold import CHECKOUT
from benchlib.processes import stop_process
from benchlib.report import BenchError, Result

PYTHONPATH = f"{CHECKOUT / 'scripts'}:{CHECKOUT}"
ROUNDS = 5
ROUND_S = 2
CONNECTIONS = (1, 16)
MAX_LATENESS_S = 0.0002
"""99th percentile, of the client that sends at a given rate: a round in which it was later says nothing."""
ATTEMPTS = 3
"""At such a round."""

RESPONDER = """\
daemon on; user root; pid {directory}/responder.pid; error_log {directory}/responder.log; worker_processes 1;
events {{ worker_connections 512; }}
http {{
    access_log off; keepalive_requests 1000000000; client_max_body_size 0; client_body_temp_path {directory}/body;
    server {{
        listen unix:{directory}/upstream.sock;
        listen 127.0.0.1:{direct} reuseport;
        location / {{ default_type application/json; return 200 '{{"choices": [{{"text": "static"}}]}}'; }}
    }}
}}
"""

ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="tcp")
os.execv(sys.executable, [sys.executable, "-m", "llamactl.front"])
"""

YARDSTICK = """\
daemon on; user root; pid {directory}/yardstick.pid; error_log {directory}/yardstick.log; worker_processes 1;
events {{ worker_connections 512; }}
http {{
    access_log {nginx_log}; keepalive_requests 1000000000; client_max_body_size 0;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
    upstream responder {{ server unix:{directory}/upstream.sock; keepalive 64; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{nginx};
        location / {{
            proxy_pass http://responder; proxy_http_version 1.1;
            proxy_set_header Connection ""; proxy_buffering off; proxy_request_buffering off;
        }}
    }}
}}
"""

BODY = '{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'

SCRIPT = """\
wrk.method = "POST"
wrk.body = 'BODY'
wrk.headers["Content-Type"] = "application/json"
function done(summary, latency, requests)
    local bad = summary.errors.status + summary.errors.read + summary.errors.write + summary.errors.timeout
    io.write(string.format("RESULT %d %d %d %d\\n", summary.requests, summary.duration, latency:percentile(50), bad))
end
"""


def measure(router: Path | None = None, model: Path | None = None, llama_swap: Path | None = None) -> list[Result]:
    """Every figure. `router`: a llama-server, which needs a `model`. Raises BenchError."""
    with open_ways() as ways:
        results = [result for count in CONNECTIONS for result in compare(ways, count)]
        results += [result for count in CONNECTIONS for result in count_calls(ways, count)]
        rate = next(result.value for result in results if result.name == "front, requests, 16 connections")
        if router is not None and model is not None:
            results += compare_peer(ways, peers.choose_router(router, model, ways.directory))
        if llama_swap is not None:
            results += compare_peer(ways, peers.choose_swap(llama_swap, ways.ports["direct"], BODY, ways.directory))
        results += [*measure_added_latency(ways, rate), measure_idle(ways)]
    with open_ways(upstream=[sys.executable, "-m", "benchlib.flows"]) as ways:
        results += [measure_streams(ways), measure_body(ways)]
    with open_ways(access_log="info") as ways:
        logged = compare(ways, 16)
    results += [replace(result, name=f"{result.name}, access log on") for result in logged[:2]]
    return results


@dataclass(frozen=True)
class Ways:
    """The ways to the responder: ports by name, and the processes of the two proxies."""

    directory: Path
    ports: dict[str, int]
    pids: dict[str, int]


@contextlib.contextmanager
def open_ways(access_log: str = "off", upstream: list[str] | None = None) -> Iterator[Ways]:
    """The responder (or another upstream: a command that gets its socket's path), and both proxies before it."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        directory = Path(name)
        directory.chmod(0o755)
        ports = choose_ports()
        nginx_log = "off" if access_log == "off" else directory / "access.log"
        parts = [("yardstick", YARDSTICK)] if upstream else [("responder", RESPONDER), ("yardstick", YARDSTICK)]
        if upstream:
            running.enter_context(run_ready([*upstream, str(directory / "upstream.sock")]))
        for part, text in parts:
            config = text.format(directory=directory, nginx_log=nginx_log, **ports)
            running.enter_context(run_nginx(directory, part, config))
        pid = running.enter_context(run_front(directory, ports["front"], access_log))
        main_pid = (directory / "yardstick.pid").read_text().strip()
        worker_pid = Path(f"/proc/{main_pid}/task/{main_pid}/children").read_text().split()[0]
        yield Ways(directory, ports, {"front": pid, "nginx": int(worker_pid)})


def measure_added_latency(ways: Ways, rate: float) -> list[Result]:
    """At half the highest rate: the 99th percentile through a proxy minus the one straight to the responder."""
    added: dict[str, list[float]] = {"front": [], "nginx": []}
    late: list[float] = []
    void = 0
    for _ in range(ROUNDS):
        for _ in range(ATTEMPTS):
            paced = {name: flows.measure_latencies(port, rate / 2, ROUND_S) for name, port in ways.ports.items()}
            late.append(max(flows.find_percentile(one.lateness, 99) for one in paced.values()))
            if late[-1] <= MAX_LATENESS_S:
                p99 = {name: flows.find_percentile(one.latencies, 99) for name, one in paced.items()}
                for name, values in added.items():
                    values.append(p99[name] - p99["direct"])
                break
            void += 1
    where = "at half the front's rate"
    results = [Result("proxy", f"client's own lateness p99 {where}", statistics.median(late) * 1e6, "us")]
    if void:
        print(
            f"void: {void} rounds in which the client was more than {MAX_LATENESS_S * 1e6:.0f} us late", file=sys.stderr
        )
    for name, values in added.items():
        if values:
            results.append(Result("proxy", f"{name}, added latency p99 {where}", statistics.median(values) * 1e6, "us"))
    return results


def count_calls(ways: Ways, connections: int) -> list[Result]:
    """System calls for each request. They are counted in a run of their own, which they slow down."""
    counts = {}
    for name, pid in ways.pids.items():
        path = ways.directory / "calls"
        command = ["strace", "-c", "-f", "-U", "calls,name", "-o", str(path), "-p", str(pid)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr is not None
            said = tracer.stderr.readline()
            if "attached" not in said:
                raise BenchError(f"cannot count system calls: {said.strip()}")
            rate, _ = run_wrk(ways.directory, ways.ports[name], connections, 1)
            tracer.send_signal(signal.SIGINT)
            tracer.stderr.read()
        total = re.search(r"^\s*(\d+)\s+total$", path.read_text(), re.MULTILINE)
        if total is None:
            raise BenchError(f"cannot read what strace has counted: {path.read_text()[:200]}")
        counts[name] = int(total[1]) / rate
    what = f"{connections} connection{'s' if connections > 1 else ''}"
    front, nginx = counts["front"], counts["nginx"]
    return [
        Result("proxy", f"front, system calls per request, {what}", front, "", front / nginx, "nginx"),
        Result("proxy", f"nginx, system calls per request, {what}", nginx, ""),
    ]


def measure_body(ways: Ways) -> Result:
    rates: dict[str, list[float]] = {"front": [], "nginx": []}
    for _ in range(ROUNDS):
        for name, values in rates.items():
            values += flows.measure_body(ways.ports[name], 3)
    front, nginx = (statistics.median(values) for values in rates.values())
    return Result("proxy", "front, bodies of 20 MiB", front / (1 << 20), "MiB/s", front / nginx, "nginx")


def measure_idle(ways: Ways) -> Result:
    used = flows.measure_idle(ways.ports["front"], ways.pids["front"])
    return Result("proxy", f"front, memory with {flows.IDLE} idle connections", used / (1 << 20), "MiB")


def measure_streams(ways: Ways) -> Result:
    spent = flows.measure_streams(ways.ports["front"], ways.pids["front"], 2.0 * ROUND_S)
    return Result(
        "proxy", f"front, CPU per chunk, {flows.STREAMS} streams of {flows.CHUNKS_PER_S} chunks/s", spent, "us"
    )


def compare_peer(ways: Ways, peer: peers.Peer) -> list[Result]:
    def run(port: int, path: str, body: str) -> float:
        return run_wrk(ways.directory, port, peers.CONNECTIONS, ROUND_S, path, body)[0]

    return peers.compare(peer, ways.ports["front"], BODY, ROUNDS, ROUND_S, run)


def compare(ways: Ways, connections: int) -> list[Result]:
    """The figures at one number of connections. CPU per request is the figure that a busy machine changes least."""
    directory, ports = ways.directory, ways.ports
    spent = dict.fromkeys(ways.pids, 0.0)
    woken = dict.fromkeys(ways.pids, 0)
    answered = dict.fromkeys(ways.pids, 0.0)
    rates: dict[str, list[float]] = {name: [] for name in ports}
    latencies: dict[str, list[float]] = {name: [] for name in ports}
    for port in ports.values():
        run_wrk(directory, port, connections, 1)
    for _ in range(ROUNDS):
        for name, port in ports.items():
            pid = ways.pids.get(name)
            if pid is not None:
                spent[name] -= flows.acquire_cpu_s(pid)
                woken[name] -= flows.acquire_wakeups(pid)
            rate, latency_us = run_wrk(directory, port, connections, ROUND_S)
            if pid is not None:
                spent[name] += flows.acquire_cpu_s(pid)
                woken[name] += flows.acquire_wakeups(pid)
                answered[name] += rate * ROUND_S
            rates[name].append(rate)
            latencies[name].append(latency_us)
    rate = {name: statistics.median(values) for name, values in rates.items()}
    latency = {name: statistics.median(values) for name, values in latencies.items()}
    added = {name: latency[name] - latency["direct"] for name in ("front", "nginx")}
    what = f"{connections} connection{'s' if connections > 1 else ''}"
    cpu = {name: spent[name] / answered[name] * 1e6 for name in ways.pids}
    wakeups = {name: woken[name] / answered[name] for name in ways.pids}
    against = added["front"] / added["nginx"] if added["nginx"] > 0 else None
    return [
        Result("proxy", f"front, requests, {what}", rate["front"], "1/s", rate["front"] / rate["nginx"], "nginx"),
        Result("proxy", f"nginx, requests, {what}", rate["nginx"], "1/s"),
        Result("proxy", f"front, CPU per request, {what}", cpu["front"], "us", cpu["front"] / cpu["nginx"], "nginx"),
        Result("proxy", f"nginx, CPU per request, {what}", cpu["nginx"], "us"),
        Result("proxy", f"front, wake-ups per request, {what}", wakeups["front"], ""),
        Result("proxy", f"nginx, wake-ups per request, {what}", wakeups["nginx"], ""),
        Result("proxy", f"front, added latency, {what}", added["front"], "us", against, against and "nginx"),
        Result("proxy", f"nginx, added latency, {what}", added["nginx"], "us"),
    ]


def choose_ports() -> dict[str, int]:
    """Three free ports of the loopback interface."""
    with contextlib.ExitStack() as held:
        sockets = {name: held.enter_context(socket.socket()) for name in ("direct", "nginx", "front")}
        for bound in sockets.values():
            bound.bind(("127.0.0.1", 0))
        return {name: bound.getsockname()[1] for name, bound in sockets.items()}


@contextlib.contextmanager
def run_nginx(directory: Path, name: str, config: str) -> Iterator[None]:
    """nginx in the background: its command returns when it listens."""
    path = directory / f"{name}.conf"
    path.write_text(config)
    command = ["nginx", "-e", str(directory / f"{name}.log"), "-c", str(path)]
    started = subprocess.run(command, capture_output=True, text=True, check=False)
    if started.returncode != 0:
        raise BenchError(f"cannot start nginx: {started.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run([*command, "-s", "stop"], capture_output=True, check=False)


@contextlib.contextmanager
def run_front(directory: Path, port: int, access_log: str = "off") -> Iterator[int]:
    """The front with a listening socket handed over as systemd does it, and a granter for its supervisor. Its pid."""
    control = directory / "control"
    control.mkdir()
    environment = {
        **os.environ,
        "LLAMACTL_RUNTIME_DIR": str(directory),
        "PYTHONPATH": PYTHONPATH,
    }
    paths = [str(control / "control.sock"), str(directory / "upstream.sock")]
    granter = run_ready([sys.executable, "-m", "benchlib.granter", *paths, access_log], environment)
    granter.__enter__()
    with socket.create_server(("127.0.0.1", port), backlog=4096) as listener, open(directory / "front.log", "w") as log:
        # Descriptor 3 and the pid are how systemd does it, sd_listen_fds(3).
        front = subprocess.Popen(
            [sys.executable, "-c", ACTIVATE, str(listener.fileno())],
            env=environment,
            pass_fds=[listener.fileno()],
            cwd=directory,
            stderr=log,
        )
    try:
        yield front.pid
    finally:
        stop_process(front)
        granter.__exit__(None, None, None)


@contextlib.contextmanager
def run_ready(command: list[str], environment: dict[str, str] | None = None) -> Iterator[None]:
    """A process that prints "ready" when it is."""
    environment = environment or {**os.environ, "PYTHONPATH": PYTHONPATH}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise BenchError(f"cannot start {command[-2]}")
        yield
    finally:
        stop_process(process)


def run_wrk(
    directory: Path, port: int, connections: int, seconds: int, path: str = "/v1/chat/completions", body: str = BODY
) -> tuple[float, float]:
    """Requests per second and median latency in microseconds. Raises BenchError when a request failed."""
    script = directory / "post.lua"
    script.write_text(SCRIPT.replace("BODY", body))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script)]
    done = subprocess.run([*command, f"http://127.0.0.1:{port}{path}"], capture_output=True, text=True, check=False)
    match = re.search(r"^RESULT (\d+) (\d+) (\d+) (\d+)$", done.stdout, re.MULTILINE)
    if match is None:
        raise BenchError(f"cannot use wrk: {done.stderr or done.stdout}")
    requests, duration_us, latency_us, bad = map(int, match.groups())
    if bad or not requests:
        raise BenchError(f"cannot measure port {port}: {bad} of {requests} requests failed")
    return requests / (duration_us / 1e6), float(latency_us)
