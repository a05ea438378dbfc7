"""`python -m llamactl.instance serve|measure`: which role, and how does it end?

Exit statuses: 0 done, or stopped as told; 1 the model could not be loaded or measured (the report said why); 2 called
wrongly, or with an environment that makes no sense; 3 llama.cpp failed beyond repair while serving. A death by signal
is llama.cpp's: the last report says in which stage.
"""

import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llamactl.child.orders import ChildEnvironment
    from llamactl.instance.llama.preload import Preload

EXIT_USAGE = 2


def main(arguments: list[str]) -> int:
    """Run in the role that the only argument names; returns the exit status, where the process outlives its role."""
    preload = _begin_preload() if arguments == ["serve"] else None
    # From here on everything is imported while the model loads.
    from llamactl.child.orders import parse_environment
    from llamactl.errors import LlamactlError
    from llamactl.protocol.report_socket import ChildRole

    try:
        (role,) = arguments
        environment = parse_environment(ChildRole(role), os.environ)
    except ValueError:
        print("usage: python -m llamactl.instance serve|measure", file=sys.stderr)
        return EXIT_USAGE
    except LlamactlError as error:
        print(error, file=sys.stderr)
        if preload is not None:  # an orderly end would pull llama.cpp away from under it
            os._exit(EXIT_USAGE)
        return EXIT_USAGE
    if environment.role is ChildRole.MEASURE:
        return _measure(environment)
    return _serve(environment, preload)


def _begin_preload() -> "Preload | None":
    # All that is made until the model is ready stays; looking through it again and again is a tenth of the imports.
    gc.disable()
    try:
        from llamactl.instance.llama.preload import begin_preload
    except (ImportError, OSError):  # of llama.cpp: the load meets it again, and reports it
        return None
    return begin_preload(os.environ)


def _measure(environment: "ChildEnvironment") -> int:
    import asyncio

    from llamactl.instance.measure import run_measure

    _configure_log(environment)
    return asyncio.run(run_measure(environment))


def _serve(environment: "ChildEnvironment", preload: "Preload | None") -> int:
    from llamactl.instance.llama.background_load import BackgroundLoad

    load = BackgroundLoad(environment, preload)
    import asyncio

    import uvloop

    from llamactl.instance.serve import run_serve

    _configure_log(environment)
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    status = runner.run(run_serve(environment, load))
    # The kernel takes the memory back at once. An orderly end would join threads that llama.cpp may hold for minutes,
    # and free what it still uses.
    sys.stderr.flush()
    os._exit(status)


def _configure_log(environment: "ChildEnvironment") -> None:
    from llamactl.names import format_slug
    from llamactl.systemd.journal import configure

    # The unit sets LLAMACTL_MODEL for every line of its processes, except for names that it cannot (LogExtraFields=).
    fields = {} if environment.model.isidentifier() else {"model": environment.model}
    configure(f"llamactl-{format_slug(environment.model)}", environment.log_level, fields)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
