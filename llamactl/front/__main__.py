"""How does a front process begin and end? `python -m llamactl.front`, the program of llamactl-front.service.

Its listening sockets come from systemd (`http`, `tcp`); started by hand it binds `http.sock` itself, and a TCP port
where --tcp names one. READY is said when it listens, not when it has found the supervisor: loaded models and clean
refusals need none. SIGHUP (`systemctl reload`) starts a successor: see `handover`.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys

import uvloop

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.handover import Predecessor, Successor
from llamactl.front.service import BACKLOG, Front
from llamactl.journal_events import JournalEvent
from llamactl.paths import acquire_paths
from llamactl.sockets import bind_unix_socket
from llamactl.systemd.journal import configure, get_logger
from llamactl.systemd.listen import acquire_listen_sockets
from llamactl.systemd.notify import Notifier

STOP_LIMIT_S = 30.0
"""How long running answers may go on after SIGTERM; the unit's TimeoutStopSec= is longer."""

CONNECT_WAIT_S = 2.0
"""How long a process that takes over looks for the supervisor before it serves without one."""


def main() -> int:
    """Serve on the sockets that systemd passes, or on sockets of its own; returns the exit status."""
    parser = argparse.ArgumentParser(prog="llamactl-front", description="The HTTP front of llamactl.")
    parser.add_argument("--tcp", metavar="HOST:PORT", help="listen here too, when systemd passes no sockets")
    arguments = parser.parse_args()
    configure("llamactl-front", os.environ.get("LLAMACTL_LOG_LEVEL", "info"), {})
    try:
        sockets = acquire_sockets(arguments.tcp)
    except LlamactlError as error:
        print(f"llamactl-front: {error}", file=sys.stderr)
        return error.kind.exit_status
    return uvloop.run(serve(sockets))


def acquire_sockets(tcp: str | None) -> list[socket.socket]:
    """The sockets that systemd passes; without any, bound here."""
    passed = acquire_listen_sockets()
    sockets = [sock for name in ("http", "tcp") for sock in passed.get(name, [])]
    if sockets:
        return sockets
    path = acquire_paths().http_socket
    try:
        sockets = [bind_unix_socket(path, BACKLOG, 0o660)]
        if tcp:
            host, _, port = tcp.rpartition(":")
            sockets.append(_bind_tcp(host.strip("[]") or "127.0.0.1", int(port)))
    except (OSError, ValueError) as error:
        raise LlamactlError(ErrorCode.INTERNAL, f"cannot listen on '{tcp or path}': {error}") from None
    return sockets


async def serve(sockets: list[socket.socket]) -> int:
    """Serve until SIGTERM or SIGINT, or until a successor serves and the last answer begun here has ended. Returns the
    exit status: 1 after a bug, so that systemd starts another one.
    """
    loop = asyncio.get_running_loop()
    front = Front(loop, acquire_paths().control_socket, get_logger())
    process = _Process(loop, front, sockets)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop.set)
    loop.add_signal_handler(signal.SIGHUP, process.begin_handover)
    # While another process serves there is no hurry: not one answer shall be worse than the old one's.
    try:
        await front.start(sockets, CONNECT_WAIT_S if process.predecessor.is_there else 0.0)
        return await process.run()
    finally:
        front.access.close()


class _Process:
    """This process among those of its unit: alone, replaced, or replacing another one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, front: Front, sockets: list[socket.socket]) -> None:
        self.stop = asyncio.Event()
        """To be stopped, by a signal or because the successor has failed."""
        self._loop = loop
        self._front = front
        self._sockets = sockets
        self._log = get_logger()
        self._notifier = Notifier()
        self.predecessor = Predecessor()
        self._successor: Successor | None = None
        self._watchdog: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Serve until this process is to end; returns its exit status."""
        # What a process says before systemd knows it as the main one is not heard: its predecessor speaks for it.
        self._watchdog = asyncio.create_task(_ping(self._notifier, is_known=not self.predecessor.is_there))
        if self.predecessor.is_there:
            self.predecessor.say_ready()
        else:
            self._notifier.ready()
        self._log.info(JournalEvent.FRONT_READY, sockets=len(self._sockets))
        drained = asyncio.create_task(self._front.drained.wait())
        stopped = asyncio.create_task(self.stop.wait())
        await asyncio.wait((drained, stopped, self._front.broken), return_when=asyncio.FIRST_COMPLETED)
        limit_s, status = STOP_LIMIT_S, 0
        if self._front.broken.done():
            self._log.critical(
                JournalEvent.FRONT_BROKEN,
                reason="an internal error; it restarts",
                exc_info=self._front.broken.exception(),
            )
            status = 1
        if not self._front.draining:
            self.predecessor.say_leaving()
            self._notifier.stopping()
        elif self._has_failed_successor():
            limit_s = 0.0
        cut = await self._front.stop(limit_s)
        for task in (drained, stopped, self._watchdog):
            task.cancel()
        self._log.info(JournalEvent.FRONT_STOPPED, cut=cut)
        return status

    def begin_handover(self) -> None:
        if self._successor is not None:
            self._log.info(JournalEvent.FRONT_RELOAD_UNDER_WAY)
            return
        self._notifier.reloading()
        try:
            self._successor = Successor(self._loop, self._sockets, self._handle_news)
        except OSError as error:
            self._fail_handover(str(error))

    def _handle_news(self, successor: Successor) -> None:
        front = self._front
        if not front.draining and successor.pid:
            self._log.info(JournalEvent.FRONT_REPLACED, successor=successor.pid, connections=len(front.clients))
            self.predecessor.say_leaving()
            self._notifier.hand_over(successor.pid)
            if self._watchdog is not None:
                self._watchdog.cancel()
            front.drain()
        elif successor.is_gone and not front.draining:
            self._fail_handover("the new process has ended before it was ready")
        elif self._has_failed_successor():
            self._log.error(JournalEvent.SUCCESSOR_GONE, connections=len(front.clients))
            self.stop.set()

    def _fail_handover(self, why: str) -> None:
        self._successor = None
        self._log.error(JournalEvent.FRONT_RELOAD_FAILED, why=why)
        self._notifier.ready()

    def _has_failed_successor(self) -> bool:
        successor = self._successor
        return successor is not None and successor.is_gone and not successor.is_leaving


async def _ping(notifier: Notifier, is_known: bool) -> None:
    interval_s = notifier.watchdog_interval_s()
    if interval_s and not is_known:
        await asyncio.sleep(interval_s / 4)
    while interval_s:
        notifier.watchdog()
        await asyncio.sleep(interval_s / 2)


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
