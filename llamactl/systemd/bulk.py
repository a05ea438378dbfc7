"""How do thousands of lines a second reach the journal, at a small part of what a call for each one costs?

Lines of one kind, made ready by their owner, wait here until they are a batch or the owner says `flush`: one datagram
takes a hundred of them. All other lines of the process are written at once, and what waits here before them: the order
stays. Nothing is waited for. Where the journal takes no more, lines wait, up to MAX_LINES, and then they are counted.
"""

import logging

from llamactl.systemd.journal import PREFIX, PRIORITIES, Sink, get_process

BATCH_LINES = 100
"""Some 60 KiB."""
MAX_LINES = 20_000


class Bulk:
    """Lines of one level."""

    def __init__(self, sink: Sink, identifier: str, level: str) -> None:
        self.has_fields = sink.has_fields
        """Whether `add` is to be told them."""
        self._sink = sink
        self._identifier = identifier
        self._waiting: list[str] = []
        self._lost = 0
        if self.has_fields:
            self._begin, self._end = "MESSAGE=", f"PRIORITY={PRIORITIES[level]}\nSYSLOG_IDENTIFIER={identifier}\n\n"
        else:
            self._begin, self._end = f"{identifier}: {'' if level == 'info' else f'{level}: '}", ""
        sink.before_write = self.finish

    @property
    def waiting(self) -> int:
        """Lines that have not been written."""
        return len(self._waiting)

    def add(self, message: str, fields: str) -> None:
        """`fields`: a line NAME=value for each. No newline may be in the message or in a value."""
        waiting = self._waiting
        waiting.append(f"{self._begin}{message}\n{fields}{self._end}")
        if not len(waiting) % BATCH_LINES:
            self.flush()
            if len(waiting) >= MAX_LINES:
                self._lost += len(waiting[-BATCH_LINES:])
                del waiting[-BATCH_LINES:]

    def flush(self, wait: bool = False) -> None:
        """Write what waits, as far as it is taken without waiting."""
        waiting = self._waiting
        while waiting:
            if not self._sink.write_batch("".join(waiting[:BATCH_LINES]), wait):
                return
            del waiting[:BATCH_LINES]
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


def open_bulk(level: str) -> Bulk | None:
    """For lines of this level of this process; None where they are not written."""
    process = get_process()
    if process is None or logging.getLevelNamesMapping()[level.upper()] < process.level:
        return None
    return Bulk(process.sink, process.identifier, level)
