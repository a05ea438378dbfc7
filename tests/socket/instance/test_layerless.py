"""What does an instance serve without llama.cpp's chat layer? All but tools, and it says which command builds it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llamactl.settings import ModelSettings
from tests.socket.instance.harness import Child, run_child

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


@pytest.fixture(scope="module")
def layerless(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    settings = ModelSettings(name="tiny", path=str(tiny), ctx=512, threads=1)
    directory = tmp_path_factory.mktemp("layerless")
    with run_child(directory, "serve", settings, module="tests.layerless_instance") as child:
        child.supervisor.wait_for("ready")
        yield child


def test_plain_chats_are_served(layerless: Child) -> None:
    status, answer = layerless.request("POST", CHAT, {"messages": MESSAGES, "max_tokens": 2})
    assert status == 200
    assert answer["choices"][0]["message"]["role"] == "assistant"
    _, answer = layerless.request("POST", "/apply-template", {"messages": MESSAGES})
    assert answer["prompt"].endswith("hello<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("path", "tools"),
    [(CHAT, TOOLS), ("/v1/messages", [{"name": "look", "input_schema": {"type": "object"}}])],
)
def test_requests_with_tools_are_told_the_command(layerless: Child, path: str, tools: object) -> None:
    status, answer = layerless.request("POST", path, {"messages": MESSAGES, "max_tokens": 2, "tools": tools})
    assert status == 501
    assert "llamactl setup-chat" in answer["error"]["message"]


def test_tools_that_are_not_to_be_called_are_no_reason_to_refuse(layerless: Child) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, "tools": TOOLS, "tool_choice": "none"}
    assert layerless.request("POST", CHAT, body)[0] == 200


def test_props_say_that_it_is_not_there_and_why(layerless: Child, instance: Child) -> None:
    _, props = layerless.request("GET", "/props")
    assert props["chat_layer"]["available"] is False
    assert "llamactl setup-chat" in props["chat_layer"]["reason"]
    assert props["chat_template_caps"]["supports_system_role"] is True
    _, props = instance.request("GET", "/props")
    assert props["chat_layer"] == {"available": True, "reason": ""}


def test_listing_says_what_a_model_can_be_asked_for(layerless: Child, instance: Child) -> None:
    for child in (layerless, instance):
        _, listing = child.request("GET", "/v1/models")
        assert listing["data"][0]["capabilities"] == ["completion"], "the template of this model knows no tools"
