"""Which models a directory holds."""

from pathlib import Path

import pytest

from llamactl.config.discover import Found, find_models
from tests.unit.config_tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def find(*names: str, **subdirectories: list[str]) -> list[Found]:
    return find_models(names, subdirectories).models


def test_each_gguf_is_a_model_named_like_its_file() -> None:
    assert find("b.gguf", "a.gguf", "README.md", ".hidden.gguf", ".gguf", "x.GGUF") == [
        Found("a", "a.gguf"),
        Found("b", "b.gguf"),
        Found("x", "x.GGUF"),
    ]


def test_shards_are_one_model() -> None:
    assert find("a-00002-of-00002.gguf", "a-00001-of-00002.gguf", "b-00001-of-00001.gguf") == [
        Found("a", "a-00001-of-00002.gguf"),
        Found("b", "b-00001-of-00001.gguf"),
    ]


def test_missing_shards_are_named_even_the_first() -> None:
    [found] = find("a-00002-of-00004.gguf", "a-00003-of-00004.gguf")
    assert found.path == "a-00001-of-00004.gguf"
    assert found.missing == "shard 1 of 4 (a-00001-of-00004.gguf) is missing, and 1 more"


def test_subdirectory_with_one_model_gives_it_its_name_and_companions() -> None:
    names = ["m-Q4.gguf", "mmproj-anything-f16.gguf", "mmproj-anything-f32.gguf", "small-draft.gguf", "notes.txt"]
    assert find(qwen=names) == [
        Found("qwen", "qwen/m-Q4.gguf", mmproj="qwen/mmproj-anything-f16.gguf", draft="qwen/small-draft.gguf")
    ]


def test_sharded_model_alone_in_a_subdirectory_bears_its_name() -> None:
    assert [found.name for found in find(big=["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"])] == ["big"]


def test_several_models_in_a_subdirectory_are_named_like_their_files() -> None:
    assert [(found.name, found.path) for found in find(qwen=["q4.gguf", "q8.gguf"])] == [
        ("q4", "qwen/q4.gguf"),
        ("q8", "qwen/q8.gguf"),
    ]


def test_companions_find_their_models_by_name() -> None:
    found = {
        model.name: model
        for model in find(
            "gemma-3-4b-it-Q4_K_M.gguf",
            "gemma-3-4b-it-Q8_0.gguf",
            "gemma-3-12b-it-Q4_K_M.gguf",
            "mmproj-gemma-3-4b-it-f16.gguf",
            "gemma-3-12b-it-mmproj-BF16.gguf",
            "draft-gemma-3-12b.gguf",
        )
    }
    assert found["gemma-3-4b-it-Q4_K_M"].mmproj == "mmproj-gemma-3-4b-it-f16.gguf"
    assert found["gemma-3-4b-it-Q8_0"].mmproj == "mmproj-gemma-3-4b-it-f16.gguf"
    assert found["gemma-3-12b-it-Q4_K_M"].mmproj == "gemma-3-12b-it-mmproj-BF16.gguf"
    assert found["gemma-3-12b-it-Q4_K_M"].draft == "draft-gemma-3-12b.gguf"
    assert found["gemma-3-4b-it-Q4_K_M"].draft == ""


@pytest.mark.parametrize(
    ("names", "remark"),
    [
        (["a.gguf", "b.gguf", "mmproj-c.gguf"], "is not used: its name starts like no model's beside it"),
        (["a.gguf", "b.gguf", "mmproj.gguf"], "is not used: its name starts like no model's beside it"),
        (["mmproj-f16.gguf"], "is not used: there is no model beside it"),
        (
            ["a.gguf", "mmproj-f16.gguf", "mmproj-f32.gguf"],
            "is not used: another companion of the same kind was chosen",
        ),
    ],
)
def test_a_companion_without_a_model_is_told(names: list[str], remark: str) -> None:
    [(_, text)] = find_models(names, {}).remarks
    assert text.startswith(remark)


def test_word_draft_inside_of_another_word_means_nothing() -> None:
    assert [found.name for found in find("overdraft-7b.gguf")] == ["overdraft-7b"]


# --- in a configuration ---


def test_directory_gives_models_with_its_keys(tree: Tree) -> None:
    tree.gguf("a.gguf")
    tree.gguf("sub/x.gguf")
    tree.gguf("sub/deeper/never.gguf")
    tree.gguf(".cache/never.gguf")
    tree.glob("[defaults]\nctx = 1\nparallel = 3")
    tree.file("d.toml", f'[directories.lab]\npath = "{tree.models}"\nprefix = "lab/"\nctx = 2\n')
    config = tree.load()
    assert config.problems == ()
    assert {name: (model.path, model.ctx, model.parallel) for name, model in config.models.items()} == {
        "lab/a": (f"{tree.models}/a.gguf", 2, 3),
        "lab/sub": (f"{tree.models}/sub/x.gguf", 2, 3),
    }


def test_subdirectories_can_be_left_out(tree: Tree) -> None:
    tree.gguf("a.gguf")
    tree.gguf("sub/x.gguf")
    tree.file("d.toml", f'[directories.lab]\npath = "{tree.models}"\nrecursive = false\n')
    assert list(tree.load().models) == ["a"]


def test_named_model_takes_the_place_of_a_found_one_of_the_same_path(tree: Tree) -> None:
    path = tree.gguf("a.gguf")
    (tree.models / "link.gguf").symlink_to("a.gguf")
    tree.file("a.toml", f'[directories.lab]\npath = "{tree.models}"')
    tree.file("z.toml", f'[models.mine]\npath = "{path}"\nctx = 9')
    config = tree.load()
    assert {name: model.ctx for name, model in config.models.items()} == {"mine": 9}
    assert config.problems == ()


def test_named_model_keeps_its_name_against_a_found_one(tree: Tree) -> None:
    tree.gguf("a.gguf")
    other = tree.gguf("elsewhere/deep/other.gguf")
    tree.file("a.toml", f'[directories.lab]\npath = "{tree.models}"')
    tree.file("z.toml", f'[models.a]\npath = "{other}"')
    [complaint] = tree.complaints()
    assert complaint.startswith("etc/models.d/a.toml: directories.lab: cannot use the name 'a' of 'models/a.gguf'")
    assert tree.load().models["a"].path == str(other)


def test_incomplete_shards_make_an_invalid_model(tree: Tree) -> None:
    tree.gguf("big-00001-of-00002.gguf")
    tree.gguf("ok.gguf")
    tree.file("d.toml", f'[directories.lab]\npath = "{tree.models}"')
    config = tree.load()
    assert list(config.models) == ["ok"]
    assert "shard 2 of 2 (big-00002-of-00002.gguf) is missing" in config.invalid["big"].reason
    assert [problem.model for problem in config.problems] == ["big"]


def test_mistake_in_a_directory_is_told_once_and_concerns_all_its_models(tree: Tree) -> None:
    tree.gguf("a.gguf")
    tree.gguf("b.gguf")
    tree.file("d.toml", f'[directories.lab]\npath = "{tree.models}"\nn_gpu_layer = 0')
    config = tree.load()
    assert [problem.where for problem in config.problems] == ["directories.lab.n_gpu_layer"]
    assert set(config.invalid) == {"a", "b"}


def test_dangling_symlink_in_a_directory_is_an_invalid_model(tree: Tree) -> None:
    (tree.models / "a.gguf").symlink_to("gone")
    tree.file("d.toml", f'[directories.lab]\npath = "{tree.models}"')
    assert "is a symlink to 'gone'" in tree.load().invalid["a"].reason


def test_empty_directory_is_worth_a_note(tree: Tree) -> None:
    tree.file("d.toml", f'[directories.lab]\npath = "{tree.models}"')
    [problem] = tree.load().problems
    assert (problem.message, problem.fatal) == (f"there are no GGUF files in '{tree.models}'", False)


@pytest.mark.parametrize("key", ["aliases", "mmproj", "draft"])
def test_keys_of_single_models_are_refused_for_a_directory(tree: Tree, key: str) -> None:
    tree.file("d.toml", f'[directories.lab]\npath = "{tree.models}"\n{key} = "x"')
    assert any("this key is for a single [models.NAME] table" in complaint for complaint in tree.complaints())
