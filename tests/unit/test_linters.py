"""Does the source pass the linters? As tests, so that there is one command for everything."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTS = ("scripts/entry.py", "scripts/sandbox", "scripts/fetch-models")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("ruff", "check"), id="ruff-check"),
        pytest.param(("ruff", "format", "--check"), id="ruff-format"),
        pytest.param(("mypy", "--strict"), id="mypy"),
        pytest.param(("mypy", "--strict", "--scripts-are-modules", *SCRIPTS), id="mypy-scripts"),
    ],
)
def test_source_passes(command: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
