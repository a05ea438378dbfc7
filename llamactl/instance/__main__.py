"""`python -m llamactl.instance serve|measure`: which role, and how does it end?

Exit statuses: 0 done, or stopped as told; 1 the model could not be loaded or measured (the report said why); 2 called wrongly, or with an environment
that makes no sense; 3 llama.cpp failed beyond repair while serving. A death by signal is llama.cpp's: the last report says in which stage.
"""

import asyncio
import logging
import os
import sys

from llamactl.errors import LlamactlError
from llamactl.instance.environ import ChildEnvironment, parse_environment
from llamactl.protocol import ChildRole

EXIT_USAGE = 2


def main(arguments: list[str]) -> int:
    try:
        (role,) = arguments
        environment = parse_environment(ChildRole(role), os.environ)
    except ValueError:
        print("usage: python -m llamactl.instance serve|measure", file=sys.stderr)
        return EXIT_USAGE
    except LlamactlError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    _configure_log(environment)
    if environment.role is ChildRole.MEASURE:
        from llamactl.instance.measure import run_measure

        return asyncio.run(run_measure(environment))
    import uvloop

    from llamactl.instance.serve import run_serve

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    status = runner.run(run_serve(environment))
    # The kernel takes the memory back at once. An orderly end would join threads that llama.cpp may hold for minutes, and free what it still uses.
    logging.shutdown()
    os._exit(status)


def _configure_log(environment: ChildEnvironment) -> None:
    """Standard error is the journal; its identifier and fields are set by the unit. The prefix is a priority that journald reads (sd-daemon(3))."""
    level = logging.DEBUG if environment.llama_debug else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PriorityFormatter("%(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


class _PriorityFormatter(logging.Formatter):
    _PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.NOTSET, 7))

    def format(self, record: logging.LogRecord) -> str:
        priority = next(number for level, number in self._PRIORITIES if record.levelno >= level)
        # Each line of a traceback needs its own prefix, or journald files the rest under the default.
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines() or [""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
