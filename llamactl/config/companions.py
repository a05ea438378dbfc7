"""Which multimodal projector, and which draft model, belongs to a model?

What their heads say decides, never that it lies there alone. A projector makes embeddings of the model's width, and its
kind goes with certain architectures. Where these are for models with eyes or ears only (`gemma3`, `qwen2vl`), it
belongs; where models that cannot see have the same (`llama`), the names must agree as well, or it bears no name at
all and lies beside one single model, in whichever quantizations. A draft has the model's vocabulary. Where heads are
not known, names alone decide. Of several that belong, the one whose name fits best.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum, auto

from llamactl.config.gguf import Head
from llamactl.config.model_files import parse_model_stem

PROJECTOR_ARCHITECTURE = "clip"
MAX_VOCABULARY_DIFFERENCE = 128
"""llama.cpp's SPEC_VOCAB_MAX_SIZE_DIFFERENCE: common/speculative.cpp."""

_SEPARATORS = re.compile(r"[-_. ]+")
_QUANTIZATION = re.compile(r"(i?q\d+|f16|f32|bf16|fp16|k|s|m|l|xs|xl|xxs|nl|0|1|ud|tq\d|mxfp4)", re.IGNORECASE)
_MMPROJ_ORDER = ("f16", "bf16", "q8_0", "f32")
_ARCHITECTURES = {
    "cogvlm": ("cogvlm",),
    "deepseek4v": ("deepseek4",),
    "deepseekocr": ("deepseek2",),
    "deepseekocr2": ("deepseek2",),
    "dots3note_a": ("dots3note",),
    "dots3note_v": ("dots3note",),
    "exaone4_5": ("exaone4",),
    "gemma3": ("gemma3",),
    "gemma3na": ("gemma3n",),
    "gemma3nv": ("gemma3n",),
    "gemma4a": ("gemma4",),
    "gemma4ua": ("gemma4",),
    "gemma4uv": ("gemma4",),
    "gemma4v": ("gemma4",),
    "glm4v": ("glm4",),
    "hunyuanvl": ("hunyuan",),
    "kimivl": ("deepseek2",),
    "lfm2": ("lfm2",),
    "lfm2a": ("lfm2",),
    "ling3vl": ("bailing",),
    "llama4": ("llama4",),
    "mimo_audio": ("mimo2",),
    "mimovl": ("mimo2",),
    "minicpmv4_6": ("qwen35",),
    "phi4": ("phi3",),
    "qwen2.5o": ("qwen2vl",),
    "qwen2.5vl_merger": ("qwen2vl",),
    "qwen2vl_merger": ("qwen2vl",),
    "qwen3vl_merger": ("qwen3vl", "qwen35", "qwen4exp"),
    "youtuvl": ("deepseek2",),
}
"""How the architectures begin that a kind of projector goes with: what llama.cpp's converters write for one model.
Other kinds go with any.
"""
_MULTIMODAL = ("cogvlm", "gemma3", "gemma4", "hunyuan_vl", "llama4", "qwen2vl", "qwen3vl", "qwen35")
"""How architectures begin that no model without eyes or ears has beside others that have them."""

Heads = Mapping[str, Head | None]
"""By path. Missing: not asked for; None: not understood."""


class Kind(StrEnum):
    """What a companion is, by the word in its file's name."""

    MMPROJ = "mmproj"
    DRAFT = "draft"


class Fit(Enum):
    """Whether a companion can work with a model, as their heads say."""

    YES = auto()
    POSSIBLE = auto()
    """It can, and so can many that it was not made for."""
    UNKNOWN = auto()
    NO = auto()


def parse_kind(name: str) -> Kind | None:
    """What a file is the companion of a model as; None for a model."""
    words = split_words(parse_model_stem(name) or "")
    return next((kind for kind in Kind if kind in words), None)


def choose_companion(kind: Kind, candidates: Sequence[str], model: str, stems: Sequence[str], heads: Heads) -> str:
    """Of the companions of one kind in a directory the path of the one that belongs to a model; empty: none does, or
    several that nothing tells apart. `model`: its first file; `stems`: the names of all models beside it.
    """
    is_single = len({strip_quantization(stem) for stem in stems}) == 1
    rated: dict[tuple[bool, bool], list[str]] = {}
    for path in candidates:
        fit = judge(kind, heads.get(path), heads.get(model))
        is_named, is_related = _is_named_after(path, model), _is_related(heads.get(path), heads.get(model))
        is_alone = is_single and (kind is Kind.DRAFT or not _list_own_words(path))
        belongs = {
            Fit.YES: True,
            Fit.POSSIBLE: is_named or is_related or is_alone,
            Fit.UNKNOWN: is_named,
            Fit.NO: False,
        }
        if belongs[fit]:
            rated.setdefault((not is_named, not is_related), []).append(path)
    best = rated[min(rated)] if rated else []
    by_chance = all(min(rated, default=())) and len({tuple(_list_own_words(path)) for path in best}) > 1
    return "" if by_chance else min(best, key=_rank, default="")


def judge(kind: Kind, companion: Head | None, model: Head | None) -> Fit:
    """Whether the heads of both agree."""
    if companion is None or model is None or not companion.architecture or not model.architecture:
        return Fit.UNKNOWN
    return _judge_draft(companion, model) if kind is Kind.DRAFT else _judge_projector(companion, model)


def _judge_projector(projector: Head, model: Head) -> Fit:
    if projector.architecture != PROJECTOR_ARCHITECTURE or model.architecture == PROJECTOR_ARCHITECTURE:
        return Fit.NO
    tied = [_ARCHITECTURES[kind] for kind in projector.projectors if kind in _ARCHITECTURES]
    if not all(model.architecture.startswith(architectures) for architectures in tied):
        return Fit.NO
    if not projector.projector_widths or not model.width:
        return Fit.UNKNOWN
    if model.width not in projector.projector_widths:
        return Fit.NO
    return Fit.YES if tied and model.architecture.startswith(_MULTIMODAL) else Fit.POSSIBLE


def _judge_draft(draft: Head, model: Head) -> Fit:
    if PROJECTOR_ARCHITECTURE in (draft.architecture, model.architecture):
        return Fit.NO
    if not draft.n_tokens or not model.n_tokens:
        return Fit.UNKNOWN
    if draft.tokenizer != model.tokenizer or abs(draft.n_tokens - model.n_tokens) > MAX_VOCABULARY_DIFFERENCE:
        return Fit.NO
    return Fit.POSSIBLE


def explain_unused(kind: Kind, path: str, models: Mapping[str, str], has_other: bool, heads: Heads) -> str:
    """Why a companion was given to none of the models beside it, which are paths with names. `has_other`: whether one
    of them has another of this kind. Completes "PATH is not used: ...".
    """
    if not models:
        return "there is no model beside it"
    head = heads.get(path)
    fits = {name: judge(kind, head, heads.get(model)) for model, name in models.items()}
    fitting = [name for name, fit in fits.items() if fit in (Fit.YES, Fit.POSSIBLE)]
    by_hand = f"to use it all the same, set {kind} in a [models.NAME] table"
    if has_other and (fitting or Fit.UNKNOWN in fits.values()):
        return "another companion of the same kind was chosen"
    if fitting:
        return f"it would fit {list_names(fitting)}, but nothing says that it was made for that; {by_hand}"
    if head is not None and all(fit is Fit.NO for fit in fits.values()):
        return f"it does not fit {list_names(list(models.values()))}: {describe_need(kind, head)}"
    return f"its name starts like no model's beside it, and its head does not say which ones it fits; {by_hand}"


def describe_need(kind: Kind, head: Head) -> str:
    """What a companion would have to lie beside."""
    if kind is Kind.MMPROJ and head.architecture != PROJECTOR_ARCHITECTURE:
        return f"it is no projector: its architecture is {head.architecture!r}, not {PROJECTOR_ARCHITECTURE!r}"
    if kind is Kind.DRAFT:
        return f"its vocabulary is {head.tokenizer!r} with {head.n_tokens} tokens"
    kinds = ", ".join(head.projectors)
    widths = " or ".join(map(str, head.projector_widths))
    return f"it is for models with embeddings of length {widths}" + (f" that take {kinds!r}" if kinds else "")


def list_names(names: Sequence[str], at_most: int = 3) -> str:
    """The first of them, and how many there are besides."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


# --- names ------------------------------------------------------------------------------------------------------------


def split_words(stem: str) -> list[str]:
    """What a name is made of, in small letters."""
    return [word.lower() for word in _SEPARATORS.split(stem) if word]


def strip_quantization(stem: str) -> tuple[str, ...]:
    """The words of a name without those at its end that only say how its numbers are kept; none: it says no more."""
    words = split_words(stem)
    while words and _QUANTIZATION.fullmatch(words[-1]):
        words.pop()
    return tuple(words)


def _list_own_words(path: str) -> tuple[str, ...]:
    """Of a companion: what its name says of the model that it is for."""
    words = strip_quantization(parse_model_stem(path.rpartition("/")[2]) or "")
    return tuple(word for word in words if word not in (*Kind, "model"))


def _is_named_after(companion: str, model: str) -> bool:
    own = _list_own_words(companion)
    return bool(own) and tuple(split_words(parse_model_stem(model.rpartition("/")[2]) or ""))[: len(own)] == own


def _is_related(companion: Head | None, model: Head | None) -> bool:
    if companion is None or model is None:
        return False
    return bool({tuple(split_words(name)) for name in companion.names} & {tuple(split_words(n)) for n in model.names})


def _rank(path: str) -> tuple[int, str]:
    stem = path[:-5].lower()
    rank = next((rank for rank, kind in enumerate(_MMPROJ_ORDER) if re.search(rf"(^|[-_.]){kind}$", stem)), 9)
    return rank, path
