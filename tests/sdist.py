"""Where do tests get the chat templates of many models from? From the sources of llama-cpp-python, which `scripts/setup
--test` keeps: nothing of them is in this repository.
"""

import tarfile
from functools import cache
from pathlib import PurePosixPath

import pytest

from llamactl.chatlib.build import find_cache, find_wanted

_TEMPLATES = "vendor/llama.cpp/models/templates"


@cache
def _read_all() -> dict[str, str]:
    sdist = find_wanted(find_cache()).sdist
    if not sdist.exists():
        return {}
    found = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if path.suffix == ".jinja" and PurePosixPath(*path.parts[1:-1]) == PurePosixPath(_TEMPLATES):
                data = archive.extractfile(member)
                assert data is not None
                found[path.stem] = data.read().decode()
    return found


def read_templates() -> dict[str, str]:
    """By name, as llama.cpp has them. Skips the test where the sources are not there."""
    found = _read_all()
    if not found:
        pytest.skip("the sources of llama-cpp-python are not there: scripts/setup --test keeps them")
    return found
