"""Which projector and which draft belong to a model, as their heads and names say."""

import pytest

from llamactl.config.companions import Fit, Kind, choose_companion, judge, parse_kind
from llamactl.config.gguf import Head

GEMMA = Head(architecture="gemma3", width=2560, tokenizer="llama", n_tokens=262144)
QWEN = Head(architecture="qwen2vl", width=3584)
LLAMA = Head(architecture="llama", width=4096, tokenizer="llama", n_tokens=32000)


def project(kind: str, width: int, *names: str) -> Head:
    return Head(architecture="clip", projectors=(kind,), projector_widths=(width,), names=names)


def choose(models: dict[str, Head | None], companions: dict[str, Head | None], kind: Kind = Kind.MMPROJ) -> list[str]:
    """What each of the models of one directory gets."""
    stems = [path.removesuffix(".gguf") for path in models]
    return [choose_companion(kind, list(companions), path, stems, models | companions) for path in models]


@pytest.mark.parametrize(
    ("projector", "model", "fit"),
    [
        (project("gemma3", 2560), GEMMA, Fit.YES),
        (project("gemma3", 1152), GEMMA, Fit.NO),
        (project("qwen2.5vl_merger", 3584), QWEN, Fit.YES),
        (project("gemma3", 3584), QWEN, Fit.NO),  # of the same width, for another architecture
        (project("qwen2.5vl_merger", 3584), Head(architecture="qwen2", width=3584), Fit.NO),
        (project("mlp", 4096), LLAMA, Fit.POSSIBLE),
        (project("of the future", 4096), LLAMA, Fit.POSSIBLE),
        (project("lfm2", 2048), Head(architecture="lfm2", width=2048), Fit.POSSIBLE),  # which most cannot see
        (Head(architecture="clip", projectors=("mlp",)), LLAMA, Fit.UNKNOWN),
        (project("mlp", 4096), Head(architecture="llama"), Fit.UNKNOWN),
        (project("mlp", 4096), None, Fit.UNKNOWN),
        (None, LLAMA, Fit.UNKNOWN),
        (Head(), LLAMA, Fit.UNKNOWN),
        (LLAMA, LLAMA, Fit.NO),
        (project("mlp", 4096), project("mlp", 4096), Fit.NO),
    ],
)
def test_projector_fits_by_architecture_and_width(projector: Head | None, model: Head | None, fit: Fit) -> None:
    assert judge(Kind.MMPROJ, projector, model) is fit


@pytest.mark.parametrize(
    ("draft", "fit"),
    [
        (Head(architecture="llama", tokenizer="llama", n_tokens=32100), Fit.POSSIBLE),
        (Head(architecture="llama", tokenizer="llama", n_tokens=32129), Fit.NO),
        (Head(architecture="llama", tokenizer="gpt2", n_tokens=32000), Fit.NO),
        (Head(architecture="llama"), Fit.UNKNOWN),
        (project("mlp", 4096), Fit.NO),
    ],
)
def test_draft_fits_by_vocabulary(draft: Head, fit: Fit) -> None:
    assert judge(Kind.DRAFT, draft, LLAMA) is fit


def test_projector_is_never_attached_for_being_alone() -> None:
    assert choose({"m.gguf": LLAMA}, {"other-mmproj.gguf": project("mlp", 1024)}) == [""]
    assert choose({"m.gguf": LLAMA}, {"other-mmproj.gguf": project("mlp", 4096)}) == [""]
    assert choose({"m.gguf": LLAMA}, {"other-mmproj.gguf": None}) == [""]
    assert choose({"m.gguf": None}, {"mmproj-f16.gguf": project("mlp", 4096)}) == [""]


def test_projector_without_a_name_of_its_own_serves_all_quantizations_of_the_model_beside_it() -> None:
    projector = {"mmproj-model-f16.gguf": project("mlp", 4096)}
    assert choose({"m-Q4_K_M.gguf": LLAMA, "m-UD-Q8_K_XL.gguf": LLAMA}, projector) == ["mmproj-model-f16.gguf"] * 2
    assert choose({"m-Q4_K_M.gguf": LLAMA, "another-Q4_K_M.gguf": LLAMA}, projector) == ["", ""]


def test_projector_of_a_kind_that_only_such_models_take_needs_no_name() -> None:
    models: dict[str, Head | None] = {"tuned.gguf": GEMMA, "gemma-3-4b-Q4.gguf": GEMMA, "qwen.gguf": QWEN}
    assert choose(models, {"mmproj-x.gguf": project("gemma3", 2560)}) == ["mmproj-x.gguf", "mmproj-x.gguf", ""]


def test_of_several_that_fit_the_one_of_the_model_s_name_is_chosen() -> None:
    models: dict[str, Head | None] = {"gemma-3-4b-it-Q4.gguf": GEMMA, "medgemma-4b-it-Q4.gguf": GEMMA}
    projectors: dict[str, Head | None] = {
        "gemma-3-4b-it-mmproj.gguf": project("gemma3", 2560),
        "medgemma-4b-it-mmproj.gguf": project("gemma3", 2560),
    }
    assert choose(models, projectors) == list(projectors)


def test_of_several_that_fit_the_one_whose_head_has_the_model_s_name_is_chosen() -> None:
    model = Head(architecture="gemma3", width=2560, names=("My Tune", "Gemma-3 4b It"))
    projectors: dict[str, Head | None] = {
        "a-mmproj.gguf": project("gemma3", 2560, "Medgemma 4b"),
        "b-mmproj.gguf": project("gemma3", 2560, "gemma 3 4b it"),
    }
    assert choose({"tune.gguf": model}, projectors) == ["b-mmproj.gguf"]


def test_of_several_that_nothing_tells_apart_none_is_chosen() -> None:
    projectors: dict[str, Head | None] = {f"{name}-mmproj.gguf": project("gemma3", 2560) for name in "ab"}
    assert choose({"tuned.gguf": GEMMA}, projectors) == [""]


def test_of_one_projector_in_several_precisions_the_half_is_chosen() -> None:
    projectors = {f"mmproj-{kind}.gguf": project("gemma3", 2560) for kind in ("F32", "BF16", "F16", "Q8_0")}
    assert choose({"g.gguf": GEMMA}, dict(projectors)) == ["mmproj-F16.gguf"]


def test_name_alone_decides_where_heads_are_not_known() -> None:
    assert choose({"gemma-3-Q4.gguf": None}, {"mmproj-gemma-3-f16.gguf": None}) == ["mmproj-gemma-3-f16.gguf"]


def test_name_does_not_help_where_heads_disagree() -> None:
    assert choose({"gemma-3-Q4.gguf": GEMMA}, {"mmproj-gemma-3-f16.gguf": project("gemma3", 1152)}) == [""]


def test_draft_of_the_same_vocabulary_serves_the_model_beside_it() -> None:
    draft: dict[str, Head | None] = {"small-draft.gguf": LLAMA}
    assert choose({"m-Q4.gguf": LLAMA, "m-Q8.gguf": LLAMA}, draft, Kind.DRAFT) == ["small-draft.gguf"] * 2
    assert choose({"m-Q4.gguf": GEMMA}, draft, Kind.DRAFT) == [""]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mmproj-F16.gguf", Kind.MMPROJ),
        ("Qwen.MMPROJ-f16.gguf", Kind.MMPROJ),
        ("m-draft.gguf", Kind.DRAFT),
        ("overdraft-7b.gguf", None),
    ],
)
def test_word_in_the_name_makes_a_companion(name: str, kind: Kind | None) -> None:
    assert parse_kind(name) is kind
