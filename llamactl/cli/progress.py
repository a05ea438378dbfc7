"""What does someone see who waits for a load, or for an unload?

On a terminal one line that changes, however many models are waited for; elsewhere (logs, pipes) one line for each
stage, so that a file does not fill with percentages.
"""

from collections.abc import Callable
from typing import TextIO

from llamactl.cli.output import clean_line, complain, draw
from llamactl.cli.terminal import find_width, shorten
from llamactl.protocol.control_socket import Progress
from llamactl.protocol.values import Stage

_CLEAR = "\r\x1b[2K"
_COUNTED = (Stage.LOADING, Stage.MEASURING)
"""Stages of which a terminal shows the fraction."""


def describe_progress(progress: Progress) -> str:
    """A stage in words, without the fraction."""
    others = ", ".join(progress.waiting_for)
    match progress.stage:
        case Stage.QUEUED:
            return f"queued behind {others}" if others else "queued"
        case Stage.WAITING:
            return _describe_waiting(progress) if others else progress.why or "waiting for memory"
        case _:
            return str(progress.stage)


def describe_unloading(progress: Progress) -> str:
    """What an unload waits for."""
    if progress.going:
        return "stopping"
    if progress.busy:
        return "waiting for its requests to end"
    return "unloading" if progress.stage is Stage.WAITING else describe_progress(progress)


def _describe_waiting(progress: Progress) -> str:
    others = [name for name in progress.waiting_for if name not in (*progress.busy, *progress.going)]
    parts = [f"waiting for {', '.join(progress.busy)} (busy)"] if progress.busy else []
    why = f" ({progress.why})" if progress.why else ""
    parts += [f"waiting for {', '.join(others)}{why}"] if others else []
    parts += [f"making room: unloading {', '.join(progress.going)}"] if progress.going else []
    return "; ".join(parts)


class Board:
    """Where those that are waited for stand, on a stream: on a terminal all of them in one line that changes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_tty = stream.isatty()
        self._texts: dict[str, str] = {}

    @property
    def changes(self) -> bool:
        """Whether a line can be written over, so that percentages may be shown."""
        return self._is_tty

    def say(self, name: str, text: str) -> None:
        """Where one is now. The same again is not said again."""
        if self._texts.get(name) == text:
            return
        self._texts[name] = text
        if self._is_tty:
            self._draw()
        else:
            self._write(f"{clean_line(name)}: {clean_line(text)}\n")

    def finish(self, name: str, text: str) -> None:
        """The last word on one; it stays."""
        self._texts.pop(name, None)
        self._write(f"{_CLEAR if self._is_tty else ''}{clean_line(name)}: {clean_line(text)}\n")
        self._draw()

    def clear(self) -> None:
        """Take the changing line away, before something else is said."""
        if self._is_tty and self._texts:
            self._write(_CLEAR)
        self._texts.clear()

    def complain(self, name: str, message: str) -> None:
        """What went wrong with one, while others go on."""
        self._texts.pop(name, None)
        if self._is_tty:
            self._write(_CLEAR)
        complain(message)
        self._draw()

    def _draw(self) -> None:
        if self._is_tty and self._texts:
            line = "; ".join(f"{clean_line(name)}: {clean_line(text)}" for name, text in self._texts.items())
            width = find_width(self._stream)
            # A line that is wrapped cannot be cleared.
            self._write(_CLEAR + (shorten(line, width - 1) if width else line))

    def _write(self, text: str) -> None:
        draw(self._stream, text)
        self._stream.flush()


class ProgressLine:
    """What one of those on a board says, until it is finished or cleared."""

    def __init__(self, board: Board, name: str, describe: Callable[[Progress], str] = describe_progress) -> None:
        self._board = board
        self._name = name
        self._describe = describe
        self.seen = False
        """Whether there was anything to wait for."""

    def show(self, progress: Progress) -> None:
        """Draw how far the load is; a warning is a line of its own."""
        if progress.stage is Stage.READY:
            return  # the answer says it better, with the time
        self.seen = True
        if progress.warning:
            self._board.finish(self._name, f"warning: {progress.warning}")
        text = self._describe(progress)
        if self._board.changes and progress.fraction is not None and progress.stage in _COUNTED:
            text += f" {min(max(progress.fraction, 0), 1) * 100:.0f} %"
        self._board.say(self._name, text)

    def finish(self, text: str) -> None:
        """Replace the line by its last text, which stays."""
        self._board.finish(self._name, text)
