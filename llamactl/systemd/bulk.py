"""How do thousands of lines a second reach the journal, at a small part of what a call for each one costs?

What happened is kept until there is a batch of it or its owner says `flush`, then put into words and written in one
datagram: words made one after the other, with nothing else between them, cost half as much. All other lines of the
process are written at once, and what waits here before them: the order stays. Nothing is waited for. Where the journal
takes no more, lines wait, up to MAX_LINES, and then they are counted.
"""

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from llamactl.systemd.journal import PREFIX, PRIORITIES, Sink, get_process

BATCH_LINES = 32
"""Others wait a tenth of a millisecond while they are made."""
MAX_LINES = 20_000

T = TypeVar("T")


class Bulk(Generic[T]):
    """Lines of one level, each about a `T`. `format_fields`: a line NAME=value for each of them, where there is a
    journal. No newline may be in the message or in a value, and nothing of a `T` may change once it is added.
    """

    def __init__(
        self,
        sink: Sink,
        identifier: str,
        level: str,
        format_message: Callable[[T], str],
        format_fields: Callable[[T], str],
    ) -> None:
        self._sink = sink
        self._identifier = identifier
        self._format_message = format_message
        self._format_fields = format_fields
        self._waiting: list[T] = []
        self._batch = ""
        """The first BATCH_LINES of those that wait, where the journal has not taken them."""
        self._lost = 0
        if sink.has_fields:
            self._begin, self._end = "MESSAGE=", f"PRIORITY={PRIORITIES[level]}\nSYSLOG_IDENTIFIER={identifier}\n\n"
        else:
            self._begin, self._end = f"{identifier}: {'' if level == 'info' else f'{level}: '}", ""
        sink.before_write = self.finish

    @property
    def waiting(self) -> int:
        """Lines that have not been written."""
        return len(self._waiting)

    def add(self, about: T) -> None:
        """Have a line written, with others that come soon; beyond MAX_LINES it is only counted."""
        waiting = self._waiting
        waiting.append(about)
        if not len(waiting) % BATCH_LINES:
            self.flush()
            if len(waiting) >= MAX_LINES:
                del waiting[-BATCH_LINES:]
                self._lost += BATCH_LINES

    def flush(self, wait: bool = False) -> None:
        """Write what waits, as far as it is taken without waiting."""
        waiting = self._waiting
        while waiting:
            if not self._batch:
                self._batch = self._format(waiting[:BATCH_LINES])
                self._batch_lines = min(len(waiting), BATCH_LINES)
            if not self._sink.write_batch(self._batch, wait):
                return
            del waiting[: self._batch_lines]
            self._batch = ""
        lost, self._lost = self._lost, 0
        if lost:
            self._sink.write(
                {
                    "MESSAGE": f"lines lost: count={lost}: the journal did not take them",
                    "PRIORITY": str(PRIORITIES["warning"]),
                    "SYSLOG_IDENTIFIER": self._identifier,
                    f"{PREFIX}EVENT": "lines_lost",
                    f"{PREFIX}COUNT": str(lost),
                }
            )

    def finish(self) -> None:
        """Write what waits, even if that takes a moment."""
        if self._waiting:
            self.flush(wait=True)

    def _format(self, batch: list[T]) -> str:
        begin, end, format_message = self._begin, self._end, self._format_message
        if not self._sink.has_fields:
            return "".join([f"{begin}{format_message(about)}\n" for about in batch])
        format_fields = self._format_fields
        return "".join([f"{begin}{format_message(about)}\n{format_fields(about)}{end}" for about in batch])

    _batch_lines = 0


def open_bulk(level: str, format_message: Callable[[T], str], format_fields: Callable[[T], str]) -> Bulk[T] | None:
    """For lines of this level of this process; None where they are not written."""
    process = get_process()
    if process is None or logging.getLevelNamesMapping()[level.upper()] < process.level:
        return None
    return Bulk(process.sink, process.identifier, level, format_message, format_fields)
