"""Does an answer go on when its context is full, and with the very tokens that llama.cpp gives for what is left?

What is right is a plain loop over llama_decode that shifts as llama-server does (server-context.cpp: pre_decode). Where
nothing can be moved because others hold it, it is what llama.cpp says after reading what is left from its start.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llamactl.instance.engine.cache import PrefixCache
from llamactl.instance.engine.jobs import FinishEvent, FinishReason, Job
from llamactl.instance.engine.shift import ContextShift, choose_context_shift
from llamactl.instance.llama.batch import Batch
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.loading import Loaded
from llamactl.settings import ModelSettings
from tests.models import write_model
from tests.socket.instance.harness import ROOT, Child, run_child
from tests.socket.instance.stepped import N_CTX, Bench, load_tiny

SHIFT = ContextShift(N_CTX, 2048, adds_bos=True)
PROMPT = "the quick brown fox jumps over"
LIMITS = [(0, 0), (12, 0), (-1, 0), (5, 30), (100_000, 0), (-1, 100_000)]
"""n_keep and n_discard."""


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> Iterator[Loaded]:
    model = load_tiny(tiny, parallel=4, n_ctx=N_CTX)
    yield model
    llama.llama_free(model.context)
    model.model.close()


@pytest.fixture
def bench(loaded: Loaded) -> Bench:
    return Bench(loaded, SHIFT)


def choose_likeliest(loaded: Loaded, index: int) -> int:
    vocabulary = loaded.model.vocabulary
    logits = llama.llama_get_logits_ith(loaded.context, index)[: vocabulary.n_tokens]
    return max((token for token in range(vocabulary.n_tokens) if not vocabulary.is_end(token)), key=logits.__getitem__)


def decode_shifting(loaded: Loaded, prompt: list[int], n: int, n_keep: int, n_discard: int) -> list[int]:
    """From llama.cpp itself, alone in an empty context."""
    memory = llama.llama_get_memory(loaded.context)
    llama.llama_memory_clear(memory, True)
    batch, pending, position = Batch(N_CTX), prompt, 0
    generated: list[int] = []
    while True:
        batch.clear()
        index = batch.add(0, pending, position, output_last=True)
        assert llama.llama_decode(loaded.context, batch.struct) == 0
        position += len(pending)
        generated.append(choose_likeliest(loaded, index))
        if len(generated) == n:
            llama.llama_memory_clear(memory, True)
            return generated
        pending = generated[-1:]
        if position + 1 >= N_CTX:
            kept = min(N_CTX - 4, (len(prompt) if n_keep < 0 else n_keep) + 1)
            n_left = position - kept
            n_gone = max(0, min(n_discard or n_left // 2, n_left - 1))
            assert llama.llama_memory_seq_rm(memory, 0, kept, kept + n_gone)
            llama.llama_memory_seq_add(memory, 0, kept + n_gone, position, -n_gone)
            position -= n_gone


def get_finish(bench: Bench, job: Job) -> FinishEvent:
    finish = bench.results[job].finish
    assert finish is not None
    return finish


def get_generated(bench: Bench, job: Job) -> list[int]:
    assert get_finish(bench, job).n_generated == len(bench.results[job].tokens)
    return bench.results[job].tokens


@pytest.mark.parametrize(("n_keep", "n_discard"), LIMITS)
def test_answer_beyond_the_context_is_what_llama_cpp_says(
    bench: Bench, loaded: Loaded, n_keep: int, n_discard: int
) -> None:
    prompt = bench.vocabulary.tokenize_prompt(PROMPT)
    expected = decode_shifting(loaded, prompt, 600, n_keep, n_discard)
    job = bench.submit(prompt, n=600, n_keep=n_keep, n_discard=n_discard)
    bench.run()
    assert get_generated(bench, job) == expected
    finish = get_finish(bench, job)
    assert (finish.reason, finish.truncated) == (FinishReason.LENGTH, True)


def test_answer_within_the_context_is_not_truncated(bench: Bench) -> None:
    job = bench.submit(PROMPT, n=100)
    bench.run()
    assert not get_finish(bench, job).truncated


def test_beginnings_that_idle_texts_share_with_it_change_nothing(bench: Bench, loaded: Loaded) -> None:
    """They give up what is moved, and keep what is not."""
    prompt = bench.vocabulary.tokenize_prompt(PROMPT * 4)
    expected = decode_shifting(loaded, prompt, 400, 10, 0)
    for ending in ([5], [6, 7], []):
        bench.submit([*prompt, *ending], n=1)
        bench.run()
    job = bench.submit(prompt, n=400, n_keep=10)
    bench.run()
    assert get_finish(bench, job).n_cached == len(prompt) - 1
    assert get_generated(bench, job)[5:] == expected[5:]


def test_texts_that_take_turns_in_a_full_context_all_come_to_their_end(bench: Bench) -> None:
    jobs = [bench.submit(PROMPT + letter, n=400, n_keep=-1) for letter in "abc"]
    bench.run(20_000)
    assert [get_finish(bench, job).n_generated for job in jobs] == [400, 400, 400]


def test_what_was_moved_is_not_taken_for_the_beginning_of_another_prompt(bench: Bench, loaded: Loaded) -> None:
    prompt = bench.vocabulary.tokenize_prompt(PROMPT)
    job = bench.submit(prompt, n=400, n_keep=-1)
    bench.run()
    assert bench.generator.cache.n_used == len(prompt) + 1, "all that was moved is given up at its end"
    left = [*prompt, *get_generated(bench, job)[:1], *get_generated(bench, job)[-40:]]
    again = bench.submit(left, n=30)
    bench.run()
    assert get_finish(bench, again).n_cached == len(prompt) + 1
    assert get_generated(bench, again) == decode_shifting(loaded, left, 30, 0, 0)


def test_cells_that_a_busy_text_holds_are_not_moved(loaded: Loaded) -> None:
    cache = PrefixCache(loaded.context, loaded.traits, 4)
    cache.clear()
    tokens = [1, *range(40, 139)]
    first = cache.enter(tokens)
    assert first is not None
    batch = Batch(N_CTX)
    batch.add(first.id, tokens, 0, output_last=True)
    assert llama.llama_decode(loaded.context, batch.struct) == 0
    cache.extend(first, tokens)
    second = cache.enter([*tokens[:60], 7])
    assert second is not None
    cache.shift(first, 10, 20)
    memory = llama.llama_get_memory(loaded.context)
    assert first.tokens == tokens[:10]
    assert llama.llama_memory_seq_pos_max(memory, first.id) == 9
    assert second.tokens == tokens[:60]
    assert llama.llama_memory_seq_pos_max(memory, second.id) == 59
    assert cache.n_used == 60
    cache.clear()


def test_answer_whose_cells_could_not_be_moved_reads_what_is_left_again(
    bench: Bench, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = bench.vocabulary.tokenize_prompt(PROMPT)
    monkeypatch.setattr(PrefixCache, "shift", lambda self, prefix, n_keep, n_discard: self.cut(prefix, n_keep))
    job = bench.submit(prompt, n=240, n_keep=-1)
    bench.run()
    n_full = N_CTX - len(prompt)  # so many are generated when it is full; of those before the last half is left out
    generated = get_generated(bench, job)
    kept = [*prompt, generated[0]]
    left = [*kept, *generated[1 + (n_full - 2) // 2 : n_full]]
    assert generated[n_full:] == decode_shifting(loaded, left, len(generated) - n_full, 0, 0)


def test_answer_that_does_not_end_has_a_bound(loaded: Loaded) -> None:
    bench = Bench(loaded, ContextShift(N_CTX, 300, adds_bos=True))
    job = bench.submit(PROMPT, n=None)
    bench.run()
    finish = get_finish(bench, job)
    assert (finish.n_generated, finish.reason, finish.truncated) == (300, FinishReason.LENGTH, True)
    longer = bench.submit(PROMPT, n=350)
    bench.run()
    assert get_finish(bench, longer).n_generated == 350, "whoever says how long it may be, gets it"


def test_context_of_a_model_that_sees_does_not_shift(loaded: Loaded) -> None:
    settings = ModelSettings(name="m", path="/m", context_shift=True)
    assert choose_context_shift(settings, loaded) == SHIFT
    seeing: Any = object()
    assert choose_context_shift(settings, replace(loaded, projector=seeing)) is None
    assert choose_context_shift(ModelSettings(name="m", path="/m"), loaded) is None


# --- an instance ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    directory = tmp_path_factory.mktemp("shift")
    own: dict[str, Any] = {"context_shift": True, "show_prompts": True, "parallel": 2, "threads": 1}
    path = write_model(directory / "tiny.gguf")
    model = ModelSettings(name="tiny", path=str(path), ctx=N_CTX, batch=64, ubatch=64, **own)
    with run_child(directory, "serve", model) as child:
        child.supervisor.wait_for("ready")
        yield child


FIXED: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}


def test_request_says_what_is_kept_and_what_goes(child: Child) -> None:
    answers = {}
    for name, more in {"none": {}, "keep": {"n_keep": -1}, "discard": {"n_keep": -1, "n_discard": 9}}.items():
        body = {**FIXED, "prompt": PROMPT, "n_predict": 300, "return_tokens": True, **more}
        status, answer = child.request("POST", "/completion", body)
        assert status == 200
        assert answer["truncated"]
        assert (answer["stop_type"], answer["tokens_predicted"]) == ("limit", 300)
        answers[name] = answer
    shown = answers["discard"]["generation_settings"]
    assert (shown["n_keep"], shown["n_discard"]) == (-1, 9)
    assert len({json.dumps(answer["tokens"]) for answer in answers.values()}) == 3


@pytest.mark.parametrize("limits", [{"n_keep": -2}, {"n_discard": -1}, {"n_keep": 1 << 31}, {"n_discard": 1 << 31}])
def test_numbers_out_of_range_are_refused_as_by_llama_server(child: Child, limits: dict[str, int]) -> None:
    status, answer = child.request("POST", "/completion", {"prompt": "a", "n_predict": 1, **limits})
    assert status == 400
    assert f"`{next(iter(limits))}`" in answer["error"]["message"]


def test_slots_show_prompt_and_answer_after_a_shift(child: Child) -> None:
    body = {**FIXED, "prompt": PROMPT, "n_predict": 100_000, "stream": True}
    with contextlib.closing(child.connect()) as connection:
        connection.request("POST", "/completion", json.dumps(body))
        lines = iter(connection.getresponse().readline, b"")
        events = (json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: "))
        tokens: list[int] = []
        for event in events:
            tokens += event["tokens"]
            if event["tokens_predicted"] > 2 * N_CTX:
                break
        _, slots = child.request("GET", "/slots")
    (busy,) = [slot for slot in slots if slot["is_processing"]]
    assert busy["prompt"].endswith(PROMPT)
    assert len(busy["prompt"]) < len(PROMPT) + 5
    assert busy["generated"].startswith(child.request("POST", "/detokenize", {"tokens": tokens[:400]})[1]["content"])


def test_model_whose_memory_cannot_shift_says_so_and_ends_where_it_is_full(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "fetch-models"), "gemma3"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    own: dict[str, Any] = {"context_shift": True, "parallel": 1, "threads": 2, "repack": False}
    with run_child(tmp_path, "serve", ModelSettings(name="gemma", path=path, ctx=2048, ubatch=64, **own)) as child:
        child.supervisor.wait_for("ready")
        assert "context shift unavailable" in child.errors
        assert "swa_full" in child.errors
        status, answer = child.request("POST", "/completion", {**FIXED, "prompt": "a " * 2040, "n_predict": 100})
        assert status == 200
        assert answer["truncated"]
        assert answer["tokens_evaluated"] + answer["tokens_predicted"] == 2048
