"""Where do llama-server's tests come from, and how are they run? From the sources of llama-cpp-python, which
`scripts/setup --test` keeps: nothing of them is in this repository.
"""

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from llamactl.chatlib.build import find_cache, find_wanted
from tests.socket.instance.harness import ROOT
from tests.socket.llama_server.stand_in import LLAMA_SERVER, REPORT

NEEDED = ("tools/server/tests", "tools/mtmd/test-1.jpeg", "models/templates")


@dataclass(frozen=True)
class Outcome:
    test: str
    outcome: str
    """passed, failed, skipped, or left out."""
    why: str


def find_sources() -> Path:
    return find_wanted(find_cache()).sdist


def unpack(sources: Path, directory: Path) -> Path:
    """The directory of the tests."""
    with tarfile.open(sources) as archive:
        for member in archive:
            path = PurePosixPath(*PurePosixPath(member.name).parts[3:])  # NAME/vendor/llama.cpp/
            if member.isfile() and any(path.is_relative_to(part) for part in NEEDED) and path.name != "conftest.py":
                data = archive.extractfile(member)
                assert data is not None
                (directory / path).parent.mkdir(parents=True, exist_ok=True)
                (directory / path).write_bytes(data.read())
    tests = directory / "tools/server/tests"
    (tests / "tmp").mkdir(exist_ok=True)
    return tests


def run(tests: Path, *arguments: str, llama_server: str = "") -> tuple[list[Outcome], str]:
    """What each test came to, and what pytest said."""
    report = tests / "report.jsonl"
    environment = {**os.environ, REPORT: str(report), "PYTHONPATH": str(ROOT), "no_proxy": "*"}
    if llama_server:
        environment[LLAMA_SERVER] = llama_server
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=60", "--rootdir", str(tests)]
    command += ["-p", "tests.socket.llama_server.stand_in", "--tb=short", *(arguments or ("unit",))]
    done = subprocess.run(
        command, cwd=tests, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = report.read_text().splitlines() if report.exists() else []
    return [Outcome(**json.loads(line)) for line in lines], done.stdout
