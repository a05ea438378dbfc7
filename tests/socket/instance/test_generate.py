"""Does batching change what a sequence says, and does any way of sharing the context lose or mix up tokens?

The Generator is stepped by hand, without its thread: every interleaving here is exact. What is right is what
llama.cpp says in a plain loop over llama_decode with nothing shared.
"""

import codecs
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llamactl.instance.engine.engine import EngineBroken
from llamactl.instance.engine.jobs import (
    FinishReason,
    Job,
)
from llamactl.instance.engine.sampling import SamplingParams, needs_preparation, prepare_samplers
from llamactl.instance.llama.batch import Batch
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.loading import Loaded
from tests.socket.instance.stepped import GREEDY, N_CTX, Bench, load_tiny

PROMPTS = [
    "hello",
    "the quick brown fox",
    "x",
    "hello world, this is a longer prompt",
    "äöü",
    "1 2 3 4 5 6",
    "the",
    "😀",
]


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> Iterator[Loaded]:
    model = load_tiny(tiny, parallel=4, n_ctx=N_CTX)
    yield model
    llama.llama_free(model.context)
    model.model.close()


@pytest.fixture
def bench(loaded: Loaded) -> Bench:
    return Bench(loaded)


def decode_alone(loaded: Loaded, prompt: str, n: int) -> str:
    """Greedy text from llama.cpp itself: one sequence, a token at a time, an empty context."""
    vocabulary, context = loaded.model.vocabulary, loaded.context
    memory = llama.llama_get_memory(context)
    llama.llama_memory_clear(memory, True)
    batch = Batch(N_CTX)
    pending, generated, position = vocabulary.tokenize_prompt(prompt), [], 0
    while len(generated) < n:
        batch.clear()
        index = batch.add(0, pending, position, output_last=True)
        assert llama.llama_decode(context, batch.struct) == 0
        position += len(pending)
        logits = llama.llama_get_logits_ith(context, index)[: vocabulary.n_tokens]
        token = max(
            (token for token in range(vocabulary.n_tokens) if not vocabulary.is_end(token)), key=logits.__getitem__
        )
        generated.append(token)
        pending = [token]
    llama.llama_memory_clear(memory, True)
    data = b"".join(vocabulary.piece(token, special=True) for token in generated)
    # An incomplete character at the end is no text.
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


@pytest.fixture(scope="module")
def golden(loaded: Loaded) -> dict[str, str]:
    return {prompt: decode_alone(loaded, prompt, 24) for prompt in PROMPTS}


def test_golden_texts_differ_from_each_other(golden: dict[str, str]) -> None:
    assert len(set(golden.values())) == len(PROMPTS)


def test_one_sequence_says_what_llama_cpp_says(bench: Bench, golden: dict[str, str]) -> None:
    for prompt in PROMPTS:
        job = bench.submit(prompt)
        bench.run()
        assert bench.results[job].text == golden[prompt]


def test_sequences_together_say_what_each_says_alone(bench: Bench, golden: dict[str, str]) -> None:
    jobs = {}
    for prompt in PROMPTS:
        jobs[prompt] = bench.submit(prompt)
        bench.step(3)
    bench.run()
    assert {prompt: bench.results[job].text for prompt, job in jobs.items()} == golden


def test_reused_prefix_changes_nothing(bench: Bench, golden: dict[str, str]) -> None:
    for prompt in PROMPTS:
        for _ in range(2):
            job = bench.submit(prompt)
            bench.run()
            assert bench.results[job].text == golden[prompt]
        finish = bench.results[job].finish
        assert finish is not None
        assert finish.n_cached == finish.n_prompt - 1


def test_prompt_that_is_asked_again_leaves_no_second_text_behind(bench: Bench) -> None:
    prompt = PROMPTS[3]
    jobs = []
    for _ in range(3):
        jobs.append(bench.submit(prompt, n=60))
        bench.run()
        assert sum(bool(prefix.tokens) for prefix in bench.generator.cache.prefixes) == 1
    assert len({bench.results[job].text for job in jobs}) == 1
    assert bench.generator.cache.n_used == len(bench.vocabulary.tokenize_prompt(prompt)) + 59


def test_text_that_nobody_asks_for_is_given_up_and_what_is_in_use_goes_on(loaded: Loaded) -> None:
    bench = Bench(loaded, patience=50)
    prefixes = bench.generator.cache.prefixes
    first = bench.submit(PROMPTS[0], n=30)
    bench.run()
    bench.submit(PROMPTS[0], n=30)  # it is asked for: its time begins again
    bench.run()
    (idle,) = [prefix for prefix in prefixes if prefix.tokens]
    long = bench.submit(PROMPTS[1], n=100)
    n_cells = []
    while bench.generator.has_work():
        bench.step()
        n_cells += [len(prefix.tokens) for prefix in prefixes if prefix.busy and not idle.tokens][:1]
    assert n_cells[0] == 1 + 50, "it is gone with the fiftieth token that is decoded for another one, which has its BOS"
    finish = bench.results[long].finish
    assert finish is not None
    assert finish.n_generated == 100
    again = bench.submit(PROMPTS[0], n=30)
    bench.run()
    assert bench.results[again].text == bench.results[first].text
    assert read_cached(bench, again) <= 1


def read_cached(bench: Bench, job: Job) -> int:
    finish = bench.results[job].finish
    assert finish is not None
    return finish.n_cached


def test_chats_in_turn_keep_what_they_have_read_beside_requests_that_begin_alike(bench: Bench, loaded: Loaded) -> None:
    """More of them than may run at a time, one after the other."""
    chats = [f"hello {letter * 20}" for letter in "abcde"]
    for turn in range(2):
        for index, chat in enumerate(chats):
            job = bench.submit(chat, n=4)
            bench.run()
            assert not turn or read_cached(bench, job) >= 26
            bench.submit(f"hello {index}", n=1)
            bench.run()
            chats[index] = chat + "go on"
    texts = [bench.submit(chat, n=8) for chat in chats]
    bench.run()
    golden = [decode_alone(loaded, chat, 8) for chat in chats]
    assert [bench.results[job].text for job in texts] == golden


def test_beginning_of_a_longer_text_is_shared_and_the_longer_one_stays(bench: Bench, loaded: Loaded) -> None:
    first, second = "x" * 60 + "a" * 40, "x" * 60 + "b" * 10
    bench.submit(first, n=1)
    bench.run()
    job = bench.submit(second, n=8)
    bench.run()
    assert read_cached(bench, job) >= 60
    assert bench.generator.cache.n_used < 60 + 40 + 10 + 30, "cells are shared"
    again = bench.submit(first, n=8)
    bench.run()
    assert read_cached(bench, again) >= 99
    golden = [decode_alone(loaded, text, 8) for text in (second, first)]
    assert [bench.results[done].text for done in (job, again)] == golden


def test_beginning_that_idle_texts_share_gives_way_to_a_prompt_that_needs_the_room(bench: Bench) -> None:
    shared = "x" * 100
    for own in ("a", "b"):
        bench.submit(shared + own * 40, n=1)
        bench.run()
    job = bench.submit("z" * 245, n=4)
    bench.run()
    finish = bench.results[job].finish
    assert finish is not None
    assert finish.n_generated == 4


def test_request_for_a_slot_waits_for_it_and_lets_others_pass(bench: Bench) -> None:
    first = bench.submit("hello", n=20, slot=2)
    bench.step()
    second, other = bench.submit("x", n=4, slot=2), bench.submit("the", n=4)
    order: list[Job] = []
    while bench.generator.has_work():
        bench.step()
        order += [job for job, result in bench.results.items() if result.finish is not None and job not in order]
    assert order == [other, first, second]
    slots = [result.finish.slot for result in bench.results.values() if result.finish is not None]
    assert slots == [2, 2, 0]


def test_opting_out_of_the_cache_decodes_everything(bench: Bench, golden: dict[str, str]) -> None:
    bench.submit("hello")
    bench.run()
    job = bench.submit("hello", cache_prompt=False)
    bench.run()
    finish = bench.results[job].finish
    assert finish is not None
    assert finish.n_cached == 0
    assert bench.results[job].text == golden["hello"]


def test_cancelled_neighbour_changes_nothing_and_frees_its_slot(bench: Bench, golden: dict[str, str]) -> None:
    neighbours = [bench.submit(prompt, n=100) for prompt in ("one", "two", "three")]
    job = bench.submit("hello")
    bench.step(5)
    for neighbour in neighbours:
        neighbour.cancelled = True
    bench.step()
    assert sum(prefix.busy for prefix in bench.generator.cache.prefixes) == 1
    bench.run()
    assert bench.results[job].text == golden["hello"]
    assert all(bench.results[neighbour].finish is None for neighbour in neighbours)


def test_cancelled_in_the_middle_of_a_prompt_frees_its_slot_before_the_next_step(bench: Bench) -> None:
    job = bench.submit("x" * 200)
    bench.step()
    assert any(prefix.busy for prefix in bench.generator.cache.prefixes)
    job.cancelled = True
    bench.step()
    assert not any(prefix.busy for prefix in bench.generator.cache.prefixes)
    assert not bench.generator.has_work()


def test_waiting_request_that_is_cancelled_never_runs(bench: Bench) -> None:
    running = [bench.submit("a", n=10) for _ in range(4)]
    waiting = bench.submit("b", n=10)
    bench.step()
    waiting.cancelled = True
    bench.run()
    assert bench.results[waiting].text == ""
    assert all(bench.results[job].finish is not None for job in running)


def test_requests_beyond_the_slots_run_in_order_of_arrival(bench: Bench) -> None:
    jobs = [bench.submit(f"prompt {index}", n=6) for index in range(10)]
    order: list[Job] = []
    while bench.generator.has_work():
        bench.step()
        order += [job for job in jobs if bench.results[job].finish is not None and job not in order]
    assert order == jobs


def test_long_prompt_does_not_stall_running_sequences(bench: Bench) -> None:
    running = bench.submit("hello", n=40)
    bench.step(2)
    bench.submit("x" * 190, n=1)
    finish = bench.results[running]
    for _ in range(3):
        before = len(finish.text.encode())
        bench.step()
        tokens = bench.generator.count_step_tokens()
        assert tokens <= 64
        assert len(finish.text.encode()) >= before
    assert len(next(prefix for prefix in bench.generator.cache.prefixes if prefix.busy).tokens) >= 1 + 5


def test_full_cache_puts_the_newest_back_and_every_text_is_whole(bench: Bench, loaded: Loaded) -> None:
    """Three sequences that need 170 cells each share 256."""
    prompts = ["x" * 100, "y" * 100, "z" * 100]
    expected = [decode_alone(loaded, prompt, 60) for prompt in prompts]
    bench.generator.abandon()
    jobs = [bench.submit(prompt, n=60) for prompt in prompts]
    bench.run()
    assert [bench.results[job].text for job in jobs] == expected
    assert all(bench.results[job].finish is not None for job in jobs)


def test_growing_sequences_that_fill_the_cache_all_end_whole(bench: Bench, loaded: Loaded) -> None:
    """They start small, so all are admitted, and outgrow the cache together."""
    prompts = ["hello", "x", "the", "1 2 3"]
    expected = [decode_alone(loaded, prompt, 120) for prompt in prompts]
    bench.generator.abandon()
    jobs = [bench.submit(prompt, n=120) for prompt in prompts]
    was_put_back = False
    while bench.generator.has_work():
        busy = sum(prefix.busy for prefix in bench.generator.cache.prefixes)
        bench.step()
        unfinished = sum(result.finish is None for result in bench.results.values())
        was_put_back |= busy < min(4, unfinished)
    assert was_put_back
    assert [bench.results[job].text for job in jobs] == expected


def score_alone(loaded: Loaded, prompt: list[int]) -> list[float]:
    """Of each token but the first, the logarithm of its probability, from llama.cpp's logits."""
    context, n_vocab = loaded.context, loaded.model.vocabulary.n_tokens
    batch, scores = Batch(1), []
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    for position, (token, following) in enumerate(itertools.pairwise(prompt)):
        batch.clear()
        batch.add(0, [token], position, output_last=True)
        assert llama.llama_decode(context, batch.struct) == 0
        logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, 0), (n_vocab,)).astype(np.float64)
        scores.append(float(logits[following] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()))
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    return scores


@pytest.mark.parametrize("n", [0, 1, 60])
def test_probabilities_of_prompts_are_llama_cpps_also_where_the_cache_is_full(
    bench: Bench, loaded: Loaded, n: int
) -> None:
    texts = ["the quick brown fox " * 4, "x" * 70, "hello world, this is a longer prompt", "a"]
    prompts = [bench.vocabulary.tokenize_prompt(text) for text in texts]
    expected = [score_alone(loaded, prompt) for prompt in prompts]
    bench.generator.abandon()
    sampling = SamplingParams(temperature=0, ignore_eos=True, n_probs=2)
    jobs = [bench.submit(list(p), n, sampling, cache_prompt=False, wants_prompt_probs=True) for p in prompts]
    neighbour = bench.submit("hello", 100)
    bench.run()
    for job, prompt, scores in zip(jobs, prompts, expected, strict=True):
        infos = bench.results[job].infos
        assert len(infos) == len(prompt) + n
        assert [info.token for info in infos[: len(prompt)]] == prompt
        assert (infos[0].value, infos[0].top) == (None, [])
        assert [info.value for info in infos[1 : len(prompt)]] == pytest.approx(scores, abs=0.1)
        assert all(len(info.top) == 2 for info in infos[1:])
    assert bench.results[neighbour].finish is not None


def test_put_back_in_the_middle_of_a_prompt_its_probabilities_are_told_once(bench: Bench, loaded: Loaded) -> None:
    prompt = bench.vocabulary.tokenize_prompt("y" * 100)
    expected = score_alone(loaded, prompt)
    bench.generator.abandon()
    growing = [bench.submit(text, 110) for text in ("hello", "x")]
    sampling = SamplingParams(temperature=0, ignore_eos=True, n_probs=1)
    job = bench.submit(prompt, 1, sampling, cache_prompt=False, wants_prompt_probs=True)
    n_busy = []
    while bench.generator.has_work():
        bench.step()
        n_busy.append(sum(prefix.busy for prefix in bench.generator.cache.prefixes))
    assert n_busy.index(2) < n_busy.index(1), "nothing was put back"
    assert [info.value for info in bench.results[job].infos[1 : len(prompt)]] == pytest.approx(expected, abs=0.1)
    assert len(bench.results[job].infos) == len(prompt) + 1
    assert all(bench.results[other].finish is not None for other in growing)


def test_sequence_that_reaches_the_end_of_its_room_ends_with_length(bench: Bench) -> None:
    job = bench.submit("x" * 200, n=10_000)
    other = bench.submit("hello", n=10)
    bench.run()
    finish = bench.results[job].finish
    assert finish is not None
    assert finish.reason is FinishReason.LENGTH
    assert finish.n_prompt + finish.n_generated == N_CTX
    assert bench.results[other].finish is not None


def test_idle_prefixes_give_way_to_a_prompt_that_needs_the_room(bench: Bench) -> None:
    for letter in "abcd":
        bench.submit(letter * 50, n=2)
        bench.run()
    job = bench.submit("z" * 230, n=2)
    bench.run()
    assert bench.results[job].finish is not None


def test_end_token_ends_with_stop_and_is_not_text(bench: Bench) -> None:
    end = bench.vocabulary.eos
    sampling = SamplingParams(temperature=0, logit_bias={end: 1000.0})
    job = bench.submit("hello", sampling=sampling)
    bench.run()
    finish = bench.results[job].finish
    assert finish is not None
    assert (finish.reason, finish.n_generated, bench.results[job].text) == (FinishReason.STOP, 1, "")


def test_token_of_an_incomplete_character_at_the_end_is_told_without_text(bench: Bench) -> None:
    first_byte = bench.vocabulary.tokenize("ä", add_special=False, parse_special=False)[-2]
    sampling = SamplingParams(temperature=0, logit_bias={first_byte: 1000.0})
    job = bench.submit("hello", n=1, sampling=sampling)
    bench.run()
    assert (bench.results[job].tokens, bench.results[job].text) == ([first_byte], "")


def test_penalties_keep_repetition_away(bench: Bench) -> None:
    token = bench.vocabulary.tokenize("a", add_special=False, parse_special=False)[0]
    bias = {token: 50.0}
    plain = bench.submit("hello", n=8, sampling=SamplingParams(temperature=0, logit_bias=bias))
    penalized = bench.submit(
        "hello", n=8, sampling=SamplingParams(temperature=0, logit_bias=bias, frequency_penalty=100.0, ignore_eos=True)
    )
    bench.run()
    assert bench.results[plain].text == "a" * 8
    assert bench.results[penalized].text.count("a") == 1


def test_failed_decode_ends_what_ran_and_the_rest_goes_on(
    bench: Bench, golden: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [bench.submit("hello") for _ in range(4)]
    waiting = bench.submit("x")
    decode = llama.llama_decode
    results = iter([-2])
    monkeypatch.setattr(llama, "llama_decode", lambda *args: next(results, None) or decode(*args))
    bench.step()
    assert all(bench.results[job].failure is not None for job in running)
    bench.run()
    assert bench.results[waiting].text == golden["x"]


def test_load_is_who_runs_and_who_waits(bench: Bench) -> None:
    for prompt in PROMPTS[:6]:
        bench.submit(prompt)
    bench.step()
    load = bench.generator.read_load()
    assert (load.n_running, load.n_waiting) == (4, 2)
    bench.run()
    load = bench.generator.read_load()
    assert (load.n_running, load.n_waiting) == (0, 0)


def test_failed_decode_ends_its_requests_and_the_engine_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [bench.submit(prompt) for prompt in PROMPTS[:3]]
    with monkeypatch.context() as patched:
        patched.setattr(llama, "llama_decode", lambda context, batch: -3)
        bench.step()
    for job in failed:
        failure = bench.results[job].failure
        assert failure is not None
        assert "computing failed" in str(failure.error)
    after = bench.submit(PROMPTS[0])
    bench.run()
    assert bench.results[after].finish is not None


def test_decodes_that_fail_twice_in_a_row_break_the_engine(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama, "llama_decode", lambda context, batch: -2)
    bench.submit(PROMPTS[0])
    bench.step()
    bench.submit(PROMPTS[0])
    with pytest.raises(EngineBroken, match="no memory for computing"):
        bench.step()


def test_choices_of_one_prompt_decode_it_once(bench: Bench, loaded: Loaded) -> None:
    prompt = bench.vocabulary.tokenize_prompt("a prompt of some length, for several choices")
    before = bench.generator.stats.n_prompt
    jobs = [bench.submit(prompt, n=12) for _ in range(4)]
    bench.run()
    assert bench.generator.stats.n_prompt - before == len(prompt) + 3
    expected = decode_alone(loaded, "a prompt of some length, for several choices", 12)
    assert [bench.results[job].text for job in jobs] == [expected] * 4


def test_choices_wait_for_no_prompt_that_was_cancelled(bench: Bench, loaded: Loaded) -> None:
    text = "x" * 150
    prompt = bench.vocabulary.tokenize_prompt(text)
    first, second = bench.submit(prompt, n=8), bench.submit(prompt, n=8)
    bench.step()
    first.cancelled = True
    bench.run()
    assert bench.results[second].text == decode_alone(loaded, text, 8)


def test_running_prompt_lends_its_beginning_to_another_request(bench: Bench, loaded: Loaded) -> None:
    shared = "a long beginning that both of them share, "
    bench.submit(shared + "one", n=30)
    bench.step(3)
    other = bench.submit(shared + "two", n=10)
    bench.run()
    finish = bench.results[other].finish
    assert finish is not None
    assert finish.n_cached >= 30
    assert bench.results[other].text == decode_alone(loaded, shared + "two", 10)


def test_samplers_are_prepared_in_the_background_only_while_something_is_not_known_yet(tiny: Path) -> None:
    """A thread for nothing would hold up each request that ignores the end of the text."""
    model = load_tiny(tiny, parallel=1, n_ctx=N_CTX)
    vocabulary = model.model.vocabulary
    assert not needs_preparation(SamplingParams(), vocabulary)
    assert needs_preparation(GREEDY, vocabulary)
    prepare_samplers(GREEDY, vocabulary, N_CTX)
    assert not needs_preparation(GREEDY, vocabulary)
    assert needs_preparation(SamplingParams(dry_multiplier=1.0), vocabulary)
    assert not needs_preparation(SamplingParams(dry_multiplier=1.0, mirostat=2), vocabulary)
