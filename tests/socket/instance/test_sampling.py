"""Is each setting of sampling heard, do the defaults come from where they should, and do probabilities add up?"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from llamactl.settings import ModelSettings
from tests.models import write_model
from tests.socket.instance.harness import Child, run_child

CHAT, COMPLETION, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
MESSAGES = [{"role": "user", "content": "hello"}]
N_VOCAB = 274
HOT = {"prompt": "hello", "n_predict": 60, "seed": 5, "temperature": 2.0, "top_k": 0, "ignore_eos": True}


def ask(child: Child, **body: Any) -> dict[str, Any]:
    status, answer = child.request("POST", NATIVE, body)
    assert status == 200, answer
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.3},
        {"dynatemp_range": 1.9},
        {"dynatemp_range": 1.9, "dynatemp_exponent": 3.0},
        {"top_k": 2},
        {"top_p": 0.3},
        {"min_p": 0.5},
        {"typical_p": 0.3},
        {"top_n_sigma": 0.5},
        {"xtc_probability": 1.0, "xtc_threshold": 0.02},
        {"repeat_penalty": 3.0},
        {"presence_penalty": 5.0},
        {"frequency_penalty": 5.0},
        {"mirostat": 1},
        {"mirostat": 2},
        {"mirostat": 2, "mirostat_tau": 0.5, "mirostat_eta": 0.9},
        {"samplers": ["temperature", "adaptive_p"], "adaptive_target": 0.6},
        {"samplers": ["temperature", "adaptive_p"], "adaptive_target": 0.6, "adaptive_decay": 0.1},
        {"samplers": []},
        {"samplers": ["top_k"], "top_k": 2},
        {"logit_bias": {"a": 9.0}},
        {"seed": 6},
    ],
)
def test_setting_changes_what_is_written(instance: Child, change: dict[str, Any]) -> None:
    plain = {"min_p": 0.0, "top_p": 1.0}
    assert ask(instance, **HOT, **plain)["content"] == ask(instance, **HOT, **plain)["content"]
    assert ask(instance, **{**HOT, **plain, **change})["content"] != ask(instance, **HOT, **plain)["content"]


def test_dry_breaks_a_repetition(instance: Child) -> None:
    """A bias makes the model repeat itself; the penalty for repeated passages outweighs it, and breakers end them."""
    _, tokens = instance.request("POST", "/tokenize", {"content": "a"})
    loop = {"prompt": "x", "n_predict": 20, "temperature": 0, "logit_bias": {str(tokens["tokens"][0]): 50.0}}
    dry = {"dry_multiplier": 30.0, "dry_base": 2.0, "dry_allowed_length": 2, "dry_penalty_last_n": -1}
    assert ask(instance, **loop)["content"] == "a" * 20
    assert ask(instance, **loop, **dry)["content"] != "a" * 20
    assert ask(instance, **loop, **dry, dry_sequence_breakers=["a"])["content"] == "a" * 20


def test_order_of_samplers_matters_and_is_told(instance: Child) -> None:
    one = ask(instance, **{**HOT, "min_p": 0.2, "samplers": ["min_p", "temperature"]})
    other = ask(instance, **{**HOT, "min_p": 0.2, "samplers": ["temperature", "min_p"]})
    assert one["content"] != other["content"]
    assert one["generation_settings"]["samplers"] == ["min_p", "temperature"]
    assert ask(instance, **HOT, samplers="mt")["generation_settings"]["samplers"] == ["min_p", "temperature"]


@pytest.mark.parametrize("setting", [{"xtc_probability": 1.0, "xtc_threshold": 0.001}, {"typical_p": 0.1}])
@pytest.mark.parametrize("order", [["top_k", "typ_p", "xtc", "temperature"], ["temperature", "typ_p", "xtc"]])
def test_what_leaves_one_token_spares_it_from_others_at_temperature_0(
    instance: Child, setting: dict[str, Any], order: list[str]
) -> None:
    """XTC and typical sampling may leave out the likeliest token, but never the only one."""
    greedy = {**HOT, "temperature": 0, "top_k": 1, "samplers": order}
    assert ask(instance, **greedy, **setting)["content"] == ask(instance, **greedy)["content"]


def test_chat_programs_order_of_samplers_is_taken(instance: Child) -> None:
    """They name adaptive-p without a target for it, and what llama.cpp had once."""
    order = ["penalties", "dry", "top_n_sigma", "top_k", "tfs_z", "typical_p", "top_p", "min_p", "xtc", "temperature"]
    plain = ask(instance, **{**HOT, "temperature": 0})
    named = ask(instance, **{**HOT, "temperature": 0}, samplers=[*order, "adaptive_p"])
    assert named["content"] == plain["content"]
    assert named["generation_settings"]["samplers"] == [*plain["generation_settings"]["samplers"], "adaptive_p"]


def test_eos_is_ignored_on_demand(instance: Child) -> None:
    end = {"</s>": 100.0}
    assert ask(instance, prompt="a", n_predict=5, logit_bias=end)["stop_type"] == "eos"
    answer = ask(instance, prompt="a", n_predict=5, logit_bias=end, ignore_eos=True)
    assert (answer["stop_type"], answer["tokens_predicted"]) == ("limit", 5)
    assert {entry["bias"] for entry in answer["generation_settings"]["logit_bias"]} == {None}


def test_false_as_a_bias_bans_a_token(instance: Child) -> None:
    greedy = {"prompt": "hello", "n_predict": 1, "temperature": 0, "return_tokens": True}
    (first,) = ask(instance, **greedy)["tokens"]
    (second,) = ask(instance, **greedy, logit_bias=[[first, False]])["tokens"]
    assert second != first


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"mirostat": 3}, "mirostat"),
        ({"dry_sequence_breakers": ["x"] * 1025}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers"),
        ({"n_probs": -1}, "logprobs"),
        ({"top_k": 2**40}, "top_k"),
    ],
)
def test_senseless_setting_is_refused_and_named(instance: Child, change: dict[str, Any], field: str) -> None:
    status, answer = instance.request("POST", NATIVE, {**HOT, **change})
    assert status == 400
    assert field in answer["error"]["message"]


@pytest.mark.parametrize(
    "change",
    [
        {"repeat_last_n": 2**31 - 1, "repeat_penalty": 1.1},
        {"dry_penalty_last_n": 2**31 - 1, "dry_multiplier": 1.0},
        {"temperature": 1e-300},
        {"temperature": 1e300},
        {"temperature": -1},
        {"repeat_penalty": 1e300},
        {"repeat_penalty": 1e-300},
        {"presence_penalty": 1e300},
        {"dry_base": 1e300, "dry_multiplier": 1e300},
        {"top_n_sigma": 1e300},
        {"mirostat": 1, "mirostat_tau": 1e300, "mirostat_eta": -1e300},
        {"logit_bias": {"5": 1e300, "6": -1e300, "-7": 1, "99999999": 1}},
        {"min_keep": 2**31 - 1, "xtc_probability": 1.0},
        {"dynatemp_range": 1e300, "dynatemp_exponent": -1e300},
        {"logit_bias": [[token, False] for token in range(N_VOCAB)]},
        {"n_probs": 2**31 - 1},
        {"samplers": ["adaptive_p"], "adaptive_target": 1e300, "adaptive_decay": 1e300},
        {"samplers": ["adaptive_p"], "adaptive_target": 0, "adaptive_decay": -1e300},
        {"samplers": "ta", "adaptive_target": 0.5, "temperature": 0},
    ],
)
def test_extreme_setting_harms_nobody(instance: Child, change: dict[str, Any]) -> None:
    status, answer = instance.request("POST", NATIVE, {**HOT, "n_predict": 4, **change})
    assert status == 200, answer
    assert instance.request("GET", "/health") == (200, {"status": "ok"})


def test_null_is_not_sent(instance: Child) -> None:
    _, answer = instance.request("POST", CHAT, {"messages": MESSAGES, "max_tokens": 1})
    names = ["temperature", "top_k", "stop", "logit_bias", "ignore_eos", "n", "stream", "response_format", "logprobs"]
    status, with_null = instance.request("POST", CHAT, {"messages": MESSAGES, "max_tokens": 1, **dict.fromkeys(names)})
    assert status == 200
    assert with_null["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]


# --- defaults ---------------------------------------------------------------------------------------


def test_defaults_come_from_the_configuration_then_the_file_then_llama_cpp(tmp_path: Path) -> None:
    recommended = {"top_k": 11, "top_p": 0.5, "temp": 0.25, "penalty_repeat": 1.5, "sequence": "top_k;temperature"}
    path = write_model(tmp_path / "tiny.gguf", sampling=recommended)
    model = ModelSettings(
        name="tiny",
        path=str(path),
        ctx=256,
        threads=1,
        sampling={"top_k": 3, "min_p": 0.2, "samplers": ["top_k", "min_p"]},
    )
    with run_child(tmp_path, "serve", model) as child:
        child.supervisor.wait_for("ready")
        _, props = child.request("GET", "/props")
        used = props["default_generation_settings"]["params"]
        answer = ask(child, prompt="a", n_predict=1, top_p=0.75)
    assert used["top_k"] == 3
    assert used["min_p"] == 0.2
    assert used["samplers"] == ["top_k", "min_p"]
    assert (used["top_p"], used["temperature"], used["repeat_penalty"]) == (0.5, 0.25, 1.5)
    assert (used["typical_p"], used["mirostat"]) == (1.0, 0)
    assert (answer["generation_settings"]["top_p"], answer["generation_settings"]["top_k"]) == (0.75, 3)


# --- probabilities ----------------------------------------------------------------------------------


def read_logprobs(child: Child, **more: Any) -> list[dict[str, Any]]:
    _, answer = child.request("POST", CHAT, {"messages": MESSAGES, "max_tokens": 12, "logprobs": True, **more})
    content: list[dict[str, Any]] = answer["choices"][0]["logprobs"]["content"]
    return content


def test_probabilities_of_all_tokens_add_up_to_one(instance: Child) -> None:
    for entry in read_logprobs(instance, top_logprobs=N_VOCAB, ignore_eos=True):
        assert len(entry["top_logprobs"]) == N_VOCAB
        assert math.fsum(math.exp(other["logprob"]) for other in entry["top_logprobs"]) == pytest.approx(1, abs=1e-4)
        assert len({other["id"] for other in entry["top_logprobs"]}) == N_VOCAB


def test_alternatives_are_the_likeliest_in_order_and_hold_the_token(instance: Child) -> None:
    wide = read_logprobs(instance, top_logprobs=N_VOCAB, temperature=0)
    narrow = read_logprobs(instance, top_logprobs=3, temperature=0)
    for entry, all_of_them in zip(narrow, wide, strict=True):
        values = [other["logprob"] for other in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert values == pytest.approx([other["logprob"] for other in all_of_them["top_logprobs"][:3]], abs=1e-5)
        assert entry["id"] == entry["top_logprobs"][0]["id"]
        assert entry["logprob"] == pytest.approx(values[0], abs=1e-6)
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]


def test_probabilities_do_not_depend_on_the_sampling(instance: Child) -> None:
    """They are the model's own: of the first token at least, whatever was chosen."""
    firsts = [
        {
            other["id"]: other["logprob"]
            for other in read_logprobs(instance, top_logprobs=N_VOCAB, **more)[0]["top_logprobs"]
        }
        for more in ({"temperature": 0}, {"temperature": 3.0, "top_k": 2}, {"logit_bias": {"9": 5}})
    ]
    assert firsts[0] == pytest.approx(firsts[1], abs=1e-4)
    assert firsts[0] == pytest.approx(firsts[2], abs=1e-4)


def test_probabilities_after_sampling_add_up_to_one_over_what_is_left(instance: Child) -> None:
    more = {"n_probs": 50, "post_sampling_probs": True, "top_k": 4, "min_p": 0, "top_p": 1, "temperature": 1.5}
    answer = ask(instance, prompt="hello", n_predict=8, ignore_eos=True, **more)
    for entry in answer["completion_probabilities"]:
        assert 1 <= len(entry["top_probs"]) <= 4
        assert math.fsum(other["prob"] for other in entry["top_probs"]) == pytest.approx(1, abs=1e-4)
        assert entry["prob"] > 0


@pytest.mark.parametrize("path", [CHAT, COMPLETION, NATIVE])
def test_streamed_probabilities_are_those_of_the_whole_answer(instance: Child, path: str) -> None:
    body = {"messages": MESSAGES, "prompt": "hello", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    body["cache_prompt"] = False
    body |= (
        {"n_probs": 2} if path == NATIVE else {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    )

    def read(answer: dict[str, Any]) -> list[dict[str, Any]]:
        if path == NATIVE:
            return list(answer.get("completion_probabilities", []))
        return [entry for c in answer["choices"] for entry in (c.get("logprobs") or {"content": []})["content"]]

    _, whole = instance.request("POST", path, body)
    events = [json.loads(event) for event in instance.stream(path, body) if event != "[DONE]"]
    streamed = [entry for event in events for entry in read(event)]
    assert len(streamed) == len(read(whole)) == 12
    for entry, expected in zip(streamed, read(whole), strict=True):
        assert entry["id"] == expected["id"]
        assert entry["logprob"] == pytest.approx(expected["logprob"], abs=0.02), "sums depend on where the cells lie"


def test_logprobs_of_completions_have_openais_lists(instance: Child) -> None:
    body = {"prompt": "hello", "max_tokens": 9, "logprobs": 3, "temperature": 0, "ignore_eos": True}
    (choice,) = instance.request("POST", COMPLETION, body)[1]["choices"]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]) == 9
    assert all(1 <= len(top) <= 4 for top in logprobs["top_logprobs"])
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert offset < len(choice["text"])
        assert token.startswith("bytes:") or choice["text"][offset : offset + len(token)] == token


def test_prompt_that_is_echoed_has_its_probabilities(instance: Child) -> None:
    """What was told of tokens as they were made is told of them again as part of a prompt."""
    body = {"prompt": "hello", "logprobs": 3, "temperature": 0, "ignore_eos": True, "echo": True}
    (choice,) = instance.request("POST", COMPLETION, {**body, "max_tokens": 9})[1]["choices"]
    told = choice["logprobs"]
    assert choice["text"].startswith("hello")
    tokens = instance.request("POST", "/tokenize", {"content": "hello", "add_special": True})[1]["tokens"]
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["top_logprobs"]) == len(tokens) + 9
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    assert all(value <= 0 for value in told["token_logprobs"][1:])
    for token, offset in zip(told["tokens"][1:], told["text_offset"][1:], strict=True):
        assert token.startswith("bytes:") or choice["text"][offset : offset + len(token)] == token
    again = [*tokens, *(entry["id"] for entry in told["content"][len(tokens) :])]
    (scored,) = instance.request("POST", COMPLETION, {**body, "prompt": again, "max_tokens": 0})[1]["choices"]
    assert scored["finish_reason"] == "length"
    assert scored["logprobs"]["tokens"] == told["tokens"]
    assert scored["logprobs"]["token_logprobs"][1:] == pytest.approx(told["token_logprobs"][1:], abs=1e-3)


def test_stream_tells_the_probabilities_of_the_prompt(instance: Child) -> None:
    body = {"prompt": "hello", "max_tokens": 3, "logprobs": 1, "temperature": 0, "ignore_eos": True, "echo": True}
    (whole,) = instance.request("POST", COMPLETION, body)[1]["choices"]
    streamed = [json.loads(event)["choices"][0] for event in instance.stream(COMPLETION, body) if event != "[DONE]"]
    assert "".join(choice["text"] for choice in streamed) == whole["text"]
    told = [choice["logprobs"] for choice in streamed if choice["logprobs"]]
    assert [token for logprobs in told for token in logprobs["tokens"]] == whole["logprobs"]["tokens"]
    assert [offset for logprobs in told for offset in logprobs["text_offset"]] == whole["logprobs"]["text_offset"]


def test_stop_string_takes_its_tokens_with_it(instance: Child) -> None:
    body = {"prompt": "hello", "n_predict": 30, "temperature": 0, "ignore_eos": True, "n_probs": 1}
    whole = ask(instance, **body)
    middle = len(whole["content"]) // 2
    stop = whole["content"][middle : middle + 3]
    answer = ask(instance, **body, stop=[stop])
    assert answer["stop_type"] == "word"
    assert answer["stopping_word"] == stop
    pieces = [bytes(entry["bytes"]) for entry in answer["completion_probabilities"]]
    assert b"".join(pieces).decode(errors="replace").startswith(answer["content"])
    assert not b"".join(pieces[:-1]).decode(errors="replace").startswith(answer["content"] + stop[0])
    assert len(pieces) < answer["tokens_predicted"]


def test_logprobs_are_not_told_unless_asked(instance: Child) -> None:
    _, answer = instance.request("POST", CHAT, {"messages": MESSAGES, "max_tokens": 3})
    assert answer["choices"][0]["logprobs"] is None
    assert all(entry["top_logprobs"] == [] for entry in read_logprobs(instance))


@pytest.mark.parametrize(
    "body", [{"top_logprobs": 2}, {"logprobs": 3}, {"logprobs": True, "top_logprobs": -1}, {"logprobs": "yes"}]
)
def test_wrong_request_for_logprobs_is_refused(instance: Child, body: dict[str, Any]) -> None:
    status, answer = instance.request("POST", CHAT, {"messages": MESSAGES, **body})
    assert status == 400
    assert "logprobs" in answer["error"]["message"]
