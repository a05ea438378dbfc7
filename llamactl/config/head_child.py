"""The child that reads heads of model files for the supervisor: paths on standard input, heads on standard output.

JSON, in the same order. All files are opened first and every capability is given up then: what is read, anybody may
have written. A file that cannot be opened has no head.
"""

import ctypes
import os
import resource
import sys

import msgspec

from llamactl.config.gguf import Head, read_head

_CAPABILITY_VERSION_3 = 0x20080522


def main() -> int:
    paths = [os.fsdecode(bytes.fromhex(text)) for text in msgspec.json.decode(sys.stdin.buffer.read(), type=list[str])]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    files = [_open(path) for path in paths]
    give_up_capabilities()
    heads: list[Head | None] = [None if file < 0 else read_head(file) for file in files]
    sys.stdout.buffer.write(msgspec.json.encode(heads))
    return 0


def _open(path: str) -> int:
    """A descriptor; -1: there is none. Never waits for a FIFO's other end."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return -1


def give_up_capabilities() -> None:
    """capset(2) with nothing in any set. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "cannot give up capabilities")


if __name__ == "__main__":
    sys.exit(main())
