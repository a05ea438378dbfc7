"""Does the `sampling` table take what llama-server takes, and name what it does not?"""

from pathlib import Path

import msgspec
import pytest

from llamactl.config.sampling_keys import SAMPLING_KEYS
from llamactl.settings import Sampling, decode_spec, encode_spec
from tests.unit.config.tree import Tree


def write_sampling(tmp_path: Path, table: str, defaults: str = "") -> Tree:
    tree = Tree(tmp_path)
    path = tree.gguf("a.gguf")
    if defaults:
        tree.glob(defaults)
    tree.file("x.toml", f'[models.a]\npath = "{path}"\n[models.a.sampling]\n{table}\n')
    return tree


def test_every_setting_of_sampling_has_a_key() -> None:
    assert [key.name for key in SAMPLING_KEYS] == [key.field for key in SAMPLING_KEYS]
    assert {key.name for key in SAMPLING_KEYS} == set(Sampling.__struct_fields__)


def test_what_is_set_reaches_the_instance_and_nothing_else(tmp_path: Path) -> None:
    table = 'temperature = 1\ntop_k = 20\nsamplers = ["top_k", "temperature"]\ndry_sequence_breakers = ["\\n"]'
    tree = write_sampling(tmp_path, table, "[defaults.sampling]\ntop_k = 5\nmin_p = 0.1\n")
    assert tree.complaints() == []
    model = decode_spec(encode_spec(tree.load().models["a"]))
    assert model.sampling == {
        "temperature": 1.0,
        "top_k": 20,
        "min_p": 0.1,
        "samplers": ["top_k", "temperature"],
        "dry_sequence_breakers": ["\n"],
    }
    assert msgspec.convert(model.sampling, Sampling).samplers == ("top_k", "temperature")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("temprature = 1", "'temprature' is no setting of sampling; did you mean 'temperature'?"),
        ('temperature = "hot"', "temperature must be a number from 0 to 100"),
        ("temperature = true", "temperature must be a number from 0 to 100"),
        ("top_p = 1.5", "top_p must be a number from 0 to 1"),
        ("top_k = 1.5", "top_k must be an integer of 0 or more"),
        ("mirostat = 3", "mirostat must be an integer from 0 to 2"),
        ('samplers = ["top_q"]', "samplers 'top_q' must be one of penalties, dry"),
        ("temperature = nan", "temperature must be a number from 0 to 100"),
    ],
)
def test_what_is_no_sampling_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    (found,) = write_sampling(tmp_path, line).complaints()
    assert complaint in str(found)
