"""`pin`, `unpin`, `measure`, `reload`: the commands that change something, and load and unload nothing (`switch`).

The last word on standard error says what came of it; `--json` puts the same as an object on standard output.
"""

import argparse
import sys
from collections.abc import Sequence

from llamactl.cli.client import Client
from llamactl.cli.found import format_found
from llamactl.cli.output import clean_line, complain, print_json
from llamactl.cli.progress import Board, ProgressLine
from llamactl.cli.show import format_memory_table
from llamactl.cli.terminal import acquire_look
from llamactl.paths import Paths, acquire_paths
from llamactl.protocol.control_socket import Done, MeasureRequest, PinRequest, ReloadRequest
from llamactl.protocol.values import format_memory

_WORDS = {
    "replaced": "files replaced, measured again",
    "kept": "invalid, but loaded: these go on as before until they are unloaded",
    "mended": "no longer invalid",
}
"""For what one word would not tell."""


def connect(paths: Paths | None = None) -> Client:
    """Connect to the supervisor. Raises LlamactlError where none answers."""
    return Client((paths or acquire_paths()).control_socket)


def run_measure(args: argparse.Namespace) -> int:
    """Have a model measured, and print what it needs; returns the exit status."""
    board = Board(sys.stderr)
    try:
        with connect() as client:
            result = client.ask(MeasureRequest(id=1, model=args.name), ProgressLine(board, args.name).show)
    finally:
        board.clear()
    if args.json:
        print_json({"model": result.model, "memory": format_memory(result.memory)})
    else:
        print(format_memory_table(result.memory, acquire_look(sys.stdout)))
    return 0


def run_pin(args: argparse.Namespace) -> int:
    """Keep a loaded model from being evicted until it ends; returns the exit status."""
    return _pin(args, pinned=True)


def run_unpin(args: argparse.Namespace) -> int:
    """Let a loaded model be evicted again; returns the exit status."""
    return _pin(args, pinned=False)


def _pin(args: argparse.Namespace, pinned: bool) -> int:
    with connect() as client:
        done: Done = client.ask(PinRequest(id=1, model=args.name, pinned=pinned))
    word = "pinned" if pinned else "unpinned"
    name = done.model or args.name
    return _finish(args, f"{word} until it is unloaded", name, word)


def run_reload(args: argparse.Namespace) -> int:
    """Have the configuration read again, and print what has changed; returns the exit status."""
    with connect() as client:
        result = client.ask(ReloadRequest(id=1))
    changes = {
        "added": result.added,
        "changed": result.changed,
        "removed": result.removed,
        "invalid": result.invalid,
        "kept": result.kept,
        "mended": result.mended,
        "replaced": result.replaced,
    }
    if args.json:
        lists = {**changes, "settings": result.settings, "problems": result.problems}
        print_json({word: list(names) for word, names in lists.items()} | {"found": result.found})
    elif any(changes.values()) or result.settings or result.found:
        for change in result.settings:
            print(clean_line(change))
        for word, names in {**changes, "invalid": _without(result.invalid, result.kept)}.items():
            if names:
                print(clean_line(f"{_WORDS.get(word, word)}: {', '.join(names)}"))
        for text in format_found(result.found):
            print(text)
    else:
        print("nothing has changed")
    for problem in result.problems:
        complain(clean_line(problem))
    # All that is right was applied, but whoever changed the rest must hear of it.
    return 1 if result.fatal else 0


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [name for name in names if name not in others]


def _finish(args: argparse.Namespace, text: str, model: str, result: str) -> int:
    Board(sys.stderr).finish(args.name, text)
    if args.json:
        print_json({"model": model, "result": result, "seconds": None})
    return 0
