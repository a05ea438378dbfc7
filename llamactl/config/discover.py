"""Which models lie below a directory, and under which names?

Each GGUF is a model named like its file; the shards of one model count once; a directory right below the top that
holds one model gives it its own name, unless that says no more than a quantization. Names that several would have grow
by the directories above until they differ. A file whose name has the word `mmproj` or `draft` is no model but the
companion of one (see companions), beside it or, where its directory is named for a quantization, in the one above. In
Hugging Face's cache all snapshots of a repository are one directory. Pure: what a walk has seen in, findings out.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from llamactl.config.companions import (
    Heads,
    Kind,
    choose_companion,
    explain_unused,
    parse_kind,
    strip_quantization,
)
from llamactl.config.model_files import Shard, find_missing_shards, format_shard, parse_model_stem, parse_shard
from llamactl.config.walk import Folder

_HASH = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Found:
    """One model in a directory. Paths are relative to it."""

    name: str
    path: str
    missing: str = ""
    """Which shards are not there; empty when the model is whole."""
    mmproj: str = ""
    draft: str = ""


@dataclass
class Findings:
    """The models of a directory, and what an administrator should know about the rest: (relative path, remark)."""

    models: list[Found] = field(default_factory=list)
    remarks: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Candidate:
    """A model before it has its name."""

    stem: str
    path: str
    real_path: str
    is_link: bool = False
    missing: str = ""


@dataclass
class Place:
    """A directory's files, by what they are. Paths are relative to the top."""

    path: str
    labels: tuple[str, ...]
    """What stands before the name of a model where that alone does not tell it from another."""
    above: object = None
    """The key of the directory that this one lies in."""
    models: dict[tuple[str, int], Candidate] = field(default_factory=dict)
    """By name and number of shards."""
    companions: dict[Kind, dict[str, str]] = field(default_factory=dict)
    """Paths by name, for each kind."""

    @property
    def is_for_quantization(self) -> bool:
        """Whether its name says nothing of the model."""
        return bool(self.path) and not strip_quantization(self.path.rpartition("/")[2])


Places = dict[object, Place]


def sort_files(folders: Sequence[Folder]) -> Places:
    """The files of all folders by what they are, in the folders' order. A file to which several links of one name lead
    counts once.
    """
    places: Places = {}
    for folder in folders:
        key, place = _make_place(folder)
        _sort_folder(folder, places.setdefault(key, place))
    ways: dict[tuple[str, str], Candidate] = {}
    for place in places.values():
        for model in place.models.values():
            known = ways.setdefault((model.stem, model.real_path), model)
            if known.is_link and not model.is_link:
                ways[model.stem, model.real_path] = model
    for place in places.values():
        place.models = {k: model for k, model in place.models.items() if ways[model.stem, model.real_path] is model}
    return places


def list_undecided(places: Places) -> list[str]:
    """Of which files the heads must be known: companions, and the models that they may belong to."""
    wanted: dict[str, None] = {}
    for place in places.values():
        companions = [path for kind in Kind for path in _list_companions(place, places, kind)]
        if place.models and companions:
            wanted |= dict.fromkeys(
                [*companions, *(model.path for model in place.models.values() if not model.missing)]
            )
    return list(wanted)


def find_models(places: Places, heads: Heads) -> Findings:
    """The models, with names and companions."""
    findings = Findings()
    names = _choose_names(places)
    used: set[str] = set()
    for place in places.values():
        stems = [model.stem for model in place.models.values()]
        for model in place.models.values():
            chosen = {
                kind: choose_companion(kind, _list_companions(place, places, kind), model.path, stems, heads)
                for kind in Kind
            }
            used |= set(chosen.values())
            findings.models.append(
                Found(names[model.path], model.path, model.missing, chosen[Kind.MMPROJ], chosen[Kind.DRAFT])
            )
    findings.remarks += _explain_rest(places, names, used, heads)
    return findings


def _make_place(folder: Folder) -> tuple[object, Place]:
    if folder.repository:
        inner = (folder.repository, folder.inner)
        above = (folder.repository, folder.inner.rpartition("/")[0]) if folder.inner else None
        labels = (*folder.repository, *(folder.inner.split("/") if folder.inner else ()))
        return inner, Place(folder.path, labels, above)
    labels = tuple(folder.path.split("/")) if folder.path else ()
    return folder.path, Place(folder.path, labels, folder.path.rpartition("/")[0] if folder.path else None)


def _sort_folder(folder: Folder, place: Place) -> None:
    """Adds what is not there yet: of two snapshots of a repository the first counts."""
    former = place.models.copy()
    for name, real_path in folder.files.items():
        path = _join(folder.path, name)
        stem, shard = parse_model_stem(name) or "", parse_shard(name)
        kind = parse_kind(name)
        if kind is not None:
            place.companions.setdefault(kind, {}).setdefault(name, path)
        elif shard is None or shard.total <= 1:
            if (stem, 1) not in former:
                # x.gguf and x.GGUF are two, and the second is told that the name is taken.
                key = (stem, 1) if (stem, 1) not in place.models else (name, 1)
                place.models[key] = Candidate(stem, path, real_path, name in folder.links)
        elif (key := (stem, shard.total)) not in place.models:
            place.models[key] = _make_sharded(folder, shard, name)


def _make_sharded(folder: Folder, shard: Shard, name: str) -> Candidate:
    first = format_shard(shard, 1, name[-5:])
    path = _join(folder.path, first)
    missing = find_missing_shards(shard, set(folder.files))
    return Candidate(shard.stem, path, folder.files.get(first, path), first in folder.links, missing)


def _list_companions(place: Place, places: Places, kind: Kind) -> list[str]:
    own = list(place.companions.get(kind, {}).values())
    above = places.get(place.above) if place.is_for_quantization and not own else None
    return own if above is None else list(above.companions.get(kind, {}).values())


def _explain_rest(places: Places, names: dict[str, str], used: set[str], heads: Heads) -> Iterator[tuple[str, str]]:
    for place in places.values():
        served = [
            other
            for other in places.values()
            if other is place or (other.is_for_quantization and places.get(other.above) is place)
        ]
        models = {model.path: names[model.path] for other in served for model in other.models.values()}
        for kind, companions in place.companions.items():
            has_other = any(path in used for path in companions.values())
            for path in companions.values():
                if path not in used:
                    yield path, f"is not used: {explain_unused(kind, path, models, has_other, heads)}"


# --- names ------------------------------------------------------------------------------------------------------------


def _choose_names(places: Places) -> dict[str, str]:
    """By path. Each model has a row of names from short to long, and goes on to the next while another has the same."""
    rows = {model.path: _list_names(place, model) for place in places.values() for model in place.models.values()}
    while True:
        taken = Counter(row[0] for row in rows.values())
        longer = {path: row[1:] for path, row in rows.items() if taken[row[0]] > 1 and len(row) > 1}
        if not longer:
            return {path: row[0] for path, row in rows.items()}
        rows |= longer


def _list_names(place: Place, model: Candidate) -> list[str]:
    labels = place.labels
    names = ["/".join((*labels[len(labels) - n :], model.stem)) for n in range(len(labels) + 1)]
    is_right_below = len(labels) == 1 and labels[0] == place.path
    if is_right_below and len(place.models) == 1 and not place.is_for_quantization and not _HASH.fullmatch(labels[0]):
        names[0] = labels[0]
    return names


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name
