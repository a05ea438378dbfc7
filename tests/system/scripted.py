"""How does a test get an instance that misbehaves on cue?

A drop-in replaces the program of one model's unit by this file. It speaks the real report protocol from inside the real
unit, and does what the model's name says:
  gated             streams one event, and the rest only after POST /release on its own socket
  dies-on-request   kills itself when a request has arrived, before any answer
  lingers           agrees to stop, but goes on until POST /release on its own socket
  headers           answers with the headers that it got
  warmup-dies       dies by SIGILL in its warm-up while llama.cpp's extra buffer types are on
It is copied out of the checkout before (`Llamactl.use_script`), so it imports nothing of the tests.
"""

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import sdnotify

from llamactl.protocol.lines import VERSION, LineReader, encode_message
from llamactl.protocol.report_socket import (
    Ack,
    Answer,
    AnswerResult,
    ChildHello,
    ChildRole,
    ChildState,
    ChildWelcome,
    Order,
    OrderMessage,
    Report,
)
from llamactl.protocol.values import Breakdown, Row, RowKind
from llamactl.settings import decode_spec

EFFECTIVE = Breakdown(n_ctx=512, devices=(Row(kind=RowKind.HOST, name="Host", model=1 << 20, context=1 << 20),))


class Reporter:
    """The connection to the supervisor. Does not connect again: its tests do not restart the supervisor."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._reader = LineReader(OrderMessage)
        self._messages: list[object] = []
        self._seq = 0
        self.lingers = False

    def connect(self, path: str, model: str) -> None:
        self._socket.connect(path)
        hello = ChildHello(
            version=VERSION,
            role=ChildRole.SERVE,
            model=model,
            generation=os.environ["LLAMACTL_GENERATION"],
            pid=os.getpid(),
        )
        self._socket.sendall(encode_message(hello))
        assert isinstance(self._receive(), ChildWelcome)

    def report(self, state: ChildState, stage: str = "", effective: Breakdown | None = None) -> None:
        self._seq += 1
        report = Report(seq=self._seq, state=state, stage=stage, effective=effective)
        self._socket.sendall(encode_message(report))
        while not isinstance(message := self._receive(), Ack) or message.seq != self._seq:
            self.obey(message)

    def serve(self) -> None:
        """Obey orders; to be called when the socket is readable."""
        self.obey(self._receive())

    def obey(self, message: object) -> None:
        if isinstance(message, Order):
            self._socket.sendall(encode_message(Answer(id=message.id, result=AnswerResult.OK)))
            if message.order == "stop" and not self.lingers:
                os._exit(0)

    def fileno(self) -> int:
        return self._socket.fileno()

    def _receive(self) -> object:
        while not self._messages:
            data = self._socket.recv(65536)
            if not data:
                os._exit(1)
            self._messages += self._reader.feed(data)
        return self._messages.pop(0)


class Server:
    """Just enough HTTP for the front."""

    def __init__(self, behaviour: str) -> None:
        self._behaviour = behaviour
        self._released = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().lower().split("\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
                await reader.readexactly(length)
                await self.answer(lines[0], lines[1:], writer)
        except asyncio.IncompleteReadError:
            writer.close()

    async def answer(self, request: str, headers: list[str], writer: asyncio.StreamWriter) -> None:
        if request.startswith("post /release"):
            self._released.set()
            if self._behaviour == "lingers":
                os._exit(0)
            send_json(writer, {})
        elif self._behaviour == "dies-on-request":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._behaviour == "headers":
            send_json(writer, {"headers": headers})
        elif self._behaviour == "gated":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            send_event(writer, '{"n": "first"}')
            await self._released.wait()
            send_event(writer, '{"n": "second"}')
            send_event(writer, "[DONE]")
            writer.write(b"0\r\n\r\n")
        else:
            send_json(writer, {"choices": [{"message": {"role": "assistant", "content": "scripted"}}]})
        await writer.drain()


def send_event(writer: asyncio.StreamWriter, data: str) -> None:
    event = f"data: {data}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(event), event))


def send_json(writer: asyncio.StreamWriter, value: object) -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def main() -> None:
    model = decode_spec(os.environ["LLAMACTL_SPEC"]).name
    reporter = Reporter()
    reporter.connect(os.environ["LLAMACTL_REPORT"], model)
    reporter.lingers = model == "lingers"
    if reporter.lingers:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    reporter.report(ChildState.LOADING, stage="warmup")
    if model == "warmup-dies" and os.environ.get("LLAMACTL_EXTRA_BUFTS", "1") != "0":
        os.kill(os.getpid(), signal.SIGILL)
    os.umask(0o007)
    path = Path(os.environ["LLAMACTL_SOCKET"])
    path.unlink(missing_ok=True)
    await asyncio.start_unix_server(Server(model).handle, path)
    sdnotify.SystemdNotifier().notify("READY=1")
    reporter.report(ChildState.READY, effective=EFFECTIVE)
    asyncio.get_running_loop().add_reader(reporter.fileno(), reporter.serve)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
