"""What does the log say of one request, and when is that written?

The same as any other line of ours would (`journal.format_entry`), made in a fraction of the time, because a line must
cost little beside its request: what is the same for many requests is made once, and the rest in one go. Lines are made
and written FLUSH_S later, all that came together: that long a process that is killed may have kept its last ones.
"""

import asyncio
from functools import lru_cache
from typing import Protocol

from llamactl.front.http.access import STATUS_CLIENT_GONE, RequestRecord
from llamactl.journal_events import JournalEvent
from llamactl.quantities import format_bytes, format_seconds
from llamactl.systemd.bulk import open_bulk
from llamactl.systemd.journal import format_value

FLUSH_S = 0.02
MAX_CACHED_BYTES = 256
"""Of a path: anybody could fill the memory with long ones."""

# Looked up once: a line must cost little.
_ANSWERED, _BROKEN_OFF = JournalEvent.REQUEST_ANSWERED.value, JournalEvent.REQUEST_BROKEN_OFF.value
_ANSWERED_SLUG, _BROKEN_OFF_SLUG = JournalEvent.REQUEST_ANSWERED.slug, JournalEvent.REQUEST_BROKEN_OFF.slug


class Lines(Protocol):
    """Where they go: see `systemd.bulk`."""

    @property
    def waiting(self) -> int:
        """Lines that have not been written yet."""

    def add(self, about: RequestRecord) -> None:
        """Take the line of one request; it may be written later, with others."""

    def flush(self) -> None:
        """Write what waits, as far as the journal takes it at once."""

    def finish(self) -> None:
        """Write what waits, however long that takes: nothing comes after it."""


class AccessLog:
    """One line for each request. `lines` None: none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lines: Lines | None) -> None:
        self._loop = loop
        self._lines = lines
        self._timer: asyncio.TimerHandle | None = None
        self.is_on = lines is not None

    def write(self, record: RequestRecord) -> None:
        """`record` is of a request that has ended."""
        if self._lines is not None:
            self._lines.add(record)
            if self._timer is None:
                self._timer = self._loop.call_later(FLUSH_S, self._flush)

    def close(self) -> None:
        """Write what has not been written yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lines is not None:
            self._lines.finish()

    def _flush(self) -> None:
        self._timer = None
        if self._lines is not None:
            self._lines.flush()
            if self._lines.waiting:
                self._timer = self._loop.call_later(FLUSH_S, self._flush)


def open_lines(level: str) -> Lines | None:
    """Where the lines of this process go; None: nowhere."""
    return None if level == "off" else open_bulk(level, format_message, format_fields)


def format_message(record: RequestRecord) -> str:
    """The line for people."""
    what = _find_what(record)[0]
    event = _ANSWERED if record.status and not record.is_cut else _BROKEN_OFF
    received, sent = record.received_bytes, record.sent_bytes
    first = f" first_byte={format_seconds(record.first_byte_s)}" if record.first_byte_s else ""
    tokens = _format_tokens(record, " prompt_tokens={}", " completion_tokens={}")
    duration = format_seconds(record.ended_s - record.began_s)
    return (
        f"{event}: {what} status={record.status or STATUS_CLIENT_GONE} duration={duration} "
        f"waited={format_seconds(record.waited_s) if record.waited_s else '0 s'}{first} "
        f"received={format_bytes(received)} "
        f"sent={format_bytes(sent)}{tokens} "
        f"request_id={_format_text(record.request_id.decode('latin-1'))}"
    )


def format_fields(record: RequestRecord) -> str:
    """The same for machines."""
    event = _ANSWERED_SLUG if record.status and not record.is_cut else _BROKEN_OFF_SLUG
    first = f"LLAMACTL_FIRST_BYTE_S={record.first_byte_s:.6f}\n" if record.first_byte_s else ""
    tokens = _format_tokens(record, "LLAMACTL_PROMPT_TOKENS={}\n", "LLAMACTL_COMPLETION_TOKENS={}\n")
    return (
        f"LLAMACTL_EVENT={event}\n{_find_what(record)[1]}LLAMACTL_STATUS={record.status or STATUS_CLIENT_GONE}\n"
        f"LLAMACTL_DURATION_S={record.ended_s - record.began_s:.6f}\nLLAMACTL_WAITED_S={record.waited_s:.6f}\n{first}"
        f"LLAMACTL_RECEIVED_BYTES={record.received_bytes}\nLLAMACTL_SENT_BYTES={record.sent_bytes}\n{tokens}"
        f"LLAMACTL_REQUEST_ID={record.request_id.decode('latin-1')}\n"
    )


def _find_what(record: RequestRecord) -> tuple[str, str]:
    if len(record.path) <= MAX_CACHED_BYTES:
        return _format_what_cached(record.method, record.path, record.model)
    return _format_what(record.method, record.path, record.model)


def _format_what(method: bytes, path: bytes, model: str) -> tuple[str, str]:
    """What was asked of which model: for people, and for machines."""
    values = {"method": method.decode("latin-1"), "path": path.decode("latin-1"), "model": model}
    told = {name: value for name, value in values.items() if value}
    return (
        " ".join(f"{name}={format_value(value)}" for name, value in told.items()),
        "".join(f"LLAMACTL_{name.upper()}={value}\n" for name, value in told.items()),
    )


_format_what_cached = lru_cache(maxsize=1024)(_format_what)


def _format_tokens(record: RequestRecord, prompt: str, completion: str) -> str:
    if not record.prompt_tokens and not record.completion_tokens:
        return ""
    return (prompt.format(record.prompt_tokens) if record.prompt_tokens else "") + (
        completion.format(record.completion_tokens) if record.completion_tokens else ""
    )


def _format_text(text: str) -> str:
    """A request id that is one of ours, or like one, needs no quotes."""
    return text if text.replace("-", "").isalnum() else format_value(text)
