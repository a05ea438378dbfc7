"""Do llama-server's own routes answer as there: /completion, /infill, /rerank, /slots, /metrics?"""

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from prometheus_client.parser import text_string_to_metric_families

from llamactl.settings import ModelSettings
from tests.models import write_embedding_model, write_model
from tests.socket.instance.harness import Child, run_child

NATIVE = "/completion"
MESSAGES = [{"role": "user", "content": "hello"}]
METRICS = {
    *("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_seconds"),
    *("llamacpp:predicted_tokens_seconds", "llamacpp:requests_processing", "llamacpp:requests_deferred"),
    *("llamacpp:n_decode_total", "llamacpp:n_busy_slots_per_decode"),
}


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    directory = tmp_path_factory.mktemp("filler")
    path = write_model(directory / "fill.gguf", fills_gaps=True)
    model = ModelSettings(name="fill", path=str(path), ctx=512, threads=1, batch=64, ubatch=64, show_prompts=True)
    with run_child(directory, "serve", model) as child:
        child.supervisor.wait_for("ready")
        yield child


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    directory = tmp_path_factory.mktemp("ranker")
    path = write_embedding_model(directory / "rank.gguf", pooling=gguf.PoolingType.RANK)
    model = ModelSettings(name="rank", path=str(path), parallel=4, threads=1, batch=128, ubatch=128)
    with run_child(directory, "serve", model) as child:
        child.supervisor.wait_for("ready")
        yield child


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """With a seed, a limit and tags of its own."""
    directory = tmp_path_factory.mktemp("seeded")
    path = write_model(directory / "seeded.gguf")
    own: dict[str, Any] = {"seed": 7, "n_predict": 5, "tags": ("a", "b")}
    model = ModelSettings(name="seeded", path=str(path), ctx=512, threads=1, batch=64, ubatch=64, **own)
    with run_child(directory, "serve", model) as child:
        child.supervisor.wait_for("ready")
        yield child


def read_metrics(child: Child) -> dict[str, float]:
    with contextlib.closing(child.connect()) as connection:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        text = response.read().decode()
    assert response.status == 200
    assert (response.getheader("content-type") or "").startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples}


# --- a model's own defaults -------------------------------------------------------------------------


def complete(child: Child, **fields: Any) -> dict[str, Any]:
    body = {"prompt": "hello", "ignore_eos": True, "cache_prompt": False, **fields}
    status, answer = child.request("POST", NATIVE, body)
    assert status == 200, answer
    return answer


def test_configured_seed_is_for_requests_that_say_none(seeded: Child) -> None:
    texts = [complete(seeded, temperature=5.0, n_predict=16)["content"] for _ in range(3)]
    assert len(set(texts)) == 1
    assert complete(seeded, temperature=5.0, n_predict=16, seed=7)["content"] == texts[0]
    assert complete(seeded, temperature=5.0, n_predict=16, seed=8)["content"] != texts[0]
    assert len({complete(seeded, temperature=5.0, n_predict=16, seed=-1)["content"] for _ in range(3)}) > 1


def test_configured_limit_is_for_requests_that_set_none(seeded: Child) -> None:
    for fields, n_predicted in (({}, 5), ({"n_predict": -1}, 5), ({"max_tokens": None}, 5), ({"n_predict": 9}, 9)):
        answer = complete(seeded, **fields)
        assert (answer["tokens_predicted"], answer["stop_type"]) == (n_predicted, "limit")
    chat = seeded.request("POST", "/v1/chat/completions", {"messages": MESSAGES, "logit_bias": {"2": False}})[1]
    assert chat["usage"]["completion_tokens"] <= 5


def test_defaults_of_requests_and_tags_are_shown(seeded: Child) -> None:
    params = seeded.request("GET", "/props")[1]["default_generation_settings"]["params"]
    assert (params["seed"], params["n_predict"], params["max_tokens"]) == (7, 5, 5)
    assert seeded.request("GET", "/v1/models")[1]["data"][0]["tags"] == ["a", "b"]


# --- llama.cpp's build ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", {"messages": MESSAGES}), ("/v1/completions", {"prompt": "hello"})]
)
def test_every_answer_of_openais_routes_tells_llama_cpps_build(
    instance: Child, path: str, body: dict[str, Any]
) -> None:
    body = {**body, "max_tokens": 2, "ignore_eos": True, "stream_options": {"include_usage": True}}
    build = instance.request("GET", "/props")[1]["build_info"]
    assert re.match(r"b\d+-\w+", build)
    assert instance.request("POST", path, body)[1]["system_fingerprint"] == build
    chunks = [json.loads(event) for event in instance.stream(path, body) if event != "[DONE]"]
    assert len(chunks) >= 3
    assert {chunk["system_fingerprint"] for chunk in chunks} == {build}


def test_each_chunk_of_a_native_stream_tells_how_long_the_prompt_is(instance: Child) -> None:
    body = {"prompt": "hello", "n_predict": 3, "ignore_eos": True, "return_progress": True, "cache_prompt": False}
    chunks = [json.loads(event) for event in instance.stream(NATIVE, body)]
    n_prompt = len(instance.request("POST", "/tokenize", {"content": "hello", "add_special": True})[1]["tokens"])
    assert {chunk["tokens_evaluated"] for chunk in chunks} == {n_prompt}
    assert [chunk["id_slot"] for chunk in chunks[:-1]] == [-1] * (len(chunks) - 1)


# --- /completion ------------------------------------------------------------------------------------


def test_completion_tells_how_it_came_about(instance: Child) -> None:
    body = {"prompt": "hello", "n_predict": 6, "temperature": 0, "return_tokens": True, "ignore_eos": True}
    _, answer = instance.request("POST", NATIVE, body)
    assert answer["stop"] is True
    assert (answer["stop_type"], answer["stopping_word"], answer["truncated"]) == ("limit", "", False)
    assert (answer["tokens_predicted"], len(answer["tokens"])) == (6, 6)
    assert answer["prompt"] == "<s>hello"
    assert answer["generation_settings"]["n_predict"] == 6
    assert answer["generation_settings"]["temperature"] == 0
    assert answer["timings"]["predicted_n"] == 6
    text = instance.request("POST", "/detokenize", {"tokens": answer["tokens"]})[1]["content"]
    assert text.startswith(answer["content"])


def test_stream_of_a_completion_ends_with_its_facts_and_without_done(instance: Child) -> None:
    body = {"prompt": "hello", "n_predict": 8, "temperature": 0, "ignore_eos": True}
    _, whole = instance.request("POST", NATIVE, body)
    events = [json.loads(event) for event in instance.stream(NATIVE, body)]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["stop_type"] == "limit"
    tokens = [token for event in events for token in event["tokens"]]
    assert tokens == instance.request("POST", NATIVE, {**body, "return_tokens": True})[1]["tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_answer_tells_of_a_new_line_and_of_the_contexts_end(instance: Child, stream: bool) -> None:
    def ask(**body: Any) -> Any:
        body = {"prompt": "hello", "temperature": 0, "ignore_eos": True, **body}
        if stream:
            return json.loads(instance.stream(NATIVE, body)[-1])
        return instance.request("POST", NATIVE, body)[1]

    short = ask(n_predict=4, grammar='root ::= "ab" [a-z]+')
    assert (short["has_new_line"], short["truncated"]) == (False, False)
    long = ask(prompt="a " * 505, grammar='root ::= "a\\nb" [a-z]+')
    assert (long["has_new_line"], long["truncated"], long["stop_type"]) == (True, True, "limit")


def test_line_that_is_indented_too_little_ends_the_answer(instance: Child) -> None:
    body = {"prompt": "hello", "n_predict": 20, "temperature": 0, "grammar": 'root ::= "a\\n  b\\nc" [d-z]+'}
    _, answer = instance.request("POST", NATIVE, {**body, "n_indent": 2})
    assert (answer["content"], answer["stop_type"]) == ("a\n  b\n", "limit")
    _, answer = instance.request("POST", NATIVE, {**body, "n_indent": 0})
    assert answer["content"].startswith("a\n  b\nc")


def test_new_line_ends_an_answer_that_has_taken_long_enough(instance: Child) -> None:
    body = {"prompt": "hello", "n_predict": 200, "temperature": 0, "ignore_eos": True}
    body["grammar"] = 'root ::= ([a-z] [a-z] [a-z] "\\n")+'
    _, answer = instance.request("POST", NATIVE, {**body, "t_max_predict_ms": 0.001})
    assert (answer["content"][-1], len(answer["content"]), answer["stop_type"]) == ("\n", 4, "limit")
    _, answer = instance.request("POST", NATIVE, {**body, "t_max_predict_ms": 60_000})
    assert answer["tokens_predicted"] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_fields_are_told_that_are_asked_for(instance: Child, stream: bool) -> None:
    fields = ["content", "timings/predicted_n", "generation_settings/top_k", "none", "timings/none", "content/x"]
    body = {"prompt": "hello", "n_predict": 3, "temperature": 0, "ignore_eos": True, "response_fields": fields}
    answer = json.loads(instance.stream(NATIVE, body)[-1]) if stream else instance.request("POST", NATIVE, body)[1]
    assert isinstance(answer.pop("content"), str)
    assert answer == {"timings/predicted_n": 3, "generation_settings/top_k": 40}


def test_prompt_of_texts_and_tokens_mixed(instance: Child) -> None:
    _, tokens = instance.request("POST", "/tokenize", {"content": "hello a", "add_special": True})
    _, first = instance.request("POST", "/tokenize", {"content": "hello", "add_special": True})
    mixed = [*first["tokens"], " a"]
    fixed = {"n_predict": 5, "temperature": 0}
    _, answer = instance.request("POST", NATIVE, {"prompt": mixed, **fixed})
    assert answer["tokens_evaluated"] == len(tokens["tokens"])
    _, several = instance.request("POST", NATIVE, {"prompt": [mixed, "hello a"], **fixed})
    assert [one["content"] for one in several] == [answer["content"]] * 2


@pytest.mark.parametrize("prompt", [[], "", [["a", [1]]], [1, "a", None], [-1], [10**9]])
def test_prompt_that_is_none_is_refused(instance: Child, prompt: Any) -> None:
    body = {"prompt": prompt, "n_predict": 1}
    status, answer = instance.request("POST", NATIVE, body)
    if prompt == "":  # a model that begins with BOS has something to continue
        assert status == 200
    else:
        assert status == 400, answer


# --- timings and progress ---------------------------------------------------------------------------


def test_timings_come_with_each_token_on_demand(instance: Child) -> None:
    body = {"messages": MESSAGES, "max_tokens": 5, "ignore_eos": True, "timings_per_token": True}
    events = [json.loads(event) for event in instance.stream("/v1/chat/completions", body)[:-1]]
    counts = [event["timings"]["predicted_n"] for event in events[1:]]
    assert counts == sorted(counts)
    assert counts[-1] == 5
    last = events[-1]["timings"]
    assert last["predicted_per_token_ms"] == pytest.approx(last["predicted_ms"] / 4), "the first is the prompt's"
    assert last["predicted_per_second"] == pytest.approx(4e3 / last["predicted_ms"])
    without = instance.stream("/v1/chat/completions", {**body, "timings_per_token": False})[:-1]
    assert ["timings" in json.loads(event) for event in without] == [False] * (len(without) - 1) + [True]


def test_progress_of_a_long_prompt_is_told_on_demand(filler: Child) -> None:
    body = {"prompt": "x" * 300, "n_predict": 2, "return_progress": True, "cache_prompt": False, "ignore_eos": True}
    events = [json.loads(event) for event in filler.stream(NATIVE, body)]
    steps = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert len(steps) >= 4
    processed = [step["processed"] for step in steps]
    assert processed == sorted(processed)
    assert processed[-1] == steps[0]["total"] == 301
    assert {step["cache"] for step in steps} == {0}
    assert not any("prompt_progress" in event for event in filler.stream(NATIVE, {**body, "return_progress": False}))


# --- /infill ----------------------------------------------------------------------------------------


def test_gap_is_marked_by_the_models_tokens(filler: Child) -> None:
    body = {"input_prefix": "one", "input_suffix": "two", "prompt": "!", "n_predict": 2}
    status, answer = filler.request("POST", "/infill", body)
    assert status == 200
    # The tokens of the tiny model's edges are its </s>, <|im_start|> and <|im_end|>.
    assert answer["prompt"] == "<s></s>one!<|im_start|>two<|im_end|>"
    with_files = {**body, "input_extra": [{"text": "other", "filename": "b.py"}]}
    prompt = filler.request("POST", "/infill", with_files)[1]["prompt"]
    assert "other" in prompt
    assert prompt.endswith("one!<|im_start|>two<|im_end|>")


def test_suffix_of_a_completion_fills_the_gap_too(filler: Child) -> None:
    body = {"prompt": "one", "suffix": "two", "max_tokens": 5, "temperature": 0}
    status, answer = filler.request("POST", "/v1/completions", body)
    assert status == 200
    gap = {"input_prefix": "one", "input_suffix": "two", "n_predict": 5, "temperature": 0}
    assert answer["choices"][0]["text"] == filler.request("POST", "/infill", gap)[1]["content"]


def test_long_surroundings_are_cut_far_from_the_gap(filler: Child) -> None:
    body = {"input_prefix": "a" * 400 + "NEAR", "input_suffix": "CLOSE" + "b" * 400, "n_predict": 1}
    status, answer = filler.request("POST", "/infill", body)
    assert status == 200
    assert "NEAR<|im_start|>CLOSE" in answer["prompt"]
    assert answer["tokens_evaluated"] <= 64 + 4


@pytest.mark.parametrize("missing", ["input_prefix", "input_suffix"])
def test_gap_needs_both_sides(filler: Child, missing: str) -> None:
    body = {"input_prefix": "a", "input_suffix": "b"}
    del body[missing]
    status, answer = filler.request("POST", "/infill", body)
    assert status == 400
    assert missing in answer["error"]["message"]


# --- /rerank ----------------------------------------------------------------------------------------


def test_documents_come_best_first_with_their_scores(ranker: Child) -> None:
    documents = ["hello world", "a b c", "x", "hello"]
    status, answer = ranker.request("POST", "/v1/rerank", {"query": "hello", "documents": documents})
    assert status == 200
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(result["index"] for result in answer["results"]) == [0, 1, 2, 3]
    assert len(set(scores)) == 4
    assert answer["usage"]["total_tokens"] > 0
    best = ranker.request("POST", "/rerank", {"query": "hello", "documents": documents, "top_n": 2})[1]["results"]
    assert [entry["index"] for entry in best] == [entry["index"] for entry in answer["results"][:2]]
    assert [entry["relevance_score"] for entry in best] == pytest.approx(scores[:2], abs=1e-5)


def test_scores_depend_on_the_query_and_not_on_company(ranker: Child) -> None:
    def score(query: str, *documents: str) -> dict[int, float]:
        results = ranker.request("POST", "/v1/rerank", {"query": query, "documents": list(documents)})[1]["results"]
        return {result["index"]: result["relevance_score"] for result in results}

    assert score("hello", "world")[0] == pytest.approx(score("hello", "world", "a b", "c", "d e", "f")[0], abs=1e-5)
    assert score("hello", "world")[0] != pytest.approx(score("a b c", "world")[0], abs=1e-4)


def test_other_form_of_reranking_gets_a_bare_list(ranker: Child) -> None:
    _, answer = ranker.request("POST", "/rerank", {"query": "a", "texts": ["b", "c"], "return_text": True})
    assert {entry["text"] for entry in answer} == {"b", "c"}
    assert answer[0]["score"] >= answer[1]["score"]
    _, documents = ranker.request(
        "POST", "/rerank", {"query": "a", "documents": [{"text": "b"}, "c"], "return_documents": True}
    )
    assert {entry["document"]["text"] for entry in documents["results"]} == {"b", "c"}


@pytest.mark.parametrize("body", [{"query": "a"}, {"query": "a", "documents": []}, {"documents": ["a"]}, {"query": 1}])
def test_ranking_of_nothing_is_refused(ranker: Child, body: dict[str, Any]) -> None:
    assert ranker.request("POST", "/v1/rerank", body)[0] == 400


def test_model_says_clearly_what_it_is_not_made_for(instance: Child, ranker: Child) -> None:
    for child, path, body, word in (
        (instance, "/v1/rerank", {"query": "a", "documents": ["b"]}, "cannot rerank: 'tiny'"),
        (instance, "/infill", {"input_prefix": "a", "input_suffix": "b"}, "cannot fill a gap: 'tiny'"),
        (ranker, "/v1/embeddings", {"input": "a"}, "rank"),
        (ranker, NATIVE, {"prompt": "a"}, "cannot generate text: 'rank'"),
    ):
        status, answer = child.request("POST", path, body)
        assert status == 400
        assert word in answer["error"]["message"]


# --- /slots, /metrics -------------------------------------------------------------------------------


def start_stream(child: Child, body: dict[str, Any]) -> Any:
    """A connection whose stream has begun."""
    connection = child.connect()
    connection.request("POST", NATIVE, json.dumps({"stream": True, "ignore_eos": True, **body}))
    connection.response = connection.getresponse()  # type: ignore[attr-defined]
    connection.response.readline()  # type: ignore[attr-defined]
    return connection


def test_slots_show_what_each_sequence_does_and_no_text_of_it(instance: Child) -> None:
    _, idle = instance.request("GET", "/slots")
    assert [slot["id"] for slot in idle] == [0, 1, 2, 3]
    assert not any(slot["is_processing"] for slot in idle)
    with contextlib.closing(
        start_stream(instance, {"prompt": "secret", "n_predict": 900, "top_k": 7, "grammar": "root ::= [secrt]*"})
    ):
        _, slots = instance.request("GET", "/slots")
    (busy,) = [slot for slot in slots if slot["is_processing"]]
    assert busy["n_prompt_tokens"] == 7
    assert busy["params"]["top_k"] == 7
    assert busy["next_token"][0]["n_decoded"] + busy["next_token"][0]["n_remain"] == 900
    assert "secret" not in json.dumps(slots)
    assert "secrt" not in json.dumps(slots)


def test_idle_slots_tell_of_their_last_request_as_llama_server_does(filler: Child) -> None:
    _, unused = filler.request("GET", "/slots")
    assert all(slot["next_token"][0]["n_decoded"] == 0 for slot in unused)
    assert all(slot["params"]["top_k"] == 40 for slot in unused if "id_task" not in slot)
    assert filler.request("POST", NATIVE, {"prompt": "hello", "n_predict": 3, "top_k": 7, "id_slot": 0})[0] == 200
    _, slots = filler.request("GET", "/slots")
    (used,) = [slot for slot in slots if slot["params"]["top_k"] == 7]
    assert (used["is_processing"], used["params"]["n_predict"]) == (False, 3)
    assert used["n_prompt_tokens"] > 0
    assert used["next_token"] == [{"has_next_token": False, "has_new_line": False, "n_remain": -1, "n_decoded": 0}]
    assert isinstance(used["id_task"], int)


def test_slots_show_texts_where_that_is_configured(filler: Child) -> None:
    with contextlib.closing(start_stream(filler, {"prompt": "visible", "n_predict": 400})):
        _, slots = filler.request("GET", "/slots")
    (busy,) = [slot for slot in slots if slot["is_processing"]]
    assert "visible" in busy["prompt"]
    assert isinstance(busy["generated"], str)


def test_metrics_tell_since_when_the_process_counts(instance: Child) -> None:
    def read_start() -> int:
        with contextlib.closing(instance.connect()) as connection:
            connection.request("GET", "/metrics")
            return int(connection.getresponse().headers["Process-Start-Time-Unix"])

    assert read_start() == read_start()
    assert 0 <= time.time() - read_start() < 3600


def test_props_and_models_have_what_llama_servers_clients_look_for(instance: Child, tiny: Path) -> None:
    _, props = instance.request("GET", "/props")
    assert props["is_sleeping"] is False
    assert props["model_ftype"] == "all F32"
    assert props["default_generation_settings"]["params"]["n_predict"] == -1
    assert props["chat_template_caps"]["supports_system_role"]
    assert len(props["chat_template_caps"]) == 9
    (model,) = instance.request("GET", "/v1/models")[1]["data"]
    assert model["created"] == int(tiny.stat().st_mtime)
    assert (model["meta"]["vocab_type"], model["meta"]["ftype"]) == (1, "all F32")
    assert model["tags"] == []


def test_metrics_have_llama_servers_names_and_count(instance: Child) -> None:
    before = read_metrics(instance)
    assert before.keys() >= METRICS
    body = {"prompt": "hello", "n_predict": 5, "ignore_eos": True, "cache_prompt": False}
    _, answer = instance.request("POST", NATIVE, body)
    after = read_metrics(instance)
    grown = {name: after[name] - before[name] for name in METRICS}
    assert grown["llamacpp:tokens_predicted_total"] == 5
    assert grown["llamacpp:prompt_tokens_total"] == answer["tokens_evaluated"]
    assert grown["llamacpp:n_decode_total"] == 5
    assert after["llamacpp:predicted_tokens_seconds"] > 0
    assert after["llamacpp:prompt_tokens_seconds"] > 0
    assert (after["llamacpp:requests_processing"], after["llamacpp:requests_deferred"]) == (0, 0)
    assert 1 <= after["llamacpp:n_busy_slots_per_decode"] <= 4


def test_metrics_of_a_reranker_count_its_tokens(ranker: Child) -> None:
    before = read_metrics(ranker)["llamacpp:prompt_tokens_total"]
    _, answer = ranker.request("POST", "/v1/rerank", {"query": "hello", "documents": ["a", "b"]})
    assert read_metrics(ranker)["llamacpp:prompt_tokens_total"] - before == answer["usage"]["prompt_tokens"]
    assert ranker.request("GET", "/slots") == (200, [])
