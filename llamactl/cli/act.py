"""`load`, `unload`, `pin`, `unpin`, `measure`, `reload`: the commands that change something.

The last word on standard error says what came of it; `--json` puts the same as an object on standard output. Ctrl-C
during a load ends only the waiting: the load belongs to the supervisor.
"""

import argparse
import sys

from llamactl.cli.client import Client
from llamactl.cli.output import complain, format_span, print_json
from llamactl.cli.progress import ProgressLine, describe_unloading
from llamactl.cli.show import format_memory_table
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.names import format_command
from llamactl.paths import Paths, acquire_paths
from llamactl.protocol import Done, LoadRequest, MeasureRequest, PinRequest, ReloadRequest, UnloadRequest, format_memory


def connect(paths: Paths | None = None) -> Client:
    return Client((paths or acquire_paths()).control_socket)


def run_load(args: argparse.Namespace) -> int:
    line = ProgressLine(sys.stderr, args.name)
    try:
        done = _wait_for(LoadRequest(id=1, model=args.name, wait=not args.no_wait), line, "loading")
    except LlamactlError as error:
        if error.code is not ErrorCode.ALREADY_LOADED:
            raise
        return _finish(line, args, "already loaded", error.model or args.name, "already loaded")
    name = done.model or args.name
    if args.no_wait:
        return _finish(line, args, f"will be loaded: {format_command('status', args.name)}", name, "queued")
    if not line.seen and done.seconds == 0:
        return _finish(line, args, "already loaded", name, "already loaded")
    return _finish(
        line, args, f"ready in {format_seconds(done.seconds)}", name, "ready", seconds=round(done.seconds, 3)
    )


def run_unload(args: argparse.Namespace) -> int:
    line = ProgressLine(sys.stderr, args.name, describe_unloading)
    request = UnloadRequest(id=1, model=args.name, now=args.now, wait=not args.no_wait)
    done = _wait_for(request, line, "unloading")
    name = done.model or args.name
    if args.no_wait:
        return _finish(line, args, "will be unloaded when its requests have ended", name, "queued")
    return _finish(line, args, "unloaded", name, "unloaded", seconds=round(done.seconds, 3))


def _wait_for(request: LoadRequest | UnloadRequest, line: ProgressLine, doing: str) -> Done:
    """The answer to a request that the supervisor carries out whether or not anyone waits."""
    with connect() as client:
        try:
            done: Done = client.ask(request, line.show)
            return done
        except BaseException as error:
            line.clear()
            if isinstance(error, KeyboardInterrupt):
                complain(f"still {doing} in the background: {format_command('status', request.model)}")
            raise


def run_measure(args: argparse.Namespace) -> int:
    line = ProgressLine(sys.stderr, args.name)
    try:
        with connect() as client:
            result = client.ask(MeasureRequest(id=1, model=args.name), line.show)
    finally:
        line.clear()
    if args.json:
        print_json({"model": result.model, "memory": format_memory(result.memory)})
    else:
        print(format_memory_table(result.memory))
    return 0


def run_pin(args: argparse.Namespace) -> int:
    return _pin(args, pinned=True)


def run_unpin(args: argparse.Namespace) -> int:
    return _pin(args, pinned=False)


def _pin(args: argparse.Namespace, pinned: bool) -> int:
    with connect() as client:
        done: Done = client.ask(PinRequest(id=1, model=args.name, pinned=pinned))
    word = "pinned" if pinned else "unpinned"
    name = done.model or args.name
    return _finish(ProgressLine(sys.stderr, args.name), args, f"{word} until it is unloaded", name, word)


def run_reload(args: argparse.Namespace) -> int:
    with connect() as client:
        result = client.ask(ReloadRequest(id=1))
    changes = {
        "added": result.added,
        "changed": result.changed,
        "removed": result.removed,
        "invalid": result.invalid,
    }
    if args.json:
        lists = {**changes, "settings": result.settings, "problems": result.problems}
        print_json({word: list(names) for word, names in lists.items()})
    elif any(changes.values()) or result.settings:
        for change in result.settings:
            print(change)
        for word, names in changes.items():
            if names:
                print(f"{word}: {', '.join(names)}")
    else:
        print("nothing has changed")
    for problem in result.problems:
        complain(problem)
    # All that is right was applied, but whoever changed the rest must hear of it.
    return 1 if result.fatal else 0


def format_seconds(seconds: float) -> str:
    """As progress lines say it: "0.8 s" below a minute."""
    return f"{seconds:.1f} s" if seconds < 60 else format_span(seconds)


def _finish(
    line: ProgressLine, args: argparse.Namespace, text: str, model: str, result: str, seconds: float | None = None
) -> int:
    line.finish(text)
    if args.json:
        print_json({"model": model, "result": result, "seconds": seconds})
    return 0
