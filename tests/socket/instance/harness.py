"""How do tests drive a child without systemd? They are its supervisor: they own report.sock, acknowledge, give
orders, and may go away.

Everything waits for an event with a time-out; nothing sleeps.
"""

import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from llamactl.protocol.lines import VERSION, LineReader, encode_message
from llamactl.protocol.report_socket import (
    Ack,
    Answer,
    ChildHello,
    ChildMessage,
    ChildWelcome,
    Order,
    OrderKind,
    Report,
)
from llamactl.settings import ModelSettings, encode_spec

TIMEOUT_S = 30.0
ROOT = Path(__file__).parents[3]
ERRORS = "stderr.txt"


class Peer:
    """One accepted connection of a child."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(TIMEOUT_S)
        self._lines = LineReader(ChildMessage)
        self._messages: list[Any] = []

    def receive(self) -> Any:
        """The next message; None when the child has closed the connection."""
        while not self._messages:
            data = self._socket.recv(1 << 16)
            if not data:
                return None
            self._messages += self._lines.feed(data)
        return self._messages.pop(0)

    def send(self, message: msgspec.Struct) -> None:
        self._socket.sendall(encode_message(message))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Supervisor:
    """Owns report.sock. `accept` hands out connections to tests that script every message; `attend` runs the usual
    conversation.
    """

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(TIMEOUT_S)
        self.messages: queue.Queue[Any] = queue.Queue()
        self.seen: list[Any] = []
        self._peer: Peer | None = None
        self._next_id = 0

    def accept(self) -> Peer:
        return Peer(self._listener.accept()[0])

    def attend(self) -> None:
        """Welcomes the next child and acknowledges all its reports, on a thread of its own."""
        threading.Thread(target=self._attend, daemon=True).start()

    def _attend(self) -> None:
        try:
            peer = self._peer = self.accept()
        except OSError:
            return
        with contextlib.suppress(OSError):
            while (message := peer.receive()) is not None:
                if isinstance(message, ChildHello):
                    peer.send(ChildWelcome(version=VERSION))
                elif isinstance(message, Report):
                    peer.send(Ack(seq=message.seq))
                self.messages.put(message)
        self.messages.put(None)

    def wait(self, is_wanted: Callable[[Any], bool], timeout_s: float = TIMEOUT_S) -> Any:
        """The next message that is wanted. Raises AssertionError when the child leaves first."""
        while True:
            message = self.messages.get(timeout=timeout_s)
            assert message is not None, f"the child has left; it said {self.seen}"
            self.seen.append(message)
            if is_wanted(message):
                return message

    def wait_for(self, state: str) -> Report:
        report = self.wait(lambda message: isinstance(message, Report) and message.state == state)
        assert isinstance(report, Report)
        return report

    def order(self, kind: OrderKind, **fields: Any) -> Answer:
        self._next_id += 1
        assert self._peer is not None
        self._peer.send(Order(id=self._next_id, order=kind, **fields))
        answer = self.wait(lambda message: isinstance(message, Answer) and message.id == self._next_id)
        assert isinstance(answer, Answer)
        return answer

    def close(self) -> None:
        self._listener.close()
        if self._peer is not None:
            self._peer.close()


@dataclass
class Child:
    """A running child process and what belongs to it."""

    process: subprocess.Popen[bytes]
    directory: Path
    supervisor: Supervisor
    notifications: socket.socket

    @property
    def http_socket(self) -> Path:
        return self.directory / "http.sock"

    def wait(self) -> int:
        """Exit status; negative: the signal that ended it."""
        return self.process.wait(TIMEOUT_S)

    @property
    def errors(self) -> str:
        """Standard error so far."""
        return (self.directory / ERRORS).read_text(errors="replace")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait_for_notification(self, prefix: str) -> str:
        while True:
            text = self.notifications.recv(4096).decode()
            if text.startswith(prefix):
                return text

    def connect(self) -> "UnixConnection":
        return UnixConnection(self.http_socket)

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and decoded JSON."""
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body if isinstance(body, bytes | None) else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def stream(self, path: str, body: dict[str, Any]) -> list[str]:
        """The data of all events, [DONE] included; an `event: error` becomes "error: ..."."""
        with contextlib.closing(self.connect()) as connection:
            connection.request("POST", path, json.dumps({**body, "stream": True}))
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.getheader("content-type") == "text/event-stream"
            assert response.getheader("x-accel-buffering") == "no"
            return parse_events(response.read().decode())


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("instance", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))


def parse_events(text: str) -> list[str]:
    events = []
    for block in text.split("\n\n"):
        name = ""
        for line in block.splitlines():
            field_name, _, value = line.partition(": ")
            if field_name == "event":
                name = f"{value}: "
            elif field_name == "data":
                events.append(name + value)
    return events


def join_text(events: list[str]) -> str:
    """The text of a stream, of chat or completion."""
    parts = []
    for event in events:
        if event == "[DONE]":
            continue
        for choice in json.loads(event)["choices"]:
            parts.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
    return "".join(parts)


def make_environment(directory: Path, settings: ModelSettings) -> dict[str, str]:
    """A child's, with all its sockets in one directory."""
    return {
        **{name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")},
        "LLAMACTL_MODEL": settings.name,
        "LLAMACTL_SPEC": encode_spec(settings),
        "LLAMACTL_GENERATION": "1",
        "LLAMACTL_SOCKET": str(directory / "http.sock"),
        "LLAMACTL_REPORT": str(directory / "report.sock"),
        "LLAMACTL_MARGINS": "{}",
        "LLAMACTL_EXTRA_BUFTS": "1",
        "NOTIFY_SOCKET": str(directory / "notify.sock"),
    }


@contextlib.contextmanager
def run_child(
    directory: Path,
    role: str,
    settings: ModelSettings,
    *,
    attend: bool = True,
    module: str = "llamactl.instance",
    **variables: str,
) -> Iterator[Child]:
    """A child with its supervisor. Whatever happens, it is gone afterwards."""
    supervisor = Supervisor(directory / "report.sock")
    notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notifications.bind(str(directory / "notify.sock"))
    notifications.settimeout(TIMEOUT_S)
    environment = {**make_environment(directory, settings), **variables}
    if attend:
        supervisor.attend()
    # A file, not a pipe that nobody reads: it would stop a child that has much to say.
    with (directory / ERRORS).open("w") as errors:
        process = subprocess.Popen([sys.executable, "-m", module, role], cwd=ROOT, env=environment, stderr=errors)
    try:
        yield Child(process, directory, supervisor, notifications)
    finally:
        process.kill()
        process.wait()
        supervisor.close()
        notifications.close()
