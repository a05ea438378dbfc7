"""Which of its own tests does llama-server fail with our small models? Written to the file that the test here reads, to
be run by hand for a new version of llama.cpp:

    python -m tests.socket.llama_server.record LLAMA_SERVER
"""

import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.socket.llama_server.expected import RECORDED
from tests.socket.llama_server.run import find_sources, run, unpack


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        outcomes, said = run(unpack(find_sources(), Path(name)), *sys.argv[2:], llama_server=sys.argv[1])
    print(said)
    failing = defaultdict(list)
    for outcome in outcomes:
        if outcome.outcome in ("failed", "skipped"):
            file, _, test = outcome.test.partition("::")
            failing[file].append(test)
    RECORDED.write_text(json.dumps(failing, indent=1) + "\n")


if __name__ == "__main__":
    main()
