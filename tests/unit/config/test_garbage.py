"""Whatever lies in the files: reading them never raises, and what is right goes on to work."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from llamactl.config.machine_keys import GLOBAL_KEYS
from llamactl.config.model_keys import DIRECTORY_KEYS, MODEL_KEYS
from llamactl.config.permissions import check_config
from llamactl.settings import decode_spec, encode_spec
from tests.unit.config.tree import Tree

NAMES = [key.name for key in (*GLOBAL_KEYS, *MODEL_KEYS, *DIRECTORY_KEYS)]
WORDS = ["", "auto", "all", "none", "on", "8G", "1min", "infinity", "/", "/etc", "m", "x\ny", "\u2028", "é" * 200]

texts = st.sampled_from(WORDS) | st.text(st.characters(codec="utf-8"), max_size=20)
scalars = (
    st.booleans()
    | st.integers(-3, 5000)
    | st.integers()
    | st.floats()
    | texts
    | st.dates()
    | st.datetimes()
    | st.times()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
tables = st.dictionaries(st.sampled_from(NAMES) | texts, values, max_size=6)
globals_ = st.dictionaries(st.sampled_from([*NAMES, "defaults", "models"]) | texts, values | tables, max_size=6)
files = st.fixed_dictionaries(
    {},
    optional={
        "models": st.dictionaries(texts, tables | values, max_size=3) | values,
        "directories": st.dictionaries(texts, tables | values, max_size=3) | values,
        "stray": values,
    },
)
quick = settings(max_examples=150, deadline=None)

GOOD = """
margin = "2 GiB"
[defaults]
ctx = 4096
[models.x]
path = "/etc/hostname"
aliases = ["y"]
env = { A = "b" }
extra = { MemoryMax = "8G" }
[directories.d]
path = "/etc"
prefix = "d/"
"""


@contextmanager
def make_tree() -> Iterator[Tree]:
    with tempfile.TemporaryDirectory() as directory:
        tree = Tree(Path(directory))
        path = tree.gguf("good.gguf")
        tree.file("good.toml", f'[models."zz good"]\npath = "{path}"\n')
        yield tree


def try_out(tree: Tree, global_file: bytes, model_file: bytes) -> None:
    """Load with garbage in both files beside a good model: from nothing, and over a good configuration."""
    tree.glob("")
    tree.file("garbage.toml", "")
    before = tree.load()
    tree.glob(global_file)
    tree.file("garbage.toml", model_file)
    for config in (tree.load(), tree.load(before)):
        assert "zz good" in config.models
        assert not set(config.models) & set(config.invalid)
        for model in config.models.values():
            assert decode_spec(encode_spec(model)) == model
            assert all(config.resolve(alias) == model.name for alias in model.aliases)
        invalid = {problem.model for problem in config.problems if problem.fatal}
        assert set(config.invalid) <= invalid | set(before.invalid)
        assert all(str(problem) and "\n" not in problem.message for problem in config.problems)
        check_config(tree.paths, config)


@given(global_file=st.binary(max_size=200), model_file=st.binary(max_size=200))
@quick
def test_bytes(global_file: bytes, model_file: bytes) -> None:
    with make_tree() as tree:
        try_out(tree, global_file, model_file)


@given(global_table=globals_, model_table=files)
@quick
def test_tables_of_known_and_unknown_keys(global_table: dict[str, object], model_table: dict[str, object]) -> None:
    with make_tree() as tree:
        try_out(tree, tomli_w.dumps(global_table).encode(), tomli_w.dumps(model_table).encode())


@given(st.data())
@quick
def test_damaged_good_files(data: st.DataObject) -> None:
    text = GOOD.encode()
    position = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 10))
    damaged = text[:position] + data.draw(st.binary(max_size=5)) + text[position + length :]
    with make_tree() as tree:
        try_out(tree, damaged, damaged)
