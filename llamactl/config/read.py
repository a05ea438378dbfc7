"""How does a configuration file become a TOML table, when anything at all may lie under its name?

Every failure is one Problem; nothing raises. A FIFO under the name would block the supervisor for ever, so files are
opened without blocking and must be regular. Hidden files and other suffixes in `models.d` are left alone: editors and
package managers put their copies there.
"""

import errno
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from llamactl.settings import Problem

MAX_FILE_BYTES = 1 << 20
MAX_KEY_PARTS = 100
# tomllib takes memory by the square of a dotted key's parts. Written so that no text is looked at twice.
_DEEP_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}""")
_LINE_COLUMN = re.compile(r"line (\d+), column (\d+)")


class UnreadableError(Exception):
    """Why a file cannot be read: `reason` completes "cannot read FILE: ...", `where` is a line or empty."""

    def __init__(self, reason: str, where: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where


def describe_os_error(error: OSError | ValueError) -> str:
    """One phrase, without the path and the number."""
    if not isinstance(error, OSError):
        return "not a path"
    if error.errno == errno.ELOOP:
        return "its symlinks form a loop"
    return (error.strerror or str(error) or "error").lower()


def read_text(path: Path | str) -> str:
    """The text of a regular file of at most 1 MiB. Raises UnreadableError, also FileNotFoundError where nothing has
    that name.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        if os.path.islink(path):
            raise UnreadableError(f"is a symlink to {os.readlink(path)!r}, which does not exist") from None
        raise
    except (OSError, ValueError) as error:
        raise UnreadableError(describe_os_error(error)) from None
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise UnreadableError("is a directory, not a file")
        if not stat.S_ISREG(mode):
            raise UnreadableError("is not a regular file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnreadableError(describe_os_error(error)) from None
    finally:
        os.close(fd)
    if len(data) > MAX_FILE_BYTES:
        raise UnreadableError(f"is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnreadableError(f"byte 0x{data[error.start]:02x} is not UTF-8", f"line {line}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text. Raises UnreadableError."""
    if deep := _DEEP_KEY.search(text):
        where = f"line {text.count(chr(10), 0, deep.start()) + 1}"
        raise UnreadableError(f"a dotted key has more than {MAX_KEY_PARTS} parts", where)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UnreadableError("not TOML: nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        message, _, place = str(error).rstrip(")").rpartition(" (at ")
        match = _LINE_COLUMN.fullmatch(place)
        line, column = match.groups() if match else (str(text.rstrip("\n").count("\n") + 1), "")
        where = f"at column {column}" if column else "at the end of the file"
        raise UnreadableError(f"not TOML: {message[:200]}, {where}", f"line {line}") from None
    except ValueError:  # from int(), which takes no more than 4300 digits
        raise UnreadableError("not TOML: a number has too many digits") from None


def read_toml(path: Path, problems: list[Problem]) -> dict[str, Any] | None:
    """The table of a file; {} where there is none; None, and a Problem, where it cannot be read."""
    try:
        return parse_toml(read_text(path))
    except FileNotFoundError:
        return {}
    except UnreadableError as error:
        message = error.reason if error.where else f"cannot read the file: {error.reason}"
        problems.append(Problem(file=str(path), where=error.where, message=message))
        return None


def list_model_files(directory: Path, problems: list[Problem]) -> list[Path] | None:
    """The `*.toml` of a directory, by name; none where it does not exist; None, with a Problem, if unreadable."""
    try:
        names = sorted(os.listdir(directory), key=os.fsencode)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        problems.append(
            Problem(file=str(directory), where="", message=f"cannot read the directory: {describe_os_error(error)}")
        )
        return None
    return [directory / name for name in names if name.endswith(".toml") and not name.startswith(".")]
