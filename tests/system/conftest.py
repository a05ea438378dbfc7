"""What does every system test get? A fresh llamactl on request, and the journal since its start when it fails."""

import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.models import write_model
from tests.system import journal
from tests.system.harness import LLAMACTL, Llamactl, run

CURSOR = pytest.StashKey[str]()
MODELS_DIR = Path("/srv/models")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and CURSOR in item.stash:
        report.sections.append(("journal since the test began", journal.read_text(item.stash[CURSOR])))
    return report


@pytest.fixture(autouse=True)
def cursor(request: pytest.FixtureRequest) -> str:
    """Where the journal stood when the test began."""
    request.node.stash[CURSOR] = journal.acquire_cursor()
    return request.node.stash[CURSOR]


@pytest.fixture(scope="session")
def installed() -> None:
    """Units, users, directories: what `llamactl install` does on a real machine."""
    run(LLAMACTL, "install")


@pytest.fixture(scope="session")
def tiny() -> dict[str, Path]:
    """Three tiny models of random weights: `a`, `b` and `c`."""
    MODELS_DIR.mkdir(parents=True, exist_ok=True)
    files = {name: MODELS_DIR / f"{name}.gguf" for name in "abc"}
    for seed, path in enumerate(files.values()):
        write_model(path, name=path.stem, n_ctx_train=8192, seed=seed)
    return files


@pytest.fixture(scope="session")
def smollm2_file(pytestconfig: pytest.Config) -> Path:
    """The real model, as scripts/fetch-models left it outside."""
    default = Path.home() / ".cache/llamactl/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    path = Path(pytestconfig.getoption("smollm2") or default)
    assert path.is_file(), f"no {path}: run scripts/fetch-models smollm2 before the sandbox is started"
    return path


@pytest.fixture
def tmp_models() -> Iterator[Path]:
    """An empty directory that every user can read: pytest's own lie in a directory of mode 0700."""
    with tempfile.TemporaryDirectory(dir="/srv") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


@pytest.fixture
def llamactl(installed: None) -> Iterator[Llamactl]:
    machine = Llamactl()
    try:
        yield machine
    finally:
        machine.stop()
