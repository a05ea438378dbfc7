"""How do pieces of bytes become text that may be shown? Never half a character, and nothing of a stop string or after
it.

Both steps hold back what later pieces may still change, so the text that comes out does not depend on where the model
cut its tokens. What is still held back when the stream ends is shown if it is text (the start of a stop string that
never came) and dropped if it is not (the first bytes of a character).
"""

import codecs
from collections.abc import Sequence


class TextStream:
    """Bytes of tokens in, text out."""

    def __init__(self, stops: Sequence[str] = (), min_indent: int = 0) -> None:
        """`min_indent`: a line after the first that is indented less ends the text."""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped_by: str | None = None
        """The stop string that was met. Nothing comes after it."""
        self._min_indent = min_indent
        self._indent: int | None = None
        """Of the line that begins; None: within a line."""
        self.is_dedented = False

    @property
    def has_ended(self) -> bool:
        return self.stopped_by is not None or self.is_dedented

    def feed(self, piece: bytes) -> str:
        """The text that is certain now."""
        if self.has_ended:
            return ""
        text = self._cut_dedented(self._find_stop(self._decode(piece)))
        if self.is_dedented:
            self.stopped_by = None
        return text

    def _find_stop(self, text: str) -> str:
        if not self._stops:
            return text
        text = self._held + text
        found = find_first_stop(text, self._stops)
        if found is not None:
            start, self.stopped_by = found
            self._held = ""
            return text[:start]
        n_held = count_stop_prefix(text, self._stops)
        split = len(text) - n_held
        self._held = text[split:]
        return text[:split]

    def _cut_dedented(self, text: str) -> str:
        if not self._min_indent:
            return text
        for index, char in enumerate(text):
            if self._indent is not None and char in " \t":
                self._indent += 1
            elif self._indent is not None and self._indent < self._min_indent:
                self.is_dedented, self._held = True, ""
                return text[:index]
            else:
                self._indent = 0 if char == "\n" else None
        return text

    def finish(self) -> str:
        """What was held back, at the end of the stream."""
        held, self._held = self._held, ""
        return self._cut_dedented(held)


def find_first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the stop string starts that is complete first; of several that end at one place, the longest."""
    best: tuple[int, int, str] | None = None
    for stop in stops:
        start = text.find(stop)
        if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
            best = (start + len(stop), start, stop)
    return None if best is None else (best[1], best[2])


def count_stop_prefix(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a stop string."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
