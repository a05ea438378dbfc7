"""What does docs/configuration.md say about the keys? `python -m llamactl.config.reference docs/configuration.md`
writes it.

The tables between the markers are made from `keys`; the text around them is written by hand. A test holds the file in
step.
"""

import re
import sys
from pathlib import Path

from llamactl.config.keys import DIRECTORY_KEYS, GLOBAL_KEYS, MODEL_KEYS, SAMPLING_KEYS, Key, show_default
from llamactl.settings import GlobalSettings, ModelSettings, Sampling

_BLOCK = re.compile(r"(<!-- keys: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_TABLES: dict[str, tuple[tuple[Key, ...], type[GlobalSettings] | type[ModelSettings] | type[Sampling]]] = {
    "global": (GLOBAL_KEYS, GlobalSettings),
    "model": (MODEL_KEYS, ModelSettings),
    "sampling": (SAMPLING_KEYS, Sampling),
    "directory": (DIRECTORY_KEYS, ModelSettings),
}


def format_keys(name: str) -> str:
    """The Markdown table of one TOML table."""
    keys, owner = _TABLES[name]
    lines = ["| key | holds | default | |", "|---|---|---|---|"]
    for key in keys:
        words = key.kind.words.replace("|", "\\|")
        lines.append(f"| `{key.name}` | {words} | {show_default(key, owner)} | {key.help} |")
    return "\n".join(lines) + "\n"


def fill_document(text: str) -> str:
    """A document with all tables between its markers made anew."""
    return _BLOCK.sub(lambda match: match[1] + format_keys(match[2]) + match[3], text)


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(fill_document(document.read_text()))
