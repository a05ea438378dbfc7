"""Does llama.cpp's chat layer say through our library what it says in C++, and can nothing that it is given end the
process?
"""

import ctypes
import gc
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from llamactl.chatlib.place import find_llama_cpp, place_library
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.chat.check import ANSWER, TEMPLATE, TOOL, find_fault
from llamactl.instance.chat.layer import ApplyRequest, ChatLayer, Delta, LayerTemplate, ParseError
from llamactl.instance.llama import chat_library
from llamactl.instance.llama.chat_library import ChatLibrary
from tests.sdist import read_templates

USER = {"role": "user", "content": "Look at it."}


@pytest.fixture(scope="module")
def layer() -> ChatLayer:
    return ChatLayer()


@pytest.fixture(scope="module")
def template(layer: ChatLayer) -> LayerTemplate:
    return layer.open_template(TEMPLATE, None)


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": "1", "function": function}]}


def join(deltas: list[Delta]) -> tuple[str, str, dict[int, list[str]]]:
    """Content, thoughts, and of each call the id, name and arguments that were told."""
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        if delta.call is not None:
            told = calls.setdefault(delta.call.index, ["", "", ""])
            told[0] = delta.call.id or told[0]
            told[1] = delta.call.name or told[1]
            told[2] += delta.call.arguments
    return "".join(delta.content for delta in deltas), "".join(delta.reasoning_content for delta in deltas), calls


def test_library_passes_its_own_check(layer: ChatLayer) -> None:
    assert find_fault(layer) == ""


def test_request_with_tools_has_a_lazy_grammar_and_a_parser(template: LayerTemplate) -> None:
    applied = template.apply(ApplyRequest(messages=[USER], tools=[TOOL]))
    assert applied.prompt.endswith("<|im_start|>assistant\n")
    assert '"look"' in applied.prompt
    assert applied.grammar_lazy
    assert "root ::=" in applied.grammar
    assert [trigger.value for trigger in applied.grammar_triggers]
    assert applied.parser
    demanded = template.apply(ApplyRequest(messages=[USER], tools=[TOOL], tool_choice="required"))
    assert demanded.grammar
    assert not demanded.grammar_lazy
    plain = template.apply(ApplyRequest(messages=[USER]))
    assert plain.grammar == ""
    assert len({applied.key, demanded.key, plain.key}) == 3


def test_key_depends_on_tools_and_not_on_messages(template: LayerTemplate) -> None:
    first = template.apply(ApplyRequest(messages=[USER], tools=[TOOL]))
    second = template.apply(ApplyRequest(messages=[{"role": "user", "content": "And at that."}], tools=[TOOL]))
    assert (first.key, first.parser) == (second.key, second.parser)
    assert first.prompt != second.prompt


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_deltas_add_up_to_the_message(template: LayerTemplate, size: int) -> None:
    parser = template.start_answer(template.apply(ApplyRequest(messages=[USER], tools=[TOOL])), id_prefix="c_")
    told = []
    for start in range(0, len(ANSWER), size):
        told += parser.feed(ANSWER[start : start + size], True)[0]
    more, message = parser.feed("", False)
    assert message is not None
    content, reasoning, calls = join([*told, *more])
    assert (content, reasoning) == (message.content, message.reasoning_content) == ("Well.", "")
    assert list(calls.values()) == [[entry.id, entry.name, entry.arguments] for entry in message.tool_calls]
    assert calls == {0: ["c_0", "look", '{"at": "it"}']}


def test_answer_that_is_no_call_is_an_error_and_what_was_told_stands(template: LayerTemplate) -> None:
    parser = template.start_answer(template.apply(ApplyRequest(messages=[USER], tools=[TOOL])))
    told, _ = parser.feed("Well.", True)
    assert join(told)[0] == "Well."
    with pytest.raises(ParseError, match="does not match the expected"):
        parser.feed('<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>', False)


def test_begun_answer_is_not_told_again(template: LayerTemplate) -> None:
    begun = {"role": "assistant", "content": "It is a"}
    request = ApplyRequest(messages=[USER, begun], continue_final_message=True, add_generation_prompt=False)
    applied = template.apply(request)
    assert applied.prompt.endswith("It is a")
    told, message = template.start_answer(applied, is_continuation=True).feed(" cat.", False)
    assert join(told)[0] == " cat."
    assert message is not None
    assert message.content == "It is a cat."


def test_begun_answer_that_cannot_be_parsed_begins_all_the_same(layer: ChatLayer) -> None:
    template = layer.open_template(read_templates()["Mistral-Small-3.2-24B-Instruct-2506"], None)
    request = ApplyRequest(
        messages=[USER, {"role": "assistant", "content": "no JSON"}],
        json_schema={"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        continue_final_message=True,
        add_generation_prompt=False,
    )
    parser = template.start_answer(template.apply(request), is_continuation=True)
    with pytest.raises(ParseError):
        parser.feed(" at all", False)


def test_template_that_is_none_is_refused_with_the_reason(layer: ChatLayer) -> None:
    for source, reason in (("{% if %}", "template"), ("", "neither a template nor a model"), ("{{ [ }}", "template")):
        with pytest.raises(LlamactlError, match=reason) as error:
            layer.open_template(source, None)
        assert error.value.code is ErrorCode.INVALID_MODEL


def test_what_a_template_refuses_is_the_requests_fault(layer: ChatLayer) -> None:
    source = "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    template = layer.open_template(source + "{{ message.content }}{% endfor %}", None)
    with pytest.raises(LlamactlError, match="no tools") as error:
        template.apply(ApplyRequest(messages=[{"role": "tool", "content": "x"}]))
    assert error.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "messages", [[], [{}], [{"role": "user", "content": 5}], [{"role": "user", "content": [{"text": "no type"}]}], [5]]
)
def test_messages_in_no_form_are_refused_or_written_but_never_fatal(
    template: LayerTemplate, messages: list[Any]
) -> None:
    try:
        template.apply(ApplyRequest(messages=messages))
    except LlamactlError as error:
        assert error.code is ErrorCode.INVALID_REQUEST  # noqa: PT017 (both are right)


@pytest.mark.parametrize("depth", [300, 100_000])
def test_nesting_is_counted_before_llama_cpp_sees_it(template: LayerTemplate, depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    schema: Any = {"type": "string"}
    for _ in range(300):  # more the encoder refuses
        schema = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "look", "description": "", "parameters": schema}}
    for request in (
        ApplyRequest(messages=[USER, call(deep), {"role": "tool", "content": "x", "tool_call_id": "1"}]),
        ApplyRequest(messages=[USER, call("{}"), {"role": "tool", "content": deep, "tool_call_id": "1"}]),
        ApplyRequest(messages=[USER], tools=[tool]),
        ApplyRequest(messages=[USER], json_schema=schema),
        ApplyRequest(messages=[USER], chat_template_kwargs={"x": schema}),
    ):
        with pytest.raises(LlamactlError, match="nested") as error:
            template.apply(request)
        assert error.value.code is ErrorCode.INVALID_REQUEST


def make_wide(n: int, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(n)}, **more}


def test_wide_schema_is_refused_before_it_takes_minutes(template: LayerTemplate) -> None:
    for schema in (make_wide(2000), {"type": "array", "items": {"anyOf": [{"type": "null"}, make_wide(501)]}}):
        function = {"name": "look", "description": "", "parameters": schema}
        for request in (
            ApplyRequest(messages=[USER], tools=[{"type": "function", "function": function}]),
            ApplyRequest(messages=[USER], json_schema=schema),
        ):
            with pytest.raises(LlamactlError, match=r"properties, at most 500 are taken") as error:
                template.apply(request)
            assert error.value.code is ErrorCode.INVALID_REQUEST
    required = [f"p{number}" for number in range(500)]
    assert template.apply(ApplyRequest(messages=[USER], json_schema=make_wide(500, required=required))).grammar


HOSTILE_SCHEMAS: dict[str, Any] = {
    "groups in a pattern": {"type": "string", "pattern": "^" + "(" * 100_000 + ")" * 100_000 + "$"},
    "classes in a pattern": {"type": "string", "pattern": "^" + "[" * 100_000 + "$"},
    "repetitions in a pattern": {"type": "string", "pattern": "^((((a{1000}){1000}){1000}){1000})$"},
    "a long text": {"type": "string", "minLength": 10**8, "maxLength": 10**9},
    "many items": {"type": "array", "items": {}, "minItems": 10**8},
    "itself": {"$ref": "#"},
    "itself with more": {"allOf": [{"$ref": "#"}]},
    "a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "what is no schema": {"type": ["object", 5], "properties": {"a": 5, "b": None}, "required": [1]},
    "numbers": {"type": "integer", "minimum": -(10**18), "maximum": 10**18},
}


@pytest.mark.parametrize("name", HOSTILE_SCHEMAS)
def test_hostile_schema_is_an_error_or_a_grammar(template: LayerTemplate, name: str) -> None:
    schema = {"type": "object", "properties": {"at": HOSTILE_SCHEMAS[name]}}
    function = {"name": "look", "description": "", "parameters": schema}
    with suppress(LlamactlError):
        template.apply(ApplyRequest(messages=[USER], tools=[{"type": "function", "function": function}]))
    with suppress(LlamactlError):
        template.apply(ApplyRequest(messages=[USER], json_schema=HOSTILE_SCHEMAS[name]))


def test_brackets_in_a_text_are_no_nesting(template: LayerTemplate) -> None:
    text = "[{" * 5000
    assert text in template.apply(ApplyRequest(messages=[{"role": "user", "content": text}])).prompt


@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_deep_answer_is_not_parsed(template: LayerTemplate, bracket: str) -> None:
    parser = template.start_answer(template.apply(ApplyRequest(messages=[USER], tools=[TOOL])))
    head = '<tool_call>\n{"name": "look", "arguments": {"at": '
    parser.feed(head, True)
    with pytest.raises(ParseError, match="nested"):
        parser.feed(bracket * 100_000, True)
    with pytest.raises(ParseError, match="nested"):
        parser.feed("", False)


def test_nesting_that_is_allowed_is_parsed_on_a_threads_stack(template: LayerTemplate) -> None:
    depth = 990
    answer = '<tool_call>\n{"name": "look", "arguments": {"at": ' + '{"a": ' * depth
    parser = template.start_answer(template.apply(ApplyRequest(messages=[USER], tools=[TOOL])))
    done = []

    def feed() -> None:
        with suppress(ParseError):  # the schema says that it is a string
            parser.feed(answer, True)
        done.append(True)

    thread = threading.Thread(target=feed)
    thread.start()
    thread.join()
    assert done == [True]


def test_answer_that_is_closed_while_it_is_fed_is_freed_after_it(template: LayerTemplate) -> None:
    parser = template.start_answer(template.apply(ApplyRequest(messages=[USER], tools=[TOOL])))
    text = "word " * 20_000
    started = threading.Event()

    def feed() -> None:
        started.set()
        parser.feed(text, True)

    thread = threading.Thread(target=feed)
    thread.start()
    started.wait()
    parser.close()
    thread.join()
    with pytest.raises(ParseError, match="closed"):
        parser.feed("more", True)
    parser.close()


def test_answers_of_several_threads_do_not_meet(template: LayerTemplate) -> None:
    applied = template.apply(ApplyRequest(messages=[USER], tools=[TOOL]))
    wrong: list[object] = []

    def answer(name: str) -> None:
        for _ in range(20):
            parser = template.start_answer(applied)
            told = [delta for character in name + ANSWER for delta in parser.feed(character, True)[0]]
            if join(told)[0] != f"{name}Well." or template.apply(ApplyRequest(messages=[USER])).grammar:
                wrong.append(told)

    threads = [threading.Thread(target=answer, args=(f"{number} ",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def read_rss_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_nothing_is_left_behind(layer: ChatLayer) -> None:
    def work(count: int) -> None:
        for _ in range(count):
            template = layer.open_template(TEMPLATE, None)
            parser = template.start_answer(template.apply(ApplyRequest(messages=[USER], tools=[TOOL])))
            parser.feed(ANSWER, False)
            with pytest.raises(LlamactlError):
                template.apply(ApplyRequest(messages=[{"role": "user", "content": 5}]))

    work(20)
    before = read_rss_bytes()
    work(100)
    assert read_rss_bytes() - before < 4 << 20  # a template alone has 0.3 MB


# --- the right library ------------------------------------------------------------------------------------------------


def find_library() -> Path:
    package = find_llama_cpp()
    assert package is not None
    return place_library(package)


def test_absent_library_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(LlamactlError, match="is not there") as error:
        ChatLibrary(tmp_path / "none.so")
    assert error.value.code is ErrorCode.NOT_SUPPORTED
    assert "llamactl setup-chat" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("read_version", lambda: "0.3.99", r"llama-cpp-python 0\.\S+, here is 0\.3\.99"),
        ("_read_llama_version", lambda: "0.9.0", r"llama\.cpp 0\.\S+, here is 0\.9\.0"),
        ("compute_source_id", lambda: "other", "another version of llamactl"),
    ],
)
def test_library_for_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any, reason: str
) -> None:
    monkeypatch.setattr(chat_library, name, value)
    with pytest.raises(LlamactlError, match=reason) as error:
        ChatLibrary(find_library())
    assert "llamactl setup-chat" in str(error.value)


def test_second_copy_of_llama_cpp_is_refused(tmp_path: Path) -> None:
    package = find_llama_cpp()
    assert package is not None
    shutil.copy(package / "lib" / "libggml-base.so", tmp_path)
    code = (
        "import ctypes, sys\n"
        "from llamactl.errors import LlamactlError\n"
        "from llamactl.instance.chat.layer import ChatLayer\n"
        f"ctypes.CDLL({str(tmp_path / 'libggml-base.so')!r})\n"
        "try:\n    ChatLayer()\n"
        "except LlamactlError as error:\n    sys.exit(f'{error.code}: {error}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("internal: cannot use libggml-base: this process has it twice, from ")
    assert str(tmp_path) in done.stderr


def test_library_brings_no_other_one_of_llama_cpp() -> None:
    from llamactl.instance.llama.copies import read_needed

    assert not [name for name in read_needed(find_library()) if name.startswith(("libllama", "libggml"))]
