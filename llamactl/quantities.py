"""How many bytes is "1 GiB", and how many seconds is "1min 30s"?

Sizes and times are written as systemd writes them: K, M, G are powers of 1024 (as are KiB, MiB, GiB), and times add
up from parts with units. "GB" is refused rather than guessed: it means 1000^3 to some and 1024^3 to others, and
whoever counts memory must know which. Numbers without a unit are bytes and seconds. All functions raise ValueError
with a sentence that completes "cannot use X: ...".
"""

import math
import re

MAX_SIZE_BYTES = (1 << 63) - 1
MAX_DURATION_S = 10 * 365 * 86400.0
NEVER = "infinity"

_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)")
_SIZE_EXAMPLE = "a number of bytes or a text like '512 MiB' or '8G'"
_FACTORS = {"": 1, "B": 1} | {
    spelling: 1024**power
    for power, letter in enumerate("KMGTPE", start=1)
    for spelling in (letter, f"{letter}iB", f"{letter}i")
}
_DECIMAL = {f"{letter}B" for letter in "KMGTPE"} | {"kB"}

_PART = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-zµμ]*)")
_DURATION_EXAMPLE = "a number of seconds or a text like '90s' or '1min 30s'"
_SECONDS = {
    seconds: words.split()
    for seconds, words in {
        1e-6: "us usec µs μs",
        1e-3: "ms msec",
        1.0: "s sec second seconds",
        60.0: "m min minute minutes",
        3600.0: "h hr hour hours",
        86400.0: "d day days",
        604800.0: "w week weeks",
        2629800.0: "M month months",
        31557600.0: "y year years",
    }.items()
}
_UNITS = {"": 1.0} | {word: seconds for seconds, words in _SECONDS.items() for word in words}


def parse_size(value: object) -> int:
    """Bytes of an integer or of a text with a unit."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"must be {_SIZE_EXAMPLE}")
    if isinstance(value, int):
        size = value
    else:
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"must be {_SIZE_EXAMPLE}")
        number, unit = match.groups()
        if unit in _DECIMAL:
            letter = unit[0].upper()
            raise ValueError(f"{unit} may mean 1000 or 1024 to a step; write {letter}iB or {letter} (steps of 1024)")
        if unit not in _FACTORS:
            raise ValueError(f"{unit!r} is no unit of size; use K, M, G or KiB, MiB, GiB (steps of 1024)")
        factor = _FACTORS[unit]
        size = int(float(number) * factor) if "." in number else int(number) * factor
    if not 0 <= size <= MAX_SIZE_BYTES:
        raise ValueError("must be 0 or more, and below 8 EiB")
    return size


def parse_duration(value: object) -> float:
    """Seconds of a number or of a text in systemd's spelling; math.inf for "infinity"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be {_DURATION_EXAMPLE}")
    if isinstance(value, str):
        if value.strip() == NEVER:
            return math.inf
        seconds = _add_parts(value.strip())
    elif isinstance(value, int):
        seconds = float(max(-1, min(value, 1 << 60)))  # float() of an arbitrarily large integer would raise
    else:
        seconds = value
    if seconds == math.inf:
        return seconds
    if not 0 <= seconds <= MAX_DURATION_S:
        raise ValueError("must be 0 or more, and at most ten years")
    return seconds


def _add_parts(text: str) -> float:
    position, seconds = 0, 0.0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise ValueError(f"must be {_DURATION_EXAMPLE}")
        number, unit = match.groups()
        if unit not in _UNITS:
            raise ValueError(f"{unit!r} is no unit of time; use ms, s, min, h, d")
        seconds += float(number) * _UNITS[unit]
        position = match.end()
    if not text:
        raise ValueError(f"must be {_DURATION_EXAMPLE}")
    return seconds


def format_size(size_bytes: int) -> str:
    """A size as `parse_size` reads it back without loss."""
    for power, letter in reversed(list(enumerate("KMGTPE", start=1))):
        if size_bytes and size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power} {letter}iB"
    return str(size_bytes)


def format_duration(seconds: float) -> str:
    """A time as `parse_duration` reads it back, in the largest unit that needs no fraction."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"
