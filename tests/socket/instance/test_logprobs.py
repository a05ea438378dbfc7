"""Can an evaluation harness score continuations by /v1/completions, whatever the script is written in?

lm-evaluation-harness sends context and continuation as one prompt with `echo`, finds the continuation by `text_offset`
(characters), adds up its logarithms without the token that was generated behind it, and calls it greedy when each token
is the likeliest key of its `top_logprobs`. The tiny model has a token for each byte, so a character of most scripts is
several tokens here.
"""

import math
from typing import Any

import pytest

from tests.socket.instance.harness import Child

N_VOCAB = 274
PAIRS = [
    ("漢字の", "テストです"),
    ("漢", "字"),
    ("ภาษา", "ไทย"),
    ("🙂🙃", "🎉"),
    ("naïve ", "café"),
    ("hello!", "x"),
    ("世界", "a漢"),
]


def score(child: Child, context: str, continuation: str) -> tuple[float, bool]:
    """As lm_eval.models.gguf does: `gguf_completion` and `get_result`."""
    body = {"prompt": context + continuation, "echo": True, "logprobs": 10, "max_tokens": 1, "temperature": 0}
    status, answer = child.request("POST", "/v1/completions", {**body, "ignore_eos": True})
    assert status == 200, answer
    told = answer["choices"][0]["logprobs"]
    index = 0
    while told["text_offset"][index] < len(context):
        index += 1
    is_greedy = all(
        max(top, key=lambda name: float(top[name])) == token
        for token, top in zip(told["tokens"][index:], told["top_logprobs"][index:], strict=True)
    )
    return math.fsum(told["token_logprobs"][index:-1]), is_greedy


def find_next(child: Child, tokens: list[int]) -> dict[int, float]:
    """Of all tokens, how likely each is after these; asked for in another way than `score` does."""
    body = {"prompt": tokens, "n_predict": 1, "n_probs": N_VOCAB, "temperature": 0, "cache_prompt": False}
    answer = child.request("POST", "/completion", {**body, "ignore_eos": True})[1]
    (entry,) = answer["completion_probabilities"]
    return {other["id"]: other["logprob"] for other in entry["top_logprobs"]}


def tokenize(child: Child, text: str) -> list[int]:
    tokens = child.request("POST", "/tokenize", {"content": text, "add_special": True})[1]["tokens"]
    assert isinstance(tokens, list)
    return tokens


@pytest.mark.parametrize(("context", "continuation"), PAIRS)
def test_continuation_has_the_sum_of_its_own_tokens(instance: Child, context: str, continuation: str) -> None:
    before, tokens = tokenize(instance, context), tokenize(instance, context + continuation)
    assert tokens[: len(before)] == before
    expected = math.fsum(
        find_next(instance, tokens[:index])[tokens[index]] for index in range(len(before), len(tokens))
    )
    total, is_greedy = score(instance, context, continuation)
    assert total == pytest.approx(expected, abs=1e-2)
    likeliest = [
        max(nexts := find_next(instance, tokens[:i]), key=nexts.__getitem__) for i in range(len(before), len(tokens))
    ]
    assert is_greedy == (likeliest == tokens[len(before) :])


def test_what_the_model_would_say_is_greedy_and_else_it_is_not(instance: Child) -> None:
    """Of contexts whose likeliest next byte is a whole character: others cannot be written as a text."""
    found = 0
    for context in (f"漢字{number}の" for number in range(200)):
        nexts = find_next(instance, tokenize(instance, context))
        best, second = sorted(nexts, key=lambda token: -nexts[token])[:2]
        texts = [instance.request("POST", "/detokenize", {"tokens": [token]})[1]["content"] for token in (best, second)]
        if all(
            tokenize(instance, context + text)[-1:] == [token]
            for text, token in zip(texts, (best, second), strict=True)
        ):
            assert score(instance, context, texts[0])[1]
            assert not score(instance, context, texts[1])[1]
            found += 1
    assert found


def read_logprobs(child: Child, prompt: Any) -> tuple[str, dict[str, Any]]:
    body = {"prompt": prompt, "echo": True, "logprobs": 5, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    (choice,) = child.request("POST", "/v1/completions", body)[1]["choices"]
    return choice["text"], choice["logprobs"]


def test_bytes_of_a_character_begin_with_it_and_have_names_of_their_own(instance: Child) -> None:
    text, told = read_logprobs(instance, "漢é字")
    n_prompt = len(told["tokens"]) - 1
    names = told["tokens"][1:n_prompt]
    assert [name for name in names if name.startswith("bytes:")] == [
        *("bytes:\\xe6", "bytes:\\xbc", "bytes:\\xa2"),
        *("bytes:\\xe5", "bytes:\\xad", "bytes:\\x97"),
    ]
    offsets = told["text_offset"]
    assert [offset for offset, name in zip(offsets, told["tokens"], strict=True) if name.startswith("bytes:")][:6] == [
        *(0, 0, 0),
        *(2, 2, 2),
    ]
    assert offsets[n_prompt] == 3
    assert all(offset <= len(text) for offset in offsets)
    # Five likeliest, and the token itself where it is none of them: none takes the place of another.
    assert all(5 <= len(top) <= 6 for top in told["top_logprobs"][1:])
    assert all(token in top for token, top in zip(told["tokens"][1:], told["top_logprobs"][1:], strict=True))


def test_tokens_as_a_prompt_are_told_like_their_text(instance: Child) -> None:
    text, told = read_logprobs(instance, "漢字の")
    again, told_again = read_logprobs(instance, tokenize(instance, "漢字の"))
    assert again.lstrip() == text
    assert told_again["tokens"] == told["tokens"]
    shift = len(again) - len(text)
    assert told_again["text_offset"][-1] == told["text_offset"][-1] + shift
