"""How does a front process begin and end? `python -m llamactl.front`, the program of llamactl-front.service.

Its listening sockets come from systemd (`http`, `tcp`); started by hand it binds `http.sock` itself, and a TCP port
where --tcp names one. READY is said when it listens, not when it has found the supervisor: loaded models and clean
refusals need none.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import uvloop

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.service import BACKLOG, Front
from llamactl.paths import acquire_paths
from llamactl.systemd.journal import configure, get_logger
from llamactl.systemd.listen import acquire_listen_sockets
from llamactl.systemd.notify import Notifier

STOP_LIMIT_S = 30.0
"""How long running answers may go on after SIGTERM; the unit's TimeoutStopSec= is longer."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="llamactl-front", description="The HTTP front of llamactl.")
    parser.add_argument("--tcp", metavar="HOST:PORT", help="listen here too, when systemd passes no sockets")
    arguments = parser.parse_args()
    configure("llamactl-front", os.environ.get("LLAMACTL_LOG_LEVEL", "info"), {})
    try:
        sockets = acquire_sockets(arguments.tcp)
    except LlamactlError as error:
        print(f"llamactl-front: {error}", file=sys.stderr)
        return error.kind.exit_status
    uvloop.run(serve(sockets))
    return 0


def acquire_sockets(tcp: str | None) -> list[socket.socket]:
    """The sockets that systemd passes; without any, bound here."""
    passed = acquire_listen_sockets()
    sockets = [sock for name in ("http", "tcp") for sock in passed.get(name, [])]
    if sockets:
        return sockets
    path = acquire_paths().http_socket
    try:
        sockets = [_bind_unix(path)]
        if tcp:
            host, _, port = tcp.rpartition(":")
            sockets.append(_bind_tcp(host.strip("[]") or "127.0.0.1", int(port)))
    except (OSError, ValueError) as error:
        raise LlamactlError(ErrorCode.INTERNAL, f"cannot listen on '{tcp or path}': {error}") from None
    return sockets


async def serve(sockets: list[socket.socket]) -> None:
    """Serve until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    notifier = Notifier()
    log = get_logger()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    front = Front(loop, acquire_paths().control_socket, log)
    await front.start(sockets)
    watchdog = asyncio.create_task(_ping(notifier))
    notifier.ready()
    log.info("front ready", sockets=len(sockets))
    await stop.wait()
    notifier.stopping()
    cut = await front.stop(STOP_LIMIT_S)
    watchdog.cancel()
    log.info("front stopped", cut=cut)


async def _ping(notifier: Notifier) -> None:
    interval_s = notifier.watchdog_interval_s()
    while interval_s:
        notifier.watchdog()
        await asyncio.sleep(interval_s / 2)


def _bind_unix(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    path.chmod(0o660)
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


def _bind_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


if __name__ == "__main__":
    sys.exit(main())
