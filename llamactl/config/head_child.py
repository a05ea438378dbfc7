"""The child that reads heads of model files for the supervisor: paths on standard input, heads on standard output.

JSON, a line for each file, in the same order. All files are opened first and every capability is given up then: what
is read, anybody may have written. A file that cannot be opened has no head, nor has one that takes long: a head may
claim to hold thousands of millions of texts.
"""

import ctypes
import os
import resource
import signal
import sys

import msgspec

from llamactl.config.gguf import Head, read_head

FILE_TIMEOUT_S = 2.0
_CAPABILITY_VERSION_3 = 0x20080522


class _Late(Exception):
    """The time for one file is over."""


def main() -> int:
    """Say what the heads of the paths on standard input are, one JSON value a line."""
    paths = [os.fsdecode(bytes.fromhex(text)) for text in msgspec.json.decode(sys.stdin.buffer.read(), type=list[str])]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    files = [_open(path) for path in paths]
    give_up_capabilities()
    signal.signal(signal.SIGALRM, _give_up)
    for file in files:
        sys.stdout.buffer.write(msgspec.json.encode(_read(file)) + b"\n")
        sys.stdout.buffer.flush()
    return 0


def _read(file: int) -> Head | None:
    if file < 0:
        return None
    try:
        signal.setitimer(signal.ITIMER_REAL, FILE_TIMEOUT_S)
        return read_head(file)
    except _Late:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.close(file)


def _give_up(_number: int, _frame: object) -> None:
    raise _Late


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
