"""A supervisor that says what a test tells it to, on a real Unix socket, and the real command beside it.

The script of a connection is a function that gets a `Peer`: it receives requests and sends answers, in a thread. What
the command sent, in order, is kept for the test. Nothing waits without a limit.
"""

import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llamactl.paths import Paths
from llamactl.protocol.control_socket import ClientHello, ClientMessage, Welcome
from llamactl.protocol.lines import VERSION, LineReader, encode_message

TIMEOUT_S = 20.0
WELCOME = Welcome(version=VERSION, llamactl="0.1.0", pid=1)


class Peer:
    """One connection, from the supervisor's side."""

    def __init__(self, connection: socket.socket, received: list[Any]) -> None:
        self._connection = connection
        self._connection.settimeout(TIMEOUT_S)
        self._reader = LineReader(ClientMessage)
        self._waiting: list[Any] = []
        self._received = received

    def receive(self) -> Any:
        """The next message; None when the command has closed the connection."""
        while not self._waiting:
            data = self._connection.recv(1 << 16)
            if not data:
                return None
            self._waiting = self._reader.feed(data)
            self._received += self._waiting
        return self._waiting.pop(0)

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.send_bytes(message if isinstance(message, bytes) else encode_message(message))

    def send_bytes(self, data: bytes) -> None:
        self._connection.sendall(data)

    def greet(self, welcome: Any = WELCOME) -> None:
        hello = self.receive()
        assert isinstance(hello, ClientHello)
        self.send(welcome)


Script = Callable[[Peer], None]


def answer(*messages: Any) -> Script:
    """The usual script: greet, take one request, send these with its id."""

    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        peer.send(*messages)

    return script


class Supervisor:
    """Listens until closed; each connection runs the script."""

    def __init__(self, script: Script) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="llamactl-cli-"))
        self.paths = Paths(runtime_dir=self.root / "run", config_dir=self.root / "etc", cache_dir=self.root / "cache")
        self.paths.control_socket.parent.mkdir(parents=True)
        self.received: list[Any] = []
        self.errors: list[BaseException] = []
        self.served = threading.Event()
        self._script = script
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.paths.control_socket))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(TIMEOUT_S)
        shutil.rmtree(self.root)
        assert not self._thread.is_alive()
        if self.errors:
            raise self.errors[0]

    @property
    def requests(self) -> list[Any]:
        """What the command asked for after its greeting."""
        return [message for message in self.received if not isinstance(message, ClientHello)]

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self._script(Peer(connection, self.received))
                except BaseException as error:
                    self.errors.append(error)
                self.served.set()


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    status: int
    out: str
    err: str


def make_environment(paths: Paths) -> dict[str, str]:
    return {
        **os.environ,
        "LLAMACTL_RUNTIME_DIR": str(paths.runtime_dir),
        "LLAMACTL_CONFIG_DIR": str(paths.config_dir),
        "LLAMACTL_CACHE_DIR": str(paths.cache_dir),
        "LC_ALL": "C.UTF-8",
    }


def make_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "llamactl.cli", *words]


def run(paths: Paths, *words: str, environment: dict[str, str] | None = None) -> Result:
    """The command as a process of its own, to its end."""
    done = subprocess.run(
        make_command(*words),
        env=make_environment(paths) | (environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def add_systemctl(
    directory: Path, state: str = "active", load: str = "loaded", told: Path | None = None, sockets: str = ""
) -> str:
    """A PATH with a systemctl that says in which state the supervisor's unit is, and how the front's sockets are; it
    tells `told` that it was asked for the first.
    """
    program = directory / "bin" / "systemctl"
    program.parent.mkdir()
    (directory / "sockets").write_text(sockets)
    tell = f'echo asked >"{told}"; ' if told is not None else ""
    program.write_text(
        f"""#!/bin/sh
case "$*" in
*Listen*) exec cat "{directory}/sockets" ;;
*LoadState*) echo {load} ;;
*ActiveState*) {tell}echo {state} ;;
*) exit 1 ;;
esac
"""
    )
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


TAKEN = """\
Listen=/dev/null (Stream)
Result=success
Id=llamactl-front.socket
LoadState=loaded
ActiveState=active

Listen=127.0.0.1:8080 (Stream)
Result=resources
Id=llamactl-front-tcp.socket
LoadState=loaded
ActiveState=failed

Id=llamactl-front.service
LoadState=loaded
ActiveState=active
Result=success
"""
"""The front's sockets: one is where it belongs, the other could not be bound. (Nobody has the port any more.)"""


def ask(script: Script, *words: str, environment: dict[str, str] | None = None) -> tuple[Result, list[Any]]:
    """Run a command against a script: its result, and what it asked for."""
    with Supervisor(script) as supervisor:
        result = run(supervisor.paths, *words, environment=environment)
        return result, supervisor.requests


def show_on_terminal(script: Script, *words: str, environment: dict[str, str] | None = None) -> str:
    """What a command prints on a terminal of 80 columns."""
    terminal, end = pty.openpty()
    with Supervisor(script) as supervisor:
        known = {"TERM": "xterm", "COLUMNS": "80"} | (environment or {})
        process = subprocess.Popen(
            make_command(*words), env=make_environment(supervisor.paths) | known, stdout=end, stdin=subprocess.DEVNULL
        )
        os.close(end)
        shown = b""
        with suppress(OSError):  # EIO: nobody has the other end open any more
            while piece := os.read(terminal, 1 << 16):
                shown += piece
        os.close(terminal)
        process.wait(TIMEOUT_S)
    return shown.decode().replace("\r\n", "\n")


def read_until(fd: int, end: bytes, timeout_s: float = TIMEOUT_S) -> bytes:
    """What comes from a descriptor up to `end`, which has to come."""
    data = b""
    while end not in data:
        ready, _, _ = select.select([fd], [], [], timeout_s)
        assert ready, f"{end!r} did not come, only {data!r}"
        piece = os.read(fd, 4096)
        assert piece, f"{end!r} did not come, only {data!r}"
        data += piece
    return data
