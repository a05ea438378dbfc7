"""How does the front get its leases where there is no supervisor? From this process, which grants every one at once.

    python -m benchlib.granter CONTROL_SOCKET UPSTREAM_SOCKET [ACCESS_LOG]        prints "ready" when it listens

It speaks the real protocol, so that the front under measurement is the real one.
"""

import asyncio
import sys

from llamactl.protocol.control_socket import ClientHello, ClientMessage, LeaseGrant, LeaseRequest, Welcome
from llamactl.protocol.lines import VERSION, LineReader, encode_message
from llamactl.settings import FrontSettings


class Granter(asyncio.Protocol):
    """One front's connection."""

    def __init__(self, upstream: str, access_log: str) -> None:
        self._upstream = upstream
        self._access_log = access_log
        self._reader = LineReader(ClientMessage)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            if isinstance(message, ClientHello):
                welcome = Welcome(
                    version=VERSION, llamactl="bench", pid=0, front=FrontSettings(access_log=self._access_log)
                )
                self._transport.write(encode_message(welcome))
            elif isinstance(message, LeaseRequest):
                grant = LeaseGrant(
                    id=message.id, model=message.model, slug=message.model, generation="1", socket=self._upstream
                )
                self._transport.write(encode_message(grant))


async def main(control: str, upstream: str, access_log: str = "off") -> None:
    server = await asyncio.get_running_loop().create_unix_server(lambda: Granter(upstream, access_log), control)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
