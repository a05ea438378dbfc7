"""When does each piece of a streamed answer arrive? A client that disturbs what it measures as little as it can.

It shares the machine's cores with the server, so while answers run it only notes the time and keeps the bytes; they are
read afterwards. One connection for each request, on the server's Unix socket, closed by the server at the end.
"""

import itertools
import json
import re
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchlib.report import BenchError

TIMEOUT_S = 120.0
PATH = "/v1/completions"
_WORDS = re.compile(rb'"(?:reasoning_)?content":\s*"|"tool_calls":')


class Stream:
    """One answer, as it arrived. Seconds are of the monotonic clock."""

    def __init__(self, server: Path, body: dict[str, Any], path: str = PATH) -> None:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nConnection: close\r\n"
        request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(server))
        self.sent_s = time.monotonic()
        self.socket.sendall(request)
        self.pieces: list[tuple[float, bytes]] = []
        self.is_open = True

    def read(self) -> None:
        data = self.socket.recv(1 << 16)
        self.pieces.append((time.monotonic(), data))
        if not data:
            self.is_open = False
            self.socket.close()

    # --- afterwards ---

    @property
    def first_s(self) -> float:
        """From the request to the first event."""
        seen = b""
        for at_s, data in self.pieces:
            seen += data
            if b"data: " in seen:
                return at_s - self.sent_s
        raise BenchError(f"cannot measure: no event came, but {seen[:300]!r}")

    @property
    def first_content_s(self) -> float:
        """From the request to the first words of a chat, whose role comes before them: of the answer, of thoughts, or
        of a call.
        """
        seen = b""
        for at_s, data in self.pieces:
            seen += data
            if _WORDS.search(seen):
                return at_s - self.sent_s
        raise BenchError(f"cannot measure: no words came, but {seen[-300:]!r}")

    @property
    def end_s(self) -> float:
        """When the last event came."""
        return max(at_s for at_s, data in self.pieces if data)

    def list_gaps(self, after_s: float) -> list[float]:
        """Seconds between pieces of which the later one came after a moment."""
        times = [at_s for at_s, data in self.pieces if data]
        return [later - earlier for earlier, later in itertools.pairwise(times) if later > after_s]

    def read_usage(self) -> dict[str, Any]:
        """Raises BenchError for an answer that did not come to its end."""
        text = b"".join(data for _, data in self.pieces).decode()
        usage = {}
        for line in text.splitlines():
            if line.startswith("data: {"):
                usage = json.loads(line.removeprefix("data: ")).get("usage") or usage
        if not usage or "data: [DONE]" not in text:
            raise BenchError(f"cannot measure: an answer failed: {text[-300:]!r}")
        return usage


Arrive = Callable[[list[Stream]], dict[str, Any] | None]


def run_streams(
    server: Path,
    bodies: Sequence[dict[str, Any]],
    arrive: Arrive | None = None,
    path: str = PATH,
) -> list[Stream]:
    """Sends all requests at once and reads until every answer has ended. `arrive` is asked after each piece, until it
    returns the body of one more request.
    """
    with selectors.DefaultSelector() as selector:
        streams: list[Stream] = []

        def add(body: dict[str, Any]) -> None:
            stream = Stream(server, body, path)
            streams.append(stream)
            selector.register(stream.socket, selectors.EVENT_READ, stream)

        for body in bodies:
            add(body)
        while selector.get_map():
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise BenchError(f"cannot measure: {server} has sent nothing for {TIMEOUT_S:.0f} s")
            for key, _ in ready:
                stream = key.data
                registered = key.fileobj
                stream.read()
                if not stream.is_open:
                    selector.unregister(registered)
            if arrive is not None and (body := arrive(streams)) is not None:
                arrive = None
                add(body)
    return streams
