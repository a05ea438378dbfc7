"""Does every example in docs/http.md do what the page shows? Run in its order, by a shell, against the real thing."""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import gguf
import pytest

from tests.models import write_embedding_model, write_model
from tests.system.harness import TIMEOUT_S, Llamactl

PAGE = Path(__file__).parents[3] / "docs/http.md"
BLOCK = re.compile(r"```sh\n(.*?)```\n(?:\n```(json|text)\n(.*?)```)?", re.DOTALL)
ENDLESS = "/models/sse"


def fits(shown: Any, given: Any) -> bool:
    """Whether an answer is as shown: members may be added, numbers differ, and `...` stands for any text."""
    if isinstance(shown, dict):
        return isinstance(given, dict) and all(key in given and fits(shown[key], given[key]) for key in shown)
    if isinstance(shown, list):
        return isinstance(given, list) and len(given) >= len(shown) and all(map(fits, shown, given))
    if isinstance(shown, str):
        return isinstance(given, str) and re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*"), given, re.DOTALL)
    if isinstance(shown, bool) or shown is None:
        return given is shown
    return isinstance(given, int | float) and not isinstance(given, bool)


def line_fits(shown: str, given: str) -> bool:
    prefix = "data: {"
    if shown.startswith(prefix):
        return given.startswith(prefix) and fits(json.loads(shown[6:]), json.loads(given[6:]))
    return bool(fits(shown, given))


def run(script: str, lines: list[str]) -> str:
    """What a script writes; of one that never ends, as many lines as are shown."""
    process = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    if ENDLESS in script:
        output = "".join(process.stdout.readline() for _ in lines)
        subprocess.run(["kill", "--", f"-{process.pid}"], check=True)
        process.wait(TIMEOUT_S)
    else:
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, script
    return output


@pytest.mark.parametrize(
    ("shown", "given", "is_good"),
    [
        ({"a": 1}, {"a": 2.5, "b": 1}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": 1}, {"b": 1}, False),
        ([1], [], False),
        ("x...", "xyz", True),
        ("x", "xyz", False),
        (None, None, True),
    ],
    ids=str,
)
def test_comparison_finds_what_differs(shown: Any, given: Any, is_good: bool) -> None:
    assert bool(fits(shown, given)) is is_good


def test_examples_have_the_answers_that_are_shown(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    with tempfile.TemporaryDirectory(dir="/srv") as directory:
        Path(directory).chmod(0o755)
        embedder = write_embedding_model(Path(directory) / "embedder.gguf")
        coder = write_model(Path(directory) / "coder.gguf", fills_gaps=True)
        reranker = write_embedding_model(Path(directory) / "reranker.gguf", pooling=gguf.PoolingType.RANK)
        models: dict[str, dict[str, Any]] = {
            "coder": {"path": str(coder), "ctx": 2048},
            "embedder": {"path": str(embedder)},
            "reranker": {"path": str(reranker)},
            "smollm2": {"path": str(tiny["a"]), "aliases": ["small"], "ctx": 2048},
        }
        llamactl.write_models(**models)
        llamactl.start()
        for model in models:
            llamactl.wait_event("model_measured", LLAMACTL_MODEL=model)
        prelude, *examples = BLOCK.findall(PAGE.read_text())
        assert len(examples) >= 20
        for script, kind, shown in examples:
            lines = [line for line in shown.splitlines() if line]
            output = run(prelude[0] + script, lines)
            if kind == "json":
                assert fits(json.loads(shown), json.loads(output)), f"{script}\nanswered {output}"
            for line in lines if kind == "text" else []:
                found = any(line_fits(line, given) for given in output.splitlines())
                assert found, f"{script}\nhas no line {line} in {output}"
            assert kind, f"the page does not show what this answers: {script}"
