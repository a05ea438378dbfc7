"""`setup-chat`: how does a machine get llama.cpp's chat layer, without which instances serve no tool calls?

It is compiled here, for the llama-cpp-python that is installed: `scripts/setup` runs this, and so does whoever
installed a ready-made wheel, once after each new version of it.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from llamactl.chatlib.build import BuildError, find_cache, find_wanted, keep_sdist, set_up
from llamactl.cli.output import complain, draw

_CLEAR = "\r\x1b[2K"
_STEP = 0.25
"""Where a line cannot be written over: so often one is written."""


def run_setup_chat(args: argparse.Namespace) -> int:
    """Prints a line for each thing done. The sources that it downloaded stay until the library is there; for good with
    `--keep-sdist`.
    """
    try:
        wanted = find_wanted(find_cache())
        set_up(wanted, _say, _make_progress(), Path(args.sdist) if args.sdist else None)
        if args.keep_sdist and not args.sdist:
            keep_sdist(wanted, _say)
        wanted.downloaded.unlink(missing_ok=True)
    except BuildError as error:
        complain(str(error))
        return 1
    except OSError as error:
        complain(f"cannot build llama.cpp's chat layer: {error}")
        return 1
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _make_progress() -> Callable[[int, int], None]:
    shown = 0.0

    def show(n_done: int, n_all: int) -> None:
        nonlocal shown
        line = f"  {100 * n_done // n_all} % ({n_done} of {n_all} files)"
        if sys.stderr.isatty():
            draw(sys.stderr, _CLEAR + line + ("\n" if n_done == n_all else ""))
        elif n_done / n_all >= shown + _STEP:
            shown = n_done / n_all
            print(line, file=sys.stderr, flush=True)

    return show
