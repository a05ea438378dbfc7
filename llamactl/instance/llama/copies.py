"""Is each library of llama.cpp in this process once? Two copies have two registries of devices, and what one has made
crashes in the other.

The linker knows a library that is needed by its SONAME, and one that is opened by a path by its file: wheels hold the
same library as several files, and wheels that were repaired hold it under names with a hash. So a library that needs
others is opened only if all of those are here already, and what is mapped tells afterwards whether that was enough.
"""

import ctypes
import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path

from llamactl.errors import ErrorCode, LlamactlError

_OURS = re.compile(r"(lib(?:llama|ggml|mtmd)[\w-]*?)(?:-[0-9a-f]{8})?\.so[.\d]*\Z")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5
_HEADER, _SEGMENT, _ENTRY = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ"), struct.Struct("<qQ")
_MAX_NAME = 256


def find_copies(maps: Iterable[str]) -> dict[str, list[str]]:
    """Of the lines of /proc/PID/maps: libraries of llama.cpp that are mapped from more than one file, with these."""
    files: dict[str, dict[str, None]] = {}
    for line in maps:
        path = line.rstrip("\n").split(maxsplit=5)[-1]
        found = _OURS.fullmatch(path.rpartition("/")[2])
        if found is not None and path.startswith("/"):
            files.setdefault(found[1], {})[path] = None
    return {name: list(paths) for name, paths in files.items() if len(paths) > 1}


def check_copies() -> None:
    """Raises LlamactlError(INTERNAL) that names the files."""
    with open("/proc/self/maps") as maps:
        copies = find_copies(maps)
    if copies:
        name, paths = next(iter(copies.items()))
        raise LlamactlError(
            ErrorCode.INTERNAL, f"cannot use {name}: this process has it twice, from {' and '.join(paths)}"
        )


def needs_only_what_is_here(path: Path) -> bool:
    """Whether opening this library brings no other one of llama.cpp's."""
    try:
        needed = read_needed(path)
    except (OSError, ValueError, struct.error):
        return False
    return all(_is_loaded(name) for name in needed if _OURS.fullmatch(name))


def _is_loaded(soname: str) -> bool:
    try:
        ctypes.CDLL(soname, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


def read_needed(path: Path) -> list[str]:
    """The SONAMEs that a 64-bit ELF library needs (elf(5)). Raises OSError, ValueError, struct.error."""
    with path.open("rb") as file:

        def read(place: int, size: int) -> bytes:
            file.seek(place)
            return file.read(size)

        header = _HEADER.unpack(read(0, _HEADER.size))
        if header[0][:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is no 64-bit ELF file")
        first, size, count = header[5], header[9], header[10]
        segments = [_SEGMENT.unpack(read(first + size * index, _SEGMENT.size)) for index in range(count)]
        dynamic = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
        if dynamic is None:
            return []
        entries = []
        for tag, value in _ENTRY.iter_unpack(read(dynamic[2], dynamic[5] // _ENTRY.size * _ENTRY.size)):
            if tag == _DT_NULL:
                break
            entries.append((tag, value))
        table = next((value for tag, value in entries if tag == _DT_STRTAB), 0)
        # It is an address of memory; the segment that will lie there tells where it lies in the file.
        place = next(
            (
                table - segment[3] + segment[2]
                for segment in segments
                if segment[0] == _PT_LOAD and segment[3] <= table < segment[3] + segment[5]
            ),
            None,
        )
        if place is None:
            return []
        names = [read(place + value, _MAX_NAME) for tag, value in entries if tag == _DT_NEEDED]
        return [name.partition(b"\0")[0].decode(errors="replace") for name in names]
