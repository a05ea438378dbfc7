"""Do chat templates do what they are for, and nothing else?"""

import json
import time
from datetime import datetime

import pytest

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.chat.choose import choose_template
from llamactl.instance.chat.template import CHATML, ChatTemplate, format_tool

MESSAGES = [{"role": "user", "content": "hi"}]


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(MESSAGES, **variables)


def refuse(source: str) -> str:
    with pytest.raises(LlamactlError) as caught:
        render(source)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    return str(caught.value)


def test_conversation_without_messages_is_refused_by_a_template_that_wants_one() -> None:
    with pytest.raises(LlamactlError, match="no messages"):
        ChatTemplate("{% if not messages %}{{ raise_exception('no messages') }}{% endif %}", "", "").render([])


def test_chatml_is_rendered() -> None:
    assert render(CHATML, add_generation_prompt=True) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{% for m in messages %}{% if loop.first %}{{ m['role'] }}{% break %}{% endif %}{% endfor %}", "user"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hi"}]'),
        ("{{ {'a': '<é>'} | tojson(indent=1) }}", '{\n "a": "<é>"\n}'),
        ("{% set n = namespace(a=0) %}{% for i in range(3) %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}", "3"),
        ("{{ {'b': [1, 2], 'a': 3} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":3,"b":[1,2]}'),
        ("{% generation %}\n{% set a = 1 %}x{% endgeneration %}\n{{ a }}", "x1"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ 'ab' * 3 }}", "ababab"),
        ("{{ 'a'|safe + '<b>' + {'c': '&'}|tojson|safe + '\"' }}", 'a<b>{"c": "&"}"'),
        ("{{ 2 ** 5 }}{{ 7 % 4 }}", "323"),
        ("{{ 'a,b'.split(',')[1] }}{{ ' x '.strip() }}", "bx"),
    ],
)
def test_what_templates_use_is_there(source: str, text: str) -> None:
    assert render(source) == text


def test_template_is_told_what_day_it_is() -> None:
    source = "{% if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}{{ date_string }}"
    before, text = datetime.now(), render(source)
    assert text in (moment.strftime("%d %b %Y") for moment in (before, datetime.now()))
    assert render(source, date_string="1 Jan 2000") == "1 Jan 2000"


def test_template_may_refuse_the_messages() -> None:
    assert "roles must alternate" in refuse("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ '{:{}}'.format(1, 10000000000) }}",
        "{{ '%10000000000d' | format(1) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
        "{{ ('b' * 1000000).join('a' * 1000000) }}",
        "{{ ('a' * 1000000) | join('b' * 1000000) }}",
        "{{ ('\\n' * 1000000) | indent(10000000000) }}",
        "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}"
        "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = m(n.x) %}{% endfor %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ 'a' * 10000000000 }}",
        "{{ [1] | tojson(indent=10000000000) }}",
        "{{ [1] | tojson(indent='a' * 1000000) }}",
        "{{ [1] | tojson(separators=('a' * 1000000, 'a')) }}",
        "{{ 10000000000 * 'a' }}",
        "{{ [1] * 10000000000 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ 'a'.center(10000000000) }}",
        "{{ 'a' | center(10000000000) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '{:10000000000d}'.format(1) }}",
        "{{ range(10000000000) | list }}",
        "{{ undefined_name.attribute }}",
        "{{ messages[5].role }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ none() }}",
    ],
)
def test_what_templates_have_no_business_with_costs_them_the_request(source: str) -> None:
    started_s = time.process_time()
    refuse(source)
    assert time.process_time() - started_s < 5


def test_loop_that_writes_nothing_ends() -> None:
    nest = "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}"
    assert "takes more than" in refuse(nest + "{% endfor %}" * 3)


def test_text_without_end_is_cut_off() -> None:
    nest = (
        "{% for a in range(90000) %}{% for b in range(90000) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}"
    )
    message = refuse(nest)
    assert "writes more than" in message or "takes more than" in message


@pytest.mark.parametrize(
    "source",
    [
        "{{ ",
        "{% break %}",
        "{% for a in messages %}" * 25 + "{% endfor %}" * 25,
        "{{ " + "9" * 5000 + " }}",
        "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    ],
    ids=["unended", "break", "loops", "digits", "parentheses"],
)
def test_file_without_a_usable_template_is_named(source: str) -> None:
    with pytest.raises(LlamactlError, match="cannot use the chat template") as caught:
        ChatTemplate(source, "", "")
    assert caught.value.code is ErrorCode.INVALID_MODEL


PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
PARTS_NO_SYSTEM = PARTS.replace(
    "[{{", "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}[{{"
)
SYSTEM = {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    ("source", "messages", "text"),
    [
        (PARTS, MESSAGES, "[user]hi"),
        ("{{ messages[0].content[0].text }}", MESSAGES, "hi"),
        (PARTS, [SYSTEM, *MESSAGES], "[system]be brief[user]hi"),
        (NO_SYSTEM, [SYSTEM, *MESSAGES], "[user]be brief\nhi"),
        (NO_SYSTEM, [SYSTEM], "[user]be brief"),
        (PARTS_NO_SYSTEM, [SYSTEM, *MESSAGES], "[user]be brief\nhi"),
        ("{{ messages[-1].content }}", [SYSTEM, *MESSAGES], "be brief\nhi"),
        ("{{ messages[0].role }}", [{**SYSTEM, "role": "developer"}, *MESSAGES], "system"),
        ("{% if '<|channel|>' %}{{ messages[0].role }}{% endif %}", [{**SYSTEM, "role": "developer"}], "developer"),
        (
            CHATML,
            [*MESSAGES, {"role": "assistant", "content": ""}],
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n",
        ),
    ],
)
def test_nothing_of_a_message_is_lost_on_a_template_that_knows_other_forms(
    source: str, messages: list[dict[str, str]], text: str
) -> None:
    assert ChatTemplate(source, "", "").render(messages) == text


def test_what_a_template_leaves_out_on_purpose_stays_out() -> None:
    source = "{% for m in messages if m.role != 'assistant' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    messages = [SYSTEM, {"role": "assistant", "content": "secret"}, *MESSAGES]
    assert ChatTemplate(source, "", "").render(messages) == "[system]be brief[user]hi"


# --- calls of tools in the history ---

ITEMS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }}>"
    "{% for k, v in c.function.arguments|items %}{{ k }}={{ v if v is string else v|tojson }};{% endfor %}"
    "{% endfor %}{% endfor %}"
)
TOJSON = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }}>"
    "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
PLAIN = TOJSON.replace(" | tojson", "")
EITHER = TOJSON.replace("c.function.arguments |", "c.function.arguments if c.function.arguments is string else {} |")
ARGUMENTS = '{"city": "Paris", "n": 2}'


def make_call(arguments: str) -> list[dict[str, object]]:
    call = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": arguments}}
    return [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("source", "text"),
    [(ITEMS, "city=Paris;n=2;"), (TOJSON, ARGUMENTS), (PLAIN, ARGUMENTS), (EITHER, ARGUMENTS)],
    ids=["items", "tojson", "text", "either"],
)
def test_arguments_of_calls_are_what_the_template_writes(source: str, text: str) -> None:
    assert ChatTemplate(source, "", "").render(make_call(ARGUMENTS)) == f"hi<lookup>{text}"


@pytest.mark.parametrize("arguments", ["", "[1]", "{", "[" * 100_000])
def test_arguments_that_are_no_object_stay_a_text(arguments: str) -> None:
    assert ChatTemplate(TOJSON, "", "").render(make_call(arguments)) == f"hi<lookup>{json.dumps(arguments)}"


def test_lists_that_filters_make_are_json_too() -> None:
    assert render("{{ messages | map(attribute='role') | tojson }}") == '["user"]'


def test_tools_have_what_templates_write_of_them() -> None:
    assert format_tool({"type": "function", "function": {"name": "a"}}) == {
        "type": "function",
        "function": {"name": "a", "description": "", "parameters": {}},
    }
    assert format_tool({"type": "web_search"}) == {"type": "web_search"}


# --- what a template knows ---


def test_capabilities_are_what_comes_out() -> None:
    full = (
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}" + ITEMS + "{% if reasoning_effort is defined %}"
        "{{ reasoning_effort }}{% endif %}{% for m in messages %}{{ m.reasoning_content }}{% endfor %}"
    )
    known = ChatTemplate(full, "", "").capabilities
    assert known.supports_tools
    assert known.supports_tool_calls
    assert known.supports_parallel_tool_calls
    assert known.supports_object_arguments
    assert known.supports_preserve_reasoning
    assert known.supports_reasoning_effort
    assert known.supports_string_content
    assert not known.supports_typed_content
    plain = ChatTemplate(CHATML, "", "").capabilities
    assert plain.supports_system_role
    assert not plain.supports_tools
    assert not plain.supports_tool_calls
    assert not plain.supports_object_arguments
    assert not plain.supports_reasoning_effort
    assert not ChatTemplate(NO_SYSTEM, "", "").capabilities.supports_system_role
    parts = ChatTemplate(PARTS, "", "").capabilities
    assert (parts.supports_typed_content, parts.supports_string_content) == (True, False)


def test_template_that_takes_long_is_not_probed_for_long() -> None:
    nest = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
    started_s = time.monotonic()
    assert not ChatTemplate(nest + "{{ messages }}", "", "").capabilities.supports_tools
    assert time.monotonic() - started_s < 4


# --- which template ---


def test_model_chats_with_the_configured_template_else_the_files_else_chatml() -> None:
    def choose(configured: str, in_file: str | None) -> str:
        return choose_template(configured, in_file, "<s>", "").render(MESSAGES, add_generation_prompt=True)

    assert choose("a{{ messages[0].content }}", "b{{ messages[0].content }}") == "ahi"
    assert choose("", "b{{ messages[0].content }}") == "bhi"
    assert choose("", None) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert choose("chatml", "b{{ messages[0].content }}") == choose("", None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "llama3",
            "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>",
        ),
        ("gemma", "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model"),
        ("zephyr", "<|user|>\n{}<|endoftext|>\n<|assistant|>"),
    ],
)
@pytest.mark.parametrize("content", ["hi", "é漢🙂" * 2000, ""])
def test_built_in_template_writes_roles_and_texts(name: str, text: str, content: str) -> None:
    template = choose_template(name, None, "", "")
    messages = [{"role": "user", "content": content}]
    assert template.render(messages, add_generation_prompt=True).strip() == text.format(content).strip()
    assert "assistant" not in template.render(messages)


def test_built_in_template_refuses_tools() -> None:
    template = choose_template("chatml", None, "", "")
    with pytest.raises(LlamactlError, match="knows none"):
        template.render(MESSAGES, tools=[{}])
    with pytest.raises(LlamactlError, match="knows none"):
        template.render(make_call(ARGUMENTS))


@pytest.mark.parametrize(
    "source",
    [
        "{{ range $i, $_ := .Messages }}{{ messages }}",
        "{% break %}{{ messages }}",
        "{{ bos_token }}",
        "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(messages) }}",
        "{% for i in range(1000000000) %}{{ messages }}{% endfor %}",
        "{% if tools %}{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}{% endif %}"
        "{{ messages }}",
        "{% set ns = namespace(x=messages | string) %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    ],
)
def test_template_that_cannot_be_used_costs_the_chats_alone(source: str) -> None:
    template = choose_template("", source, "", "")
    assert template.source == source
    with pytest.raises(LlamactlError, match="cannot chat with this model") as caught:
        template.render(MESSAGES)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert "chat_template" in caught.value.hint
    assert "chat_template_file" in caught.value.hint
