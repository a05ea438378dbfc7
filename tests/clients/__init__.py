"""How do tests run a program that uses somebody else's client? Programs lie here, beside lists of what they need, of
which `scripts/setup --test` makes environments.

A program is called with a URL, and the names of cases unless it shall run all of them; it prints one JSON object: what
came of each.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENVIRONMENTS = Path(sys.prefix) / "clients"
TIMEOUT_S = 120.0


def run_program(name: str, url: str, directory: Path, *cases: str) -> dict[str, Any]:
    """Works in `directory`, where it leaves what it writes."""
    environment = ENVIRONMENTS / choose_environment(name)
    assert environment.is_dir(), f"there is no {environment}: run scripts/setup --test"
    if name.endswith(".mjs"):  # node looks for packages beside the program
        (directory / "node_modules").symlink_to(environment / "node_modules")
        for program in HERE.glob("*.mjs"):
            (directory / program.name).write_bytes(program.read_bytes())
        command = ["node", name]
    else:
        command = [str(environment / "bin/python"), str(HERE / name)]
    # Nothing that the caller has set for such clients, a key or a proxy, changes what they do.
    variables = {"PATH": os.environ["PATH"], "HOME": str(directory), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [*command, url, *cases], cwd=directory, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


def choose_environment(name: str) -> str:
    """The name of the list that a program needs."""
    if name.endswith(".mjs"):
        return "node"
    return "instructor" if name.startswith("instructor") else "python"
