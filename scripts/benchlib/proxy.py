"""What does the front cost, beside nginx doing the same?

Both proxy the same POST to the same static responder on a Unix socket (an nginx of its own), with one worker each, on
loopback TCP because that is what wrk speaks. Rounds alternate between the two, so that a busy machine hurts both; the
figures are medians. Added latency is the median through the proxy minus the median straight to the responder.
"""

import contextlib
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchlib.report import BenchError, Result, need_programs

ROUNDS = 5
ROUND_S = 2
CONNECTIONS = (1, 16)

RESPONDER = """\
daemon on; user root; pid {directory}/responder.pid; error_log {directory}/responder.log; worker_processes 1;
events {{ worker_connections 512; }}
http {{
    access_log off; keepalive_requests 1000000000;
    server {{
        listen unix:{directory}/upstream.sock;
        listen 127.0.0.1:{direct} reuseport;
        location / {{ default_type application/json; return 200 '{{"choices": [{{"text": "static"}}]}}'; }}
    }}
}}
"""

YARDSTICK = """\
daemon on; user root; pid {directory}/yardstick.pid; error_log {directory}/yardstick.log; worker_processes 1;
events {{ worker_connections 512; }}
http {{
    access_log off; keepalive_requests 1000000000;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
    upstream responder {{ server unix:{directory}/upstream.sock; keepalive 64; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{nginx};
        location / {{
            proxy_pass http://responder; proxy_http_version 1.1;
            proxy_set_header Connection ""; proxy_buffering off;
        }}
    }}
}}
"""

SCRIPT = """\
wrk.method = "POST"
wrk.body = '{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
wrk.headers["Content-Type"] = "application/json"
function done(summary, latency, requests)
    local bad = summary.errors.status + summary.errors.read + summary.errors.write + summary.errors.timeout
    io.write(string.format("RESULT %d %d %d %d\\n", summary.requests, summary.duration, latency:percentile(50), bad))
end
"""


def measure() -> list[Result]:
    """Requests per second and added latency, at one connection and at 16. Raises BenchError."""
    need_programs("nginx", "wrk")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        directory = Path(name)
        ports = choose_ports()
        (directory / "post.lua").write_text(SCRIPT)
        for part, text in (("responder", RESPONDER), ("yardstick", YARDSTICK)):
            running.enter_context(run_nginx(directory, part, text.format(directory=directory, **ports)))
        running.enter_context(run_front(directory, ports["front"]))
        return [result for count in CONNECTIONS for result in compare(directory, ports, count)]


def compare(directory: Path, ports: dict[str, int], connections: int) -> list[Result]:
    """The figures at one number of connections."""
    rates: dict[str, list[float]] = {name: [] for name in ports}
    latencies: dict[str, list[float]] = {name: [] for name in ports}
    for port in ports.values():
        run_wrk(directory, port, connections, 1)
    for _ in range(ROUNDS):
        for name, port in ports.items():
            rate, latency_us = run_wrk(directory, port, connections, ROUND_S)
            rates[name].append(rate)
            latencies[name].append(latency_us)
    rate = {name: statistics.median(values) for name, values in rates.items()}
    latency = {name: statistics.median(values) for name, values in latencies.items()}
    added = {name: latency[name] - latency["direct"] for name in ("front", "nginx")}
    what = f"{connections} connection{'s' if connections > 1 else ''}"
    against = added["front"] / added["nginx"] if added["nginx"] > 0 else None
    return [
        Result("proxy", f"front, requests, {what}", rate["front"], "1/s", rate["front"] / rate["nginx"], "nginx"),
        Result("proxy", f"nginx, requests, {what}", rate["nginx"], "1/s"),
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
def run_front(directory: Path, port: int) -> Iterator[None]:
    """The front with a listening socket handed over as systemd does it, and a granter for its supervisor."""
    control = directory / "control"
    control.mkdir()
    environment = {
        **os.environ,
        "LLAMACTL_RUNTIME_DIR": str(directory),
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    granter = subprocess.Popen(
        [sys.executable, "-m", "benchlib.granter", str(control / "control.sock"), str(directory / "upstream.sock")],
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert granter.stdout is not None
    if granter.stdout.readline() != b"ready\n":
        raise BenchError("cannot start the granter")
    with socket.create_server(("127.0.0.1", port), backlog=4096) as listener, open(directory / "front.log", "w") as log:
        # Descriptor 3 and the pid are systemd's convention, sd_listen_fds(3); the shell's pid becomes the front's.
        command = (
            f'exec env LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=tcp "$0" -m llamactl.front 3<&{listener.fileno()}'
        )
        front = subprocess.Popen(
            ["sh", "-c", command, sys.executable],
            env=environment,
            pass_fds=[listener.fileno()],
            cwd=directory,
            stderr=log,
        )
    try:
        yield
    finally:
        for process in (front, granter):
            process.terminate()
            process.wait(30)


def run_wrk(directory: Path, port: int, connections: int, seconds: int) -> tuple[float, float]:
    """Requests per second and median latency in microseconds. Raises BenchError when a request failed."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(directory / "post.lua")]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}/v1/completions"], capture_output=True, text=True, check=False
    )
    match = re.search(r"^RESULT (\d+) (\d+) (\d+) (\d+)$", done.stdout, re.MULTILINE)
    if match is None:
        raise BenchError(f"cannot use wrk: {done.stderr or done.stdout}")
    requests, duration_us, latency_us, bad = map(int, match.groups())
    if bad or not requests:
        raise BenchError(f"cannot measure port {port}: {bad} of {requests} requests failed")
    return requests / (duration_us / 1e6), float(latency_us)
