"""Is a prompt the same as llama-server's, byte for byte, for each template that llama.cpp collects and every form of a
conversation? Against digests of what it answered (record_prompts.py).
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llamactl.bodies import TemplateBody
from llamactl.errors import LlamactlError
from llamactl.instance.chat.conversation import choose_variables, make_request, shorten_id
from llamactl.instance.chat.layer import ChatLayer
from llamactl.instance.http.tools import plan_tools, unify_messages
from llamactl.instance.llama.library import NO_LOG, llama
from llamactl.settings import ModelSettings, Switch
from tests.models import write_model
from tests.sdist import read_templates
from tests.socket.instance.conversations import CONVERSATIONS, LOOK
from tests.socket.instance.harness import run_child
from tests.socket.instance.record_prompts import FILE, REFUSED, digest

RECORDED: dict[str, dict[str, str]] = json.loads(FILE.read_text())
FUZZ_S, FUZZ_SEED = float(os.environ.get("LLAMACTL_FUZZ_S", "5")), os.environ.get("LLAMACTL_FUZZ_SEED", "1")
OURS_ALONE = {"long id": "ids are made as Mistral's templates want them"}
"""What llama-server refuses, and we do not."""


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[Any]:
    """Its vocabulary alone."""
    llama.llama_log_set(NO_LOG, None)
    params = llama.llama_model_default_params()
    params.vocab_only = True
    pointer = llama.llama_model_load_from_file(str(tiny).encode(), params)
    assert pointer
    yield pointer
    llama.llama_model_free(pointer)


@pytest.fixture(scope="module")
def layer() -> ChatLayer:
    return ChatLayer()


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_prompt_is_llama_servers(layer: ChatLayer, model: Any, name: str) -> None:
    templates = read_templates()
    template = layer.open_template(templates[name], model)
    differing = []
    for title, conversation in CONVERSATIONS.items():
        fields = dict(conversation)
        schema = fields.pop("response_format", {}).get("json_schema", {}).get("schema")
        body = msgspec.convert(fields, TemplateBody).as_chat()
        try:
            tools = plan_tools(body)
            variables = choose_variables(Switch.AUTO, {}, body.chat_template_kwargs or {})  # type: ignore[arg-type]
            request = make_request(
                unify_messages(body.messages),
                template.info,
                variables,
                tools=list(tools.tools),
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                tool_choice=tools.choice,
                json_schema=schema,
            )
            found = digest(template.apply(request).prompt)
        except LlamactlError:
            found = REFUSED
        recorded = RECORDED[name][title]
        if found != recorded and not (recorded == REFUSED and title in OURS_ALONE):
            differing.append(title)
    assert differing == []


def test_every_template_and_conversation_has_been_recorded() -> None:
    assert set(read_templates()) == set(RECORDED)
    assert all(set(row) == set(CONVERSATIONS) for row in RECORDED.values())
    rows = [value for row in RECORDED.values() for value in row.values()]
    assert sum(value == REFUSED for value in rows) < len(rows) / 10


def test_ids_are_shortened_where_the_template_wants_nine_characters(layer: ChatLayer) -> None:
    template = layer.open_template(read_templates()["mistralai-Mistral-Nemo-Instruct-2407"], None)
    body = msgspec.convert(CONVERSATIONS["long id"], TemplateBody).as_chat()
    prompt = template.apply(make_request(body.messages, template.info, {}, tools=body.tools)).prompt
    assert prompt.count(shorten_id("call_1234567")) == 2
    assert "call_1234567" not in prompt
    other = layer.open_template(read_templates()["deepseek-ai-DeepSeek-V3.1"], None)
    messages = make_request(body.messages, other.info, {}, tools=body.tools).messages
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "call_1234567"


def test_file_with_a_template_for_tools_has_it_used_for_them(tmp_path: Path) -> None:
    """On request, of an instance."""
    plain = "plain{% for message in messages %}|{{ message.content }}{% endfor %}"
    for_tools = "for {{ tools[0].function.name }}{% for message in messages %}|{{ message.content }}{% endfor %}"
    templates = [{"name": "default", "template": plain}, {"name": "tool_use", "template": for_tools}]
    path = write_model(tmp_path / "two.gguf", chat_template=templates)
    with run_child(tmp_path, "serve", ModelSettings(name="two", path=str(path), ctx=256, threads=1)) as child:
        child.supervisor.wait_for("ready")

        def write(**fields: Any) -> Any:
            body = {"messages": [{"role": "user", "content": "hello"}], **fields}
            return child.request("POST", "/apply-template", body)[1]["prompt"]

        assert write() == "plain|hello"
        assert write(tools=[LOOK]) == "for look|hello"
        assert write(tools=[]) == "plain|hello"
        _, props = child.request("GET", "/props")
        assert (props["chat_template"], props["chat_template_tool_use"]) == (plain, for_tools)
        assert props["chat_template_caps"]["supports_tools"] is True


def test_prompts_of_one_instance_are_those_of_its_configuration(tiny: Path, tmp_path: Path) -> None:
    """`reasoning` and `chat_template_kwargs`, where the template can think and where a request says otherwise."""
    source = read_templates()["Qwen-Qwen3-0.6B"]
    body = {"messages": [{"role": "user", "content": "hello"}]}
    no_thoughts = "<think>\n\n</think>\n\n"
    for number, (reasoning, thinks) in enumerate([(Switch.AUTO, True), (Switch.ON, True), (Switch.OFF, False)]):
        settings = ModelSettings(
            name="tiny", path=str(tiny), ctx=256, threads=1, chat_template=source, reasoning=reasoning
        )
        directory = tmp_path / str(number)
        directory.mkdir()
        with run_child(directory, "serve", settings) as child:
            child.supervisor.wait_for("ready")
            for more, expected in (
                ({}, thinks),
                ({"enable_thinking": True}, True),
                ({"enable_thinking": False}, False),
            ):
                prompt = child.request("POST", "/apply-template", {**body, **more})[1]["prompt"]
                assert prompt.endswith(no_thoughts) is not expected, (reasoning, more)


@pytest.mark.timeout(60 + 3 * FUZZ_S)
def test_no_request_ends_the_process() -> None:
    read_templates()
    command = [sys.executable, "-m", "tests.socket.instance.fuzz_layer", str(FUZZ_S), FUZZ_SEED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    n_taken, n_refused = map(int, done.stdout.split())
    assert min(n_taken, n_refused) > 10 * FUZZ_S
