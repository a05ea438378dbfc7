"""Who is at the other end of a Unix socket? The kernel tells: the user and the groups that the process had when it
connected. A proxy on the socket is itself, whoever its clients are; on TCP nobody is told from anybody.
"""

import asyncio
import socket
import struct
from dataclasses import dataclass

_PEER_CREDENTIALS = struct.Struct("3i")
_SO_PEERGROUPS = 59
"""asm-generic/socket.h; Python has no name for it."""
_GROUP_ID_BYTES = 4
_MAX_OPTION_BYTES = 1024
"""What Python asks the kernel for at most: 256 groups."""


@dataclass(frozen=True)
class Peer:
    """A process."""

    uid: int
    groups: frozenset[int]

    def is_member(self, group: int | None) -> bool:
        """Whether it may do what a group may. Root may, also where the group does not exist."""
        return self.uid == 0 or group in self.groups


def acquire_peer(transport: asyncio.Transport) -> Peer:
    """The process that has connected to a Unix socket. Raises OSError for one that has too many groups."""
    sock = transport.get_extra_info("socket")
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    _, uid, gid = _PEER_CREDENTIALS.unpack(credentials)
    groups = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_OPTION_BYTES)
    return Peer(uid, frozenset((gid, *struct.unpack(f"{len(groups) // _GROUP_ID_BYTES}I", groups))))
