"""Which models lie in the directories that [directories.LABEL] tables name?

Each file becomes a model of its own, named after the file, unless a table names it already. What belongs to a model
(its other shards, its projector, its draft) is found by `discover`.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llamactl.config.assemble import Draft, make_draft
from llamactl.config.companions import Heads, list_names
from llamactl.config.discover import Found, Places, find_models, list_undecided, sort_files
from llamactl.config.read import describe_os_error
from llamactl.config.toml_tables import Place
from llamactl.config.walk import MAX_ENTRIES, Walk, walk_directory
from llamactl.escape import escape_text
from llamactl.settings import FoundModels, Problem


@dataclass(frozen=True)
class DirectoryTable:
    """A [directories.LABEL] table."""

    place: Place
    path: str
    prefix: str
    recursive: bool
    fields: dict[str, Any]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Contents:
    """What lies in a directory. `root` empty: it could not be read."""

    directory: DirectoryTable
    root: str = ""
    walk: Walk = field(default_factory=Walk)
    places: Places = field(default_factory=dict)

    def list_models(self) -> list[str]:
        """Paths below the root, of first shards only."""
        return [model.path for place in self.places.values() for model in place.models.values()]

    def list_undecided(self) -> list[str]:
        """Paths of files whose heads decide what belongs together."""
        return [os.path.join(self.root, path) for path in list_undecided(self.places)]


def read_directory(directory: DirectoryTable, problems: list[Problem]) -> Contents:
    """Read what lies in a directory; what is wrong with it or its table is told."""
    problems += directory.problems
    try:
        root = os.path.realpath(directory.path, strict=True)
        walk = walk_directory(root, directory.recursive, MAX_ENTRIES)
    except (OSError, ValueError) as error:
        message = f"cannot read the directory {directory.path!r}: {describe_os_error(error)}"
        problems.append(directory.place.report(message, "path"))
        return Contents(directory)
    return Contents(directory, root, walk, sort_files(walk.folders))


def report_unread(directories: Sequence[DirectoryTable], paths: Sequence[str]) -> list[Problem]:
    """Report that the heads of these files could not be read, which makes no model invalid."""
    if not paths:
        return []
    message = f"the child that reads heads of model files did not come to {list_names(list(map(repr, paths)))}"
    hint = "names alone decide which projectors and drafts belong to them"
    return [directories[0].place.report(message, hint=hint, fatal=False)]


def find_drafts(
    contents: Contents, heads: Heads, named_paths: Collection[str], problems: list[Problem]
) -> list[tuple[Draft, Found]]:
    """The models of a directory that no table names, and what is to be said of it."""
    directory, root, place = contents.directory, contents.root, contents.directory.place
    if not root:
        return []
    findings = find_models(contents.places, {os.path.relpath(path, root): head for path, head in heads.items()})
    for path, why in contents.walk.unreadable:
        problems.append(place.report(f"cannot read the directory {os.path.join(root, path)!r}: {why}", fatal=False))
    for path, remark in findings.remarks:
        problems.append(place.report(f"{os.path.join(root, path)!r} {remark}", fatal=False))
    if contents.walk.is_cut:
        message = f"{directory.path!r} has more than {MAX_ENTRIES:,} entries: the rest was not looked at"
        problems.append(place.report(message, "path", "name the directories that hold models", fatal=False))
    elif not findings.models:
        where = "; its subdirectories are not looked into (recursive = false)" if contents.walk.has_more else ""
        problems.append(place.report(f"there are no GGUF files in {directory.path!r}{where}", "path", fatal=False))
    return [
        (_make_draft(directory, root, found), found)
        for found in findings.models
        if resolve_quietly(os.path.join(root, found.path)) not in named_paths
    ]


def describe_found(
    contents: Contents, drafts: Sequence[tuple[Draft, Found]], named_paths: Mapping[str, str]
) -> list[FoundModels]:
    """Also what tables name has been found: it is told under the name that they give it."""
    if not contents.root:
        return []
    places: dict[str, list[str]] = {}
    for draft, found in drafts:
        places.setdefault(os.path.dirname(found.path), []).append(draft.name)
    for path in contents.list_models():
        name = named_paths.get(resolve_quietly(os.path.join(contents.root, path)))
        if name is not None and name not in places.setdefault(os.path.dirname(path), []):
            places[os.path.dirname(path)].append(name)
    return [FoundModels(path=contents.root, places={path: tuple(names) for path, names in places.items()})]


def _make_draft(directory: DirectoryTable, root: str, found: Found) -> Draft:
    name = directory.prefix + found.name
    place = Place(directory.place.file, directory.place.table, escape_text(name))
    companions = {"mmproj": found.mmproj, "draft": found.draft}
    path = os.path.join(root, found.path)
    fields = directory.fields | {"path": path}
    fields |= {kind: os.path.join(root, name) for kind, name in companions.items() if name}
    draft = make_draft(name, place, fields, [], found=True)
    if directory.problems:
        first = directory.problems[0]
        draft.problems.append(
            Problem(file=first.file, where=first.where, message=first.message, hint=first.hint, model=name)
        )
    elif found.missing:
        del fields["path"]
        draft.problems.append(place.report(f"cannot use {path!r}: {found.missing}"))
    return draft


def resolve_quietly(path: object) -> str:
    """Resolve links of a path; empty for what is none, or cannot be resolved."""
    try:
        return os.path.realpath(path) if isinstance(path, str) else ""
    except (OSError, ValueError):
        return ""
