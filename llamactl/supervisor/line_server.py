"""Who may connect to a socket of the supervisor's, and how much room does each one get?

Both sockets are served here: who is at the other end is read while the peer lives (later its pid may be another's),
and what is too much (connection_limits.py) is refused with a line that says so.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llamactl.sockets import bind_unix_socket
from llamactl.supervisor.connection_limits import ConnectionLimits
from llamactl.supervisor.line_connection import LineConnection
from llamactl.systemd.peer import Peer, acquire_peer

BACKLOG = 1024
"""Connections that may wait to be accepted; beyond it, connecting fails at once."""


class LineServer:
    """One listening socket. `on_open(connection, peer)` is called for each connection that is not refused at once,
    `on_closed` for each of these.
    """

    def __init__(
        self,
        message_type: Any,
        per_unit: int,
        on_open: Callable[[LineConnection, Peer], None],
        on_message: Callable[[LineConnection, Any], None],
        on_closed: Callable[[LineConnection], None],
    ) -> None:
        self._message_type = message_type
        self._on_open = on_open
        self._on_message = on_message
        self._on_closed = on_closed
        self._limits: ConnectionLimits[LineConnection] = ConnectionLimits(per_unit)
        self._open: set[LineConnection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, path: Path, group: int | None) -> None:
        """Bind the socket again, for its owner and the members of `group`. Raises OSError."""
        mode = 0o600 if group is None else 0o660
        self._server = await asyncio.get_running_loop().create_unix_server(
            self._make_connection, sock=bind_unix_socket(path, BACKLOG, mode, group), backlog=BACKLOG
        )

    def close(self) -> None:
        """Take no more connections, and end those that are open."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.close()

    def _make_connection(self) -> LineConnection:
        return LineConnection(
            self._message_type, self._handle_open, self._on_message, self._handle_closed, self._handle_unfinished
        )

    def _handle_open(self, connection: LineConnection) -> None:
        peer = acquire_peer(connection.socket)
        if refusal := self._limits.admit(connection, peer.unit or ""):
            connection.refuse(refusal)
            return
        self._open.add(connection)
        self._on_open(connection, peer)

    def _handle_closed(self, connection: LineConnection) -> None:
        self._limits.forget(connection)
        if connection in self._open:
            self._open.discard(connection)
            self._on_closed(connection)

    def _handle_unfinished(self, connection: LineConnection, size: int) -> None:
        excess = self._limits.note_unfinished(connection, size)
        if excess is not None:
            excess.refuse("too much of unfinished lines: this connection holds most of it")
