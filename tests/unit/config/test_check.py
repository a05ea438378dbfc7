"""May models read their files? Modes are set on a tree of the test's own; who runs the tests does not matter."""

import os
import struct
from pathlib import Path

import pytest

from llamactl.config.permissions import Reader, check_config, explain_unreadable, inspect_file
from llamactl.settings import Problem
from tests.models import write_model, write_projector
from tests.unit.config.tree import Tree

NOBODY = Reader()
FOREIGN_GROUP = 54321


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.models.chmod(0o755)
    return tree


def check(tree: Tree, reader: Reader = NOBODY, acl: dict[Path, bytes] | None = None, home: str = "") -> list[Problem]:
    replaced = (tree.root / home,) if home else ()
    config = tree.load()
    assert config.problems == ()
    acls = {str(path): data for path, data in (acl or {}).items()}
    return check_config(
        tree.paths, config, reader=reader, top=tree.models, replaced=replaced, acl=lambda path: acls.get(path, b"")
    )


def add(tree: Tree, name: str = "deep/down/m.gguf", mode: int = 0o644, model: str = "m") -> Path:
    path = tree.gguf(name)
    for parent in path.relative_to(tree.models).parents:
        (tree.models / parent).chmod(0o755)
    path.chmod(mode)
    tree.file(f"{model}.toml", f'[models.{model}]\npath = "{path}"')
    return path


def test_readable_file_is_no_problem(tree: Tree) -> None:
    add(tree)
    assert check(tree) == []


def test_directory_that_others_cannot_enter_is_named_with_the_cure(tree: Tree) -> None:
    add(tree)
    (tree.models / "deep").chmod(0o750)
    [problem] = check(tree)
    assert (
        problem.message
        == f"cannot be entered by models: '{tree.models}/deep' has mode 0750 and they run as other users"
    )
    assert f"chmod o+x {tree.models}/deep`" in problem.hint
    assert (problem.model, problem.where) == ("m", "models.m.path")


def test_entering_is_enough_for_directories(tree: Tree) -> None:
    add(tree)
    (tree.models / "deep").chmod(0o711)
    assert check(tree) == []


def test_file_that_others_cannot_read_is_named_with_the_cure(tree: Tree) -> None:
    path = add(tree, mode=0o640)
    [problem] = check(tree)
    assert problem.message == f"cannot be read by models: '{path}' has mode 0640 and they run as other users"
    assert f"chmod o+r {path}`" in problem.hint


def test_load_that_failed_is_told_what_check_would_say(tree: Tree) -> None:
    path = add(tree, mode=0o600)
    model = tree.load().models["m"]

    def explain() -> str:
        return explain_unreadable(tree.paths, model, reader=NOBODY, top=tree.models, replaced=(), acl=lambda _: b"")

    [problem] = check(tree)
    assert explain() == f"{problem.message}; {problem.hint}"
    path.unlink()
    assert explain() == "", "the load has said itself that there is no file"
    path.touch(mode=0o644)
    assert explain() == ""


def test_everything_in_the_way_is_told(tree: Tree) -> None:
    add(tree, mode=0o600)
    (tree.models / "deep").chmod(0o700)
    (tree.models / "deep/down").chmod(0o700)
    assert len(check(tree)) == 3


def test_cure_quotes_what_a_shell_would_split(tree: Tree) -> None:
    add(tree, "two words/m.gguf")
    (tree.models / "two words").chmod(0o700)
    [problem] = check(tree)
    assert f"chmod o+x '{tree.models}/two words'" in problem.hint


def test_target_of_a_symlink_is_what_counts(tree: Tree) -> None:
    path = tree.gguf("private/m.gguf")
    path.chmod(0o644)
    path.parent.chmod(0o700)
    (tree.models / "link.gguf").symlink_to("private/m.gguf")
    tree.file("m.toml", f'[models.m]\npath = "{tree.models}/link.gguf"')
    [problem] = check(tree)
    assert f"'{tree.models}/private' has mode 0700" in problem.message


def test_way_to_a_link_does_not_matter(tree: Tree) -> None:
    path = tree.gguf("m.gguf")
    path.chmod(0o644)
    (tree.models / "links").mkdir(mode=0o700)
    (tree.models / "links/m.gguf").symlink_to("../m.gguf")
    tree.file("m.toml", f'[models.m]\npath = "{tree.models}/links/m.gguf"')
    assert check(tree) == []


def test_directory_that_stops_many_models_is_told_once(tree: Tree) -> None:
    for model in "abcdefg":
        add(tree, f"deep/{model}.gguf", model=model)
    (tree.models / "deep").chmod(0o700)
    [problem] = check(tree)
    assert problem.message.endswith("(also for b, c, d and 3 more)")


def test_all_shards_and_companions_are_looked_at(tree: Tree) -> None:
    for number in (1, 2):
        tree.gguf(f"m-0000{number}-of-00002.gguf").chmod(0o644)
    tree.gguf("mmproj.gguf").chmod(0o600)
    (tree.models / "m-00002-of-00002.gguf").chmod(0o600)
    tree.file(
        "m.toml", f'[models.m]\npath = "{tree.models}/m-00001-of-00002.gguf"\nmmproj = "{tree.models}/mmproj.gguf"'
    )
    assert [problem.where for problem in check(tree)] == ["models.m.path", "models.m.mmproj"]


# --- homes ---


def test_below_a_home_only_what_is_bound_matters(tree: Tree) -> None:
    add(tree, "home/me/llm/m.gguf")
    (tree.models / "home/me").chmod(0o700)
    assert len(check(tree)) == 1
    assert check(tree, home="models/home") == []


def test_below_a_home_the_bound_directory_matters(tree: Tree) -> None:
    add(tree, "home/me/llm/m.gguf", mode=0o600)
    (tree.models / "home/me/llm").chmod(0o700)
    assert len(check(tree, home="models/home")) == 2


# --- groups and ACLs ---


def test_group_of_the_instances_may_be_the_one_that_reads(tree: Tree) -> None:
    path = add(tree, mode=0o640)
    assert check(tree, Reader(None, frozenset({path.stat().st_gid}))) == []


def test_group_that_may_less_than_others_is_denied(tree: Tree) -> None:
    path = add(tree, mode=0o604)
    assert len(check(tree, Reader(None, frozenset({path.stat().st_gid})))) == 1


def test_owner_is_whom_the_owners_bits_are_for(tree: Tree) -> None:
    path = add(tree, mode=0o400)
    assert check(tree, Reader(path.stat().st_uid + 1_000_000)) != []
    if path.stat().st_uid:
        assert check(tree, Reader(path.stat().st_uid)) == []


def make_acl(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NO_ID = 0xFFFFFFFF


def test_acl_that_lets_the_group_in_is_believed(tree: Tree) -> None:
    path = add(tree, mode=0o640)
    acl = make_acl((1, 6, NO_ID), (4, 0, NO_ID), (8, 4, FOREIGN_GROUP), (16, 4, NO_ID), (32, 0, NO_ID))
    assert check(tree, Reader(None, frozenset({FOREIGN_GROUP})), {path: acl}) == []
    assert len(check(tree, NOBODY, {path: acl})) == 1


def test_mask_of_an_acl_limits_it(tree: Tree) -> None:
    path = add(tree, mode=0o640)
    acl = make_acl((1, 6, NO_ID), (4, 0, NO_ID), (8, 4, FOREIGN_GROUP), (16, 0, NO_ID), (32, 0, NO_ID))
    assert len(check(tree, Reader(None, frozenset({FOREIGN_GROUP})), {path: acl})) == 1


def test_others_are_read_from_an_acl(tree: Tree) -> None:
    path = add(tree, mode=0o644)
    acl = make_acl((1, 6, NO_ID), (4, 4, NO_ID), (16, 4, NO_ID), (32, 4, NO_ID))
    assert check(tree, NOBODY, {path: acl}) == []


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="no extended attributes")
def test_kernel_agrees_about_how_an_acl_looks(tree: Tree) -> None:
    path = add(tree, mode=0o640)
    acl = make_acl((1, 6, NO_ID), (4, 0, NO_ID), (8, 4, FOREIGN_GROUP), (16, 4, NO_ID), (32, 0, NO_ID))
    try:
        os.setxattr(path, "system.posix_acl_access", acl)
    except OSError as error:
        pytest.skip(f"no ACLs on this file system: {error}")
    config = tree.load()
    reader = Reader(None, frozenset({FOREIGN_GROUP}))
    assert check_config(tree.paths, config, reader=reader, top=tree.models, replaced=()) == []


# --- contents ---


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"GGUF", "it is cut"),
        (b"GGML\0\0\0\0", "it is no GGUF file: it starts with b'GGML', not b'GGUF'"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it is a pointer of Git LFS, not the file itself"),
        (b"\n<!DOCTYPE html>", "it is a web page; the download went wrong"),
    ],
)
def test_first_bytes_tell_what_is_no_model(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert inspect_file(str(path)).startswith(reason)
    assert bool(inspect_file(str(path))) == bool(reason)


def test_file_that_is_no_model_is_a_problem_of_its_model(tree: Tree) -> None:
    add(tree).write_bytes(b"")
    [problem] = check(tree)
    assert (problem.model, problem.fatal) == ("m", True)
    assert problem.message.endswith("it is empty")


def test_secret_in_the_environment_is_worth_a_note(tree: Tree) -> None:
    path = add(tree)
    tree.file("m.toml", f'[models.m]\npath = "{path}"\nenv = {{ HF_TOKEN = "x", GGML_LOG = "2" }}')
    [problem] = check(tree)
    assert (problem.where, problem.fatal) == ("models.m.env.HF_TOKEN", False)
    assert "LoadCredential" in problem.hint


def test_file_that_vanished_meanwhile_is_told(tree: Tree) -> None:
    path = add(tree)
    config = tree.load()
    path.unlink()
    [problem] = check_config(tree.paths, config, reader=NOBODY, top=tree.models, replaced=(), acl=lambda _: b"")
    assert problem.message == f"cannot look at '{path}': no such file or directory"


# --- what heads say ---


def test_projector_that_is_configured_as_a_model_is_told(tree: Tree) -> None:
    write_projector(tree.models / "m.gguf").chmod(0o644)
    tree.file("m.toml", f'[models.m]\npath = "{tree.models}/m.gguf"')
    [problem] = check(tree)
    assert problem.fatal
    assert problem.message.endswith("it is a multimodal projector, not a model")


def test_projector_that_does_not_fit_its_model_is_worth_a_note(tree: Tree) -> None:
    write_model(tree.models / "m.gguf", n_embd=64).chmod(0o644)
    for width in (64, 128):
        write_projector(tree.models / f"p{width}.gguf", projector="mlp", width=width).chmod(0o644)
        tree.file("m.toml", f'[models.m]\npath = "{tree.models}/m.gguf"\nmmproj = "{tree.models}/p{width}.gguf"')
        problems = check(tree)
        assert [(problem.where, problem.fatal) for problem in problems] == [("models.m.mmproj", False)] * (width == 128)
    assert "p128.gguf' does not fit this model: it is for models with embeddings of length 128" in problems[0].message
