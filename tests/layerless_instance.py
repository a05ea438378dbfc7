"""An instance where nobody has built llama.cpp's chat layer: `python -m tests.layerless_instance serve`."""

import sys
from pathlib import Path

from llamactl.chatlib import place


def main() -> int:
    place.place_library = lambda llama_cpp: Path("/nonexistent/libllamactl-chat.so")
    from llamactl.instance.__main__ import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
