"""Which of llama-server's tests are to pass, and why not the others? Two files: what llama-server makes of them itself
with our small models (recorded), and what we know better (written by hand, with reasons).
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

REASONS = Path(__file__).with_name("reasons.toml")
RECORDED = Path(__file__).with_name("recorded.json")


@dataclass(frozen=True)
class Expected:
    """Tests by their ids, `unit/test_basic.py::test_server_slots`."""

    left_out: Mapping[str, str]
    """Not run. Reasons by patterns of ids; a pattern holds for what is below it, too."""
    any_text: Sequence[str]
    """Patterns of tests in which a pattern of theirs is one of the text of their model."""
    differs: Mapping[str, str]
    """llama-server passes, and we do not. Reasons by id."""
    fails_there: frozenset[str]
    """llama-server fails with our models, so these say nothing."""

    def find_reason(self, test: str) -> str:
        """Why it is not run; empty: it is."""
        return next((why for pattern, why in self.left_out.items() if matches(test, pattern)), "")

    def takes_any_text(self, test: str) -> bool:
        return any(matches(test, pattern) for pattern in self.any_text)


def matches(test: str, pattern: str) -> bool:
    """Whether a pattern holds for a test, or for what is above it."""
    # Not fnmatch alone: ids have brackets in them.
    bare = test.partition("[")[0]
    return test == pattern or fnmatchcase(bare, pattern) or bare.startswith(f"{pattern}::")


def read_expected() -> Expected:
    written = tomllib.loads(REASONS.read_text())
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    failing = (f"{file}::{test}" for file, tests in recorded.items() for test in tests)
    return Expected(written["left_out"], written["any_text"]["tests"], written["differs"], frozenset(failing))
