"""Bytes that go to the kernel at once arrive in order, and never at another connection."""

import asyncio
import contextlib
import os
import socket

import pytest
import uvloop

from llamactl.front.http.direct_writer import DirectWriter


class Sending(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = asyncio.get_running_loop().create_future()
        self.paused = False

    def pause_writing(self) -> None:
        self.paused = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@contextlib.asynccontextmanager
async def open_writer():  # type: ignore[no-untyped-def]
    """An writer, its transport and protocol, and the socket at the other end."""
    near, far = socket.socketpair()
    far.setblocking(False)
    transport, protocol = await asyncio.get_running_loop().create_connection(Sending, sock=near)
    with far:
        try:
            yield DirectWriter(transport), transport, protocol, far
        finally:
            transport.abort()


async def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await asyncio.get_running_loop().sock_recv(sock, 1 << 20)
    return data


def test_bytes_are_gone_before_the_loop_comes_round() -> None:
    async def scenario() -> None:
        async with open_writer() as (writer, transport, _, far):
            writer.send(b"now")
            assert far.recv(10) == b"now"
            assert transport.get_write_buffer_size() == 0

    uvloop.run(scenario())


def test_order_is_kept_where_the_kernel_does_not_take_all() -> None:
    async def scenario() -> None:
        async with open_writer() as (writer, transport, protocol, far):
            large = os.urandom(4 << 20)
            writer.send(large)
            assert transport.get_write_buffer_size() > 0
            assert protocol.paused
            writer.send(b"behind it")
            assert await read_exactly(far, len(large) + 9) == large + b"behind it"
            writer.send(b"!")
            assert await read_exactly(far, 1) == b"!"

    uvloop.run(scenario())


def test_peer_that_is_gone_is_told_by_the_transport() -> None:
    async def scenario() -> None:
        async with open_writer() as (writer, transport, protocol, far):
            transport.pause_reading()  # else the end of file would tell
            far.close()
            writer.send(b"into nothing")
            assert isinstance(await protocol.lost, BrokenPipeError | ConnectionResetError)

    uvloop.run(scenario())


@pytest.mark.parametrize("end", ["close", "abort"])
def test_nothing_goes_to_the_next_owner_of_the_descriptor(end: str) -> None:
    async def scenario() -> None:
        async with open_writer() as (writer, transport, protocol, _):
            descriptor = writer._descriptor
            getattr(transport, end)()
            writer.send(b"late")
            await protocol.lost
            near, far = socket.socketpair()
            with near, far:
                if near.fileno() != descriptor:
                    os.dup2(near.fileno(), descriptor)
                writer.send(b"too late")
                far.setblocking(False)
                with pytest.raises(BlockingIOError):
                    far.recv(10)
                if near.fileno() != descriptor:
                    os.close(descriptor)

    uvloop.run(scenario())
