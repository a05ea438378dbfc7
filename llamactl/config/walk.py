"""Which GGUF files lie below a directory, however deep, and behind which links?

Directories come level by level. Each is entered once, whatever links lead to it: links wait until everything that is
no link has been seen, so that files are known by where they lie, and one that leads to a directory above the top is
left alone, since it leads back. Hidden directories are not entered. In Hugging Face's cache only `snapshots` is, the
one that `refs/main` names first. The number of entries is bounded, since a link may lead anywhere.
"""

import os
import re
from collections import deque
from dataclasses import dataclass, field

from llamactl.config.model_files import parse_model_stem
from llamactl.config.read import UnreadableError, describe_os_error, read_text

MAX_ENTRIES = 200_000

_REPOSITORY = re.compile(r"models--(?P<labels>.+)")
_OTHER_REPOSITORY = re.compile(r"(datasets|spaces)--.+")


@dataclass(frozen=True)
class Folder:
    """A directory that holds GGUF files."""

    path: str = ""
    """Relative to the top; empty: the top itself."""
    files: dict[str, str] = field(default_factory=dict)
    """Names, sorted, with real paths."""
    links: frozenset[str] = frozenset()
    """Which of them are links."""
    repository: tuple[str, ...] = ()
    """In Hugging Face's cache: organisation and name."""
    inner: str = ""
    """There: the path within the snapshot."""


@dataclass
class Walk:
    """What was seen of a directory and those below it."""

    folders: list[Folder] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    """(relative path, why)"""
    n_entries: int = 0
    is_cut: bool = False
    """Whether there was more than may be looked at."""
    has_more: bool = False
    """Whether there are directories that were not to be entered."""


def walk_directory(root: str, recursive: bool = True, max_entries: int = MAX_ENTRIES) -> Walk:
    """Everything below `root`, which is a real path. Raises OSError for the directory itself."""
    walk = Walk()
    status = os.stat(root)
    seen = {(status.st_dev, status.st_ino)}
    waiting = deque([""])
    links: deque[str] = deque()
    while (waiting or links) and not walk.is_cut:
        path = waiting.popleft() if waiting else links.popleft()
        try:
            if path and not _is_new(os.path.join(root, path), root, seen):
                continue
            directories, linked = _list_level(root, path, walk, max_entries)
        except OSError as error:
            if not path:
                raise
            walk.unreadable.append((path, describe_os_error(error)))
            continue
        if recursive:
            waiting += directories
            links += linked
        else:
            walk.has_more = bool(directories or linked)
    return walk


def parse_repository(path: str) -> tuple[tuple[str, ...], str] | None:
    """Organisation and name, and the path within the snapshot, of a directory in Hugging Face's cache."""
    parts = path.split("/")
    for index in range(len(parts) - 2):
        match = _REPOSITORY.fullmatch(parts[index])
        if match is not None and parts[index + 1] == "snapshots":
            return tuple(match["labels"].split("--")), "/".join(parts[index + 3 :])
    return None


def _is_new(path: str, root: str, seen: set[tuple[int, int]]) -> bool:
    status = os.stat(path)
    identity = (status.st_dev, status.st_ino)
    if identity in seen:
        return False
    seen.add(identity)
    real = os.path.realpath(path)
    return not root.startswith(real if real.endswith("/") else f"{real}/")


def _list_level(root: str, path: str, walk: Walk, max_entries: int) -> tuple[list[str], list[str]]:
    """Adds a folder to `walk`; its directories, and those that are links."""
    where = os.path.join(root, path) if path else root
    real = os.path.realpath(where)
    files: dict[str, str] = {}
    links: list[str] = []
    directories: list[str] = []
    linked: list[str] = []
    with os.scandir(where) as entries:
        for entry in entries:
            walk.n_entries += 1
            if walk.n_entries > max_entries:
                walk.is_cut = True
                break
            if entry.name.startswith("."):
                continue
            is_link = entry.is_symlink()
            if _is_directory(entry):
                (linked if is_link else directories).append(entry.name)
            elif parse_model_stem(entry.name) is not None:
                files[entry.name] = os.path.realpath(entry.path) if is_link else os.path.join(real, entry.name)
                links += [entry.name] if is_link else []
    if files:
        repository, inner = parse_repository(real) or ((), "")
        walk.folders.append(Folder(path, dict(sorted(files.items())), frozenset(links), repository, inner))
    names = _choose_directories(where, directories)
    return [_join(path, name) for name in names], [_join(path, name) for name in sorted(linked)]


def _choose_directories(where: str, names: list[str]) -> list[str]:
    """Those to enter, in their order."""
    own = os.path.basename(where)
    if _REPOSITORY.fullmatch(own) and "snapshots" in names:
        return ["snapshots"]  # beside it lie blobs, which are what snapshots link to
    above = os.path.dirname(where)
    if own == "snapshots" and _REPOSITORY.fullmatch(os.path.basename(above)):
        main = _read_main(above)
        return sorted(names, key=lambda name: (name != main, -_acquire_time(os.path.join(where, name)), name))
    return sorted(name for name in names if not _OTHER_REPOSITORY.fullmatch(name))


def _read_main(repository: str) -> str:
    """The snapshot that a repository's branch `main` is at."""
    try:
        return read_text(os.path.join(repository, "refs", "main")).strip()
    except (UnreadableError, FileNotFoundError):
        return ""


def _acquire_time(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name
