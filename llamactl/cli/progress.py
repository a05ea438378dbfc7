"""What does someone see who waits for a load, or for an unload?

On a terminal one line that changes; elsewhere (logs, pipes) one line for each stage, so that a file does not fill
with percentages.
"""

from collections.abc import Callable
from typing import TextIO

from llamactl.cli.output import clean_text
from llamactl.protocol import Progress, Stage

_CLEAR = "\r\x1b[2K"


def describe_progress(progress: Progress) -> str:
    """A stage in words, without the fraction."""
    others = ", ".join(progress.waiting_for)
    match progress.stage:
        case Stage.QUEUED:
            return f"queued behind {others}" if others else "queued"
        case Stage.WAITING:
            return _describe_waiting(progress) if others else "waiting for memory"
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
    parts += [f"waiting for {', '.join(others)}"] if others else []
    parts += [f"making room: unloading {', '.join(progress.going)}"] if progress.going else []
    return "; ".join(parts)


class ProgressLine:
    """Shows progress on a stream until it is finished or cleared."""

    def __init__(self, stream: TextIO, name: str, describe: Callable[[Progress], str] = describe_progress) -> None:
        self._stream = stream
        self._name = name
        self._describe = describe
        self._is_tty = stream.isatty()
        self._shown = ""
        self.seen = False
        """Whether there was anything to wait for."""

    def show(self, progress: Progress) -> None:
        if progress.stage is Stage.READY:
            return  # the answer says it better, with the time
        self.seen = True
        if progress.warning:
            self.finish(f"warning: {progress.warning}")
            self._shown = ""
        text = self._describe(progress)
        if self._is_tty and progress.fraction is not None and progress.stage in (Stage.LOADING, Stage.MEASURING):
            text += f" {min(max(progress.fraction, 0), 1) * 100:.0f} %"
        self.say(text)

    def say(self, text: str) -> None:
        if text == self._shown:
            return
        self._shown = text
        line = f"{self._name}: {clean_text(text)}"
        self._stream.write(f"{_CLEAR}{line}" if self._is_tty else f"{line}\n")
        self._stream.flush()

    def finish(self, text: str) -> None:
        """The last word; it stays."""
        line = f"{self._name}: {clean_text(text)}\n"
        self._stream.write(_CLEAR + line if self._is_tty else line)
        self._stream.flush()

    def clear(self) -> None:
        """Take the changing line away, before something else is said."""
        if self._is_tty and self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
