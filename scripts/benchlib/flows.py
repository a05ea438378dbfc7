"""What does the front cost where requests per second do not tell? Paced requests, streams, idle connections, a body.

The client is a process of its own with one event loop; the same client, paced alike, measures the way without the
proxy, so that its own cost falls out of the difference.
"""

import asyncio
import os
import resource
import socket
import statistics
import time
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
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class _Paced(asyncio.Protocol):
    """One connection with one request at a time."""

    def __init__(self, latencies: list[float]) -> None:
        self.latencies = latencies
        self.due: list[float] = []
        """When the requests that have not been answered were to be sent."""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def send(self, due_s: float) -> None:
        """Counted from the moment it was due: a late answer makes the next request late, and that counts."""
        self.due.append(due_s)
        if len(self.due) == 1:
            assert self.transport is not None
            self.transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        self.latencies.append(time.perf_counter() - self.due.pop(0))
        if self.due:
            assert self.transport is not None
            self.transport.write(REQUEST)


def measure_latencies(port: int, rate: float, seconds: float, connections: int = 16) -> list[float]:
    """Seconds from due to answered, of requests at an even rate."""
    latencies: list[float] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        opened = [
            (await loop.create_connection(lambda: _Paced(latencies), "127.0.0.1", port))[1] for _ in range(connections)
        ]
        began = time.perf_counter()
        count = int(rate * seconds)
        sent = 0
        while sent < count:
            now = time.perf_counter()
            while sent < count and began + sent / rate <= now:
                opened[sent % connections].send(began + sent / rate)
                sent += 1
            await asyncio.sleep(0)
        while any(connection.due for connection in opened):
            await asyncio.sleep(0)

    uvloop.run(run())
    return latencies


def find_percentile(values: list[float], percent: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[int(percent * 10) - 1]


def acquire_cpu_s(pid: int) -> float:
    """CPU seconds that a process has used (proc(5): utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


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
