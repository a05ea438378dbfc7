"""What does the head of a model file say: is the file whole, and with which other files does it fit together?

Only the head is read: metadata and the list of tensors with their places. A file that ends before its last tensor
begins is cut, as downloads leave them; within the last tensor llama.cpp finds out. What is not understood is left to
llama.cpp as well.
"""

import errno
import mmap
import os
import re
import stat
import struct
from pathlib import Path
from typing import BinaryIO

import msgspec

MAGIC = b"GGUF"
VERSIONS = (2, 3)
BEGINNING_BYTES = 64
"""Of a file, to tell whether it is one at all."""
_MAX_PAIRS, _MAX_TENSORS, _MAX_DIMENSIONS = 100_000, 1_000_000, 4
_MAX_TEXT_BYTES, _MAX_TEXTS = 16 << 20, 4_000_000
"""Of one text that is looked at, and of all texts of a head: more is made up to keep a reader busy."""
_ALIGNMENT = b"general.alignment"

# ggml's gguf.h: enum gguf_type, in bytes.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_INTEGERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 10: "<Q", 11: "<q"}

_PROJECTION = re.compile(r"clip\.(vision\.|audio\.)?projection_dim")
_PROJECTOR = re.compile(r"clip\.(vision\.|audio\.)?projector_type")
_NAME = re.compile(r"general\.(base_model\.\d+\.)?name")
_OUTPUTS = {
    "mlp": {"mm.2.weight": 1, "mm.3.bias": 0},
    "ldp": {"mm.model.mb_block.1.block.2.1.bias": 0},
    "ldpv2": {"mm.model.peg.0.bias": 0},
    "resampler": {"resampler.proj.weight": 0},
    "adapter": {"adapter.linear.dense_4h_to_h.weight": 1},
}
"""Which dimension of which tensor is the projector's width, as clip_n_mmproj_embd() in llama.cpp's tools/mtmd/clip.cpp
has it. Of the kinds whose converters wrote something else as projection_dim; of all others that key is right.
"""


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a file says that others must agree with."""

    architecture: str = ""
    """`clip`: a multimodal projector."""
    width: int = 0
    """Of the model's embeddings; 0: not said."""
    names: tuple[str, ...] = ()
    """Of the model, and of those that it was made from."""
    projectors: tuple[str, ...] = ()
    """llama.cpp's words for the kinds of projector in the file."""
    projector_widths: tuple[int, ...] = ()
    """Of the embeddings that they make."""
    tokenizer: str = ""
    n_tokens: int = 0


class _NotUnderstood(Exception):
    """Nothing is said of it."""


class _Reader:
    """Walks through a file. struct.error, OverflowError: it ends too early."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._n_texts = 0
        self.position = len(MAGIC)

    def consume_uint32(self) -> int:
        self.position += 4
        return int(struct.unpack_from("<I", self._data, self.position - 4)[0])

    def consume_uint64(self) -> int:
        self.position += 8
        return int(struct.unpack_from("<Q", self._data, self.position - 8)[0])

    def consume_integer(self, kind: int) -> int:
        self.position += _SIZES[kind]
        return int(struct.unpack_from(_INTEGERS[kind], self._data, self.position - _SIZES[kind])[0])

    def consume_string(self) -> bytes:
        length = self.consume_uint64()
        if length > _MAX_TEXT_BYTES:
            raise _NotUnderstood
        start, self.position = self.position, self.position + length
        return self._data[start : self.position]

    def skip_strings(self, count: int) -> None:
        """A vocabulary has hundreds of thousands."""
        self._n_texts += count
        if self._n_texts > _MAX_TEXTS:
            raise _NotUnderstood
        unpack, data, position = struct.Struct("<Q").unpack_from, self._data, self.position
        for _ in range(count):
            position += 8 + unpack(data, position)[0]
        self.position = position

    def skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self.skip_strings(1)
        elif kind == _ARRAY:
            self.skip_array()
        else:
            self.position += _measure(kind)

    def skip_array(self) -> int:
        """Go past an array; how many elements it has."""
        element, count = self.consume_uint32(), self.consume_uint64()
        if element == _STRING:
            self.skip_strings(count)
        else:
            self.position += _measure(element) * count
        return count


def open_regular(path: str | Path) -> BinaryIO:
    """A regular file. Raises OSError for all else, and waits for no FIFO's other end."""
    file = open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file")
    return file


def judge_beginning(head: bytes) -> str:
    """Why a file that begins so is no GGUF file; empty: it may be one."""
    if not head:
        return "it is empty"
    if head.startswith(MAGIC):
        return ""
    if head.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS, not the file itself; run `git lfs pull`"
    if head.lstrip()[:1] == b"<":
        return "it is a web page; the download went wrong"
    return f"it is no GGUF file: it starts with {head[:4]!r}, not {MAGIC!r}"


def acquire_head(path: Path) -> Head | None:
    """What `read_head` finds in a file. Raises OSError."""
    with open_regular(path) as file:
        return read_head(file.fileno())


def read_head(descriptor: int) -> Head | None:
    """The head of a GGUF file that is open; None for other files, and for one that is not understood."""
    try:
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
            return _read_head(_Reader(data)) if data[: len(MAGIC)] == MAGIC else None
    except (ValueError, OSError):  # it cannot be mapped
        return None
    except (struct.error, OverflowError, _NotUnderstood):
        return None


def _read_head(reader: "_Reader") -> Head:
    n_tensors, n_pairs = _read_counts(reader)
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for _ in range(n_pairs):
        key, kind = reader.consume_string().decode("utf-8", "replace"), reader.consume_uint32()
        if kind == _STRING and key.startswith(("general.", "clip.", "tokenizer.ggml.model")):
            texts[key] = reader.consume_string().decode("utf-8", "replace")
        elif kind in _INTEGERS:
            numbers[key] = reader.consume_integer(kind)
        elif key == "tokenizer.ggml.tokens" and kind == _ARRAY:
            numbers[key] = reader.skip_array()
        else:
            reader.skip_value(kind)
    projectors = tuple(dict.fromkeys(text for key, text in texts.items() if _PROJECTOR.fullmatch(key)))
    widths = [number for key, number in numbers.items() if _PROJECTION.fullmatch(key)]
    if any(projector in _OUTPUTS for projector in projectors):
        widths = _read_outputs(reader, n_tensors, projectors) or widths
    architecture = texts.get("general.architecture", "")
    return Head(
        architecture=architecture,
        width=numbers.get(f"{architecture}.embedding_length", 0),
        names=tuple(dict.fromkeys(text for key, text in texts.items() if _NAME.fullmatch(key) and text)),
        projectors=projectors,
        projector_widths=tuple(dict.fromkeys(widths)),
        tokenizer=texts.get("tokenizer.ggml.model", ""),
        n_tokens=numbers.get("tokenizer.ggml.tokens", 0),
    )


def _read_outputs(reader: "_Reader", n_tensors: int, projectors: tuple[str, ...]) -> list[int]:
    outputs = {name: index for projector in projectors for name, index in _OUTPUTS.get(projector, {}).items()}
    widths = []
    for _ in range(n_tensors):
        name = reader.consume_string().decode("utf-8", "replace")
        dimensions = [reader.consume_uint64() for _ in range(min(reader.consume_uint32(), _MAX_DIMENSIONS))]
        reader.position += 4 + 8  # type and place
        if name in outputs and outputs[name] < len(dimensions):
            widths.append(dimensions[outputs[name]])
    return widths


def acquire_text(path: str, wanted: str) -> str | None:
    """One text of a file's metadata; None where there is none, or the file is not understood. Raises OSError."""
    with open_regular(path) as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                if data[: len(MAGIC)] != MAGIC:
                    return None
                reader = _Reader(data)
                for _ in range(_read_counts(reader)[1]):
                    key, kind = reader.consume_string(), reader.consume_uint32()
                    if key == wanted.encode() and kind == _STRING:
                        return reader.consume_string().decode("utf-8", "replace")
                    reader.skip_value(kind)
        except (ValueError, struct.error, OverflowError, _NotUnderstood):  # the first: it cannot be mapped
            return None
    return None


def find_fault(path: Path) -> str:
    """Why a file that begins like a GGUF file is none that llama.cpp reads; empty where nothing is wrong with its head.
    Raises OSError.
    """
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _find_fault(_Reader(data), len(data))
        except (struct.error, OverflowError):
            return f"it is cut: its {len(data):,} bytes end within its head; the download did not finish"
        except _NotUnderstood:
            return ""


def _find_fault(reader: _Reader, size: int) -> str:
    version = reader.consume_uint32()
    if version >> 24 and not version & 0xFFFF:
        return "it is for machines with the other order of bytes"
    if version not in VERSIONS:
        return f"it is of GGUF version {version}, llama.cpp reads {VERSIONS[0]} and {VERSIONS[-1]}"
    n_tensors, n_pairs = _consume_counts(reader)
    alignment = 32
    for _ in range(n_pairs):
        key, kind = reader.consume_string(), reader.consume_uint32()
        if key == _ALIGNMENT and kind == _UINT32:
            alignment = reader.consume_uint32()
        else:
            reader.skip_value(kind)
    last = -1
    for _ in range(n_tensors):
        reader.consume_string()
        n_dimensions = reader.consume_uint32()
        reader.position += 8 * n_dimensions + 4  # and the type
        last = max(last, reader.consume_uint64())
    begin = reader.position + -reader.position % max(1, alignment) + last
    if n_tensors and begin >= size:
        return f"it is cut: it has {size:,} bytes, its last part begins after {begin:,}; the download did not finish"
    return ""


def _read_counts(reader: _Reader) -> tuple[int, int]:
    if reader.consume_uint32() not in VERSIONS:
        raise _NotUnderstood
    return _consume_counts(reader)


def _consume_counts(reader: _Reader) -> tuple[int, int]:
    """Of tensors, and of metadata pairs."""
    n_tensors, n_pairs = reader.consume_uint64(), reader.consume_uint64()
    if n_tensors > _MAX_TENSORS or n_pairs > _MAX_PAIRS:
        raise _NotUnderstood
    return n_tensors, n_pairs


def _measure(kind: int) -> int:
    if kind not in _SIZES:
        raise _NotUnderstood
    return _SIZES[kind]
