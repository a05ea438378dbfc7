"""Is a template that nobody could chat with found by reading it?"""

from pathlib import Path

import pytest

from llamactl.config.builtin_templates import BUILTIN, check_template
from llamactl.config.gguf import acquire_text
from llamactl.instance.llama.chat import list_builtin_templates
from llamactl.template import limits
from llamactl.template.faults import find_fault
from tests.models import CHAT_TEMPLATE, write_model

GO = (
    "{{- if .System }}<|sys|>{{ .System }}{{ end }}{{- range $i, $_ := .Messages }}{{ .Content }}{{ end }}"
    "{{ messages }}"
)


@pytest.mark.parametrize(
    "source",
    [
        CHAT_TEMPLATE,
        "{{ messages[0].content }}",
        "{% set messages = messages[1:] %}{{ messages }}",
        "{% macro all() %}{% for m in messages %}{{ m }}{% endfor %}{% endmacro %}{{ all() }}",
        "{% generation %}{{ messages | tojson }}{% endgeneration %}",
    ],
)
def test_template_that_uses_the_messages_has_no_fault(source: str) -> None:
    assert find_fault(source) == ""


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (GO, "it is no Jinja template: line 1: "),
        ("\n\n{% if %}{{ messages }}", "it is no Jinja template: line 3: "),
        ("{% break %}{{ messages }}", "it is no Jinja template: 'break' outside loop"),
        ("{{ messages | nothing }}", "it is no Jinja template: line 1: No filter named 'nothing'."),
        ("{{ messages" + "(" * 100_000, "it is no Jinja template: "),
        ("{% for a in messages %}" * 25 + "{% endfor %}" * 25, "it is no Jinja template: too many"),
        ("chatml", "it uses no message"),
        ("{{ bos_token }}{{ message.content }}", "it uses no message"),
        ("{% for messages in [1] %}{{ messages }}{% endfor %}", "it uses no message"),
        ("", "it uses no message"),
    ],
)
def test_fault_is_named(source: str, fault: str) -> None:
    assert find_fault(source).startswith(fault)


def test_template_is_read_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: object) -> None:
        raise AssertionError("it was run")

    monkeypatch.setattr(limits.BoundedEnvironment, "call", run)
    monkeypatch.setattr(limits.BoundedEnvironment, "from_string", run)
    assert find_fault("{% for a in range(9 ** 9) %}{% endfor %}{{ messages }}{{ range(3) }}") == ""


def test_names_of_built_in_templates_are_llama_cpps() -> None:
    assert set(BUILTIN) == list_builtin_templates()
    assert all(check_template(name) == name for name in BUILTIN)


def test_template_is_read_from_the_head_of_a_file(tmp_path: Path) -> None:
    path = str(write_model(tmp_path / "m.gguf"))
    assert acquire_text(path, "tokenizer.chat_template") == CHAT_TEMPLATE
    assert acquire_text(path, "tokenizer.nothing") is None
    assert acquire_text(path, "llama.context_length") is None, "it is a number"
    for content in (b"", b"GGUF", Path(path).read_bytes()[:200], b"x" * 100):
        (tmp_path / "cut").write_bytes(content)
        assert acquire_text(str(tmp_path / "cut"), "tokenizer.chat_template") is None
