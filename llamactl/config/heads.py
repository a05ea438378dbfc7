"""How does the supervisor learn what heads of model files say, although it opens none?

It asks a child (head_child). A file is what anybody may have uploaded, and one that is cut while it is read is a
SIGBUS: of a child that dies, hangs or talks nonsense counts what it said before, and for the rest names decide. What
was learnt is kept as long as the file is the same one. `check`, which reads model files anyway, asks nobody.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from llamactl.config.gguf import Head, acquire_head

HeadReader = Callable[[Sequence[str]], dict[str, Head | None]]
"""Heads by path. None: not understood; missing: it was not got so far as to read it."""

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


class HeadCache:
    """Asks a child for what is not known yet, or has changed."""

    def __init__(self, ask: HeadReader | None = None) -> None:
        self._ask = ask or ask_child
        self._known: dict[str, tuple[tuple[int, ...], Head | None]] = {}

    def __call__(self, paths: Sequence[str]) -> dict[str, Head | None]:
        now = {path: _identify(path) for path in paths}
        new = [path for path, identity in now.items() if path not in self._known or self._known[path][0] != identity]
        learnt = self._ask(new) if new else {}
        # What the child did not get to is missing, and asked for again the next time.
        self._known = {path: self._known[path] for path in paths if path not in new} | {
            path: (now[path], head) for path, head in learnt.items() if path in now
        }
        return {path: head for path, (_, head) in self._known.items()}


def _identify(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


# --- the child --------------------------------------------------------------------------------------------------------


def ask_child(paths: Sequence[str]) -> dict[str, Head | None]:
    """The heads of at most MAX_FILES files, as far as the child came."""
    command = [sys.executable, "-P", "-m", "llamactl.config.head_child"]
    orders = msgspec.json.encode([os.fsencode(path).hex() for path in paths[:MAX_FILES]])
    try:
        said = subprocess.run(
            command, input=orders, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False
        ).stdout
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
    except OSError:
        return {}
    heads: dict[str, Head | None] = {}
    for path, line in zip(paths, said.splitlines(), strict=False):
        try:
            heads[path] = msgspec.json.decode(line, type=Head | None)
        except (msgspec.DecodeError, RecursionError):
            break
    return heads
