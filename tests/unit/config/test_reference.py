"""Documentation, default configuration and table of keys say the same."""

import re
import tomllib
from pathlib import Path

import pytest

from llamactl.config.machine_keys import GLOBAL_KEYS
from llamactl.config.model_keys import DEFAULT_KEYS, DIRECTORY_KEYS, MODEL_KEYS, OTHER_NAMES
from llamactl.config.reference import fill_document, format_keys
from llamactl.settings import GlobalSettings, ModelSettings
from tests.unit.config.tree import Tree

ROOT = Path(__file__).parents[3]


def test_documentation_shows_the_keys_as_they_are() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    assert text == fill_document(text), "run: python -m llamactl.config.reference docs/configuration.md"
    assert all(format_keys(name) in text for name in ("global", "model", "directory"))


def test_examples_of_the_documentation_are_right(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    text = (ROOT / "docs/configuration.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        for name in re.findall(r"/srv/models/(\S+?)\"", block):
            tree.gguf(name)
        block = block.replace("/srv/models", str(tree.models))
        for number in (2, 3):
            tree.gguf(f"coder-0000{number}-of-00003.gguf")
        is_global = "[defaults]" in block
        (tree.glob if is_global else lambda content: tree.file("x.toml", content))(block)
        assert tree.complaints() == []


@pytest.mark.parametrize("uncomment", [False, True])
def test_default_configuration_is_right_and_its_comments_too(tmp_path: Path, uncomment: bool) -> None:
    tree = Tree(tmp_path)
    text = (ROOT / "etc/llamactl.toml").read_text()
    if uncomment:
        text = re.sub(r"^#(?=[a-z_\[])", "", text, flags=re.MULTILINE)
        text = re.sub(r"^debug, info.*\n", "", text, flags=re.MULTILINE)
        assert set(tomllib.loads(text)) >= {key.name for key in GLOBAL_KEYS}
    tree.glob(text)
    config = tree.load()
    assert config.problems == ()
    if not uncomment:
        assert config.settings == GlobalSettings()


def test_example_of_models_is_right_and_its_comments_too(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    text = (ROOT / "etc/models.d/example.toml.disabled").read_text()
    text = re.sub(r"^#(?=[a-z_\[])", "", text, flags=re.MULTILINE).replace("/srv/models", str(tree.models))
    tree.gguf("Qwen3-8B-Q4_K_M.gguf")
    tree.gguf("sub/other.gguf")
    tree.file("x.toml", text)
    config = tree.load()
    assert config.problems == ()
    assert set(config.models) == {"qwen", "sub"}


def test_every_setting_has_one_key() -> None:
    ours = {"name", "files", "source", "found"}
    assert {key.field for key in MODEL_KEYS} == set(ModelSettings.__struct_fields__) - ours
    assert {key.field for key in GLOBAL_KEYS} == set(GlobalSettings.__struct_fields__)
    assert not {key.name for key in DIRECTORY_KEYS} & {key.name for key in DEFAULT_KEYS}


def test_hints_lead_to_keys_that_exist() -> None:
    known = {key.name for key in (*GLOBAL_KEYS, *MODEL_KEYS)}
    assert set(OTHER_NAMES.values()) <= known
    assert not set(OTHER_NAMES) & {key.name for key in MODEL_KEYS}
