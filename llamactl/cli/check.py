"""`check`: is the configuration right, before a reload finds out?

Reads the files itself and needs no supervisor. Run it as root: models run as users that exist only while they run,
and whether those may read a file is computed, but others may not look everywhere.
"""

import argparse
import os
import sys

import msgspec

from llamactl.cli.found import format_found
from llamactl.cli.output import clean_text, print_json
from llamactl.config import acquire_heads, check_config, load_config
from llamactl.paths import acquire_paths


def run_check(args: argparse.Namespace) -> int:
    """Prints every finding. 1 when one of them keeps something from working, else 0. A model whose file is no model
    counts as invalid here; the supervisor, which opens no model file, finds out when it is measured.
    """
    paths = acquire_paths()
    config = load_config(paths, read_heads=acquire_heads)
    found = {directory.path: directory.places for directory in config.found}
    problems = [*config.problems, *check_config(paths, config)]
    fatal = sum(problem.fatal for problem in problems)
    invalid = {*config.invalid, *(problem.model for problem in problems if problem.fatal and problem.model)}
    good = sorted(config.models.keys() - invalid)
    if args.json:
        print_json(
            {
                "ok": not fatal,
                "models": good,
                "invalid": sorted(invalid),
                "problems": msgspec.to_builtins(problems),
                "found": found,
            }
        )
        return 1 if fatal else 0
    for line in format_found(found, sys.maxsize):
        print(line)
    for problem in problems:
        print(clean_text(("" if problem.fatal else "note: ") + str(problem)))
    n_models = len(good) + len(invalid)
    count = f"{n_models} model{'' if n_models == 1 else 's'}"
    summary = f"{fatal} problem{'' if fatal == 1 else 's'}" if fatal else "no problems"
    bad = f", {len(invalid)} of them invalid" if invalid else ""
    print(f"{paths.config_dir}: {count}{bad}, {summary}", file=sys.stderr)
    if fatal and os.geteuid() != 0:
        print("llamactl: not run as root: not every file can be looked at", file=sys.stderr)
    return 1 if fatal else 0
