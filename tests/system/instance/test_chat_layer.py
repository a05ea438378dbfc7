"""Can a model that runs as a user of its own, who sees no homes, use llama.cpp's chat layer, and is that told before it
is loaded?
"""

from pathlib import Path
from typing import Any

import pytest

from tests.models import write_model
from tests.system.harness import Llamactl

TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}"
    '{% for call in message.tool_calls or [] %}<tool_call>\n{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}{% endfor %}'
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
ENDLESS = "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(messages) }}"
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def caller(llamactl: Llamactl, tmp_models: Path) -> Llamactl:
    models = {}
    for name, template in (("caller", TEMPLATE), ("endless", ENDLESS)):
        path = write_model(tmp_models / f"{name}.gguf", chat_template=template)
        models[name] = {"path": str(path), "ctx": 512}
    llamactl.write_models(**models)
    llamactl.start()
    return llamactl


def find_model(front: Llamactl, name: str) -> Any:
    return next(model for model in front.get("/v1/models").json()["data"] if model["id"] == name)


def test_capabilities_are_known_once_a_model_is_measured_and_served(caller: Llamactl) -> None:
    caller.cli("measure", "caller")
    assert find_model(caller, "caller")["capabilities"] == ["completion", "tools"]
    assert "Can: completion, tools" in caller.cli("status", "caller", status=3).stdout
    body = {"model": "caller", "messages": [{"role": "user", "content": "hello"}], "tools": TOOLS, "max_tokens": 4}
    assert caller.post("/v1/chat/completions", body).status == 200
    assert caller.get("/props?model=caller").json()["chat_layer"] == {"available": True, "reason": ""}


def test_template_without_an_end_is_why_the_measurement_failed(caller: Llamactl) -> None:
    measured = caller.cli("measure", "endless", status=1)
    assert "cannot use the chat template: it recurses without end" in measured.stdout + measured.stderr
    body = {"model": "endless", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    assert caller.post("/v1/chat/completions", body).status == 400
    assert caller.post("/v1/completions", {"model": "endless", "prompt": "hello", "max_tokens": 2}).status == 200
