"""Where does the chat layer's library lie, and what says that it is the right one?

Beside llama_cpp in site-packages: whoever may import the one may load the other, also in the sandbox of a unit, and a
virtual environment that is thrown away takes it along. It names what it was built from: the version of
llama-cpp-python, whose headers it was compiled with, and our own sources.
"""

import hashlib
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

DISTRIBUTION = "llama-cpp-python"
COMMAND = "llamactl setup-chat"
DIRECTORY = "llamactl_chat"
LIBRARY = "libllamactl-chat.so"
SOURCES = Path(__file__).parent
OUR_FILES = ("analysis.cpp", "analysis.h", "layer.cpp", "libllama.cpp", "libllama.h", "recipe.py")


def find_llama_cpp() -> Path | None:
    """The directory of the package, which is not imported for that, nor asked: `instance` makes its own of it."""
    spec = PathFinder.find_spec("llama_cpp")
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(locations[0]) if locations else None


def place_library(llama_cpp: Path) -> Path:
    """Name the file of the chat layer that belongs to the llama_cpp package in this directory."""
    return llama_cpp.parent / DIRECTORY / LIBRARY


@cache
def compute_source_id() -> str:
    """Of what is ours in the library: another one may have other functions."""
    digest = hashlib.sha256()
    for name in OUR_FILES:
        digest.update((SOURCES / name).read_bytes())
    return digest.hexdigest()[:16]
