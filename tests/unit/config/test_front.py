"""Keys of llamactl.toml that concern HTTP clients."""

from pathlib import Path

import pytest

from llamactl.config.machine_keys import GLOBAL_KEYS
from llamactl.settings import AccessLog, FrontSettings, GlobalSettings
from tests.unit.config.tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_keys_are_read(tree: Tree) -> None:
    tree.model('aliases = ["small"]')
    tree.glob(
        """
        default_model = "small"
        allowed_hosts = ["LLM.example", "*.home.arpa", "llm.example"]
        cors_origins = ["https://chat.example:8443", "*", "localhost"]
        autoload = false
        access_log = "debug"
        """
    )
    config = tree.load()
    assert config.problems == ()
    assert config.settings == GlobalSettings(
        default_model="small",
        allowed_hosts=("llm.example", "*.home.arpa"),
        cors_origins=("https://chat.example:8443", "*", "localhost"),
        autoload=False,
        access_log=AccessLog.DEBUG,
    )


def test_one_name_needs_no_list_and_booleans_mean_what_they_say(tree: Tree) -> None:
    tree.glob('allowed_hosts = "llm.example"\ncors_origins = "*"\naccess_log = false')
    settings = tree.load().settings
    assert (settings.allowed_hosts, settings.cors_origins) == (("llm.example",), ("*",))
    assert settings.access_log is AccessLog.OFF


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('allowed_hosts = ["http://llm.example"]', "without scheme and port"),
        ('allowed_hosts = ["llm.example:8080"]', "without scheme and port"),
        ('allowed_hosts = ["*evil"]', "without scheme and port"),
        ('allowed_hosts = [""]', "without scheme and port"),
        ("allowed_hosts = 3", "list of texts"),
        ('cors_origins = ["chat.example"]', "as browsers send it"),
        ('cors_origins = ["https://chat.example/"]', "as browsers send it"),
        ('cors_origins = ["https://a.example\\r\\nX: y"]', "as browsers send it"),
        ('access_log = "loud"', '"info", "debug" or "off"'),
        ("default_model = 1", "must be a text"),
    ],
)
def test_values_that_cannot_be_meant_are_named(tree: Tree, line: str, complaint: str) -> None:
    tree.glob(line)
    (problem,) = tree.load().problems
    assert complaint in problem.message
    assert problem.where == line.split(" ")[0]


def test_default_model_that_does_not_exist_is_said_and_kills_nothing(tree: Tree) -> None:
    tree.model("")
    tree.glob('default_model = "nobody"')
    config = tree.load()
    (problem,) = config.problems
    assert (problem.where, problem.fatal) == ("default_model", False)
    assert "nobody" in problem.message
    assert len(config.models) == 1
    assert config.settings.default_model == "nobody"


def test_models_of_a_directory_are_told_from_those_that_a_file_names(tree: Tree) -> None:
    tree.gguf("d/found.gguf")
    tree.gguf("named.gguf")
    tree.file(
        "x.toml",
        f'[models.named]\npath = "{tree.models}/named.gguf"\n[directories.d]\npath = "{tree.models}/d"\n',
    )
    assert {model.name: model.found for model in tree.load().models.values()} == {"found": True, "named": False}


def test_front_is_told_only_settings_that_exist() -> None:
    fields = {key.field for key in GLOBAL_KEYS}
    assert set(FrontSettings.__struct_fields__) <= fields
    assert FrontSettings() == FrontSettings(
        **{name: getattr(GlobalSettings(), name) for name in FrontSettings.__struct_fields__}
    )
