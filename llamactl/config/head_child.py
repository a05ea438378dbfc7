"""The child that reads model files for the supervisor: paths on standard input, what they say on standard output.

JSON, a line for each file, in the same order. `heads`: all files are opened first and every capability is given up
then: what is read, anybody may have written. A file that cannot be opened has no head, nor has one that takes long: a
head may claim to hold thousands of millions of texts. `faults`: of any number of files the first bytes are taken, and
looked at without capabilities; one that cannot be opened has no fault that is known.
"""

import ctypes
import os
import resource
import signal
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from llamactl.config.gguf import BEGINNING_BYTES, Head, judge_beginning, read_head
from llamactl.config.heads import Question

FILE_TIMEOUT_S = 2.0
_CAPABILITY_VERSION_3 = 0x20080522


class _Late(Exception):
    """The time for one file is over."""


def main() -> int:
    """Answer the question in the first argument about the paths on standard input, one JSON value a line."""
    question = Question(sys.argv[1])
    paths = [os.fsdecode(bytes.fromhex(text)) for text in msgspec.json.decode(sys.stdin.buffer.read(), type=list[str])]
    answer: Iterable[Any] = _list_heads(paths) if question is Question.HEADS else _list_faults(paths)
    for value in answer:
        sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
        sys.stdout.buffer.flush()
    return 0


def _list_heads(paths: Sequence[str]) -> Iterator[Head | None]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    files = [_open(path) for path in paths]
    give_up_capabilities()
    signal.signal(signal.SIGALRM, _give_up)
    for file in files:
        yield _read(file)


def _list_faults(paths: Sequence[str]) -> Iterator[str]:
    beginnings = [_read_beginning(path) for path in paths]
    give_up_capabilities()
    for beginning in beginnings:
        yield "" if beginning is None else judge_beginning(beginning)


def _read_beginning(path: str) -> bytes | None:
    file = _open(path)
    if file < 0:
        return None
    try:
        return os.read(file, BEGINNING_BYTES) if stat.S_ISREG(os.fstat(file).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(file)


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
