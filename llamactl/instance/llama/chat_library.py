"""How is the library of llama.cpp's chat layer loaded and called? Once a process, with all that is risky about it
looked at first: that it is there, that it was built for this llama.cpp and this llamactl, that there is one llama.cpp.

It is C++ (llamactl/chatlib/layer.cpp), and takes what it calls of llama.cpp from the libllama that `llama_cpp` has
loaded. Calls release Python's lock.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from llamactl.chatlib.place import COMMAND, compute_source_id, place_library
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.llama.bindings import read_version
from llamactl.instance.llama.copies import check_copies
from llamactl.instance.llama.library import llama

_HINT = f"run `{COMMAND}`"


class ChatLibraryError(Exception):
    """What a function of the library answers instead of a value."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        """invalid, nesting, failed, memory."""


class _Failure(msgspec.Struct):
    kind: str
    message: str


class _Answer(msgspec.Struct):
    error: _Failure | None = None


class _Description(msgspec.Struct):
    llama_cpp_python: str
    llama_cpp: str
    source: str


_decode_answer = msgspec.json.Decoder(_Answer).decode


@cache
def load_chat_library() -> "ChatLibrary":
    """Raises LlamactlError(NOT_SUPPORTED) where it is not there or not the right one: the hint is the command that
    builds it.
    """
    return ChatLibrary(place_library(Path(llama.__file__).parent))


class ChatLibrary:
    """The functions, one by one. What a handle is of is the caller's business."""

    def __init__(self, path: Path) -> None:
        self._library = _open(path)
        text, size, pointer = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
        out_size, out_text = ctypes.POINTER(size), ctypes.POINTER(pointer)
        for name, result, arguments in (
            ("llamactl_chat_free", None, [pointer]),
            ("llamactl_chat_describe", text, []),
            ("llamactl_chat_bind", pointer, [pointer, out_size]),
            ("llamactl_chat_open", pointer, [text, size, pointer, out_text, out_size]),
            ("llamactl_chat_close", None, [pointer]),
            ("llamactl_chat_info", pointer, [pointer, out_size]),
            ("llamactl_chat_apply", pointer, [pointer, text, size, out_size]),
            ("llamactl_answer_open", pointer, [text, size, out_text, out_size]),
            ("llamactl_answer_close", None, [pointer]),
            ("llamactl_answer_feed", pointer, [pointer, text, size, ctypes.c_int, out_size]),
        ):
            try:
                function = getattr(self._library, name)
            except AttributeError:
                raise _refuse(f"{path} lacks {name}") from None
            function.restype, function.argtypes = result, arguments
        self._check(path)
        self._call("llamactl_chat_bind", llama._lib._handle)
        check_copies()

    def open_template(self, request: bytes, model: Any) -> int:
        """`model`: a llama_model, or None. Raises ChatLibraryError."""
        return self._open("llamactl_chat_open", request, len(request), model)

    def close_template(self, handle: int) -> None:
        """Free a template."""
        self._library.llamactl_chat_close(handle)

    def read_info(self, handle: int) -> bytes:
        """Read what a template can do, as JSON. Raises ChatLibraryError."""
        return self._call("llamactl_chat_info", handle)

    def apply(self, handle: int, request: bytes) -> bytes:
        """Apply a template to a request, both JSON: the prompt, the grammar, and how to read the answer. Raises
        ChatLibraryError.
        """
        return self._call("llamactl_chat_apply", handle, request, len(request))

    def open_answer(self, request: bytes) -> int:
        """Begin to read an answer, as `apply` said; returns its handle. Raises ChatLibraryError."""
        return self._open("llamactl_answer_open", request, len(request))

    def close_answer(self, handle: int) -> None:
        """Free an answer."""
        self._library.llamactl_answer_close(handle)

    def feed_answer(self, handle: int, text: bytes, is_partial: bool) -> bytes:
        """Add a text to an answer and parse all of it: what that adds, as JSON. Raises ChatLibraryError."""
        return self._call("llamactl_answer_feed", handle, text, len(text), is_partial)

    # --- how they are called ---

    def _call(self, name: str, *arguments: Any) -> bytes:
        size = ctypes.c_size_t()
        answer = self._pop_text(getattr(self._library, name)(*arguments, ctypes.byref(size)), size)
        _raise_error(answer)
        return answer

    def _open(self, name: str, *arguments: Any) -> int:
        size, error = ctypes.c_size_t(), ctypes.c_void_p()
        handle = getattr(self._library, name)(*arguments, ctypes.byref(error), ctypes.byref(size))
        if not handle:
            _raise_error(self._pop_text(error.value, size))
            raise ChatLibraryError("failed", "the library gives no reason")
        return int(handle)

    def _pop_text(self, text: int | None, size: ctypes.c_size_t) -> bytes:
        if not text:
            raise ChatLibraryError("memory", "out of memory")
        try:
            return ctypes.string_at(text, size.value)
        finally:
            self._library.llamactl_chat_free(text)

    def _check(self, path: Path) -> None:
        found = msgspec.json.decode(self._library.llamactl_chat_describe(), type=_Description)
        here, version = read_version(), _read_llama_version()
        if found.llama_cpp_python != here:
            raise _refuse(f"it was built for llama-cpp-python {found.llama_cpp_python}, here is {here}")
        if found.llama_cpp != version:
            raise _refuse(f"it was built for llama.cpp {found.llama_cpp}, here is {version}")
        if found.source != compute_source_id():
            raise _refuse(f"{path} was built by another version of llamactl")


def _open(path: Path) -> Any:
    if not path.exists():
        raise _refuse(f"{path} is not there")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise _refuse(str(error)) from None


def _read_llama_version() -> str:
    try:
        tell = llama._lib.llama_version
    except AttributeError:
        return "older"
    tell.restype, tell.argtypes = ctypes.c_char_p, []
    return str(tell().decode(errors="replace"))


def _raise_error(answer: bytes) -> None:
    if answer.startswith(b'{"error"'):
        failure = _decode_answer(answer).error
        if failure is not None:
            raise ChatLibraryError(failure.kind, failure.message)


def _refuse(reason: str) -> LlamactlError:
    return LlamactlError(ErrorCode.NOT_SUPPORTED, f"cannot load llama.cpp's chat layer: {reason}", hint=_HINT)
