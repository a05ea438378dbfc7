"""What does every system test get? A fresh llamactl on request, and the journal since its start when it fails."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

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
    run(*LLAMACTL, "install")


@pytest.fixture
def llamactl(installed: None) -> Iterator[Llamactl]:
    machine = Llamactl()
    try:
        yield machine
    finally:
        machine.stop()
