"""How do tests of tools and thoughts get a model that calls and thinks? A scripted one (`tests.scripted_instance`),
with a template and control tokens like Qwen's.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2 as httpx
import openai

from llamactl.settings import ModelSettings
from tests.models import write_model
from tests.scripted_instance import VARIABLE
from tests.socket.instance.harness import Child, run_child

CONTROL = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{%- if messages[0].role == "system" %}
{{ messages[0].content }}
{%- endif %}
# Tools
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
For each function call return <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% elif messages[0].role == "system" %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "user" or (message.role == "system" and not loop.first) %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% elif message.role == "assistant" %}<|im_start|>assistant
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
{%- if (loop.first and message.content) or not loop.first %}
{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
"""As Qwen3's, in short."""


class ScriptedModel:
    """A ready instance, and what it will say."""

    def __init__(self, child: Child, script: Path) -> None:
        self.child = child
        self._script = script

    def say(self, *pairs: tuple[str, str]) -> None:
        """From now on, to prompts with the first text the second."""
        self._script.write_text(json.dumps(pairs))

    def open_client(self) -> openai.OpenAI:
        transport = httpx.HTTPTransport(uds=str(self.child.http_socket))
        return openai.OpenAI(
            base_url="http://instance/v1", api_key="none", max_retries=0, http_client=httpx.Client(transport=transport)
        )


@contextlib.contextmanager
def run_scripted(
    directory: Path, *, template: str = TEMPLATE, control: Sequence[str] = CONTROL, ctx: int = 16384, **settings: object
) -> Iterator[ScriptedModel]:
    """Ready."""
    path = write_model(directory / "scripted.gguf", chat_template=template, control=control, n_ctx_train=32768)
    script = directory / "script.json"
    script.write_text("[]")
    model = ModelSettings(
        name="scripted",
        path=str(path),
        ctx=ctx,
        parallel=4,
        threads=1,
        **settings,  # type: ignore[arg-type]
    )
    child = run_child(directory, "serve", model, module="tests.scripted_instance", **{VARIABLE: str(script)})
    with child as running:
        running.supervisor.wait_for("ready")
        yield ScriptedModel(running, script)
