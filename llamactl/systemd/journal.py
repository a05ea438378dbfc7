"""How does one line about one thing reach the journal, for people and for machines?

Every call `log.info("victim chosen", model="a", needs_bytes=1 << 30)` becomes a MESSAGE that reads like a sentence,
with sizes and times for people, and fields of its own (LLAMACTL_EVENT=victim_chosen, LLAMACTL_MODEL=a,
LLAMACTL_NEEDS_BYTES=1073741824) by journald's native protocol. Where standard error is not the journal, the same
sentences go there. The journal drops fields with bad names without a word, so names are made from keys here. Logging
never raises and never waits long: a line may be lost, a request not.
"""

import array
import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import structlog

from llamactl.escape import escape_lines, escape_text
from llamactl.quantities import format_bytes, format_seconds

SOCKET_PATH = "/run/systemd/journal/socket"
SEND_TIMEOUT_S = 1.0
PREFIX = "LLAMACTL_"
PLAIN_FIELDS = frozenset({"MESSAGE_ID", "CODE_FILE", "CODE_LINE", "CODE_FUNC"})
PRIORITIES = {"critical": 2, "error": 3, "exception": 3, "warning": 4, "info": 6, "debug": 7}

_LIBRARY = "library message"

Fields = Mapping[str, str]


def configure(identifier: str, level: str, fields: Mapping[str, Any]) -> None:
    """Set up logging for this process. `fields` go with every line, unseen in its text (a model's name, say)."""
    global _process
    sink: Sink = JournalSink() if is_journal(sys.stderr) else StreamSink()
    base = {"SYSLOG_IDENTIFIER": identifier} | {format_name(key): format_field(value) for key, value in fields.items()}
    number = {"critical": 50, "error": 40, "warning": 30, "info": 20, "debug": 10}.get(level.lower(), 20)
    _process = Process(sink, identifier, number)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            lambda logger, method, event_dict: {"fields": base | format_entry(event_dict)},
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: _SinkLogger(sink),
        cache_logger_on_first_use=False,
    )
    logging.captureWarnings(True)
    logging.basicConfig(handlers=[_LibraryHandler(logging.WARNING)], level=logging.WARNING, force=True)


@dataclass(frozen=True)
class Process:
    """How this process logs. `level`: as `logging` numbers them, what is below it is not written."""

    sink: "Sink"
    identifier: str
    level: int


_process: Process | None = None


def get_process() -> Process | None:
    """What `configure` has set up."""
    return _process


def get_logger() -> Any:
    """A structlog logger; may be taken before `configure`."""
    return structlog.get_logger()


# --- from a call to fields ------------------------------------------------------------------------


def format_entry(event_dict: Mapping[str, Any]) -> dict[str, str]:
    """The journal's fields of one line."""
    values = {key: value for key, value in event_dict.items() if value is not None}
    event = str(values.pop("event", ""))
    level = str(values.pop("level", "info"))
    exception = escape_lines(values.pop("exception", ""))
    message = format_message(event, values)
    fields = {"MESSAGE": f"{message}\n{exception}" if exception else message}
    if exception and event == _LIBRARY:
        # Told by a library about something that it went on from: one line, and the rest for whoever asks.
        fields = {"MESSAGE": f"{message}: {exception.splitlines()[-1]}", f"{PREFIX}TRACEBACK": exception}
    fields["PRIORITY"] = str(PRIORITIES.get(level, 6))
    fields[f"{PREFIX}EVENT"] = re.sub(r"[^a-z0-9]+", "_", event.lower()).strip("_")
    return fields | {format_name(key): format_field(value) for key, value in values.items()}


def format_message(event: str, values: Mapping[str, Any]) -> str:
    """`event: key=value key=value: reason`, with bytes and seconds as people read them. Printable, whatever the values
    are: journald keeps a message with control characters as a blob that nobody sees, and shows directional ones.
    """
    words = []
    for key, value in values.items():
        if value in ("", None, [], (), {}):
            continue
        name, unit = split_unit(key)
        if name:
            words.append(f"{name}={format_value(value, unit)}")
    parts = [event, " ".join(words), str(values.get("reason") or "")]
    return escape_lines(": ".join(part for part in parts if part))


@lru_cache(maxsize=1024)
def split_unit(key: str) -> tuple[str, str]:
    """The name by which a sentence calls a value, and its unit: `bytes`, `s` or none. No name: it is not told there."""
    if key == "reason" or key.upper() in PLAIN_FIELDS:
        return "", ""
    unit = next((suffix for suffix in ("bytes", "s") if key == suffix or key.endswith(f"_{suffix}")), "")
    return key.removesuffix(f"_{unit}") if unit else key, unit


def format_value(value: Any, unit: str = "") -> str:
    """One value for people, printable. `unit` is `bytes`, `s` or none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {format_value(item, unit)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(format_value(item, unit) for item in value)
    if unit == "bytes" and isinstance(value, int):
        return format_bytes(value)
    if unit == "s" and isinstance(value, int | float):
        return format_seconds(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return escape_text(json.dumps(text, ensure_ascii=False) if re.search(r'[\s"=]', text) or not text else text)


@lru_cache(maxsize=1024)
def format_name(key: str) -> str:
    """A field's name: A-Z, 0-9 and _, ours with our prefix, at most 64 characters."""
    name = re.sub(r"[^A-Z0-9]+", "_", key.upper()).strip("_")
    return name if name in PLAIN_FIELDS else (PREFIX + name.removeprefix(PREFIX))[:64]


def format_field(value: Any) -> str:
    """A field's value: numbers as decimals, text as it is, all else as JSON."""
    if isinstance(value, str):
        return str(value)  # also of a StrEnum
    if type(value) is int:
        return str(value)
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    return json.dumps(value, ensure_ascii=False, default=str)


# --- from fields to the journal -------------------------------------------------------------------


class Sink(Protocol):
    """Takes the fields of one line."""

    has_fields: bool
    """Whether it keeps more of a line than its text."""
    before_write: Callable[[], None]
    """Writes what has been put off, so that lines stay in order."""

    def write(self, fields: Fields) -> None:
        """Write one entry; it goes to standard error where there is no journal."""

    def write_batch(self, lines: str, wait: bool) -> bool:
        """Many lines, as `bulk` makes them. False: they are not taken at present; only where `wait` is false."""


def _nothing() -> None:
    """Nothing has been put off."""


class StreamSink:
    """Standard error, for people: no fields, the level where it is not the usual one."""

    has_fields = False

    def __init__(self) -> None:
        self.before_write: Callable[[], None] = _nothing

    def write(self, fields: Fields) -> None:
        self.before_write()
        priority = int(fields["PRIORITY"])
        word = next((name for name, number in PRIORITIES.items() if number == priority), "")
        level = "" if priority == PRIORITIES["info"] else f"{word}: "
        with contextlib.suppress(OSError, ValueError):
            print(f"{fields['SYSLOG_IDENTIFIER']}: {level}{fields['MESSAGE']}", file=sys.stderr, flush=True)

    def write_batch(self, lines: str, wait: bool) -> bool:
        """Write lines that are formatted already. True: they are written, or nobody reads them."""
        with contextlib.suppress(OSError, ValueError):
            print(lines, end="", file=sys.stderr, flush=True)
        return True


class JournalSink:
    """journald's native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL): a datagram, or a sealed file if it is long."""

    has_fields = True

    def __init__(self, path: str = SOCKET_PATH) -> None:
        self.before_write: Callable[[], None] = _nothing
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(SEND_TIMEOUT_S)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)

    def write(self, fields: Fields) -> None:
        self.before_write()
        if not self._send(encode_fields(fields.items())):
            StreamSink().write(fields)

    def write_batch(self, lines: str, wait: bool) -> bool:
        """Entries that each end with an empty line: journald takes several of them in one datagram, too."""
        if not wait:
            self._socket.settimeout(0)
        try:
            if not self._send(lines.encode("utf-8", "replace")):
                for entry in lines.removesuffix("\n\n").split("\n\n"):
                    StreamSink().write(dict(line.split("=", 1) for line in entry.split("\n")))
        except BlockingIOError:
            return wait
        finally:
            self._socket.settimeout(SEND_TIMEOUT_S)
        return True

    def _send(self, data: bytes) -> bool:
        """False: there is no journald at present. Raises BlockingIOError where it takes no more and nobody waits."""
        try:
            self._socket.sendto(data, self._path)
        except BlockingIOError:
            if self._socket.gettimeout() == 0:
                raise
        except OSError as error:
            if error.errno in (errno.EMSGSIZE, errno.ENOBUFS):
                with contextlib.suppress(OSError):
                    self._write_memory(data)
            return error.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.EACCES)
        return True

    def _write_memory(self, data: bytes) -> None:
        descriptor = os.memfd_create("journal-entry", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
            seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
            self._socket.sendmsg([b""], passed, 0, self._path)
        finally:
            os.close(descriptor)


def encode_fields(fields: Iterable[tuple[str, str]]) -> bytes:
    """NAME=value lines; a value with a newline goes with its length, little-endian, in front."""
    encoded = bytearray()
    for name, value in fields:
        data = value.encode("utf-8", "replace")
        if b"\n" in data:
            encoded += name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
        else:
            encoded += name.encode() + b"=" + data + b"\n"
    return bytes(encoded)


def is_journal(stream: Any, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a stream goes straight to the journal: systemd.exec(5), $JOURNAL_STREAM."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class _SinkLogger:
    """What structlog wraps: takes what the last processor made."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def msg(self, *, fields: Fields) -> None:
        self._sink.write(fields)

    debug = info = warning = error = critical = msg


class _LibraryHandler(logging.Handler):
    """What libraries log the standard way, from warnings on."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "critical" if record.levelno >= 50 else "error" if record.levelno >= 40 else "warning"
        with contextlib.suppress(Exception):  # a library's bad format string is no reason to fail
            log = get_logger()
            getattr(log, level)(
                _LIBRARY, logger=record.name, reason=record.getMessage(), exc_info=record.exc_info or None
            )
