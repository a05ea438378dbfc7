"""`check`: is the configuration right, before a reload finds out?

Reads the files itself and needs no supervisor. It also asks systemd whether the front's sockets listen: a port that
somebody else has taken keeps nothing but clients away, and nobody else would say so. Run it as root: models run as
users that exist only while they run, and whether those may read a file is computed, but others may not look everywhere.
"""

import argparse
import os
import sys
from collections.abc import Iterable

import msgspec

from llamactl.cli.found import format_found
from llamactl.cli.listeners import Listener, acquire_listeners
from llamactl.cli.output import clean_line, print_json
from llamactl.cli.templates import check_templates
from llamactl.cli.terminal import Style, acquire_look
from llamactl.config.heads import acquire_heads
from llamactl.config.limits import find_unenforced
from llamactl.config.load import load_config
from llamactl.config.permissions import check_config
from llamactl.controllers import acquire_controllers
from llamactl.paths import acquire_paths
from llamactl.settings import Problem


def run_check(args: argparse.Namespace) -> int:
    """Prints every finding. 1 when one of them keeps something from working, else 0. A model whose file is no model
    counts as invalid here; the supervisor, which opens no model file, finds out when it is measured.
    """
    paths = acquire_paths()
    config = load_config(paths, read_heads=acquire_heads)
    found = {directory.path: directory.places for directory in config.found}
    problems = [*config.problems, *check_config(paths, config), *check_templates(config)]
    problems += find_unenforced(config, acquire_controllers())
    problems += _list_dead_ends(acquire_listeners())
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
    look = acquire_look(sys.stdout)
    for problem in problems:
        text = clean_line(("" if problem.fatal else "note: ") + str(problem))
        print(look.paint(text, Style.BAD if problem.fatal else Style.PLAIN))
    n_models = len(good) + len(invalid)
    count = f"{n_models} model{'' if n_models == 1 else 's'}"
    summary = f"{fatal} problem{'' if fatal == 1 else 's'}" if fatal else "no problems"
    bad = f", {len(invalid)} of them invalid" if invalid else ""
    print(f"{paths.config_dir}: {count}{bad}, {summary}", file=sys.stderr)
    if fatal and os.geteuid() != 0:
        print("llamactl: not run as root: not every file can be looked at", file=sys.stderr)
    return 1 if fatal else 0


def _list_dead_ends(listeners: Iterable[Listener]) -> list[Problem]:
    """Addresses at which clients are to be served, and are not."""
    return [
        Problem(file=listener.unit, where=listener.address, message=f"NOT IN FORCE: {listener.why}")
        for listener in listeners
        if listener.wanted and not listener.in_force
    ]
