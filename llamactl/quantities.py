"""How many bytes is "1 GiB", how many seconds is "1min 30s", and how do people read either?

Sizes and times are written as systemd writes them: K, M, G are powers of 1024 (as are KiB, MiB, GiB), and times add
up from parts with units. "GB" is refused rather than guessed: it means 1000^3 to some and 1024^3 to others, and
whoever counts memory must know which. Numbers without a unit are bytes and seconds. All that parse raise ValueError
with a sentence that completes "cannot use X: ...".

What people read is rounded in one way wherever it stands (journal, messages, tables): three significant figures. What
must be read back without loss (`format_size`, `format_duration`) is not rounded.
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


def scan_size(text: str) -> tuple[float | int, str] | None:
    """Number and unit of a size, as both stand there; None where it is none."""
    match = _SIZE.fullmatch(text.strip())
    return (float(match[1]) if "." in match[1] else int(match[1]), match[2]) if match else None


def get_size_factor(unit: str) -> int | None:
    """Bytes in one unit of size (`K`, `KiB`, `Ki`, `B` or none); None for others, and for `KB`, which may mean two."""
    return _FACTORS.get(unit)


def scan_duration(text: str) -> float | None:
    """Seconds of parts with units; None where it is no time. Raises ValueError for a unit that is none."""
    position, seconds = 0, 0.0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            return None
        number, unit = match.groups()
        if unit not in _UNITS:
            raise ValueError(f"{unit!r} is no unit of time; use ms, s, min, h, d")
        seconds += float(number) * _UNITS[unit]
        position = match.end()
    return seconds if text else None


def parse_size(value: object) -> int:
    """Bytes of an integer or of a text with a unit."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"must be {_SIZE_EXAMPLE}")
    if isinstance(value, int):
        size = value
    else:
        scanned = scan_size(value)
        if scanned is None:
            raise ValueError(f"must be {_SIZE_EXAMPLE}")
        number, unit = scanned
        if unit in _DECIMAL:
            letter = unit[0].upper()
            raise ValueError(f"{unit} may mean 1000 or 1024 to a step; write {letter}iB or {letter} (steps of 1024)")
        factor = get_size_factor(unit)
        if factor is None:
            raise ValueError(f"{unit!r} is no unit of size; use K, M, G or KiB, MiB, GiB (steps of 1024)")
        size = int(number * factor)
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
        scanned = scan_duration(value.strip())
        if scanned is None:
            raise ValueError(f"must be {_DURATION_EXAMPLE}")
        seconds = scanned
    elif isinstance(value, int):
        seconds = float(max(-1, min(value, 1 << 60)))  # float() of an arbitrarily large integer would raise
    else:
        seconds = value
    if seconds == math.inf:
        return seconds
    if not 0 <= seconds <= MAX_DURATION_S:
        raise ValueError("must be 0 or more, and at most ten years")
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


def format_bytes(size: int) -> str:
    """A size for people: three significant figures in powers of 1024, as in "272 MiB" and "5.21 GiB"."""
    if abs(size) < 1024:
        return f"{size} B"
    value, power = size / 1024, 0
    while abs(value) >= 999.5 and power < 4:
        value, power = value / 1024, power + 1
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {'KMGTP'[power]}iB"


def format_seconds(seconds: float) -> str:
    """A time for people, in seconds alone, so that two can be compared: "0.8 s", "412 s"."""
    return f"{seconds:.3g} s" if abs(seconds) < 100 else f"{seconds:.0f} s"


def format_span(seconds: float) -> str:
    """A time for people in its two largest units, as systemd writes them: "2min 3s"; fractions below ten seconds."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    rest = round(seconds)
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if rest >= size:
            parts.append(f"{rest // size}{unit}")
            rest %= size
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)
