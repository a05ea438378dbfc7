"""How does a test get an instance of its own in a tenth of a second? From a process that has imported all of one, and
forks: `python -m tests.socket.llama_server.forked` reads orders, one JSON object a line, and answers with process IDs.

An order is the environment of a child, and the file of its standard error. What runs in the fork is what
`python -m llamactl.instance serve` runs.
"""

import gc
import importlib
import json
import os
import pkgutil
import signal
import sys

import llamactl.instance
from llamactl.instance.__main__ import main as run_instance


def main() -> int:
    for module in pkgutil.walk_packages(llamactl.instance.__path__, "llamactl.instance."):
        importlib.import_module(module.name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets the dead
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            return become(order["environment"], order["errors"])
        print(pid, flush=True)
    return 0


def become(environment: dict[str, str], errors: str) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.clear()
    os.environ.update(environment)
    return run_instance(["serve"])


if __name__ == "__main__":
    sys.exit(main())
