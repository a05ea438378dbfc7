"""How does a script get what it needs, or say in one line what is missing?

Scripts are called with whatever `python3` is first on PATH, before and after `scripts/setup`, with and without what
only tests need. So this file is for any Python 3 and its standard library; a script imports nothing else until it runs
with the interpreter of the virtual environment. What an extra of pyproject.toml brings is asked of the installed
project itself: a list here would have to be kept in step.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("LLAMACTL_VENV", CHECKOUT / ".venv"))
PROJECT = "llamactl-systemd"


class NotReadyError(Exception):
    """Something is missing. The message says what, and what to do."""


def run(purpose: str, main: Callable[[], int]) -> int:
    """The exit status of `main`. `purpose` is what cannot be done where something is missing: "measure"."""
    try:
        return main()
    except NotReadyError as error:
        print(f"cannot {purpose}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head`: what is still buffered has nobody to go to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def enter_venv(extra: str = "") -> None:
    """Go on as the same command in the virtual environment, which has what llamactl needs, and `extra`. Without one
    the interpreter that runs this may do.
    """
    setup = "scripts/setup" + (" --" + extra if extra else "")
    python = VENV / "bin" / "python"
    there = os.access(python, os.X_OK)
    if there and Path(sys.prefix).resolve() != VENV.resolve():
        os.execv(python, [str(python), *sys.argv])
    missing = find_missing(extra)
    if missing and not there:
        raise NotReadyError(f"there is no {python}; run {setup}")
    if missing:
        raise NotReadyError(f"{', '.join(missing)} missing in {VENV}; run {setup}")


def find_missing(extra: str) -> list[str]:
    """Packages that this environment lacks of the project's own and of those of `extra`."""
    try:
        required = metadata.requires(PROJECT) or []
    except metadata.PackageNotFoundError:
        return [PROJECT]
    wanted = []
    for requirement in required:
        package, _, marker = requirement.partition(";")
        of_extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        if of_extra is None or of_extra[1] == extra:
            wanted.append(re.split(r"[\s<>=!~\[(]", package, maxsplit=1)[0])
    return sorted(package for package in wanted if not _is_installed(package))


def need_programs(packages: Mapping[str, str]) -> None:
    """Programs, and the Debian packages that have them."""
    missing = [program for program in packages if shutil.which(program) is None]
    if missing:
        names = " ".join(packages[program] for program in missing)
        raise NotReadyError(f"{', '.join(missing)} missing; try: apt-get install {names}")


def need_root() -> None:
    if os.geteuid() != 0:
        raise NotReadyError("it needs root, for a sandbox with a systemd of its own; try: sudo")


def parse_file(text: str) -> Path:
    """For argparse: a file that is there."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file '{text}'")
    return path


def parse_program(text: str) -> Path:
    """For argparse: a program that can be run."""
    path = parse_file(text)
    if not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"'{text}' cannot be executed")
    return path


def _is_installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True
