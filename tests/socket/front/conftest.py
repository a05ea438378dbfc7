"""What does a front see in these tests? A supervisor and instances that do what a test tells them.

`stage(scenario)` runs a coroutine with a World: a running Front, its supervisor and instances, on real sockets in one
loop. No systemd, no model: what is tested is what the front does with what others say.
"""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import structlog
import uvloop

from llamactl import endpoints
from llamactl.front.accesslog import format_fields, format_message
from llamactl.front.http.access import RequestRecord
from llamactl.front.service import Front
from llamactl.protocol.control_socket import ClientHello, ClientMessage, LeaseGrant, LeaseRequest, Welcome
from llamactl.protocol.lines import VERSION, LineReader, encode_message
from llamactl.settings import FrontSettings

TIMEOUT_S = 15.0
Message = TypeVar("Message")


class Request:
    """A request as an instance read it."""

    def __init__(self, line: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.method, self.target, self.version = line.split(" ")
        self.headers = headers
        self.body = body

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


async def read_head(reader: asyncio.StreamReader) -> tuple[str, list[tuple[str, str]]]:
    raw = await reader.readuntil(b"\r\n\r\n")
    line, *rest = raw.decode("latin-1")[:-4].split("\r\n")
    return line, [(key, value) for key, _, value in (field.partition(": ") for field in rest)]


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readuntil(b"\r\n"), 16)
    data = await reader.readexactly(size)
    assert await reader.readexactly(2) == b"\r\n"
    return data


class Response:
    """A response as a client read it."""

    def __init__(self, line: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = int(line.split(" ")[1])
        self.headers = {key.lower(): value for key, value in headers}
        self.body = body

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Client:
    """A client that writes raw bytes and reads whole responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read_response(self, to_head: bool = False) -> Response:
        line, headers = await read_head(self.reader)
        fields = {key.lower(): value for key, value in headers}
        body = b""
        if to_head or line.split(" ")[1] in ("100", "204", "304"):
            pass
        elif "transfer-encoding" in fields:
            while chunk := await read_chunk(self.reader):
                body += chunk
        elif "content-length" in fields:
            body = await self.reader.readexactly(int(fields["content-length"]))
        else:
            body = await self.reader.read()
        return Response(line, headers, body)

    async def request(self, raw: bytes) -> Response:
        self.writer.write(raw)
        return await self.read_response()

    async def post(self, path: str, body: Any, *fields: str) -> Response:
        return await self.request(format_post(path, body, *fields))

    async def get(self, path: str) -> Response:
        return await self.request(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def close(self) -> None:
        self.writer.transport.abort()


REQUIRED: dict[str, dict[str, Any]] = {
    "chat": {"messages": []},
    "completion": {"prompt": "x"},
    "native_completion": {"prompt": "x"},
    "infill": {"input_prefix": "", "input_suffix": ""},
    "embedding": {"input": "x"},
    "native_embedding": {"content": "x"},
    "ranking": {"query": "x"},
    "tokenize": {"content": "x"},
    "detokenize": {"tokens": []},
    "template": {"messages": []},
    "count_chat": {"messages": []},
    "responses": {"input": "x"},
    "count_responses": {"input": "x"},
    "messages": {"messages": [{"role": "user", "content": "x"}]},
    "count_messages": {"messages": [{"role": "user", "content": "x"}]},
}
"""Without these no model is loaded for a request."""


def format_post(path: str, body: Any, *fields: str) -> bytes:
    """Fields of `body` that its route requires need not be there, unless it is bytes."""
    if isinstance(body, dict):
        word = {**endpoints.GENERATIONS, **endpoints.TEXTS}.get(path.partition("?")[0], "")
        if word == "transcription":
            fields = ("Content-Type: multipart/form-data; boundary=x", *fields)
            parts = (f'--x\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{body[key]}\r\n' for key in body)
            return format_post(path, "".join((*parts, "--x--\r\n")).encode(), *fields)
        body = {**body, **{name: value for name, value in REQUIRED.get(word, {}).items() if name not in body}}
    payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(payload)}", *fields, "", ""]
    return "\r\n".join(lines).encode() + payload


class Call:
    """One request at an instance, and the connection to answer it on."""

    def __init__(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.request = request
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def answer(self, body: bytes, *fields: str, status: str = "200 OK") -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)

    def begin_stream(self) -> None:
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def closed(self) -> None:
        """Return when the front has closed this connection."""
        with contextlib.suppress(ConnectionError):
            assert await self.reader.read() == b""

    def die(self) -> None:
        """End the connection as a killed process would."""
        self.writer.transport.abort()


class Instance:
    """A model's socket. Each request waits in `calls` until the test answers it, or is answered by `auto`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.auto: Callable[[Call], None] | None = None
        self.connections = 0
        self.open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> "Instance":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self.auto = None
        self._server = await asyncio.start_unix_server(self._serve, str(self.path), limit=1 << 22)
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open.add(writer)
        try:
            while True:
                line, headers = await read_head(reader)
                length = next((int(value) for key, value in headers if key.lower() == "content-length"), 0)
                call = Call(Request(line, headers, await reader.readexactly(length)), reader, writer)
                if self.auto is None:
                    self.calls.put_nowait(call)
                    return
                self.auto(call)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def call(self) -> Call:
        return await asyncio.wait_for(self.calls.get(), TIMEOUT_S)

    def answer_all(self, body: bytes = b"{}") -> None:
        """From now on every request is answered at once."""
        self.auto = lambda call: call.answer(body)

    def refuse_connections(self) -> None:
        """The process is gone: nobody listens, the file stays."""
        assert self._server is not None
        self._server.close()
        self._server = None
        if not self.path.exists():  # the loop may have removed it
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(str(self.path))
            sock.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def kill(self) -> None:
        """As SIGKILL would: nobody listens, all connections end."""
        self.refuse_connections()
        for writer in self.open:
            writer.transport.abort()
        self.open.clear()


class Supervisor:
    """`control.sock`, with a script. Messages of the front wait in `inbox`; leases on `grants` are granted at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.log: list[Any] = []
        self.grants: dict[str, LeaseGrant] = {}
        self.replies: dict[type, Callable[[Any], Any]] = {}
        self.settings = FrontSettings(max_body_bytes=1 << 20)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))

    async def stop(self) -> None:
        """As SIGKILL would."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        lines = LineReader(ClientMessage)
        try:
            while data := await reader.read(1 << 16):
                for message in lines.feed(data):
                    self._take(message)
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _take(self, message: Any) -> None:
        self.log.append(message)
        self.inbox.put_nowait(message)
        if isinstance(message, ClientHello):
            self.send(Welcome(version=VERSION, llamactl="test", pid=1, front=self.settings))
        elif isinstance(message, LeaseRequest) and message.model in self.grants:
            self.send(msgspec.structs.replace(self.grants[message.model], id=message.id))
        elif type(message) in self.replies:
            self.send(self.replies[type(message)](message))

    def send(self, message: msgspec.Struct) -> None:
        for writer in self._writers:
            writer.write(encode_message(message))

    async def expect(self, kind: type[Message]) -> Message:
        """The next message of this kind; others before it are passed over."""
        while True:
            message = await asyncio.wait_for(self.inbox.get(), TIMEOUT_S)
            if isinstance(message, kind):
                return message

    def count(self, kind: type) -> int:
        return sum(isinstance(message, kind) for message in self.log)


class _Lines:
    """Takes the access log's lines for events, as other lines are."""

    waiting = 0

    def __init__(self, events: list[dict[str, Any]], level: str) -> None:
        self._events = events
        self._level = level

    def add(self, about: RequestRecord) -> None:
        told = dict.fromkeys(("model", "first_byte_s", "prompt_tokens", "completion_tokens"))
        for line in format_fields(about).splitlines():
            name, _, value = line.removeprefix("LLAMACTL_").partition("=")
            told[name.lower()] = _read_number(value) if re.fullmatch(r"[0-9.]+", value) else value
        self._events.append({**told, "event": format_message(about).partition(":")[0], "level": self._level})

    def flush(self) -> None: ...
    def finish(self) -> None: ...


def _read_number(text: str) -> Any:
    return float(text) if "." in text else int(text)


class World:
    """A front, a supervisor and instances."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.http_path = directory / "http.sock"
        self.supervisor = Supervisor(directory / "control" / "control.sock")
        self.events: list[dict[str, Any]] = []
        self.front: Front
        self.instances: dict[str, Instance] = {}
        self.tcp_port = 0
        self._clients: list[Client] = []

    async def start_front(self) -> None:
        log = structlog.wrap_logger(None, processors=[self._record])
        loop = asyncio.get_running_loop()
        self.front = Front(loop, self.supervisor.path, log, self._open_lines)
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(str(self.http_path))
        tcp = socket.socket()
        tcp.bind(("127.0.0.1", 0))
        self.tcp_port = tcp.getsockname()[1]
        for sock in (unix, tcp):
            sock.listen(128)
            sock.setblocking(False)
        await self.front.start([unix, tcp])

    def _open_lines(self, level: str) -> _Lines | None:
        return None if level == "off" else _Lines(self.events, level)

    def _record(self, logger: Any, level: str, event: dict[str, Any]) -> Any:
        self.events.append({**event, "level": level})
        raise structlog.DropEvent

    async def add_model(self, name: str, generation: str = "g1", granted: bool = True) -> Instance:
        instance = await Instance(self.directory / "models" / name / "http.sock").start()
        self.instances[name] = instance
        if granted:
            self.supervisor.grants[name] = self.grant(name, generation)
        return instance

    def grant(self, name: str, generation: str = "g1", request_id: int = 0) -> LeaseGrant:
        return LeaseGrant(
            id=request_id,
            model=name,
            slug=name,
            generation=generation,
            socket=str(self.directory / "models" / name / "http.sock"),
        )

    async def connect(self, tcp: bool = False) -> Client:
        if tcp:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.tcp_port, limit=1 << 22)
        else:
            reader, writer = await asyncio.open_unix_connection(str(self.http_path), limit=1 << 22)
        client = Client(reader, writer)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            client.close()
        await self.front.stop(0.0)
        await self.supervisor.stop()
        for instance in self.instances.values():
            await instance.close()


Scenario = Callable[[World], Awaitable[None]]


@contextlib.asynccontextmanager
async def open_world(directory: Path, settings: FrontSettings | None = None) -> AsyncIterator[World]:
    world = World(directory)
    world.supervisor.settings = settings or world.supervisor.settings
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    await world.supervisor.start()
    await world.start_front()
    await world.supervisor.expect(ClientHello)
    try:
        yield world
    finally:
        await world.close()
    assert errors == [], errors[:3]


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Runs a scenario, at most `limit_s`. Nothing may have been left to the loop's exception handler."""

    def run(scenario: Scenario, limit_s: float = 60.0) -> None:
        async def play() -> None:
            async with open_world(tmp_path_factory.mktemp("f")) as world:
                await asyncio.wait_for(scenario(world), limit_s)

        uvloop.run(play())

    return run
