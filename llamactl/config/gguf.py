"""Is a model file whole? Most that are not were cut by a download, and every part of a GGUF file says where it is.

Only the head is read: metadata and the list of tensors with their places. A file that ends before its last tensor
begins is cut; within the last tensor llama.cpp finds out. What is not understood is left to llama.cpp as well.
"""

import mmap
import struct
from pathlib import Path

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_MAX_PAIRS, _MAX_TENSORS = 100_000, 1_000_000
_ALIGNMENT = b"general.alignment"

# ggml's gguf.h: enum gguf_type, in bytes.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9


class _NotUnderstood(Exception):
    """Nothing is said of it."""


class _Reader:
    """Walks through a file. struct.error, OverflowError: it ends too early."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = len(MAGIC)

    def take_uint32(self) -> int:
        self.position += 4
        return int(struct.unpack_from("<I", self._data, self.position - 4)[0])

    def take_uint64(self) -> int:
        self.position += 8
        return int(struct.unpack_from("<Q", self._data, self.position - 8)[0])

    def take_string(self) -> bytes:
        length = self.take_uint64()
        start, self.position = self.position, self.position + length
        return self._data[start : self.position]

    def skip_strings(self, count: int) -> None:
        """A vocabulary has hundreds of thousands."""
        unpack, data, position = struct.Struct("<Q").unpack_from, self._data, self.position
        for _ in range(count):
            position += 8 + unpack(data, position)[0]
        self.position = position

    def skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self.skip_strings(1)
        elif kind == _ARRAY:
            element, count = self.take_uint32(), self.take_uint64()
            if element == _STRING:
                self.skip_strings(count)
            else:
                self.position += _measure(element) * count
        else:
            self.position += _measure(kind)


def find_fault(path: Path) -> str:
    """Why a file that begins like a GGUF file is none that llama.cpp reads; empty where nothing is wrong with its head.
    Raises OSError.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _find_fault(_Reader(data), len(data))
        except (struct.error, OverflowError):
            return f"it is cut: its {len(data):,} bytes end within its head; the download did not finish"
        except _NotUnderstood:
            return ""


def _find_fault(reader: _Reader, size: int) -> str:
    version = reader.take_uint32()
    if version >> 24 and not version & 0xFFFF:
        return "it is for machines with the other order of bytes"
    if version not in VERSIONS:
        return f"it is of GGUF version {version}, llama.cpp reads {VERSIONS[0]} and {VERSIONS[-1]}"
    n_tensors, n_pairs = reader.take_uint64(), reader.take_uint64()
    if n_tensors > _MAX_TENSORS or n_pairs > _MAX_PAIRS:
        raise _NotUnderstood
    alignment = 32
    for _ in range(n_pairs):
        key, kind = reader.take_string(), reader.take_uint32()
        if key == _ALIGNMENT and kind == _UINT32:
            alignment = reader.take_uint32()
        else:
            reader.skip_value(kind)
    last = -1
    for _ in range(n_tensors):
        reader.take_string()
        n_dimensions = reader.take_uint32()
        reader.position += 8 * n_dimensions + 4  # and the type
        last = max(last, reader.take_uint64())
    begin = reader.position + -reader.position % max(1, alignment) + last
    if n_tensors and begin >= size:
        return f"it is cut: it has {size:,} bytes, its last part begins after {begin:,}; the download did not finish"
    return ""


def _measure(kind: int) -> int:
    if kind not in _SIZES:
        raise _NotUnderstood
    return _SIZES[kind]
