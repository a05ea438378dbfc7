"""Does a chat program work as its users get it, set up as docs/operations.md says? `llm`, unmodified, over TCP."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import TIMEOUT_S, Llamactl
from tests.system.instance.test_smollm2 import count_english

URL = "http://127.0.0.1:8080/v1"
LLM = str(Path(sys.executable).with_name("llm"))
OPERATIONS = Path(__file__).resolve().parents[3] / "docs/operations.md"
OPTIONS = ("-o", "temperature", "0", "-o", "max_tokens", "40")


def read_documented_models() -> str:
    """The file of models that docs/operations.md has a user write."""
    found = re.search(r"```yaml\n# \S*extra-openai-models\.yaml\n(.*?)```", OPERATIONS.read_text(), re.DOTALL)
    assert found, f"{OPERATIONS} shows no extra-openai-models.yaml"
    return found[1]


@pytest.fixture
def environment(llamactl: Llamactl, smollm2_file: Path, tiny: dict[str, Path], tmp_path: Path) -> dict[str, str]:
    """A fresh user of `llm`, beside a llamactl that has loaded nothing yet."""
    # One thread: several that wait for each other crawl where another program keeps a core busy.
    llamactl.write_models(smollm2={"path": str(smollm2_file), "ctx": 2048, "threads": 1}, a={"path": str(tiny["a"])})
    llamactl.start()
    (tmp_path / "extra-openai-models.yaml").write_text(read_documented_models())
    return {**os.environ, "LLM_USER_PATH": str(tmp_path)}


@pytest.fixture
def llm(environment: dict[str, str]) -> Callable[..., str]:
    def run_llm(*arguments: str, said: str = "", status: int = 0) -> str:
        """What it prints; of a failure, what it says about it."""
        done = subprocess.run(
            [LLM, *arguments], input=said, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == status, f"llm {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}"
        return done.stderr if status else done.stdout

    return run_llm


def read_log(llm: Callable[..., str]) -> list[dict[str, Any]]:
    """What `llm` has noted of its exchanges, oldest first."""
    entries: list[dict[str, Any]] = json.loads(llm("logs", "list", "--json", "-n", "0"))
    return sorted(entries, key=lambda entry: str(entry["datetime_utc"]))


def test_models_are_found(llm: Callable[..., str]) -> None:
    assert set(llm("openai", "endpoint", URL, "--models").split()) == {"a", "smollm2"}


def test_answer_is_printed_in_pieces_as_it_is_generated(
    llamactl: Llamactl, llm: Callable[..., str], environment: dict[str, str]
) -> None:
    command = [LLM, "-m", "smollm2", *OPTIONS, "Tell me about the sea"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        pieces = list(iter(lambda: os.read(program.stdout.fileno(), 65536), b""))
    assert program.returncode == 0
    text = b"".join(pieces).decode()
    assert count_english(text) >= 3, text
    assert len(pieces) > 5, pieces
    (entry,) = read_log(llm)
    assert entry["response"] == text.removesuffix("\n")
    assert 10 < entry["output_tokens"] <= 40
    assert set(llamactl.list_loaded()) == {"smollm2"}


def test_answer_is_printed_whole(llm: Callable[..., str]) -> None:
    text = llm("-m", "smollm2", "--no-stream", *OPTIONS, "Say hello")
    assert count_english(text) >= 3, text
    (entry,) = read_log(llm)
    assert entry["response"] == text.removesuffix("\n")
    assert 5 < entry["output_tokens"] <= 40


@pytest.mark.parametrize("way", ["chat", "continue"])
def test_second_turn_carries_the_first(llamactl: Llamactl, llm: Callable[..., str], way: str) -> None:
    questions = ["My name is Ada. What is yours?", "What is my name?"]
    if way == "chat":
        llm("chat", "-m", "smollm2", *OPTIONS, said="\n".join([*questions, "exit", ""]))
    else:
        llm("-m", "smollm2", *OPTIONS, questions[0])
        llm("-c", *OPTIONS, questions[1])
    first, second = read_log(llm)
    assert first["conversation_id"] == second["conversation_id"]
    assert first["response"]
    assert second["response"]
    turns = [("user", questions[0]), ("assistant", first["response"]), ("user", questions[1])]
    messages = [{"role": role, "content": text} for role, text in turns]
    own = llamactl.post("/v1/chat/completions", {"model": "smollm2", "max_tokens": 1, "messages": messages}).json()
    assert second["input_tokens"] == own["usage"]["prompt_tokens"]


def test_answer_follows_a_schema(llm: Callable[..., str]) -> None:
    answer = json.loads(llm("-m", "smollm2", *OPTIONS, "--schema", "is_big bool, is_wet bool", "What is the sea like?"))
    assert {key: type(value) for key, value in answer.items()} == {"is_big": bool, "is_wet": bool}


def test_refusal_is_shown_to_the_user(llm: Callable[..., str]) -> None:
    assert "nobody" in llm("openai", "endpoint", URL, "-m", "nobody", "Say hello", status=1)
