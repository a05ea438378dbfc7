"""Where are the unit files and the default configuration, and which directories must a process see to run our Python?

A wheel carries them inside the package, as `share_data`; an editable install uses the checkout's own `units` and `etc`.

Python, its virtual environment or the checkout may lie below a home that only its owner may enter, or in /tmp. Units
that run as dynamic users hide those (ProtectHome=tmpfs, PrivateTmp=) and get exactly these directories bound into the
empty ones: systemd makes the directories above them, and those can be passed. Nothing is copied, no mode is changed.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import llamactl

# What ProtectHome=tmpfs hides, and what PrivateTmp= hides besides: systemd.exec(5).
HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
HIDDEN = (*HOMES, Path("/tmp"), Path("/var/tmp"))


def find_share_dir(kind: str, package: Path | None = None) -> Path:
    """The directory of packaged data, `kind` being "units" or "etc". FileNotFoundError: a broken installation."""
    directory = package or Path(llamactl.__file__).resolve().parent
    candidates = (directory / "share_data" / kind, directory.parent / kind)
    # Beside an installed package lies all of site-packages: what is called `etc` there is somebody else's.
    checkout = (directory.parent / "pyproject.toml").is_file()
    for candidate in candidates if checkout else candidates[:1]:
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"cannot find llamactl's {kind}: not in {candidates[0]}; install the package again")


def choose_hidden(paths: Iterable[Path]) -> list[Path]:
    """Those of the paths that such a unit would not see, sorted, without any that lies below another."""
    chosen: list[Path] = []
    for path in sorted(set(paths)):
        if any(path.is_relative_to(home) for home in HIDDEN) and not any(path.is_relative_to(seen) for seen in chosen):
            chosen.append(path)
    return chosen


def python_paths() -> list[Path]:
    """Directories to bind read-only, under the same name, where homes and /tmp are hidden; empty when none is.

    As named and as resolved: a link is followed by its target's name, a program is started by the link's.
    """
    used = [Path(sys.prefix), Path(sys.base_prefix), Path(llamactl.__file__).parent]
    return choose_hidden([*used, *(path.resolve() for path in used)])
