"""`logs`: which lines of the journal belong to a model?

Lines that carry its name (the supervisor's and the instance's own), everything its units printed, and what systemd
says about them. The command becomes journalctl, so that its options, its pager and Ctrl-C work as ever. The
supervisor is not asked: logs are wanted when it is down.
"""

import argparse
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from llamactl.cli.output import complain
from llamactl.cli.user import suggest_group
from llamactl.config.load import load_config
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.names import Role, format_slug, format_unit, quote_name, suggest_names
from llamactl.paths import acquire_paths

JOURNALS = (Path("/var/log/journal"), Path("/run/log/journal"))
_ELSEWHERE = ("--file", "--directory", "-D", "--root", "--image", "--machine", "-M", "--user")
"""Options of journalctl that mean another journal than the system's."""


def build_command(name: str, follow: bool, lines: str | None, options: list[str]) -> list[str]:
    """journalctl with matches that are joined by "+" (or), and the options that were given."""
    matches = [f"LLAMACTL_MODEL={name}"]
    for role in (Role.MODEL, Role.MEASURE):
        unit = format_unit(role, format_slug(name))
        matches += ["+", f"_SYSTEMD_UNIT={unit}", "+", "_PID=1", f"UNIT={unit}"]
    command = ["journalctl"]
    command += ["--follow"] if follow else []
    command += [f"--lines={lines}"] if lines is not None else []
    return command + options + matches


def find_sealed_journal(
    directories: Iterable[Path] = JOURNALS, may_read: Callable[[Path], bool] = lambda path: os.access(path, os.R_OK)
) -> Path | None:
    """The system's journal, where there is one and we may read none of it."""
    files = [path for directory in directories for path in sorted(directory.glob("*/system.journal"))]
    return None if any(may_read(path) for path in files) else next(iter(files), None)


def run_logs(args: argparse.Namespace) -> int:
    """Become journalctl, with the lines of one model. Returns never; raises LlamactlError where that cannot be done."""
    sealed = None if any(option.startswith(_ELSEWHERE) for option in args.options) else find_sealed_journal()
    if sealed is not None:
        raise LlamactlError(
            ErrorCode.PERMISSION,
            f"cannot read the journal: permission denied at {sealed}; it is for the group systemd-journal (or adm), "
            "which llamactl-admin does not contain",
            hint=f"{suggest_group('systemd-journal')}; or use sudo",
        )
    config = load_config(acquire_paths())
    name = config.resolve(args.name)
    if name is None:
        name = args.name
        if not _has_lines(name):
            raise LlamactlError(
                ErrorCode.UNKNOWN_MODEL,
                f"cannot find model {quote_name(name)}: it is not configured, and the journal has nothing of it",
                hint=suggest_names(name, config.list_names()) or "`llamactl list` shows all models",
                model=name,
            )
        complain(f"no model {quote_name(name)} is configured; showing what the journal has")
    command = build_command(name, args.follow, args.lines, args.options)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise _make_error(error) from None


def _has_lines(name: str) -> bool:
    """Whether the journal has any line of a model, as far as we may read it."""
    command = build_command(name, False, "1", ["--quiet", "--output=cat", "--no-pager"])
    try:
        return bool(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
    except OSError as error:
        raise _make_error(error) from None


def _make_error(error: OSError) -> LlamactlError:
    return LlamactlError(ErrorCode.INTERNAL, f"cannot run journalctl: {error.strerror}")
