"""How does the supervisor learn what model files say, although it opens none?

It asks children: one for the first bytes of every file, which tell whether it is a GGUF file at all, one for the heads
of some (head_child). A file is what anybody may have uploaded, and one that is cut while it is read is a SIGBUS: of a
child that dies, hangs or talks nonsense counts what it said before. Without more, names decide, and what is no model is
found out when it is measured. What was learnt is kept as long as the file is the same one. `check`, which reads model
files anyway, asks nobody.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from llamactl.config.gguf import BEGINNING_BYTES, Head, acquire_head, judge_beginning

T = TypeVar("T")
FileReader = Callable[[Sequence[str]], dict[str, T]]
"""What is learnt of files, by path. Missing: it was not got so far as to read it."""
HeadReader = FileReader[Head | None]
"""None: not understood."""
FaultReader = FileReader[str]
"""Why a file is no GGUF file; empty: it may be one."""

BEGINNING_CHILD = Path(__file__).with_name("beginning_child.py")
TIMEOUT_S = 20.0
MAX_FILES = 1000
"""So many can be open at a time; of more, names decide."""


def acquire_heads(paths: Sequence[str]) -> dict[str, Head | None]:
    """The heads of files, read here. None: not a GGUF file, not understood, or not to be read."""
    heads: dict[str, Head | None] = {}
    for path in paths:
        heads[path] = None
        with suppress(OSError):
            heads[path] = acquire_head(Path(path))
    return heads


def forget_heads(paths: Sequence[str]) -> dict[str, Head | None]:
    """For whoever needs no more of the configuration than names."""
    return dict.fromkeys(paths)


def forget_faults(_paths: Sequence[str]) -> dict[str, str]:
    """For whoever opens the files anyway."""
    return {}


class FileCache(Generic[T]):
    """Asks for what is not known yet, or has changed."""

    def __init__(self, ask: FileReader[T]) -> None:
        self._ask = ask
        self._known: dict[str, tuple[tuple[int, ...], T]] = {}

    def __call__(self, paths: Sequence[str]) -> dict[str, T]:
        now = {path: _identify(path) for path in paths}
        new = [path for path, identity in now.items() if path not in self._known or self._known[path][0] != identity]
        learnt = self._ask(new) if new else {}
        # What the child did not get to is missing, and asked for again the next time.
        self._known = {path: self._known[path] for path in paths if path not in new} | {
            path: (now[path], value) for path, value in learnt.items() if path in now
        }
        return {path: value for path, (_, value) in self._known.items()}


def _identify(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


# --- the child --------------------------------------------------------------------------------------------------------


def ask_heads(paths: Sequence[str]) -> dict[str, Head | None]:
    """The heads of at most MAX_FILES files, as far as the child came."""
    command = [sys.executable, "-P", "-m", "llamactl.config.head_child"]
    orders = msgspec.json.encode([os.fsencode(path).hex() for path in paths[:MAX_FILES]])
    heads: dict[str, Head | None] = {}
    for path, line in zip(paths, _run_child(command, orders), strict=False):
        try:
            heads[path] = msgspec.json.decode(line, type=Head | None)
        except (msgspec.DecodeError, RecursionError):
            break
    return heads


def ask_faults(paths: Sequence[str]) -> dict[str, str]:
    """Why files are no GGUF files, as far as the child came; empty: they may be, or cannot be read."""
    command = [sys.executable, "-I", "-S", str(BEGINNING_CHILD), str(BEGINNING_BYTES)]
    orders = b"".join(os.fsencode(path) + b"\0" for path in paths)
    faults = {}
    for path, line in zip(paths, _run_child(command, orders), strict=False):
        try:
            faults[path] = "" if line == b"-" else judge_beginning(bytes.fromhex(line.decode("ascii")))
        except ValueError:
            break
    return faults


def _run_child(command: Sequence[str], orders: bytes) -> list[bytes]:
    try:
        return subprocess.run(
            command, input=orders, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False
        ).stdout.splitlines()
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").splitlines()
    except OSError:
        return []
