"""The front as a process: sockets passed in, readiness and watchdog told, a stop that ends what runs."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.socket.front.conftest import Client, format_post, read_chunk, read_head

CHAT = "/v1/chat/completions"
TIMEOUT_S = 30.0

# What systemd does between fork and exec: the sockets from descriptor 3 on, and their names.
ACTIVATE = """
import fcntl, os, sys
descriptors = [int(number) for number in sys.argv[1].split(",")]
saved = [fcntl.fcntl(number, fcntl.F_DUPFD, 20) for number in descriptors]
for index, number in enumerate(saved):
    os.dup2(number, 3 + index)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(saved)), LISTEN_FDNAMES="http:tcp")
os.execv(sys.executable, [sys.executable, "-m", "llamactl.front"])
"""


class Machine:
    """Two listening sockets that outlive the front, and its notifications."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.http_path = directory / "http.sock"
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(self.http_path))
        self.tcp = socket.socket()
        self.tcp.bind(("127.0.0.1", 0))
        for sock in (self.unix, self.tcp):
            sock.listen(64)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(directory / "notify"))
        self.notify.settimeout(TIMEOUT_S)
        self.environ = {
            **os.environ,
            "LLAMACTL_RUNTIME_DIR": str(directory),
            "NOTIFY_SOCKET": str(directory / "notify"),
            "WATCHDOG_USEC": "200000",
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        descriptors = (self.unix.fileno(), self.tcp.fileno())
        process = subprocess.Popen(
            [sys.executable, "-c", ACTIVATE, ",".join(map(str, descriptors))],
            pass_fds=descriptors,
            env=self.environ,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def expect(self, word: str) -> None:
        """Return when the front has sent this notification."""
        while self.notify.recv(4096).decode() != word:
            pass

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for sock in (self.unix, self.tcp, self.notify):
            sock.close()


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with contextlib.closing(Machine(tmp_path_factory.mktemp("p"))) as made:
        yield made


def ask(sock: socket.socket, raw: bytes = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") -> bytes:
    sock.settimeout(TIMEOUT_S)
    sock.sendall(raw)
    return sock.recv(65536)


def test_lines_of_the_last_requests_are_written_before_it_ends(machine: Machine) -> None:
    front = machine.start()
    machine.expect("READY=1")
    with socket.create_connection(machine.tcp.getsockname()) as tcp:
        for number in range(150):
            ask(tcp, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: id-%d\r\n\r\n" % number)
        front.send_signal(signal.SIGTERM)
    assert front.stderr is not None
    lines = front.stderr.read().decode().splitlines()
    ids = [line.rpartition("request_id=")[2] for line in lines if "request answered" in line]
    assert ids == [f"id-{number}" for number in range(150)]
    assert lines[-1].startswith("llamactl-front: front stopped")


def test_passed_sockets_are_served_and_kept_over_a_restart(machine: Machine) -> None:
    first = machine.start()
    machine.expect("READY=1")
    with socket.socket(socket.AF_UNIX) as unix, socket.create_connection(machine.tcp.getsockname()) as tcp:
        unix.connect(str(machine.http_path))
        for sock in (unix, tcp):
            assert ask(sock).startswith(b"HTTP/1.1 503 ")  # it works; that it has no supervisor is the truth
        machine.expect("WATCHDOG=1")
        machine.expect("WATCHDOG=1")
        first.send_signal(signal.SIGTERM)
        machine.expect("STOPPING=1")
        assert first.wait(TIMEOUT_S) == 0
        assert unix.recv(10) == b""  # idle connections do not hold it up
    assert machine.http_path.exists()
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(str(machine.http_path))  # nobody is there, and nobody is refused
        waiting.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        machine.start()
        waiting.settimeout(TIMEOUT_S)
        assert waiting.recv(65536).startswith(b"HTTP/1.1 503 ")


def test_front_that_is_killed_is_replaced_on_the_same_sockets(machine: Machine) -> None:
    first = machine.start()
    machine.expect("READY=1")
    first.kill()
    first.wait(TIMEOUT_S)
    machine.start()
    machine.expect("READY=1")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(machine.http_path))
        assert ask(sock, b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 404 ")


def test_without_passed_sockets_it_binds_its_own(machine: Machine) -> None:
    machine.unix.close()
    process = subprocess.Popen(
        [sys.executable, "-m", "llamactl.front", "--tcp", "127.0.0.1:0"], env=machine.environ, stderr=subprocess.PIPE
    )
    machine.started.append(process)
    machine.expect("READY=1")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(machine.http_path))
        assert ask(sock).startswith(b"HTTP/1.1 503 ")
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("address", ["127.0.0.1:x", "192.0.2.1:80"])
def test_address_that_cannot_be_bound_is_named(machine: Machine, address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llamactl.front", "--tcp", address],
        env=machine.environ,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 1
    assert f"cannot listen on '{address}'" in done.stderr.decode()


def test_stop_lets_running_answers_end_and_takes_no_new_connection(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        streaming, idle = await world.connect(), await world.connect(tcp=True)
        streaming.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        call.begin_stream()
        await read_head(streaming.reader)
        assert (await idle.get("/health")).status == 200
        stopping = asyncio.ensure_future(world.front.stop(20.0))
        assert await idle.reader.read() == b""
        with pytest.raises(OSError):  # noqa: PT011 - ECONNREFUSED, or ENOENT
            await asyncio.open_connection("127.0.0.1", world.tcp_port)
        call.chunk(b"data: 1\n\n")
        assert await read_chunk(streaming.reader) == b"data: 1\n\n"
        assert not stopping.done()
        call.write(b"0\r\n\r\n")
        assert await read_chunk(streaming.reader) == b""
        assert await streaming.reader.read() == b""
        assert await stopping == 0

    stage(scenario)


def test_request_that_is_half_read_at_the_stop_is_answered(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        client: Client = await world.connect()
        client.writer.write(b"GET /health HTTP/1.1\r\nHo")
        (connection,) = world.front.clients
        while not connection.requests.buffered_bytes:
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(world.front.stop(20.0))
        await asyncio.sleep(0)
        client.writer.write(b"st: x\r\n\r\n")
        response = await client.read_response()
        assert (response.status, response.headers["connection"]) == (200, "close")
        assert await stopping == 0

    stage(scenario)


def test_stop_cuts_what_does_not_end(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        assert await world.front.stop(0.05) == 1
        assert await client.reader.read() == b""
        await call.closed()

    stage(scenario)
