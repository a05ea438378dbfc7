"""What does docs/configuration.md say about the keys? `python -m llamactl.config.reference docs/configuration.md`
writes it.

The tables between the markers are made from `keys`; the text around them is written by hand. A test holds the file in
step.
"""

import re
import sys
from pathlib import Path

from llamactl.config.keys import Key, MachineKey, Measured, ModelKey, show_default
from llamactl.config.machine_keys import GLOBAL_KEYS
from llamactl.config.model_keys import DIRECTORY_KEYS, MODEL_KEYS
from llamactl.config.sampling_keys import SAMPLING_KEYS
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
    with_counts = any(isinstance(key, MachineKey | ModelKey) for key in keys)
    rows = [["key", "holds", "default", *(["counts from"] if with_counts else []), ""]]
    rows.append(["---"] * len(rows[0]))
    for key in keys:
        words = key.kind.words.replace("|", "\\|")
        counts = [format_applies(key)] if with_counts else []
        rows.append([f"`{key.name}`", words, show_default(key, owner), *counts, key.help])
    return "".join(_format_row(row) for row in rows)


def format_applies(key: Key) -> str:
    """From when on a change of the key counts; empty for keys of which only their table says that."""
    if isinstance(key, ModelKey):
        return f"{key.applies}, measured again" if key.measured is Measured.AGAIN else str(key.applies)
    return str(key.applies) if isinstance(key, MachineKey) else ""


def _format_row(cells: list[str]) -> str:
    return "|" + "|".join(cell if cell == "---" else f" {cell} " if cell else " " for cell in cells) + "|\n"


def fill_document(text: str) -> str:
    """A document with all tables between its markers made again."""
    return _BLOCK.sub(lambda match: match[1] + format_keys(match[2]) + match[3], text)


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(fill_document(document.read_text()))
