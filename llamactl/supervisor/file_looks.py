"""Which files does a model have at this moment? Looked at in threads, because a file system may hang.

A file is known by path, size, time and inode: one renamed over another has a new inode, one written in place a new
time. A thread that hangs cannot be ended, so that a model whose last look still hangs is not looked at again: all that
is said is that nobody knows.
"""

import asyncio
import hashlib
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from llamactl.journal_events import JournalEvent
from llamactl.sched.events import FilesSeen
from llamactl.settings import ModelSettings, list_files
from llamactl.systemd.journal import get_logger

LOOK_S = 10.0
"""For looking at a model's files; a file system that hangs must not keep other models from being loaded."""

_log = get_logger()


class FileIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One file as it is now."""

    path: str
    size: int
    mtime_ns: int
    inode: int


def identify_file(path: Path) -> FileIdentity:
    """The file as it is at this moment. Raises OSError where it cannot be looked at."""
    status = path.stat()
    return FileIdentity(path=str(path), size=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)


def acquire_files(settings: ModelSettings) -> tuple[FileIdentity, ...]:
    """All files of a model. Raises OSError where one cannot be looked at."""
    return tuple(identify_file(Path(path)) for path in list_files(settings))


def format_files(files: tuple[FileIdentity, ...]) -> str:
    """A short text that stands for these files and no others."""
    return hashlib.sha256(msgspec.json.encode(files)).hexdigest()[:16]


class FileLooks:
    """Looks at models' files, and which of them still hang."""

    def __init__(self) -> None:
        self._hanging: set[str] = set()
        """Models of which the last look has not ended."""

    async def look(self, models: Iterable[ModelSettings]) -> list[FilesSeen]:
        """What each model has, after LOOK_S at the latest."""
        models, since_s = tuple(models), time.monotonic()
        wanted = [model for model in models if model.name not in self._hanging]
        seen: dict[str, str] = {}
        looking = asyncio.get_running_loop().run_in_executor(None, _look_at_each, wanted, seen)
        await asyncio.wait({looking}, timeout=LOOK_S)
        if not looking.done():
            name = next((model.name for model in wanted if model.name not in seen), "")
            self._hanging.add(name)
            looking.add_done_callback(lambda _: self._hanging.discard(name))
        return [FilesSeen(model.name, seen.get(model.name, ""), since_s) for model in models]


def _look_at_each(models: Iterable[ModelSettings], seen: dict[str, str]) -> None:
    for model in models:
        try:
            seen[model.name] = format_files(acquire_files(model))
        except OSError as error:
            _log.debug(JournalEvent.FILES_NOT_LOOKED_AT, model=model.name, reason=str(error))
            seen[model.name] = ""
