"""Where does llama.cpp's own log go? To standard error, which is the journal, without being read by anyone.

Below warnings it is silent unless LLAMACTL_LLAMA_LOG=debug. Figures are never taken from it (under `no_alloc` it
prints zeros). Only the last error lines are kept, because llama.cpp reports failures through return values that say
nothing: they tell a user why a load failed.
"""

import ctypes
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from llamactl.escape import escape_lines
from llamactl.instance.llama.library import NO_LOG, llama

_WARN, _ERROR, _CONTINUE = 3, 4, 5
_KEPT_LINES = 8
_KEPT_CHARS = 400
_MAX_CAPTURED = 1 << 16

_WHO = r"(?:[a-z]\w*_\w*(?:::\w+)*: )*"
_SPEAKER = re.compile(rf"{_WHO}(?:error loading model: )?{_WHO}")
"""The functions of llama.cpp that a line begins with."""
_CONCLUSION = re.compile(r"failed to (?:load model|read header)\b")
"""What callers add to the error of a function that they called."""


def choose_reasons(lines: Iterable[str]) -> list[str]:
    """What error lines say went wrong, without who says so and what follows from it."""
    said = list(dict.fromkeys(_SPEAKER.sub("", line, count=1) for line in lines))
    return [line for line in said if not _CONCLUSION.match(line)] or said


class LlamaLog:
    """Install once, before anything else of llama.cpp runs."""

    _installed: "LlamaLog | None" = None

    def __init__(self, debug: bool = False) -> None:
        self._debug = debug
        self._level = 0
        self._errors: deque[str] = deque(maxlen=_KEPT_LINES)
        self.callback = llama.llama_log_callback(self._on_line)

    def install(self) -> None:
        """Have llama.cpp log here until the process ends, or another one is installed."""
        # llama.cpp keeps the pointer until the process ends, longer than whoever called this: it must not be collected.
        LlamaLog._installed = self
        llama.llama_log_set(self.callback, None)

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Nothing is heard."""
        llama.llama_log_set(NO_LOG, None)
        try:
            yield
        finally:
            self.install()

    def forget(self) -> None:
        """Before an attempt of which the error lines are wanted."""
        self._errors.clear()

    def explain(self) -> str:
        """The errors since `forget`, first things first; empty when there were none."""
        return "; ".join(choose_reasons(self._errors))

    def _on_line(self, level: int, text: bytes, _data: ctypes.c_void_p) -> None:
        if level != _CONTINUE:
            self._level = level
        if self._level == _ERROR and level != _CONTINUE:
            line = text.decode(errors="replace").strip()
            if line and line not in self._errors:
                self._errors.append(line[:_KEPT_CHARS])
        if self._debug or self._level in (_WARN, _ERROR):
            sys.stderr.write(escape_lines(text.decode(errors="replace")))
            sys.stderr.flush()


def capture_stderr(work: Callable[[], object]) -> str:
    """What the process writes to standard error during `work`, which must be short and safe: there is no other way to
    some of llama.cpp's reasons. What other threads write meanwhile is in it too; all of it is passed on.
    """
    sys.stderr.flush()
    kept, caught = os.dup(2), os.memfd_create("stderr")
    try:
        os.dup2(caught, 2)
        try:
            work()
        finally:
            os.dup2(kept, 2)
        data = os.pread(caught, _MAX_CAPTURED, 0)
        os.write(2, data)
    finally:
        os.close(kept)
        os.close(caught)
    return data.decode(errors="replace")
