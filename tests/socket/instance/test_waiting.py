"""How long do llama.cpp's threads look for each other before they sleep? What libgomp itself says that it has read."""

import os
import re
import subprocess
import sys

import pytest

IMPORT = "from llamactl.instance.llama.library import llama"
ITS_OWN = 300_000
ACTIVE = 30_000_000_000


def read_spin_count(**variables: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT],
        env={**environment, "OMP_DISPLAY_ENV": "VERBOSE", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if found is None:
        pytest.skip("this llama.cpp has no libgomp")
    return int(found[1])


def test_threads_sleep_long_before_libgomp_would_let_them() -> None:
    assert read_spin_count() <= ITS_OWN / 100


def test_environment_of_the_model_goes_before_ours() -> None:
    assert read_spin_count(GOMP_SPINCOUNT="77") == 77
    assert read_spin_count(OMP_WAIT_POLICY="active") == ACTIVE
    assert read_spin_count(OMP_WAIT_POLICY="passive") == 0
