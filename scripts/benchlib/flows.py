"""What does the front cost where requests per second do not tell? Paced requests, streams, idle connections, a body.

The client is a process of its own; the same client, paced alike, measures the way without the proxy, so that its own
cost falls out of the difference.
"""

import asyncio
import contextlib
import ctypes
import os
import resource
import select
import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 67\r\n\r\n"
    b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]} '
)
STREAMS = 64
CHUNKS_PER_S = 100
IDLE = 10_000
BODY_BYTES = 20 << 20
PATIENCE_S = 10.0
_PR_SET_TIMERSLACK = 29
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Paced:
    """Seconds for each request, from the moment when it was due; and how late the client itself sent it."""

    latencies: list[float]
    lateness: list[float]


def measure_latencies(port: int, rate: float, seconds: float, connections: int = 16) -> Paced:
    """Ask `rate` times a second, whether answers come or not: a late answer makes later ones late, and that counts.

    The client sleeps until a request is due or an answer comes: one that looked again and again would take a processor
    from those that it measures.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # else the kernel lets sleepers lie for 50 us
    latencies: list[float] = []
    lateness: list[float] = []
    with contextlib.ExitStack() as opened:
        free = [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(connections)]
        due: dict[socket.socket, float] = {}
        count, sent = int(rate * seconds), 0
        began = free_since = time.perf_counter()
        while len(latencies) < count:
            now = time.perf_counter()
            while free and sent < count and (due_s := began + sent / rate) <= now:
                lateness.append(now - max(due_s, free_since))
                connection = free.pop()
                connection.sendall(REQUEST)
                due[connection] = due_s
                sent += 1
                now = time.perf_counter()
            timeout_s = max(0.0, began + sent / rate - now) if free and sent < count else PATIENCE_S
            for connection in select.select(list(due), (), (), timeout_s)[0]:
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
                now = time.perf_counter()
                latencies.append(now - due.pop(connection))
                if not free:
                    free_since = now
                free.append(connection)
    return Paced(latencies, lateness)


def find_percentile(values: list[float], percent: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[int(percent * 10) - 1]


def acquire_cpu_s(pid: int) -> float:
    """CPU seconds that a process has used (proc(5): utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def acquire_wakeups(pid: int) -> int:
    """How often the threads of a process have slept until now, and so were woken."""
    statuses = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status"))
    return sum(int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for status in statuses)


def acquire_rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


class _Reading(asyncio.Protocol):
    """Counts the chunks of a stream."""

    def __init__(self) -> None:
        self.chunks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        transport.write(REQUEST.replace(b"/v1/completions", b"/stream"))  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.chunks += data.count(b"\n\n")


def measure_streams(port: int, pid: int, seconds: float) -> float:
    """Microseconds of CPU that process `pid` takes for each chunk of STREAMS streams."""

    async def run() -> float:
        loop = asyncio.get_running_loop()
        opened = [(await loop.create_connection(_Reading, "127.0.0.1", port))[1] for _ in range(STREAMS)]
        await asyncio.sleep(1.0)
        before_s, before = acquire_cpu_s(pid), sum(stream.chunks for stream in opened)
        await asyncio.sleep(seconds)
        used_s, count = acquire_cpu_s(pid) - before_s, sum(stream.chunks for stream in opened) - before
        assert count > STREAMS * CHUNKS_PER_S * seconds / 2, f"only {count} chunks came in {seconds} s"
        return used_s / count * 1e6

    return uvloop.run(run())


class _Upstream(asyncio.BufferedProtocol):
    """Answers /stream with chunks at CHUNKS_PER_S, for ever; all else, when its body has come, with a few bytes."""

    _event = b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
    _chunk = b"%x\r\n%b\r\n" % (len(_event), _event)
    _buffer = memoryview(bytearray(1 << 20))

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._left = 0
        self._due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._left:
            self._head += bytes(self._buffer[:nbytes])
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._head = b""
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
            self._left, nbytes = int(length or 0), len(rest)
            if head.startswith(b"POST /stream"):
                self._begin_stream()
                return
        self._left -= nbytes
        if not self._left and self._transport is not None:
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    def _begin_stream(self) -> None:
        assert self._transport is not None
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self._due_s = asyncio.get_running_loop().time()
        self._send_chunk()

    def _send_chunk(self) -> None:
        if self._transport is not None:
            self._transport.write(self._chunk)
            self._due_s += 1 / CHUNKS_PER_S
            asyncio.get_running_loop().call_at(self._due_s, self._send_chunk)


async def serve(path: str) -> None:
    server = await asyncio.get_running_loop().create_unix_server(_Upstream, path, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


def measure_idle(port: int, pid: int) -> int:
    """Resident bytes of process `pid` with IDLE connections that have each been answered once."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = []
    try:
        for _ in range(IDLE):
            sock = socket.create_connection(("127.0.0.1", port))
            opened.append(sock)
            sock.sendall(REQUEST)
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        return acquire_rss_bytes(pid)
    finally:
        for sock in opened:
            sock.close()


def measure_body(port: int, rounds: int) -> list[float]:
    """Bytes per second of bodies of BODY_BYTES, each from its first byte to its answer."""
    body = b'{"model":"m","image":"' + b"A" * (BODY_BYTES - 24) + b'"}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    rates = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for _ in range(rounds):
            began = time.perf_counter()
            sock.sendall(head)
            sock.sendall(body)
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
            rates.append(len(body) / (time.perf_counter() - began))
    return rates


if __name__ == "__main__":
    import sys

    uvloop.run(serve(sys.argv[1]))
