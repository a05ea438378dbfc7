"""Models and a running instance for the tests of this directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llamactl.settings import ModelSettings
from tests.models import write_embedding_model, write_model
from tests.socket.instance.harness import Child, run_child


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny(model_dir: Path) -> Path:
    return write_model(model_dir / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_embed(model_dir: Path) -> Path:
    return write_embedding_model(model_dir / "tiny-embed.gguf")


@pytest.fixture(scope="module")
def instance(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A ready instance of the tiny model, shared by the tests of one module."""
    settings = ModelSettings(name="tiny", path=str(tiny), ctx=1024, parallel=4, threads=1)
    with run_child(tmp_path_factory.mktemp("instance"), "serve", settings) as child:
        child.supervisor.wait_for("ready")
        yield child
