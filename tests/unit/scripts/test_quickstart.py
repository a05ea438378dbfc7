"""What quickstart writes and says, without running it."""

import subprocess
from pathlib import Path

import pytest

from tests.unit.config.tree import Tree

TEXT = (Path(__file__).resolve().parents[3] / "scripts" / "quickstart").read_text()


def test_configuration_has_no_problems_and_tells_the_chat_model_of_functions(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    machine, models = (part.partition("\nTOML\n")[0] for part in TEXT.split("<<TOML\n")[1:])
    tree.glob(machine.replace("$budget", "400 MiB"))
    for name in ("smollm2", "gemma3"):
        models = models.replace(f"${name}", str(tree.gguf(f"{name}.gguf")))
    tree.file("quickstart.toml", models)
    config = tree.load()
    assert config.problems == ()
    assert {name: model.tools for name, model in config.models.items()} == {"smollm2": "prompt", "gemma3": "template"}


@pytest.mark.parametrize("keep", ["", "yes"])
def test_end_tells_what_to_try_only_where_something_runs(keep: str) -> None:
    end = TEXT[TEXT.index('step "Done"') :]
    stubs = f'set -eu; host= keep={keep}; step() {{ :; }}; note() {{ printf "%s\\n" "$*"; }}\n'
    said = subprocess.run(["bash", "-c", stubs + end], capture_output=True, text=True, check=True).stdout
    assert ("What to try" in said, "still running" in said) == (bool(keep), bool(keep))
    assert ("scripts/quickstart --keep" in said) == (not keep)
