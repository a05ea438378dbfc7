"""Is what llama-server takes taken here, and does it mean the same? Bodies that clients really send."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from llamactl.settings import ModelSettings
from tests.models import write_model
from tests.socket.instance.harness import Child, run_child

CHAT, COMPLETION, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
MESSAGES = [{"role": "user", "content": "hello"}]
BEGUN = [*MESSAGES, {"role": "assistant", "content": "Hel"}]
FIXED = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A model whose vocabulary puts nothing before a prompt."""
    directory = tmp_path_factory.mktemp("plain")
    path = write_model(directory / "plain.gguf", add_bos=False)
    with run_child(directory, "serve", ModelSettings(name="plain", path=str(path), ctx=256, threads=1)) as child:
        child.supervisor.wait_for("ready")
        yield child


def ask(child: Child, path: str, body: dict[str, Any] | bytes) -> Any:
    status, answer = child.request("POST", path, body)
    assert status == 200, answer
    return answer


def ask_native(child: Child, prompt: Any = "hello", n_predict: int = 4, **more: Any) -> Any:
    return ask(child, NATIVE, {"prompt": prompt, "n_predict": n_predict, **FIXED, **more})


def refuse(child: Child, path: str, body: dict[str, Any]) -> str:
    status, answer = child.request("POST", path, body)
    assert status == 400, answer
    return str(answer["error"]["message"])


def test_byte_order_mark_before_a_body_is_passed_over(instance: Child) -> None:
    body = json.dumps({"messages": MESSAGES, "max_tokens": 2}).encode()
    assert ask(instance, CHAT, b"\xef\xbb\xbf" + body)["object"] == "chat.completion"


def test_empty_prompts_have_empty_answers(plain: Child) -> None:
    answer = ask(plain, COMPLETION, {"prompt": ["", "hello", ""], "max_tokens": 2, **FIXED})
    assert [choice["text"] == "" for choice in answer["choices"]] == [True, False, True]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2
    empty = ask_native(plain, "")
    assert (empty["content"], empty["tokens_predicted"], empty["stop_type"]) == ("", 0, "limit")


def test_many_stops_and_breakers_are_taken(instance: Child) -> None:
    plain = ask_native(instance, n_predict=8)["content"]
    stops = [f"<{number}>" for number in range(300)]
    assert ask_native(instance, n_predict=8, stop=stops)["content"] == plain
    answer = ask_native(instance, n_predict=8, stop=[*stops, plain[2]])
    assert answer["stopping_word"] == plain[2]
    ask_native(instance, dry_multiplier=1, dry_sequence_breakers=stops)


def test_schema_that_asks_for_nothing_leaves_the_grammar_as_it_is(instance: Child) -> None:
    grammar = 'root ::= "ab"'
    for schema in ({}, True):
        assert ask_native(instance, json_schema=schema, grammar=grammar)["content"] == "ab"
    assert "together" in refuse(
        instance, NATIVE, {"prompt": "a", "json_schema": {"type": "string"}, "grammar": grammar}
    )


def test_prompt_object_is_its_text(instance: Child) -> None:
    plain = ask_native(instance, "hello")["content"]
    assert ask_native(instance, {"prompt_string": "hello"})["content"] == plain
    both = ask_native(instance, [{"prompt_string": "hello"}, "hello"])
    assert [one["content"] for one in both] == [plain] * 2
    assert "multimodal_data" in refuse(instance, NATIVE, {"prompt": {"prompt_string": "a", "multimodal_data": []}})


@pytest.mark.parametrize("samplers", [["nosuch", "top_k"], "qkz", ["tfs_z"]])
def test_unknown_samplers_are_passed_over(instance: Child, samplers: Any) -> None:
    settings = ask_native(instance, samplers=samplers)["generation_settings"]
    assert settings["samplers"] == [name for name in ("top_k",) if "k" in samplers or name in samplers]


def test_biases_that_are_no_numbers_are_passed_over(instance: Child) -> None:
    plain = ask_native(instance, return_tokens=True)
    first = plain["tokens"][0]
    for bias in ([[first, "5"]], {str(first): True}, [["hello", None]]):
        assert ask_native(instance, logit_bias=bias)["content"] == plain["content"]
    assert ask_native(instance, logit_bias=[[first, False]])["content"] != plain["content"]


def test_template_variables_may_be_the_text_of_an_object(instance: Child) -> None:
    body = {"messages": MESSAGES, "chat_template_kwargs": '{"a": 1}'}
    assert ask(instance, "/apply-template", body) == ask(instance, "/apply-template", {"messages": MESSAGES})
    assert "chat_template_kwargs" in refuse(instance, CHAT, {**body, "chat_template_kwargs": "[1]"})


def test_texts_and_tokens_are_tokenized_in_turn(instance: Child) -> None:
    hello, world = (ask(instance, "/tokenize", {"content": text})["tokens"] for text in ("hello", " world"))
    assert ask(instance, "/tokenize", {"content": ["hello", 5, " world"]})["tokens"] == [*hello, 5, *world]
    assert ask(instance, "/tokenize", {})["tokens"] == []
    assert "content" in refuse(instance, "/tokenize", {"content": 5})


def test_own_name_of_a_limit_comes_before_openais(instance: Child) -> None:
    for path in (COMPLETION, NATIVE):
        answer = ask(instance, path, {"prompt": "a", "max_tokens": 6, "n_predict": 2, **FIXED})
        assert answer.get("tokens_predicted", answer.get("usage", {}).get("completion_tokens")) == 2


def test_choices_have_two_names(instance: Child) -> None:
    assert len(ask(instance, COMPLETION, {"prompt": "a", "max_tokens": 1, "n_cmpl": 3})["choices"]) == 3
    assert len(ask_native(instance, n_cmpl=2)) == 2


def test_slot_that_is_asked_for_is_used(instance: Child) -> None:
    assert [ask_native(instance, id_slot=slot)["id_slot"] for slot in (2, 1, 3)] == [2, 1, 3]
    assert ask_native(instance, id_slot=99)["id_slot"] == ask_native(instance, id_slot=-1)["id_slot"] == 0


def test_adapters_that_are_not_there_are_refused(instance: Child) -> None:
    assert "lora" in refuse(instance, NATIVE, {"prompt": "a", "lora": [{"id": 0, "scale": 0.5}]})
    ask_native(instance, lora=[{"id": 0, "scale": 0}])
    ask_native(instance, lora=[])


def test_grammar_that_waits_for_a_trigger_is_refused(instance: Child) -> None:
    body = {"prompt": "a", "grammar": 'root ::= "ab"', "grammar_lazy": True}
    assert "grammar_lazy" in refuse(instance, NATIVE, body)
    ask_native(instance, grammar_lazy=True)


def test_answer_of_its_own_form_stands_beside_openais_where_it_is_asked_for(instance: Child) -> None:
    answer = ask(instance, CHAT, {"messages": MESSAGES, "max_tokens": 3, "verbose": True, **FIXED})
    verbose = answer["__verbose"]
    assert verbose["content"] == answer["choices"][0]["message"]["content"]
    assert verbose["generation_settings"]["temperature"] == 0
    assert "__verbose" not in ask(instance, CHAT, {"messages": MESSAGES, "max_tokens": 1})


def test_answer_cannot_be_both_continued_and_begun(instance: Child) -> None:
    body = {"messages": BEGUN, "continue_final_message": True}
    assert ask(instance, "/apply-template", body)["prompt"].endswith("Hel")
    for path in (CHAT, "/apply-template"):
        assert "continue_final_message" in refuse(instance, path, {**body, "add_generation_prompt": True})


def stream(child: Child, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(event) for event in child.stream(path, {"stream": True, **body}) if event != "[DONE]"]


@pytest.mark.parametrize("path", [COMPLETION, NATIVE])
def test_progress_is_told_before_the_prompt_is_read(instance: Child, path: str) -> None:
    body = {"prompt": "xyzzy " * 30, "max_tokens": 1, "return_progress": True, "timings_per_token": True}
    events = stream(instance, path, {**body, "cache_prompt": False, **FIXED})
    progress = [event for event in events if "prompt_progress" in event]
    done = [event["prompt_progress"]["processed"] for event in progress]
    assert done[0] == 0
    assert done[-1] == progress[0]["prompt_progress"]["total"]
    assert progress[0]["timings"]["prompt_n"] == 0
    assert progress[-1]["timings"]["prompt_n"] == done[-1]


def test_timings_stand_beside_usage(instance: Child) -> None:
    body = {"messages": MESSAGES, "max_tokens": 3, "stream_options": {"include_usage": True}, **FIXED}
    last = stream(instance, CHAT, body)[-1]
    assert last["choices"] == []
    assert last["timings"]["predicted_n"] == last["usage"]["completion_tokens"] == 3
