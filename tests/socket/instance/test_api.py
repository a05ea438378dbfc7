"""Does an instance answer as OpenAI's clients and llama-server's users expect, and never with a 500?"""

import base64
import contextlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llamactl.settings import ModelSettings, Switch
from tests.http_errors import check_error
from tests.models import write_embedding_model, write_model
from tests.socket.instance.harness import Child, join_text, run_child

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def embedder(tiny_embed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    model = ModelSettings(name="embed", path=str(tiny_embed), parallel=4, threads=1, batch=128, ubatch=128)
    with run_child(tmp_path_factory.mktemp("embedder"), "serve", model) as child:
        child.supervisor.wait_for("ready")
        yield child


def refuse(child: Child, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    got, answer = child.request("POST", path, body)
    assert got == status, answer
    word = "context_length_exceeded" if "context size" in answer["error"]["message"] else None
    check_error(answer["error"], path, status, word)
    error: dict[str, Any] = answer["error"]
    return error


def test_chat_answer_has_openai_shape(instance: Child) -> None:
    status, answer = instance.request("POST", CHAT, {"messages": MESSAGES, "max_tokens": 5, "model": "any", **GREEDY})
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert isinstance(choice["message"]["content"], str)
    assert choice["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_stream_pieces_make_the_text_that_is_answered_at_once(instance: Child, path: str) -> None:
    body = {"messages": MESSAGES, "prompt": "hello", "max_tokens": 60, **GREEDY}
    _, answer = instance.request("POST", path, body)
    choice = answer["choices"][0]
    whole = choice["text"] if path == COMPLETION else choice["message"]["content"]
    events = instance.stream(path, body)
    assert events[-1] == "[DONE]"
    assert join_text(events) == whole


def test_chat_stream_begins_with_the_role_and_ends_with_reason_usage_and_done(instance: Child) -> None:
    body = {"messages": MESSAGES, "max_tokens": 4, "stream_options": {"include_usage": True}}
    events = instance.stream(CHAT, body)
    first, *_, last, usage = [json.loads(event) for event in events[:-1]]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert len({json.loads(event)["id"] for event in events[:-1]}) == 1


def test_chat_stream_tells_nothing_of_a_character_that_has_only_begun(instance: Child) -> None:
    begun = {str(5 + 0xE4): 100.0}
    events = instance.stream(CHAT, {"messages": MESSAGES, "max_tokens": 1, "logit_bias": begun, **GREEDY})
    deltas = [choice["delta"] for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert not any("content" in delta for delta in deltas[1:])


def test_stream_without_include_usage_has_none(instance: Child) -> None:
    events = instance.stream(CHAT, {"messages": MESSAGES, "max_tokens": 2})
    assert all("usage" not in json.loads(event) for event in events[:-1])


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_generation_ends_at_the_asked_length(instance: Child, name: str, count: int) -> None:
    body = {"prompt": "hello", name: count, "ignore_eos": True}
    _, answer = instance.request("POST", COMPLETION, body)
    assert answer["usage"]["completion_tokens"] == count
    assert answer["choices"][0]["finish_reason"] == "length"


def test_stop_string_ends_the_text_before_itself(instance: Child) -> None:
    body = {"prompt": "hello", "max_tokens": 60, "ignore_eos": True, **GREEDY}
    whole = instance.request("POST", COMPLETION, body)[1]["choices"][0]["text"]
    stop = whole[len(whole) // 2 :][:3]
    _, answer = instance.request("POST", COMPLETION, {**body, "stop": [stop, "never in there"]})
    choice = answer["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert join_text(instance.stream(COMPLETION, {**body, "stop": stop})) == choice["text"]


def test_same_seed_gives_the_same_text_and_another_seed_another(instance: Child) -> None:
    def ask(seed: int) -> str:
        body = {"prompt": "hello", "max_tokens": 40, "seed": seed, "temperature": 2.0, "top_k": 0, "ignore_eos": True}
        text: str = instance.request("POST", COMPLETION, body)[1]["choices"][0]["text"]
        return text

    assert ask(7) == ask(7) != ask(8)


def test_logit_bias_forbids_and_forces_tokens(instance: Child) -> None:
    _, tokens = instance.request("POST", "/tokenize", {"content": "a"})
    (forced,) = tokens["tokens"]
    body = {"prompt": "hello", "max_tokens": 3, "logit_bias": {str(forced): 1000}, **GREEDY}
    assert instance.request("POST", COMPLETION, body)[1]["choices"][0]["text"] == "aaa"


def test_prefix_of_an_earlier_prompt_is_not_decoded_again(instance: Child) -> None:
    prompt = "a long beginning that both prompts share, "
    body = {"max_tokens": 1, "ignore_eos": True}
    instance.request("POST", COMPLETION, {**body, "prompt": prompt + "one"})
    _, answer = instance.request("POST", COMPLETION, {**body, "prompt": prompt + "two"})
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= len(prompt) // 4
    _, answer = instance.request("POST", COMPLETION, {**body, "prompt": prompt + "two", "cache_prompt": False})
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_prompt_of_tokens_is_taken_as_it_is(instance: Child) -> None:
    _, tokens = instance.request("POST", "/tokenize", {"content": "hello", "add_special": True})
    body = {"max_tokens": 8, **GREEDY}
    _, by_text = instance.request("POST", COMPLETION, {**body, "prompt": "hello"})
    _, by_tokens = instance.request("POST", COMPLETION, {**body, "prompt": tokens["tokens"]})
    assert by_text["choices"] == by_tokens["choices"]


def test_prompt_longer_than_the_context_is_refused_with_both_numbers(instance: Child) -> None:
    error = refuse(instance, COMPLETION, {"prompt": "x" * 3000})
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > 3000 > error["n_ctx"] == 1024
    assert str(error["n_prompt_tokens"]) in error["message"]
    assert "1024" in error["message"]


def test_generation_ends_with_the_context(instance: Child) -> None:
    _, answer = instance.request("POST", COMPLETION, {"prompt": "x" * 900, "ignore_eos": True})
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 1024


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": 1, "content": ""}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": MESSAGES, "temperature": "hot"}, "temperature"),
        ({"messages": MESSAGES, "max_tokens": 1e300}, "max_tokens"),
        ({"messages": MESSAGES, "stop": [1]}, "stop[0]"),
        ({"messages": MESSAGES, "n": 0}, "`n`"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content"),
        ({}, "messages"),
    ],
)
def test_wrong_field_is_named(instance: Child, body: dict[str, Any], field: str) -> None:
    error = refuse(instance, CHAT, body)
    assert error["type"] == "invalid_request_error"
    assert field in error["message"]


def test_whole_number_may_be_written_with_a_point(instance: Child) -> None:
    body = b'{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5.0, "top_k": 4e1, "ignore_eos": true}'
    status, answer = instance.request("POST", CHAT, body)
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == 5
    _, answer = instance.request("POST", CHAT, body.replace(b"5.0", b"5.5").replace(b"4e1", b"40.5"))
    assert answer["usage"]["completion_tokens"] == 5, "as llama-server takes it"
    assert "max_tokens" in refuse(instance, CHAT, body.replace(b"5.0", b'"5"'))["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b'"text"', b"[" * 100_000])
def test_body_that_is_no_request_is_refused(instance: Child, body: bytes) -> None:
    for path in (CHAT, COMPLETION, "/v1/embeddings", "/tokenize", "/detokenize", "/apply-template"):
        refuse(instance, path, body)


def test_unknown_route_and_wrong_method_answer_in_json(instance: Child) -> None:
    status, answer = instance.request("GET", "/nowhere")
    assert (status, answer["error"]["type"]) == (404, "not_found_error")
    status, answer = instance.request("GET", CHAT)
    assert status == 405
    check_error(answer["error"], CHAT, 405)


@pytest.mark.parametrize("n_chars", [100, 10_000, 1_500_000])
def test_texts_of_any_length_are_tokenized(instance: Child, n_chars: int) -> None:
    text = "word " * (n_chars // 5)
    status, answer = instance.request("POST", "/tokenize", {"content": text})
    assert status == 200
    assert instance.request("POST", "/detokenize", answer) == (200, {"content": text})


def test_tokens_and_text_convert_into_each_other(instance: Child) -> None:
    text = "hello 世界 🙂 é"
    _, tokens = instance.request("POST", "/tokenize", {"content": text})
    assert instance.request("POST", "/detokenize", tokens) == (200, {"content": text})
    _, pieces = instance.request("POST", "/tokenize", {"content": text, "with_pieces": True})
    assert [entry["id"] for entry in pieces["tokens"]] == tokens["tokens"]
    refuse(instance, "/detokenize", {"tokens": [10**6]})
    refuse(instance, "/detokenize", {"tokens": [-1]})


def test_template_is_applied_as_chat_does(instance: Child) -> None:
    _, answer = instance.request("POST", "/apply-template", {"messages": MESSAGES})
    assert answer["prompt"] == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_answer_that_has_begun_is_continued(instance: Child) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "hello a"}]
    _, answer = instance.request("POST", "/apply-template", {"messages": begun})
    assert answer["prompt"] == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nhello a"
    called = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    for messages, reason in (([*MESSAGES, called], "an answer that calls tools"), ([*begun, begun[-1]], "two answers")):
        status, answer = instance.request("POST", "/apply-template", {"messages": messages})
        assert (status, reason in answer["error"]["message"]) == (400, True)


def test_parts_of_a_message_stay_apart(instance: Child) -> None:
    parts = [{"type": "text", "text": "a file"}, {"type": "text", "text": "a question"}]
    _, answer = instance.request("POST", "/apply-template", {"messages": [{"role": "user", "content": parts}]})
    assert "a file\na question" in answer["prompt"]


def test_configured_template_gets_tools_and_the_requests_own_variables(tiny: Path, tmp_path: Path) -> None:
    template = (
        "{% if tools %}{{ tools[0].function.name }}|{{ enable_thinking }}|{% endif %}"
        "{{ bos_token }}{{ messages[0].content }}"
    )
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    model = ModelSettings(name="tiny", path=str(tiny), ctx=256, threads=1, chat_template=template)
    with run_child(tmp_path, "serve", model) as child:
        child.supervisor.wait_for("ready")
        body = {"messages": MESSAGES, "tools": tools, "chat_template_kwargs": {"enable_thinking": False}}
        _, applied = child.request("POST", "/apply-template", body)
        _, plain = child.request("POST", "/apply-template", {"messages": MESSAGES})
        _, answer = child.request("POST", CHAT, {"messages": MESSAGES, "max_tokens": 1})
        _, once = child.request("POST", "/tokenize", {"content": "hello", "add_special": True})
    assert applied["prompt"] == "weather|False|<s>hello"
    assert plain["prompt"] == "hello", "what the tokenizer adds stands not in the prompt, as of llama-server"
    assert answer["usage"]["prompt_tokens"] == len(once["tokens"]), "the template's BOS and the tokenizer's are one"


def test_configuration_sets_variables_of_the_template(tiny: Path, tmp_path: Path) -> None:
    template = "{{ enable_thinking }}|{{ a | tojson }}|{{ b }}|{{ messages[0].content }}"
    model = ModelSettings(
        name="tiny",
        path=str(tiny),
        ctx=256,
        threads=1,
        chat_template=template,
        reasoning=Switch.OFF,
        chat_template_kwargs={"a": [1], "b": "x"},
    )
    with run_child(tmp_path, "serve", model) as child:
        child.supervisor.wait_for("ready")

        def apply(**variables: Any) -> str:
            body = {"messages": MESSAGES, "chat_template_kwargs": variables}
            prompt = child.request("POST", "/apply-template", body)[1]["prompt"]
            assert isinstance(prompt, str)
            return prompt

        assert apply() == "False|[1]|x|hello"
        assert apply(enable_thinking=True, b="y") == "True|[1]|y|hello"
        body = {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": "false"}}
        status, answer = child.request("POST", "/apply-template", body)
        assert (status, "enable_thinking" in answer["error"]["message"]) == (400, True), "a text is true to templates"


def test_model_whose_template_is_no_jinja_does_all_but_chat(tmp_path: Path) -> None:
    template = "{{- if .System }}<|sys|>{{ .System }}{{ end }}{{- range $i, $_ := .Messages }}{{ .Content }}{{ end }}"
    path = write_model(tmp_path / "go.gguf", chat_template=template)
    with run_child(tmp_path, "serve", ModelSettings(name="go", path=str(path), ctx=256, threads=1)) as child:
        child.supervisor.wait_for("ready")
        assert child.request("POST", COMPLETION, {"prompt": "hello", "max_tokens": 2})[0] == 200
        assert child.request("POST", "/tokenize", {"content": "hello"})[0] == 200
        assert child.request("GET", "/props")[1]["chat_template"] == template
        for route in (CHAT, "/apply-template"):
            status, answer = child.request("POST", route, {"messages": MESSAGES, "max_tokens": 2})
            assert status == 400
            assert "no Jinja template" in answer["error"]["message"]
            assert "chat_template_file" in answer["error"]["message"]
        assert "chat template unusable" in child.errors


def test_built_in_template_is_chosen_by_name(tiny: Path, tmp_path: Path) -> None:
    model = ModelSettings(name="tiny", path=str(tiny), ctx=256, threads=1, chat_template="gemma")
    with run_child(tmp_path, "serve", model) as child:
        child.supervisor.wait_for("ready")
        _, applied = child.request("POST", "/apply-template", {"messages": MESSAGES})
        assert applied["prompt"] == "<start_of_turn>user\nhello<end_of_turn>\n<start_of_turn>model\n"
        assert child.request("POST", CHAT, {"messages": MESSAGES, "max_tokens": 2})[0] == 200


def test_instance_describes_itself(instance: Child) -> None:
    assert instance.request("GET", "/health") == (200, {"status": "ok"})
    _, props = instance.request("GET", "/props")
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert props["bos_token"] == "<s>"
    _, models = instance.request("GET", "/v1/models")
    assert [model["id"] for model in models["data"]] == ["tiny"]


def test_keep_alive_connection_serves_several_requests(instance: Child) -> None:
    with contextlib.closing(instance.connect()) as connection:
        for _ in range(3):
            connection.request("POST", COMPLETION, json.dumps({"prompt": "a", "max_tokens": 2}))
            response = connection.getresponse()
            assert response.status == 200
            json.loads(response.read())


def test_model_for_text_makes_no_embeddings_and_says_why(instance: Child) -> None:
    error = refuse(instance, "/v1/embeddings", {"input": "hello"})
    assert "'tiny'" in error["message"]
    assert "pooling" in error["message"]


def test_embeddings_have_length_one_and_do_not_depend_on_company(embedder: Child) -> None:
    texts = ["hello world", "a b c", "hello", "x y z 1 2 3", "another one", "hello world"]
    status, answer = embedder.request("POST", "/v1/embeddings", {"input": texts})
    assert status == 200
    vectors = [entry["embedding"] for entry in answer["data"]]
    assert [entry["index"] for entry in answer["data"]] == list(range(len(texts)))
    assert all(len(vector) == 64 for vector in vectors)
    assert all(abs(sum(value * value for value in vector) - 1) < 1e-5 for vector in vectors)
    assert vectors[0] == pytest.approx(vectors[5], abs=1e-5)
    assert vectors[0] != pytest.approx(vectors[1], abs=1e-3)
    _, alone = embedder.request("POST", "/v1/embeddings", {"input": texts[0]})
    assert alone["data"][0]["embedding"] == pytest.approx(vectors[0], abs=1e-5)


def test_base64_embeddings_are_the_same_floats(embedder: Child) -> None:
    _, plain = embedder.request("POST", "/v1/embeddings", {"input": "hello"})
    _, coded = embedder.request("POST", "/v1/embeddings", {"input": "hello", "encoding_format": "base64"})
    data = base64.b64decode(coded["data"][0]["embedding"])
    assert struct.unpack("<64f", data) == pytest.approx(plain["data"][0]["embedding"], abs=1e-7)


def test_embeddings_come_in_llama_servers_own_form_too(embedder: Child) -> None:
    texts = ["hello", "another text"]
    _, expected = embedder.request("POST", "/v1/embeddings", {"input": texts})
    vectors = [entry["embedding"] for entry in expected["data"]]
    for path, field in (("/embedding", "content"), ("/embeddings", "input")):
        status, answer = embedder.request("POST", path, {field: texts})
        assert status == 200
        assert [entry["index"] for entry in answer] == [0, 1]
        for entry, vector in zip(answer, vectors, strict=True):
            assert entry["embedding"] == [pytest.approx(vector, abs=1e-5)]
    assert "content" in refuse(embedder, "/embedding", {})["message"]


def test_without_pooling_each_token_has_a_vector(tiny_embed: Path, embedder: Child, tmp_path: Path) -> None:
    """Their mean is the vector that pooling makes."""
    model = ModelSettings(name="tokens", path=str(tiny_embed), pooling="none", parallel=4, threads=1)
    texts = ["hello", "a b c d", "x y z 1 2 3"]
    with run_child(tmp_path, "serve", model) as child:
        child.supervisor.wait_for("ready")
        status, answer = child.request("POST", "/embedding", {"content": texts})
        assert status == 200, answer
        assert "/embedding" in refuse(child, "/v1/embeddings", {"input": texts})["message"]
    for text, entry in zip(texts, answer, strict=True):
        _, tokens = embedder.request("POST", "/tokenize", {"content": text, "add_special": True})
        assert len(entry["embedding"]) == len(tokens["tokens"]) > 1
        _, pooled = embedder.request("POST", "/embedding", {"content": text, "embd_normalize": -1})
        mean = [sum(values) / len(values) for values in zip(*entry["embedding"], strict=True)]
        assert mean == pytest.approx(pooled[0]["embedding"][0], abs=1e-4)


def test_tokens_have_the_same_vectors_however_many_are_computed_at_once(tiny: Path, tmp_path: Path) -> None:
    found = []
    for batch in (32, 256):
        model = ModelSettings(
            name="tokens", path=str(tiny), pooling="none", ctx=256, threads=1, batch=batch, ubatch=batch
        )
        (tmp_path / str(batch)).mkdir()
        with run_child(tmp_path / str(batch), "serve", model) as child:
            child.supervisor.wait_for("ready")
            _, answer = child.request("POST", "/embedding", {"content": ["a b c d e " * 10, "hello"]})
            found.append([vector for entry in answer for vector in entry["embedding"]])
    assert len(found[0]) == len(found[1]) > 3 * 32
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, abs=0.02)  # keys and values are kept in 16 bits
    assert found[0][0] != pytest.approx(found[0][1], abs=0.2)


def test_embedding_input_that_is_too_long_or_empty_is_refused(embedder: Child) -> None:
    error = refuse(embedder, "/v1/embeddings", {"input": "a " * 600})
    assert error["type"] == "exceed_context_size_error"
    for empty in ([], [[]], {"a": 1}, [1, []]):
        refuse(embedder, "/v1/embeddings", {"input": empty})


def test_embedding_inputs_are_taken_in_every_form_of_a_prompt(embedder: Child) -> None:
    def embed(given: Any) -> list[list[float]]:
        status, answer = embedder.request("POST", "/v1/embeddings", {"input": given})
        assert status == 200, answer
        return [entry["embedding"] for entry in answer["data"]]

    _, answer = embedder.request("POST", "/tokenize", {"content": "hello world", "add_special": True})
    tokens = answer["tokens"]
    (text,), (numbers,) = embed("hello world"), embed(tokens)
    assert embed({"prompt_string": "hello world"}) == [pytest.approx(text, abs=1e-4)]
    several = embed(["hello world", {"prompt_string": "hello world"}, tokens])
    assert several == [pytest.approx(vector, abs=1e-4) for vector in (text, text, numbers)]
    _, last = embedder.request("POST", "/detokenize", {"tokens": tokens[-1:]})
    assert embed([*tokens[:-1], last["content"]]) == [pytest.approx(numbers, abs=1e-4)]
    parts = {"content": [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]}
    assert embed(parts) == embed("hello world")
    for part in ({"type": "image_url", "image_url": {"url": "x"}}, {"type": "text"}):
        error = refuse(embedder, "/v1/embeddings", {"input": ["a", {"content": [part]}]})
        assert error["message"].startswith("cannot use `content`: a part of type")


@pytest.mark.parametrize(
    ("norm", "measure"),
    [
        (1, lambda vector: sum(map(abs, vector))),
        (2, lambda vector: sum(value * value for value in vector)),
        (3, lambda vector: sum(abs(value) ** 3 for value in vector)),
        (0, lambda vector: max(map(abs, vector)) / 32760),
        (2_000, lambda vector: max(map(abs, vector))),
        (1 << 31, lambda vector: max(map(abs, vector))),
    ],
)
def test_embedding_has_the_length_that_is_asked_for(embedder: Child, norm: int, measure: Any) -> None:
    body = {"content": "hello", "embd_normalize": norm}
    _, native = embedder.request("POST", "/embedding", body)
    _, openai = embedder.request("POST", "/v1/embeddings", {"input": "hello", "embd_normalize": norm})
    for vector in (native[0]["embedding"][0], openai["data"][0]["embedding"]):
        assert measure(vector) == pytest.approx(1, abs=1e-3)
    _, raw = embedder.request("POST", "/embedding", {**body, "embd_normalize": -1})
    _, plain = embedder.request("POST", "/embedding", {"content": "hello"})
    scale = raw[0]["embedding"][0][0] / plain[0]["embedding"][0][0]
    assert raw[0]["embedding"][0] == pytest.approx([scale * value for value in plain[0]["embedding"][0]], abs=1e-4)


def test_encoder_without_pooling_has_a_vector_for_each_token_and_generates_no_text(tmp_path: Path) -> None:
    path = write_embedding_model(tmp_path / "none.gguf", pooling=gguf.PoolingType.NONE)
    with run_child(tmp_path, "serve", ModelSettings(name="none", path=str(path), threads=1)) as child:
        child.supervisor.wait_for("ready")
        assert "embeddings" in refuse(child, COMPLETION, {"prompt": "hello"})["message"]
        assert "/embedding" in refuse(child, "/v1/embeddings", {"input": "hello"})["message"]
        status, answer = child.request("POST", "/embedding", {"content": "hello"})
        assert status == 200
        assert len(answer[0]["embedding"]) > 1


@pytest.mark.parametrize("norm", [10**9, 2**31, 2**62, -(2**62)])
def test_norm_beyond_all_sense_fails_nobody(embedder: Child, norm: int) -> None:
    status, answer = embedder.request("POST", "/v1/embeddings", {"input": "hello", "embd_normalize": norm})
    assert status == 200
    largest = max(map(abs, answer["data"][0]["embedding"]))
    assert (largest == pytest.approx(1.0)) is (norm > 0)


def test_model_for_embeddings_generates_no_text(embedder: Child) -> None:
    assert "embeddings" in refuse(embedder, COMPLETION, {"prompt": "hello"})["message"]


def test_pooling_setting_makes_embeddings_from_a_text_model(tiny: Path, tmp_path: Path) -> None:
    model = ModelSettings(name="tiny", path=str(tiny), ctx=256, pooling="mean", threads=1)
    with run_child(tmp_path, "serve", model) as child:
        child.supervisor.wait_for("ready")
        status, answer = child.request("POST", "/v1/embeddings", {"input": ["hello", "world"]})
    assert status == 200
    assert len(answer["data"]) == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=6,
)
FIELDS = [
    *("messages", "prompt", "input", "content", "tokens", "tools", "chat_template_kwargs", "encoding_format"),
    *("max_tokens", "n_predict", "n", "stop", "stream", "stream_options", "seed", "logit_bias", "ignore_eos"),
    *("temperature", "top_k", "top_p", "min_p", "typical_p"),
    *("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty"),
    *("dynatemp_range", "dynatemp_exponent", "top_n_sigma", "xtc_probability", "xtc_threshold", "min_keep", "samplers"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "grammar", "json_schema", "response_format"),
    *("logprobs", "top_logprobs", "n_probs", "post_sampling_probs", "timings_per_token", "return_progress"),
    *("echo", "suffix", "best_of", "cache_prompt", "return_tokens", "input_prefix", "input_suffix", "input_extra"),
    *("query", "documents", "texts", "top_n", "dimensions"),
]
PATHS = [
    *(CHAT, COMPLETION, "/completion", "/infill", "/v1/embeddings", "/v1/rerank"),
    *("/tokenize", "/detokenize", "/apply-template"),
]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(PATHS),
    changes=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4),
)
def test_any_body_ends_in_an_answer_or_a_400(instance: Child, path: str, changes: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, "prompt": "a", "input": "a", "content": "a", "tokens": [5], "max_tokens": 2}
    data = json.dumps({**body, **changes}).encode()
    with contextlib.closing(instance.connect()) as connection:
        connection.request("POST", path, data)
        response = connection.getresponse()
        assert response.status in (200, 400), (response.status, response.read())
        response.read()
    assert instance.process.poll() is None
