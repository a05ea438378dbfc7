"""A client that does not take its answer is cut, one that takes it slowly is not, and nobody waits for either."""

import asyncio
import socket
from typing import Any

import pytest

from llamactl.protocol.control_socket import ModelList, ModelsChanged, SubscribeRequest
from tests.socket.front.conftest import format_post
from tests.socket.front.test_events import A
from tests.socket.front.test_waiting import SHORT_S, SWITCH, UPGRADE, set_limits

CHAT = "/v1/chat/completions"
REQUEST = format_post(CHAT, {"model": "a", "stream": True})
LARGE = 4 << 20
HOUR_S = 3600.0


async def connect(world: Any, tcp: bool) -> socket.socket:
    """A client with next to no room for what it is sent, that reads only when it is told to."""
    sock = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    address = ("127.0.0.1", world.tcp_port) if tcp else str(world.http_path)
    await asyncio.get_running_loop().sock_connect(sock, address)
    return sock


async def send(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def read_rest(sock: socket.socket) -> bytes:
    """What still comes; a reset connection may take it along."""
    data = bytearray()
    try:
        while piece := await asyncio.get_running_loop().sock_recv(sock, 1 << 20):
            data += piece
    except ConnectionResetError:
        data.clear()
    return bytes(data)


async def wait_congested(world: Any) -> Any:
    """The front's side of the only connection, once its client takes no more."""
    while True:
        (connection,) = world.front.clients
        if connection.congested:
            return connection
        await asyncio.sleep(0)


async def wait_gone(world: Any) -> None:
    while world.front.clients:
        await asyncio.sleep(0)


async def listen(world: Any, tcp: bool) -> socket.socket:
    """A client that has asked for events."""
    world.supervisor.replies[SubscribeRequest] = lambda message: ModelList(id=message.id, now_s=0, models=(A,))
    sock = await connect(world, tcp)
    await send(sock, b"GET /models/sse HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await world.supervisor.expect(SubscribeRequest)
    return sock


async def fill_up(world: Any) -> Any:
    """Events until the first byte waits for the only client: its connection."""
    (connection,) = world.front.clients
    while not connection.transport.get_write_buffer_size():
        world.supervisor.send(ModelsChanged(front=world.front.settings))
        await asyncio.sleep(0)
    return connection


def find_event(world: Any, name: str) -> Any:
    (found,) = [event for event in world.events if event["event"] == name]
    return found


@pytest.mark.parametrize("tcp", [True, False])
def test_client_that_takes_nothing_is_cut_and_gives_its_sequence_back(stage: Any, tcp: bool) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, send_timeout_s=SHORT_S)
        instance = await world.add_model("a")
        with await connect(world, tcp) as sock:
            await send(sock, REQUEST)
            call = await instance.call()
            call.begin_stream()
            call.chunk(b"data: " + b"x" * LARGE + b"\n\n")
            await call.closed()
            assert world.front.leases.leases()[0].in_flight == 0
            rest = await read_rest(sock)
            assert len(rest) < LARGE
            assert not rest.endswith(b"0\r\n\r\n")
        cut = find_event(world, "client cut")
        assert (cut["model"], cut["why"]) == ("a", "it took nothing for 0.05 s")
        assert cut["request_id"] == find_event(world, "request broken off")["request_id"]

    stage(scenario)


@pytest.mark.parametrize("tcp", [True, False])
def test_client_that_takes_a_little_now_and_then_is_not_cut(stage: Any, tcp: bool) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, send_timeout_s=HOUR_S)  # its timer is this test
        instance = await world.add_model("a")
        with await connect(world, tcp) as sock:
            await send(sock, REQUEST)
            call = await instance.call()
            call.begin_stream()
            call.chunk(b"data: " + b"x" * LARGE + b"\n\n")
            for _ in range(10):
                connection = await wait_congested(world)
                unsent = connection.sending.unsent_bytes
                while connection.sending.count_unsent() == unsent:
                    await asyncio.get_running_loop().sock_recv(sock, 4096)
                if connection.congested:
                    connection.sending.check()
                    assert connection.sending.is_running
            assert world.front.leases.leases()[0].in_flight == 1
            connection = await wait_congested(world)
            while connection in world.front.clients:  # the kernels may still be at it
                connection.sending.check()
                await asyncio.sleep(0)
            await call.closed()

    stage(scenario)


def test_client_that_reads_on_in_time_gets_all_and_costs_no_timer(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, send_timeout_s=HOUR_S)
        instance = await world.add_model("a")
        with await connect(world, tcp=True) as sock:
            await send(sock, REQUEST.replace(b"Host", b"Connection: close\r\nHost"))
            call = await instance.call()
            call.answer(b"x" * LARGE)
            connection = await wait_congested(world)
            assert connection.sending.is_running
            assert (await read_rest(sock)).endswith(b"\r\n\r\n" + b"x" * LARGE)
            await wait_gone(world)
            assert not connection.sending.is_running

    stage(scenario)


def test_zero_means_that_a_client_may_take_nothing_for_ever(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, send_timeout_s=0)
        instance = await world.add_model("a")
        with await connect(world, tcp=True) as sock:
            await send(sock, REQUEST)
            (await instance.call()).answer(b"x" * LARGE)
            assert (await wait_congested(world)).sending.is_running is False

    stage(scenario)


def test_rest_of_a_whole_answer_does_not_wait_for_ever_either(stage: Any) -> None:
    """Less than what counts as congested, on a connection that is closed behind it."""

    async def scenario(world: Any) -> None:
        await set_limits(world, send_timeout_s=SHORT_S)
        instance = await world.add_model("a")
        with await connect(world, tcp=False) as sock:
            await send(sock, REQUEST.replace(b"Host", b"Connection: close\r\nHost"))
            call = await instance.call()
            (connection,) = world.front.clients
            call.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
            while not connection.transport.get_write_buffer_size():
                call.write(b"x" * 4096)
                await asyncio.sleep(0)
            assert not connection.congested
            call.writer.close()
            await wait_gone(world)
            assert find_event(world, "client cut")["unsent_bytes"] > 0

    stage(scenario)


def test_client_of_a_tunnel_that_takes_nothing_is_cut(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, send_timeout_s=SHORT_S)
        instance = await world.add_model("a")
        with await connect(world, tcp=True) as sock:
            await send(sock, UPGRADE)
            call = await instance.call()
            call.write(SWITCH + b"x" * LARGE)
            await call.closed()
            assert world.front.leases.leases()[0].in_flight == 0

    stage(scenario)


def test_listener_to_few_events_that_takes_nothing_is_cut_too(stage: Any) -> None:
    """What waits for it is far from being congestion, and nothing new comes but the comment that keeps it alive."""

    async def scenario(world: Any) -> None:
        await set_limits(world, send_timeout_s=SHORT_S)
        with await listen(world, tcp=False):
            (connection,) = world.front.clients
            world.front.subscribers._keep_alive()
            assert not connection.sending.is_running
            await fill_up(world)
            assert not connection.congested
            world.front.subscribers._keep_alive()
            await wait_gone(world)
            assert find_event(world, "client cut")
            assert not world.front.subscribers._streams

    stage(scenario)


def test_listener_that_has_caught_up_is_not_cut(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, send_timeout_s=HOUR_S)
        with await listen(world, tcp=False) as sock:
            connection = await fill_up(world)
            world.front.subscribers._keep_alive()
            watch = connection.sending
            while connection.transport.get_write_buffer_size():
                await asyncio.get_running_loop().sock_recv(sock, 1 << 16)
            watch.unsent_bytes = watch.count_unsent()  # the kernel may hold what it likes
            watch.check()
            assert not watch.is_running
            assert world.front.clients == {connection}

    stage(scenario)


def test_listener_to_events_that_takes_nothing_is_cut(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        await set_limits(world, send_timeout_s=SHORT_S)
        with await listen(world, tcp=True):
            while world.front.clients:
                world.supervisor.send(ModelsChanged(front=world.front.settings))
                await asyncio.sleep(0)
            assert find_event(world, "client cut")
            assert not world.front.subscribers._streams

    stage(scenario)
