"""How do tests ask real instances through a real front, without systemd? The front runs on a thread beside a supervisor
that grants each of them at once, and knows no other model.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import uvloop

from llamactl.errors import ErrorCode
from llamactl.protocol.control_socket import Failure, LeaseRequest
from tests.socket.front.conftest import TIMEOUT_S, open_world


@contextlib.contextmanager
def run_front(directory: Path, models: Mapping[str, Path]) -> Iterator[str]:
    """The front's URL. `models`: the socket of each by name."""
    is_open, loops, urls = threading.Event(), [], []
    done = asyncio.Event()

    async def serve() -> None:
        async with open_world(directory) as world:
            for name, path in models.items():
                world.supervisor.grants[name] = msgspec.structs.replace(world.grant(name), socket=str(path))
            world.supervisor.replies[LeaseRequest] = lambda request: Failure(
                id=request.id, code=ErrorCode.UNKNOWN_MODEL, message=f"cannot find model '{request.model}'"
            )
            loops.append(asyncio.get_running_loop())
            urls.append(f"http://127.0.0.1:{world.tcp_port}")
            is_open.set()
            await done.wait()

    thread = threading.Thread(target=uvloop.run, args=(serve(),))
    thread.start()
    try:
        assert is_open.wait(TIMEOUT_S)
        yield urls[0]
    finally:
        loops[0].call_soon_threadsafe(done.set)
        thread.join(TIMEOUT_S)
