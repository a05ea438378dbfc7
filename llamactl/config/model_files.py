"""Which files belong to a model, given one path?

llama.cpp splits large models into `NAME-00001-of-00003.gguf` and so on; all of them must be there. Everything is
resolved to real paths, since a unit gets the real directories bound into its view and symlinks that lead elsewhere
would dangle there. Where shards are links to files of other names, as in Hugging Face's cache, llama.cpp must be given
the links: then the directories of both are bound, and the way between them must need no other. Only names and file
types are looked at, never contents: this runs in the supervisor.
"""

import os
import re
import stat
from dataclasses import dataclass

from llamactl.config.read import describe_os_error

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf", re.IGNORECASE)


class FilesError(Exception):
    """Why a path names no usable model; the text completes "cannot use 'PATH': ..."."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True)
class Shard:
    """What the name of a shard says."""

    stem: str
    number: int
    total: int


def parse_shard(name: str) -> Shard | None:
    """The parts of a shard's file name, None for other files."""
    match = _SHARD.fullmatch(name)
    return Shard(match["stem"], int(match["number"]), int(match["total"])) if match else None


def format_shard(shard: Shard, number: int, suffix: str = ".gguf") -> str:
    """The file name of another shard of the same model."""
    return f"{shard.stem}-{number:05}-of-{shard.total:05}{suffix}"


def parse_model_stem(name: str) -> str | None:
    """The name of the model in a GGUF file: without suffix and shard number. None for other files."""
    if not name.lower().endswith(".gguf") or len(name) == 5:
        return None
    shard = parse_shard(name)
    return shard.stem if shard else name[:-5]


def resolve_file(path: str) -> str:
    """The real path of a regular file. Raises FilesError."""
    try:
        real = os.path.realpath(path, strict=True)
        mode = os.stat(real).st_mode
    except FileNotFoundError:
        if os.path.islink(path):
            raise FilesError(f"is a symlink to {os.readlink(path)!r}, which does not exist") from None
        raise FilesError("no such file") from None
    except (OSError, ValueError) as error:
        raise FilesError(describe_os_error(error)) from None
    if stat.S_ISDIR(mode):
        raise FilesError(
            "is a directory", "name it in a [directories.LABEL] table to get each GGUF file in it as a model"
        )
    if not stat.S_ISREG(mode):
        raise FilesError("is not a regular file")
    return real


def resolve_model(path: str) -> tuple[str, ...]:
    """The real paths of all files of the model that starts at `path`, the first shard first. Raises FilesError."""
    real = resolve_file(path)
    directory, name = os.path.split(path)
    shard = parse_shard(name)
    if shard is None:  # a plain name may still be a symlink to the first shard
        directory, name = os.path.split(real)
        shard = parse_shard(name)
    if shard is None or shard.total == 1:
        return (real,)
    if shard.number != 1:
        raise FilesError(f"is shard {shard.number} of {shard.total}", f"name the first: {format_shard(shard, 1)!r}")
    missing = find_missing_shards(shard, set(_list_names(directory)))
    if missing:
        raise FilesError(missing)
    numbers = range(1, shard.total + 1)
    names = [format_shard(shard, number, name[-5:]) for number in numbers]
    files = tuple(resolve_file(os.path.join(directory, name)) for name in names)
    if _are_shards(files):
        return files
    links = tuple(os.path.join(os.path.realpath(directory), name) for name in names)
    for link in links:
        _check_way(link)
    return tuple(dict.fromkeys((*links, *files)))


def _are_shards(files: tuple[str, ...]) -> bool:
    """Whether llama.cpp, which gets the first file, finds the others by its name and directory."""
    directory, name = os.path.split(files[0])
    first = parse_shard(name)
    return first is not None and all(
        file == os.path.join(directory, format_shard(first, number, name[-5:]))
        for number, file in enumerate(files, start=1)
    )


def _check_way(link: str) -> None:
    """Raise FilesError unless a link leads straight to its file, through real directories only: those of a link on the
    way, and links to directories, are missing where a unit looks.
    """
    if not os.path.islink(link):
        return
    target = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
    if target != os.path.realpath(link):
        raise FilesError(
            f"its shard {link!r} is a symlink that leads to its file by way of others, which no unit of a model sees",
            "replace the symlinks by the files: cp -rL, or hard links",
        )


def find_missing_shards(shard: Shard, names: set[str]) -> str:
    """A sentence that names the shards which are not among `names`; empty when all are there."""
    present = {
        other.number
        for other in map(parse_shard, names)
        if other is not None and (other.stem, other.total) == (shard.stem, shard.total)
    }
    missing = [number for number in range(1, shard.total + 1) if number not in present]
    if not missing:
        return ""
    first = f"shard {missing[0]} of {shard.total} ({format_shard(shard, missing[0])}) is missing"
    return first + (f", and {len(missing) - 1} more" if len(missing) > 1 else "")


def _list_names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError as error:
        raise FilesError(f"cannot list its directory: {describe_os_error(error)}") from None
