"""A front that is told to reload: a new process on the same sockets, the old one ends what it has begun."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from llamactl.protocol.control_socket import LeaseGrant
from llamactl.settings import FrontSettings
from tests.socket.front.conftest import Client, Instance, Supervisor, format_post, read_chunk, read_head
from tests.socket.front.test_process import ACTIVATE, CHAT, TIMEOUT_S, Machine

LOCAL_HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Reloadable(Machine):
    """A machine whose fronts can be replaced: those that are nobody's child are ended, too."""

    def __init__(self, directory: Any) -> None:
        super().__init__(directory)
        self.successors: list[int] = []

    def reload(self, process: int) -> int:
        """SIGHUP; returns the new main process once it has taken over."""
        os.kill(process, signal.SIGHUP)
        while not (message := self.notify.recv(4096)).startswith(b"MAINPID="):
            pass
        assert message.endswith(b"\nREADY=1\nWATCHDOG=1"), "what comes later from the old process is not heard"
        pid = int(message.split(b"\n")[0][8:])
        self.successors.append(pid)
        return pid

    def close(self) -> None:
        for pid in self.successors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().close()


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reloadable]:
    with contextlib.closing(Reloadable(tmp_path_factory.mktemp("h"))) as made:
        yield made


async def connect(machine: Machine) -> Client:
    reader, writer = await asyncio.open_connection(*machine.tcp.getsockname())
    return Client(reader, writer)


def wait_gone(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            assert select.select([pidfd], [], [], TIMEOUT_S)[0], f"process {pid} is still there"
        finally:
            os.close(pidfd)


def run_with_model(machine: Machine, scenario: Any) -> None:
    """A supervisor that grants `a` at once, its instance, and a scenario with a running front."""

    async def play() -> None:
        supervisor = Supervisor(machine.directory / "control" / "control.sock")
        supervisor.settings = FrontSettings(access_log="off")  # nobody reads what it would write
        await supervisor.start()
        instance = await Instance(machine.directory / "models" / "a" / "http.sock").start()
        supervisor.grants["a"] = LeaseGrant(id=0, model="a", slug="a", generation="g1", socket=str(instance.path))
        process = machine.start()
        await asyncio.to_thread(machine.expect, "READY=1")
        try:
            await asyncio.wait_for(scenario(process, instance), 60)
        finally:
            await supervisor.stop()
            await instance.close()

    uvloop.run(play())


def test_new_process_serves_at_once_and_the_old_one_ends_its_stream(machine: Reloadable) -> None:
    async def scenario(old: "subprocess.Popen[bytes]", instance: Instance) -> None:
        streaming = await connect(machine)
        streaming.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        call.begin_stream()
        await read_head(streaming.reader)
        kept = await connect(machine)
        first = await kept.request(LOCAL_HEAD)
        pid = await asyncio.to_thread(machine.reload, old.pid)
        assert pid != old.pid
        fresh = await connect(machine)
        second = await fresh.request(LOCAL_HEAD)
        third = await kept.request(
            LOCAL_HEAD
        )  # an idle connection gets its next answer, and is told that it is the last
        assert [response.status for response in (first, second, third)] == [200, 200, 200]
        process_of = [response.headers["x-request-id"].split("-")[0] for response in (first, second, third)]
        assert process_of[0] == process_of[2] != process_of[1]
        assert third.headers["connection"] == "close"
        assert await kept.reader.read() == b""
        call.chunk(b"data: 1\n\n")
        assert await read_chunk(streaming.reader) == b"data: 1\n\n"
        assert old.poll() is None
        call.write(b"0\r\n\r\n")
        assert await read_chunk(streaming.reader) == b""
        streaming.close()
        assert await asyncio.to_thread(old.wait, TIMEOUT_S) == 0
        assert (await fresh.request(LOCAL_HEAD)).status == 200

    run_with_model(machine, scenario)


def test_nobody_is_refused_while_processes_take_turns(machine: Reloadable) -> None:
    async def scenario(old: "subprocess.Popen[bytes]", instance: Instance) -> None:
        instance.answer_all(b"{}")
        answered = 0
        done = asyncio.Event()

        async def ask(keep: bool) -> None:
            nonlocal answered
            client: Client | None = None
            while not done.is_set():
                client = client or await connect(machine)
                response = await client.request(format_post(CHAT, {"model": "a"}))
                assert response.status == 200
                answered += 1
                if not keep or response.headers.get("connection") == "close":
                    client.close()
                    client = None

        asking = [asyncio.ensure_future(ask(bool(number % 2))) for number in range(6)]
        pid = old.pid
        for _ in range(4):
            pid = await asyncio.to_thread(machine.reload, pid)
            before = answered
            while answered < before + 50:
                await asyncio.sleep(0)
                assert not any(task.done() for task in asking)
        done.set()
        await asyncio.gather(*asking)
        for gone in (old.pid, *machine.successors[:-1]):
            await asyncio.to_thread(wait_gone, gone)

    run_with_model(machine, scenario)


def test_old_process_gives_way_when_its_successor_is_killed(machine: Reloadable) -> None:
    async def scenario(old: "subprocess.Popen[bytes]", instance: Instance) -> None:
        streaming = await connect(machine)
        streaming.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        call.begin_stream()
        await read_head(streaming.reader)
        pid = await asyncio.to_thread(machine.reload, old.pid)
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.to_thread(old.wait, TIMEOUT_S) == 0
        assert not (await streaming.reader.read()).endswith(b"0\r\n\r\n")

    run_with_model(machine, scenario)


def test_old_process_goes_on_with_its_stream_when_all_are_stopped(machine: Reloadable) -> None:
    async def scenario(old: "subprocess.Popen[bytes]", instance: Instance) -> None:
        streaming = await connect(machine)
        streaming.writer.write(format_post(CHAT, {"model": "a"}))
        call = await instance.call()
        call.begin_stream()
        await read_head(streaming.reader)
        pid = await asyncio.to_thread(machine.reload, old.pid)
        for number in (old.pid, pid):
            os.kill(number, signal.SIGTERM)
        await asyncio.to_thread(wait_gone, pid)
        call.chunk(b"data: 1\n\n")
        call.write(b"0\r\n\r\n")
        assert await read_chunk(streaming.reader) == b"data: 1\n\n"
        assert await read_chunk(streaming.reader) == b""
        assert await asyncio.to_thread(old.wait, TIMEOUT_S) == 0

    run_with_model(machine, scenario)


def test_reload_that_fails_leaves_the_process_as_it_was(machine: Reloadable) -> None:
    program = machine.directory / "program.py"
    program.write_text("import runpy\nrunpy.run_module('llamactl.front', run_name='__main__')\n")
    descriptors = (machine.unix.fileno(), machine.tcp.fileno())
    activate = ACTIVATE.replace('"-m", "llamactl.front"', repr(str(program)))
    process = subprocess.Popen(
        [sys.executable, "-c", activate, ",".join(map(str, descriptors))],
        pass_fds=descriptors,
        env=machine.environ,
        stderr=subprocess.PIPE,
    )
    machine.started.append(process)
    machine.expect("READY=1")
    program.write_text("raise SystemExit(3)\n")  # a broken update
    process.send_signal(signal.SIGHUP)
    machine.expect("READY=1")
    with socket.create_connection(machine.tcp.getsockname()) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.sendall(LOCAL_HEAD)
        assert sock.recv(65536).startswith(b"HTTP/1.1 503 ")
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
