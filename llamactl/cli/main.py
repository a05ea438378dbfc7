"""Which commands are there, and what becomes of errors?

One table of commands makes the parser and the help. Whatever a command raises ends here as one line on standard error
and an exit status from the table of errors; a traceback is never shown (LLAMACTL_DEBUG=1 shows it). Modules are
imported by the command that needs them: most of the time that `llamactl ps` takes would else be imports.
"""

import argparse
import difflib
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from llamactl import __version__
from llamactl.errors import LlamactlError
from llamactl.escape import escape_text

USAGE_ERROR = 2
_SIGPIPE = 128 + signal.SIGPIPE
_SIGINT = 128 + signal.SIGINT


@dataclass(frozen=True)
class Command:
    """A command: `module:function`, one line of help, and what adds its arguments."""

    name: str
    run: str
    help: str
    arguments: tuple[Callable[[argparse.ArgumentParser], object], ...] = ()
    find_mistake: Callable[[argparse.Namespace], str] = lambda _: ""
    """What is wrong with arguments that are right each by itself; empty: nothing."""


def _add_name(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument("name", metavar="NAME", type=escape_text, help="a model, by name or alias")


def _add_names(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument("names", metavar="NAME", nargs="+", type=escape_text, help="models, by name or alias")


def _add_names_or_all(parser: argparse.ArgumentParser) -> object:
    parser.add_argument("names", metavar="NAME", nargs="*", type=escape_text, help="models, by name or alias")
    return parser.add_argument("--all", action="store_true", help="all models that are loaded, or wait to be")


def _add_optional_name(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument(
        "name", metavar="NAME", nargs="?", default="", type=escape_text, help="a model, by name or alias"
    )


def _add_json(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def _add_full(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument("-l", "--full", action="store_true", help="do not cut lines to the terminal's width")


def _add_no_wait(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument("--no-wait", action="store_true", help="return at once, the supervisor goes on")


def _add_now(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument("--now", action="store_true", help="cut running requests instead of waiting for them")


def _add_follow(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument("-f", "--follow", action="store_true", help="go on with new lines")


def _add_lines(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument("-n", "--lines", metavar="N", help="only the last N lines")


def _add_sdist(parser: argparse.ArgumentParser) -> object:
    parser.add_argument("--sdist", metavar="FILE", default="", help="llama-cpp-python's sources, instead of a download")
    return parser.add_argument("--keep-sdist", action="store_true", help="keep what was downloaded, which tests need")


def _find_mistake_in_names(args: argparse.Namespace) -> str:
    if args.all:
        return "--all goes without NAME" if args.names else ""
    return "" if args.names else "give at least one NAME, or --all"


_LOAD = ("switch:run_load", (_add_names, _add_no_wait, _add_json))
_UNLOAD = ("switch:run_unload", (_add_names_or_all, _add_now, _add_no_wait, _add_json))

GROUPS: tuple[tuple[str, tuple[Command, ...]], ...] = (
    (
        "Models",
        (
            Command("load", _LOAD[0], "load models and wait until they are ready", _LOAD[1]),
            Command("start", _LOAD[0], "the same as load", _LOAD[1]),
            Command(
                "unload", _UNLOAD[0], "let their requests end, then stop models", _UNLOAD[1], _find_mistake_in_names
            ),
            Command("stop", _UNLOAD[0], "the same as unload", _UNLOAD[1], _find_mistake_in_names),
            Command(
                "restart",
                "switch:run_restart",
                "unload models, and load them again with their present settings",
                (_add_names, _add_now, _add_no_wait, _add_json),
            ),
            Command("pin", "act:run_pin", "keep a loaded model from being evicted", (_add_name, _add_json)),
            Command("unpin", "act:run_unpin", "let a loaded model be evicted again", (_add_name, _add_json)),
            Command(
                "measure",
                "act:run_measure",
                "find out what a model needs, without loading it",
                (_add_name, _add_json),
            ),
        ),
    ),
    (
        "Looking",
        (
            Command("ps", "show:run_ps", "models that are loaded", (_add_full, _add_json)),
            Command("list", "show:run_list", "all models", (_add_full, _add_json)),
            Command(
                "status",
                "show:run_status",
                "endpoints, memory, queue, last decisions; or one model in detail",
                (_add_optional_name, _add_full, _add_json),
            ),
            Command(
                "plan",
                "plan:run_plan",
                "what loading a model would do, and why; does nothing",
                (_add_name, _add_full, _add_json),
            ),
            Command(
                "logs",
                "logs:run_logs",
                "the journal of a model; takes options of journalctl",
                (_add_name, _add_follow, _add_lines),
            ),
        ),
    ),
    (
        "Configuration",
        (
            Command(
                "check",
                "check:run_check",
                "find mistakes in the configuration and files",
                (_add_json,),
            ),
            Command("reload", "act:run_reload", "read the configuration again", (_add_json,)),
        ),
    ),
    (
        "Installation",
        (
            Command("install", "", "write units, groups and a default configuration"),
            Command("uninstall", "", "stop everything and remove what install wrote"),
            Command(
                "setup-chat",
                "setup_chat:run_setup_chat",
                "compile llama.cpp's chat layer, which tool calls need",
                (_add_sdist,),
            ),
        ),
    ),
)
COMMANDS = {command.name: command for _, commands in GROUPS for command in commands}

EXIT_STATUS = """exit status:
  0 done   1 failed   2 wrong usage   3 not loaded   4 no such model
  5 does not fit   6 no supervisor   130 interrupted
  of several models, the worst: 6 1 5 4 3 0"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {escape_text(message)}; see: {self.prog} --help", file=sys.stderr)
        raise SystemExit(USAGE_ERROR)


def format_help() -> str:
    """What `llamactl --help` prints."""
    lines = ["usage: llamactl COMMAND [ARGUMENTS]", "", "systemctl for local language models."]
    for title, commands in GROUPS:
        lines += ["", f"{title}:", *(f"  {command.name:<11}{command.help}" for command in commands)]
    lines += ["", "  llamactl help COMMAND tells a command's arguments; --version the version", "", EXIT_STATUS]
    return "\n".join(lines)


def build_parser(name: str) -> argparse.ArgumentParser:
    """The parser of one command. Its result has `run`, which takes the arguments and returns the exit status."""
    command = COMMANDS[name]
    if not command.run:
        parser = _Parser(prog="llamactl")
        install = importlib.import_module("llamactl.cli.install")
        install.add_parser(parser.add_subparsers(dest="command", required=True, parser_class=_Parser))
        return parser
    parser = _Parser(
        prog=f"llamactl {name}",
        description=command.help[0].upper() + command.help[1:] + ".",
        epilog=EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for add in command.arguments:
        add(parser)
    return parser


def parse_command(words: Sequence[str]) -> tuple[Callable[[argparse.Namespace], int], argparse.Namespace]:
    """The function and the arguments that a command line means. Raises SystemExit for help and for wrong usage."""
    if len(words) > 1 and words[0] == "help" and words[1] not in ("-h", "--help"):
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(format_help(), file=sys.stdout if words else sys.stderr)
        raise SystemExit(0 if words else USAGE_ERROR)
    if words[0] in ("-V", "--version"):
        print(f"llamactl {__version__}")
        raise SystemExit(0)
    name = words[0]
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "see: llamactl --help"
        print(f"llamactl: unknown command {name!r}; {hint}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR)
    parser = build_parser(name)
    if not COMMANDS[name].run:
        args = parser.parse_args(words)
        return args.run, args
    if name == "logs":
        args, args.options = parser.parse_known_args(words[1:])
    else:
        # Options may stand between names; what follows "--" is a name in any case, which intermixing has forgotten.
        parse = parser.parse_args if "--" in words else parser.parse_intermixed_args
        args = parse(words[1:])
        mistake = COMMANDS[name].find_mistake(args)
        if mistake:
            parser.error(mistake)
    module, function = COMMANDS[name].run.split(":")
    return getattr(importlib.import_module(f"llamactl.cli.{module}"), function), args


def main(words: Sequence[str] | None = None) -> int:
    """The command line: returns the exit status. Raises SystemExit for help and wrong usage only."""
    from llamactl.cli.output import complain

    _prepare_streams()
    try:
        try:
            run, args = parse_command(sys.argv[1:] if words is None else words)
            status = run_command(run, args)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _SIGINT
    except OSError as error:
        # Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return _SIGPIPE  # whoever read has seen enough
        complain(f"cannot write: {error.strerror or error}")
        return 1
    return status


def _prepare_streams() -> None:
    """Python has None for a closed descriptor, and raises for characters that the terminal's encoding lacks. From here
    on nothing reaches a terminal that was not cleaned.
    """
    from llamactl.cli.output import CleanStream

    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w")  # noqa: SIM115 (it lives as long as the process)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        setattr(sys, name, CleanStream(stream))


def run_command(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """The exit status of a command, also when it raises. Raises OSError where the output cannot be written."""
    from llamactl.cli.output import complain, describe_error, print_json

    try:
        return run(args)
    except LlamactlError as error:
        complain(str(error))
        if getattr(args, "json", False):
            print_json(describe_error(error))
        return error.kind.exit_status
    except OSError:
        raise
    except Exception as error:
        if os.environ.get("LLAMACTL_DEBUG"):
            raise
        complain(f"internal error: {type(error).__name__}: {error}; LLAMACTL_DEBUG=1 shows where")
        return 1


if __name__ == "__main__":
    sys.exit(main())
