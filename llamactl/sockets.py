"""How does a process come to listen on a Unix socket, whatever a predecessor left at its path?"""

import os
import socket
from pathlib import Path


def bind_unix_socket(path: Path, backlog: int, mode: int = 0o600, group: int | None = None) -> socket.socket:
    """A socket that listens at `path`, not blocking, for whom `mode` and `group` say.

    Bound under another name and renamed, so that no one can connect before the mode is right and the name never
    disappears. Raises OSError.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(temporary))
        if group is not None:
            os.chmod(temporary, 0o600)
            os.chown(temporary, -1, group)
        os.chmod(temporary, mode)
        listener.listen(backlog)
        os.rename(temporary, path)
    except OSError:
        listener.close()
        temporary.unlink(missing_ok=True)
        raise
    return listener
