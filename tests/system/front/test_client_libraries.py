"""Do clients of others, one of each language, work with the whole: real units, and a model that is loaded for them?
What they do otherwise is tried in tests/socket/front.
"""

from pathlib import Path

import pytest

from tests.clients import run_program
from tests.models import write_model
from tests.socket.instance.scripted import CONTROL, TEMPLATE
from tests.system.harness import Llamactl


@pytest.mark.parametrize("program", ["openai.mjs", "langchain_cases.py"])
def test_client_chats_and_hears_of_its_mistakes(
    llamactl: Llamactl, tmp_models: Path, tmp_path: Path, program: str
) -> None:
    path = write_model(tmp_models / "scripted.gguf", chat_template=TEMPLATE, control=CONTROL)
    llamactl.write_models(scripted={"path": str(path), "ctx": 1024, "n_predict": 8, "parallel": 1})
    llamactl.start()
    results = run_program(program, "http://127.0.0.1:8080", tmp_path, "chat", "stream", "too_long", "unknown_model")
    assert isinstance(results["chat"], str), results
    assert isinstance(results["stream"], list), results
    assert results["too_long"]["status"] == 400, results
    assert "exceeds the available context size (1024 tokens)" in results["too_long"]["message"]
    assert results["unknown_model"]["status"] == 404, results
    assert set(llamactl.list_loaded()) == {"scripted"}
