"""Which measurements of earlier runs still hold?

A measurement is filed under everything that can change it: the settings that count for memory, each file of the model
(path, size, time, inode), llama.cpp's version and libraries, and whether its extra buffer types are on. What it found
of devices is kept with it and must agree with the devices that are there now. `max` was what fitted at that moment, and
is kept as such: nothing is decided by it.

The file may be lost at any time: it is replaced as a whole, and one that cannot be read is dropped with a warning.
"""

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from pathlib import Path

import msgspec

from llamactl.journal_events import JournalEvent
from llamactl.protocol.values import Breakdown, Facts, Row
from llamactl.sched.breakdowns import get_rpc_server, list_device_rows, sees_device, strip_unmeasured
from llamactl.settings import ModelSettings
from llamactl.supervisor.file_looks import FileIdentity, acquire_files, identify_file
from llamactl.systemd.journal import get_logger

FORMAT = 1
MAX_ENTRIES = 4096
DISTRIBUTION = "llama-cpp-python"

_log = get_logger()


class KeyParts(msgspec.Struct, frozen=True, kw_only=True):
    """All that can change a measurement but the devices."""

    settings: ModelSettings
    files: tuple[FileIdentity, ...]
    llama_cpp: str
    libraries: tuple[FileIdentity, ...]
    extra_bufts: bool


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement."""

    min: Breakdown
    max: Breakdown
    facts: Facts | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    entries: dict[str, Entry]


# --- keys -------------------------------------------------------------------------------------------------------------


def format_key(parts: KeyParts) -> str:
    """What an entry is filed under: the same for the same parts, over restarts."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def acquire_key_parts(settings: ModelSettings, extra_bufts: bool) -> KeyParts:
    """Looks at the files as they are now. Raises OSError where one cannot be looked at."""
    return KeyParts(
        settings=strip_unmeasured(settings),
        files=acquire_files(settings),
        llama_cpp=acquire_llama_version(),
        libraries=acquire_libraries(settings.env.get("LLAMA_CPP_LIB_PATH", "")),
        extra_bufts=extra_bufts and settings.repack,
    )


def acquire_llama_version() -> str:
    """Of the llama-cpp-python that the next child will import. Read from its metadata: the library stays out of this
    process.
    """
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""


def acquire_libraries(directory: str) -> tuple[FileIdentity, ...]:
    """llama.cpp's own libraries, which may be built again under the same version. `directory` empty: the package's."""
    where = Path(directory)
    if not directory:
        try:
            where = Path(str(metadata.distribution(DISTRIBUTION).locate_file("llama_cpp/lib")))
        except metadata.PackageNotFoundError:
            return ()
    return tuple(identify_file(path) for path in sorted(where.glob("*.so*")))


# --- devices ----------------------------------------------------------------------------------------------------------


def match_devices(
    entry: Entry, settings: ModelSettings, devices: Mapping[str, Row], unknown: Collection[str] = ()
) -> bool:
    """Whether a model would find the devices, by name and total, that it found when it was measured. `devices`: all
    that there are now, but for those of the RPC servers in `unknown`, which are taken to be as they were.
    """

    def list_known(rows: Iterable[Row]) -> set[tuple[str, int | None]]:
        return {(row.name, row.total) for row in rows if get_rpc_server(row.name) not in unknown}

    then = list_known(list_device_rows(entry.min))
    now = list_known(row for row in devices.values() if sees_device(settings, row.name))
    return then <= now if settings.devices else then == now


# --- the file ---------------------------------------------------------------------------------------------------------


class MeasurementCache:
    """The entries, in memory and in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, Entry] = {}

    def load(self) -> None:
        """Read the file, if there is one."""
        try:
            file = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            _log.warning(JournalEvent.MEASUREMENT_CACHE_DROPPED, path=str(self._path), reason=str(error))
            with contextlib.suppress(OSError):
                self._path.unlink()
            return
        if file.format == FORMAT:
            self._entries = dict(file.entries)

    def find(self, key: str) -> Entry | None:
        """The entry filed under this key; None where there is none."""
        return self._entries.get(key)

    def store(self, key: str, entry: Entry) -> None:
        """Keep an entry, and write the file. A file that cannot be written is a warning: the next start measures
        again.
        """
        self._entries.pop(key, None)
        self._entries[key] = entry
        while len(self._entries) > MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        try:
            write_private(self._path, msgspec.json.encode(_File(format=FORMAT, entries=self._entries)))
        except OSError as error:
            _log.warning(JournalEvent.MEASUREMENT_CACHE_NOT_WRITTEN, path=str(self._path), reason=str(error))


def write_private(path: Path, data: bytes) -> None:
    """Replace a file as a whole, readable by its owner alone. Raises OSError."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
