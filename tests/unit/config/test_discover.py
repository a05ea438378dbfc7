"""Which models a directory holds."""

import os
from pathlib import Path

import pytest

from llamactl.config.discover import Findings, Found, find_models, sort_files
from llamactl.config.heads import FileCache, HeadReader, acquire_heads, ask_heads
from llamactl.config.walk import Folder, parse_repository
from llamactl.settings import Config
from tests.models import write_model, write_projector
from tests.unit.config.tree import Tree

HASH, OTHER_HASH = "0" * 39 + "a", "0" * 39 + "b"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def look(*names: str, **subdirectories: list[str]) -> Findings:
    """What is found among files of the top and of directories below, whose heads nobody knows."""
    folders = [make_folder(path, files) for path, files in {"": list(names), **subdirectories}.items()]
    return find_models(sort_files(folders), {})


def make_folder(path: str, names: list[str]) -> Folder:
    repository, inner = parse_repository(f"/hub/{path}") or ((), "")
    files = {name: f"/top/{path}/{name}" for name in sorted(names)}
    return Folder(path, files, frozenset(), repository, inner)


def find(*names: str, **subdirectories: list[str]) -> list[Found]:
    return look(*names, **subdirectories).models


def name_all(*paths: str) -> dict[str, str]:
    """Names by path."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        directory, _, name = path.rpartition("/")
        folders.setdefault(directory, []).append(name)
    return {found.path: found.name for found in find(**folders)}


def test_each_gguf_is_a_model_named_like_its_file() -> None:
    assert find("b.gguf", "a.gguf", "x.GGUF") == [Found("a", "a.gguf"), Found("b", "b.gguf"), Found("x", "x.GGUF")]


def test_hidden_and_other_files_are_no_models(tree: Tree) -> None:
    for name in ("a.gguf", "README.md", ".hidden.gguf", ".gguf", "sub/notes.txt"):
        tree.gguf(name)
    assert list(load_found(tree).models) == ["a"]


def test_shards_are_one_model() -> None:
    assert find("a-00002-of-00002.gguf", "a-00001-of-00002.gguf", "b-00001-of-00001.gguf") == [
        Found("a", "a-00001-of-00002.gguf"),
        Found("b", "b-00001-of-00001.gguf"),
    ]


def test_missing_shards_are_named_even_the_first() -> None:
    [found] = find("a-00002-of-00004.gguf", "a-00003-of-00004.gguf")
    assert found.path == "a-00001-of-00004.gguf"
    assert found.missing == "shard 1 of 4 (a-00001-of-00004.gguf) is missing, and 1 more"


def test_subdirectory_with_one_model_gives_it_its_name() -> None:
    names = ["m-Q4.gguf", "mmproj-anything-f16.gguf"]
    assert find(qwen=names) == [Found("qwen", "qwen/m-Q4.gguf")]


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


def test_models_two_levels_down_and_deeper_are_named_like_their_files() -> None:
    assert name_all("unsloth/Qwen3-GGUF/Qwen3-4B-Q4_K_M.gguf", "a/b/c/d/deep.gguf") == {
        "unsloth/Qwen3-GGUF/Qwen3-4B-Q4_K_M.gguf": "Qwen3-4B-Q4_K_M",
        "a/b/c/d/deep.gguf": "deep",
    }


def test_directory_that_is_named_for_a_quantization_names_no_model() -> None:
    names = name_all("UD-Q4_K_XL/Qwen3-235B-UD-Q4_K_XL-00001-of-00001.gguf", f"{HASH}/x.gguf")
    assert list(names.values()) == ["Qwen3-235B-UD-Q4_K_XL", "x"]


def test_names_that_several_would_have_grow_by_the_directories_above() -> None:
    assert name_all("unsloth/Q/m.gguf", "bartowski/Q/m.gguf", "other/R/m.gguf", "other/R/n.gguf") == {
        "unsloth/Q/m.gguf": "unsloth/Q/m",
        "bartowski/Q/m.gguf": "bartowski/Q/m",
        "other/R/m.gguf": "R/m",
        "other/R/n.gguf": "n",
    }


def test_file_at_the_top_keeps_its_name_against_one_below() -> None:
    assert name_all("a.gguf", "a/x.gguf") == {"a.gguf": "a", "a/x.gguf": "a/x"}


def test_snapshots_of_a_repository_are_one_directory_and_the_first_counts() -> None:
    snapshots = "models--unsloth--Qwen3-GGUF/snapshots"
    assert name_all(
        f"{snapshots}/{HASH}/Qwen3-Q4.gguf",
        f"{snapshots}/{HASH}/UD-Q2/big-00001-of-00001.gguf",
        f"{snapshots}/{OTHER_HASH}/Qwen3-Q4.gguf",
        f"{snapshots}/{OTHER_HASH}/Qwen3-Q8.gguf",
    ) == {
        f"{snapshots}/{HASH}/Qwen3-Q4.gguf": "Qwen3-Q4",
        f"{snapshots}/{HASH}/UD-Q2/big-00001-of-00001.gguf": "big",
        f"{snapshots}/{OTHER_HASH}/Qwen3-Q8.gguf": "Qwen3-Q8",
    }


def test_repositories_tell_files_of_one_name_apart() -> None:
    first, second = (f"models--{labels}/snapshots/{HASH}/m.gguf" for labels in ("a--G", "b--G"))
    assert name_all(first, second) == {first: "a/G/m", second: "b/G/m"}


@pytest.mark.parametrize(
    ("names", "remark"),
    [
        (["a.gguf", "b.gguf", "mmproj-c.gguf"], "is not used: its name starts like no model's beside it"),
        (["a.gguf", "mmproj-f16.gguf"], "is not used: its name starts like no model's beside it"),
        (["a.gguf", "b.gguf", "mmproj.gguf"], "is not used: its name starts like no model's beside it"),
        (["mmproj-f16.gguf"], "is not used: there is no model beside it"),
        (
            ["a.gguf", "a-mmproj-f16.gguf", "a-mmproj-f32.gguf"],
            "is not used: another companion of the same kind was chosen",
        ),
    ],
)
def test_a_companion_without_a_model_is_told(names: list[str], remark: str) -> None:
    [(_, text)] = look(*names).remarks
    assert text.startswith(remark)


def test_word_draft_inside_of_another_word_means_nothing() -> None:
    assert [found.name for found in find("overdraft-7b.gguf")] == ["overdraft-7b"]


# --- in a configuration ---


def test_directory_gives_models_with_its_keys(tree: Tree) -> None:
    tree.gguf("a.gguf")
    tree.gguf("sub/x.gguf")
    tree.gguf("sub/deeper/deep.gguf")
    tree.gguf(".cache/never.gguf")
    tree.glob("[defaults]\nctx = 1\nparallel = 3")
    tree.file("d.toml", f'[directories.lab]\npath = "{tree.models}"\nprefix = "lab/"\nctx = 2\n')
    config = tree.load()
    assert config.problems == ()
    assert {name: (model.path, model.ctx, model.parallel) for name, model in config.models.items()} == {
        "lab/a": (f"{tree.models}/a.gguf", 2, 3),
        "lab/sub": (f"{tree.models}/sub/x.gguf", 2, 3),
        "lab/deep": (f"{tree.models}/sub/deeper/deep.gguf", 2, 3),
    }
    [found] = config.found
    assert found.path == str(tree.models)
    assert found.places == {"": ("lab/a",), "sub": ("lab/sub",), "sub/deeper": ("lab/deep",)}


def test_subdirectories_can_be_left_out(tree: Tree) -> None:
    tree.gguf("a.gguf")
    tree.gguf("sub/x.gguf")
    tree.file("d.toml", f'[directories.lab]\npath = "{tree.models}"\nrecursive = false\n')
    assert list(tree.load().models) == ["a"]


def test_files_in_subdirectories_that_are_left_out_are_hinted_at(tree: Tree) -> None:
    tree.gguf("sub/x.gguf")
    tree.file("d.toml", f'[directories.lab]\npath = "{tree.models}"\nrecursive = false\n')
    [problem] = tree.load().problems
    assert "its subdirectories are not looked into (recursive = false)" in problem.message


def test_named_model_takes_the_place_of_a_found_one_of_the_same_path(tree: Tree) -> None:
    path = tree.gguf("a.gguf")
    (tree.models / "link.gguf").symlink_to("a.gguf")
    tree.file("a.toml", f'[directories.lab]\npath = "{tree.models}"')
    tree.file("z.toml", f'[models.mine]\npath = "{path}"\nctx = 9')
    config = tree.load()
    assert {name: model.ctx for name, model in config.models.items()} == {"mine": 9}
    assert config.problems == ()
    assert [found.places for found in config.found] == [{"": ("mine",)}], "a directory that is not without models"


def test_file_name_that_is_no_unicode_costs_its_own_model_alone(tree: Tree) -> None:
    tree.gguf("a.gguf")
    tree.gguf(os.fsdecode(b"caf\xe9.gguf"))
    tree.file("a.toml", f'[directories.lab]\npath = "{tree.models}"')
    config = tree.load()
    assert (list(config.models), list(config.invalid)) == (["a"], [r"caf\xe9"])


def test_named_model_keeps_its_name_against_a_found_one(tree: Tree) -> None:
    tree.gguf("a.gguf")
    other = tree.gguf("../elsewhere/other.gguf").resolve()
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


# --- Hugging Face's cache ---


def add_snapshot(tree: Tree, revision: str, *names: str, content: bytes = b"") -> Path:
    """Files of a repository as `hf download` leaves them: links into blobs."""
    repository = tree.models / "models--org--Some-GGUF"
    snapshot = repository / "snapshots" / revision
    for number, name in enumerate(names):
        blob = tree.gguf(f"models--org--Some-GGUF/blobs/{revision[-1]}{number:063}", *([content] if content else []))
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path(*[".."] * (len(Path(name).parts) + 1), "blobs", blob.name))
    return repository


def load_found(tree: Tree, directory: Path | None = None) -> Config:
    tree.file("d.toml", f'[directories.hub]\npath = "{directory or tree.models}"\n')
    return tree.load()


def test_file_of_a_snapshot_is_its_blob_under_its_own_name(tree: Tree) -> None:
    repository = add_snapshot(tree, HASH, "some-Q4_K_M.gguf")
    for top in (tree.models, repository, repository / "snapshots", repository / "snapshots" / HASH):
        config = load_found(tree, top)
        assert config.problems == ()
        assert {name: model.path for name, model in config.models.items()} == {
            "some-Q4_K_M": f"{repository}/blobs/a{0:063}"
        }


def test_shards_of_a_snapshot_are_given_as_links_with_their_blobs(tree: Tree) -> None:
    shards = [f"UD-Q4_K_XL/big-0000{number}-of-00002.gguf" for number in (1, 2)]
    repository = add_snapshot(tree, HASH, *shards)
    config = load_found(tree)
    assert config.problems == ()
    links = [f"{repository}/snapshots/{HASH}/{name}" for name in shards]
    assert config.models["big"].path == links[0]
    assert config.models["big"].files == (*links, f"{repository}/blobs/a{0:063}", f"{repository}/blobs/a{1:063}")


def test_shard_that_a_unit_could_not_follow_to_its_blob_is_refused(tree: Tree) -> None:
    add_snapshot(tree, HASH, "big-00001-of-00002.gguf", "big-00002-of-00002.gguf")
    blobs = tree.models / "models--org--Some-GGUF" / "blobs"
    blobs.rename(tree.root / "elsewhere")
    blobs.symlink_to(tree.root / "elsewhere")
    assert "leads to its file by way of others, which no unit of a model sees" in load_found(tree).invalid["big"].reason


def test_of_two_snapshots_the_one_of_the_main_branch_counts(tree: Tree) -> None:
    add_snapshot(tree, HASH, "m.gguf", "only-here.gguf")
    repository = add_snapshot(tree, OTHER_HASH, "m.gguf")
    (repository / "refs").mkdir()
    for revision, blob in ((HASH, f"a{0:063}"), (OTHER_HASH, f"b{0:063}")):
        (repository / "refs" / "main").write_text(revision)
        config = load_found(tree)
        assert config.problems == ()
        assert {name: Path(model.path).name for name, model in config.models.items()} == {
            "m": blob,
            "only-here": f"a{1:063}",
        }


# --- links ---


def test_link_that_leads_back_is_followed_once(tree: Tree) -> None:
    tree.gguf("top/a.gguf")
    tree.gguf("top/sub/b.gguf")
    tree.gguf("beside.gguf")
    (tree.models / "top" / "current").symlink_to(".")
    (tree.models / "top" / "sub" / "again").symlink_to("../sub")
    (tree.models / "top" / "up").symlink_to("..")
    config = load_found(tree, tree.models / "top")
    assert (set(config.models), config.problems) == ({"a", "sub"}, ())


def test_directory_is_known_by_its_own_name_rather_than_by_a_link(tree: Tree) -> None:
    tree.gguf("z-real/m.gguf")
    (tree.models / "a-link").symlink_to("z-real")
    assert list(load_found(tree).models) == ["z-real"]


def test_directory_outside_is_found_through_its_link(tree: Tree) -> None:
    outside = tree.gguf("../outside/deeper/m.gguf").resolve()
    (tree.models / "link").symlink_to(outside.parents[1])
    assert {name: model.path for name, model in load_found(tree).models.items()} == {"m": str(outside)}


def test_file_that_two_links_of_its_name_lead_to_counts_once(tree: Tree) -> None:
    real = tree.gguf("b/deep/m.gguf")
    for directory in ("a", "c"):
        (tree.models / directory).mkdir()
        (tree.models / directory / "m.gguf").symlink_to(real)
    config = load_found(tree)
    assert [found.places for found in config.found] == [{"b/deep": ("m",)}]


def test_directory_that_cannot_be_listed_is_told(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.gguf("a.gguf")
    (tree.models / "closed").mkdir()
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    config = load_found(tree)
    assert list(config.models) == ["a"]
    [problem] = config.problems
    assert (problem.fatal, problem.message.endswith("closed': permission denied")) == (False, True)


def test_too_many_entries_are_not_looked_at_and_that_is_told(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llamactl.config.directory_models.MAX_ENTRIES", 50)
    tree.gguf("a.gguf")
    for number in range(100):
        tree.gguf(f"many/{number}.txt")
    config = load_found(tree)
    assert list(config.models) == ["a"]
    [problem] = config.problems
    assert (problem.fatal, "has more than 50 entries" in problem.message) == (False, True)


# --- companions by their heads ---


@pytest.mark.parametrize("read_heads", [acquire_heads, FileCache(ask_heads)], ids=["here", "by a child"])
def test_projector_is_attached_by_what_its_head_says(tree: Tree, read_heads: HeadReader) -> None:
    write_model(tree.models / "Hermes-7B.gguf", n_embd=64)
    write_projector(tree.models / "Qwen3.5-0.8B-mmproj-BF16.gguf", projector="qwen3vl_merger", width=1024)
    (tree.models / "sub").mkdir()
    for quantization in ("Q4_K_M", "Q8_0"):
        write_model(tree.models / "sub" / f"vision-{quantization}.gguf", n_embd=128)
    write_projector(tree.models / "sub" / "mmproj-F16.gguf", projector="mlp", width=128)
    tree.file("d.toml", f'[directories.lab]\npath = "{tree.models}"\n')
    config = tree.load(read_heads=read_heads)
    projector = f"{tree.models}/sub/mmproj-F16.gguf"
    assert {name: model.mmproj for name, model in config.models.items()} == {
        "Hermes-7B": "",
        "vision-Q4_K_M": projector,
        "vision-Q8_0": projector,
    }
    [problem] = config.problems
    assert problem.message.endswith(
        "Qwen3.5-0.8B-mmproj-BF16.gguf' is not used: it does not fit Hermes-7B: it is for models with embeddings of "
        "length 1024 that take 'qwen3vl_merger'"
    )
    assert not problem.fatal


def test_heads_that_were_not_read_are_told(tree: Tree) -> None:
    tree.gguf("a.gguf")
    tree.gguf("mmproj-a-f16.gguf")
    tree.file("d.toml", f'[directories.lab]\npath = "{tree.models}"\n')
    config = tree.load(read_heads=lambda paths: {})
    assert config.models["a"].mmproj == f"{tree.models}/mmproj-a-f16.gguf", "names decide"
    [problem] = config.problems
    assert not problem.fatal
    assert "did not come to" in problem.message
    assert repr(f"{tree.models}/a.gguf") in problem.message
