"""Which models lie in a directory, under which names, and with which companions?

Each GGUF is a model named like its file; the shards of one model count once; a subdirectory that holds one model
gives it its own name. A file whose name has the word `mmproj` or `draft` is no model but the companion of one: of the
only model in its directory, else of those models whose name starts with what remains of the companion's name without
these words and the quantization. Pure: names in, findings out.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from llamactl.config.files import find_missing_shards, format_shard, parse_shard

_SEPARATORS = re.compile(r"[-_. ]+")
_QUANTIZATION = re.compile(r"(i?q\d+|f16|f32|bf16|fp16|k|s|m|l|xs|xl|xxs|nl|0|1|ud|tq\d|mxfp4)", re.IGNORECASE)
_MMPROJ_ORDER = ("f16", "bf16", "q8_0", "f32")


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


def find_models(names: Iterable[str], subdirectories: dict[str, list[str]]) -> Findings:
    """The models among the file names of a directory and of its subdirectories."""
    findings = Findings()
    _find_level(sorted(names), "", "", findings)
    for subdirectory in sorted(subdirectories):
        _find_level(sorted(subdirectories[subdirectory]), subdirectory, subdirectory, findings)
    return findings


def _find_level(names: list[str], where: str, own_name: str, findings: Findings) -> None:
    models: dict[str, Found] = {}
    mmprojs: list[str] = []
    drafts: list[str] = []
    for name in names:
        stem = parse_model_stem(name)
        if stem is None or name.startswith("."):
            continue
        shard = parse_shard(name)
        words = [word.lower() for word in _SEPARATORS.split(stem)]
        if "mmproj" in words:
            mmprojs.append(name)
        elif "draft" in words:
            drafts.append(name)
        elif shard is None or shard.total <= 1:
            models[f"{stem}\0"] = Found(stem, name)
        elif (key := f"{stem}\0{shard.total}") not in models:
            first = format_shard(shard, 1, name[-5:])
            models[key] = Found(stem, first, missing=find_missing_shards(shard, set(names)))
    alone = len(models) == 1
    used: set[str] = set()
    for model in models.values():
        mmproj = _choose_companion(mmprojs, model, alone)
        draft = _choose_companion(drafts, model, alone)
        used |= {mmproj, draft}
        findings.models.append(
            Found(
                own_name if own_name and alone else model.name,
                _join(where, model.path),
                model.missing,
                _join(where, mmproj),
                _join(where, draft),
            )
        )
    for name in mmprojs + drafts:
        if name not in used:
            findings.remarks.append((_join(where, name), "is not used: " + _explain_unused(name, models, alone)))


def parse_model_stem(name: str) -> str | None:
    """The name of the model in a GGUF file: without suffix and shard number. None for other files."""
    if not name.lower().endswith(".gguf") or len(name) == 5:
        return None
    shard = parse_shard(name)
    return shard.stem if shard else name[:-5]


def _choose_companion(candidates: list[str], model: Found, alone: bool) -> str:
    fitting = [name for name in candidates if alone or _is_named_after(name, model.name)]
    return min(fitting, key=_rank_companion, default="")


def _is_named_after(companion: str, model: str) -> bool:
    words = [word.lower() for word in _SEPARATORS.split(parse_model_stem(companion) or "") if word]
    own = [word for word in words if word not in ("mmproj", "draft", "model")]
    while own and _QUANTIZATION.fullmatch(own[-1]):
        own.pop()
    return bool(own) and [word.lower() for word in _SEPARATORS.split(model) if word][: len(own)] == own


def _rank_companion(name: str) -> tuple[int, str]:
    stem = name[:-5].lower()
    rank = next((rank for rank, kind in enumerate(_MMPROJ_ORDER) if re.search(rf"(^|[-_.]){kind}$", stem)), 9)
    return rank, name


def _explain_unused(name: str, models: dict[str, Found], alone: bool) -> str:
    if not models:
        return "there is no model beside it"
    if alone:
        return "another companion of the same kind was chosen"
    return "its name starts like no model's beside it; put it into a subdirectory with its model"


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory and name else name
