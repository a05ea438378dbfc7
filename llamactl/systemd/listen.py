"""Which sockets has systemd opened for this process?

sd_listen_fds(3): descriptors from 3 on, named by their socket units' FileDescriptorName=. The variables are taken out
of the environment and the descriptors closed on exec, so that no child takes them for its own.
"""

import os
import socket
from collections.abc import MutableMapping

FIRST_DESCRIPTOR = 3


def acquire_listen_sockets(
    environ: MutableMapping[str, str] = os.environ, first: int = FIRST_DESCRIPTOR
) -> dict[str, list[socket.socket]]:
    """The sockets by name ("unknown" where systemd gave none); empty when no socket activated this process."""
    pid = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    sockets: dict[str, list[socket.socket]] = {}
    for index in range(int(count)):
        name = names[index] if index < len(names) and names[index] else "unknown"
        os.set_inheritable(first + index, False)
        sockets.setdefault(name, []).append(socket.socket(fileno=first + index))
    return sockets
