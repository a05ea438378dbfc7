"""How do tests speak HTTP to a Unix socket, and hold a streamed answer open for as long as they like?

A `Stream` that is not read stays in flight: sockets fill, back-pressure reaches the instance, and the model counts as
busy. That is how tests make a model busy without any timing; reading on ends it.
"""

import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

TIMEOUT_S = 60.0


class UnixConnection(http.client.HTTPConnection):
    """HTTP/1.1 over a Unix socket."""

    def __init__(self, path: str, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__("llamactl", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        # A small buffer of our own, so that an unread stream stops its sender early.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.connect(self._path)


@dataclass(frozen=True)
class Response:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The `error` object of a refusal."""
        error: dict[str, Any] = self.json()["error"]
        return error


class Stream:
    """A streamed answer: server-sent events, read one by one. Leaving the `with` block hangs up."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._response = connection.getresponse()
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}
        self.is_cut = False
        """The connection ended in the middle of the body."""

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def __iter__(self) -> Iterator[str]:
        """The data of each event, as it arrives."""
        try:
            while line := self._response.readline():
                if line.startswith(b"data: "):
                    yield line[6:].decode().strip()
        except (http.client.IncompleteRead, ConnectionResetError):
            self.is_cut = True

    def read_event(self) -> str:
        return next(iter(self))

    def read_rest(self) -> list[str]:
        return list(self)


def open_request(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> None:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, body=data, headers={"Content-Type": "application/json", **(headers or {})})


def request(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> Response:
    """One request on a connection of its own."""
    try:
        open_request(connection, method, path, body)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Response(response.status, headers, response.read())
    finally:
        connection.close()


def format_chat(model: str, text: str = "hello", **options: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **options}


def count_tokens(events: list[str]) -> int:
    """Tokens of a streamed answer, as its usage says. Its last event must be [DONE]: the answer is whole."""
    assert events[-1] == "[DONE]", f"the stream is not whole, it ends with {events[-1][:200]}"
    tokens: int = json.loads(events[-2])["usage"]["completion_tokens"]
    return tokens


def join_text(events: list[str]) -> str:
    """The text of a streamed chat answer. Its last event must be [DONE]: the answer is whole."""
    assert events[-1] == "[DONE]", f"the stream is not whole, it ends with {events[-1][:200]}"
    chunks = [json.loads(event) for event in events[:-1]]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
