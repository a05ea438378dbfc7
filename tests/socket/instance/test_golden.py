"""Do real models say here what llama.cpp has them say: alone, together, after a shared beginning, after a neighbour
left, streamed or whole?

The golden text is greedy: a loop over llama_decode with nothing shared. Alone the engine hands over the same batches,
and the text must be the same. In company batches differ, and with them, at times, a word: then, and always, what was
said must be llama.cpp's own answer to the very batches (tape.py).
"""

import codecs
import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llamactl.child.orders import ChildEnvironment
from llamactl.instance.engine.generate import Generator
from llamactl.instance.engine.jobs import FinishEvent, GenerationRequest, Job, TextEvent
from llamactl.instance.engine.sampling import SamplingParams
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.loading import Loaded, load
from llamactl.instance.llama.log import LlamaLog
from llamactl.instance.llama.model import create_context
from llamactl.instance.llama.params import build_context_params
from llamactl.protocol.report_socket import ChildRole
from llamactl.settings import ModelSettings
from tests.socket.instance.harness import ROOT, Child, join_text, run_child
from tests.socket.instance.tape import check, decode_rows, record

N_CTX = 1024
N_TOKENS = 12
BEGINNING = "The story of the old lighthouse keeper and his daughter, who lived by the cold sea for many years. "
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village",
    "def fibonacci(n):",
    "Water boils at",
    "Das Wetter heute ist",
    "1, 2, 3, 4, 5,",
    BEGINNING + "One day",
    BEGINNING + "At night",
    "Die drei wichtigsten Gründe: ä, ö,",
    "🙂 means",
]
FEW = range(4, 9)
"""Of the ten: as many as fill all sequences and one more, two of them with a beginning in common."""
LEAST_ALIKE = 0.5
"""The share that must say the same in company. The others may differ as llama.cpp differs from itself."""


@dataclass
class Real:
    """A model, a second context for llama.cpp alone, and the golden texts."""

    settings: ModelSettings
    loaded: Loaded
    reference: Any
    golden: list[str]

    @property
    def n_vocab(self) -> int:
        return self.loaded.model.vocabulary.n_tokens


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def real(request: pytest.FixtureRequest) -> Iterator[Real]:
    command = [sys.executable, str(ROOT / "scripts" / "fetch-models"), request.param]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    # One thread: several wait for each other at every layer, and for ever on a machine with much else to do. Without
    # extra buffer types: on some machines they end the process, which is that of all tests.
    settings = ModelSettings(name=request.param, path=path, ctx=N_CTX, parallel=4, threads=1, repack=False)
    environment = ChildEnvironment(
        ChildRole.SERVE, "m", settings, generation="", socket=None, report=Path("/nowhere"), extra_bufts=False
    )
    loaded = load(environment, lambda stage: None, lambda fraction: None, lambda: False)
    params = build_context_params(settings, loaded.traits, N_CTX)
    reference = create_context(environment, loaded.model, params, LlamaLog())
    yield Real(settings, loaded, reference, [decode_alone(loaded, reference, prompt) for prompt in PROMPTS])
    llama.llama_free(reference)
    llama.llama_free(loaded.context)
    loaded.model.close()


def decode_alone(loaded: Loaded, context: Any, prompt: str) -> str:
    vocabulary = loaded.model.vocabulary
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    pending, position, text = vocabulary.tokenize_prompt(prompt), 0, b""
    for _ in range(N_TOKENS):
        last = len(pending) - 1
        rows = tuple((token, position + index, 0, index == last) for index, token in enumerate(pending))
        (token,) = decode_rows(context, rows, vocabulary.n_tokens).values()
        if vocabulary.is_end(token):
            break
        text += vocabulary.piece(token)
        position += len(pending)
        pending = [token]
    return codecs.getincrementaldecoder("utf-8")("replace").decode(text)


class Bench:
    """An engine's worker, stepped by hand on an empty context."""

    def __init__(self, real: Real) -> None:
        self._vocabulary = real.loaded.model.vocabulary
        n_step = int(llama.llama_n_ubatch(real.loaded.context))
        self.generator = Generator(real.loaded.context, self._vocabulary, real.loaded.traits, 4, N_CTX, n_step)
        self.generator.abandon()
        self.texts: dict[Job, str] = {}
        self.n_cached: dict[Job, int] = {}

    def submit(self, prompt: str, n_tokens: int = N_TOKENS) -> Job:
        tokens = self._vocabulary.tokenize_prompt(prompt)
        job = Job(GenerationRequest(prompt=tokens, sampling=SamplingParams(temperature=0), max_tokens=n_tokens))
        self.texts[job] = ""
        self.generator.accept(job)
        return job

    def step(self) -> None:
        for job, event in self.generator.step():
            if isinstance(event, TextEvent):
                self.texts[job] += event.text
            elif isinstance(event, FinishEvent):
                self.n_cached[job] = event.n_cached

    def run(self) -> None:
        while self.generator.has_work():
            self.step()

    def answer(self, prompt: str) -> str:
        job = self.submit(prompt)
        self.run()
        return self.texts[job]


def count_alike(texts: list[str], golden: list[str]) -> int:
    return sum(text == expected for text, expected in zip(texts, golden, strict=True))


def test_golden_texts_are_words(real: Real) -> None:
    assert len(set(real.golden)) == len(PROMPTS)
    assert "Paris" in real.golden[0] or "France" in real.golden[0]


def test_alone_the_text_is_llama_cpps(real: Real) -> None:
    texts = []
    for prompt in PROMPTS:
        texts.append(Bench(real).answer(prompt))
    assert texts == real.golden


def test_together_each_token_is_llama_cpps_for_these_batches(real: Real) -> None:
    bench = Bench(real)
    with record(real.loaded.context) as tape:
        jobs = []
        for prompt in PROMPTS:
            jobs.append(bench.submit(prompt))
            bench.step()
        bench.run()
    assert check(tape, real.reference, real.n_vocab) == tape.n_decoded
    assert count_alike([bench.texts[job] for job in jobs], real.golden) >= LEAST_ALIKE * len(PROMPTS)


def test_reused_beginning_gives_llama_cpps_tokens(real: Real) -> None:
    bench = Bench(real)
    prompts, golden = [PROMPTS[number] for number in FEW], [real.golden[number] for number in FEW]
    with record(real.loaded.context) as tape:
        texts = [bench.answer(prompt) for prompt in prompts]
        again = [bench.answer(prompt) for prompt in reversed(prompts)]
    assert check(tape, real.reference, real.n_vocab) == tape.n_decoded
    assert max(bench.n_cached.values()) > 10, "nothing was reused"
    assert count_alike(texts, golden) >= LEAST_ALIKE * len(golden)
    assert count_alike(again[::-1], golden) >= LEAST_ALIKE * len(golden)


def test_after_a_cancelled_neighbour_tokens_are_llama_cpps(real: Real) -> None:
    bench = Bench(real)
    with record(real.loaded.context) as tape:
        jobs = []
        for number in FEW:
            neighbour = bench.submit(f"A neighbour, number {number}, who leaves", n_tokens=100)
            jobs.append(bench.submit(PROMPTS[number]))
            for _ in range(3):
                bench.step()
            neighbour.cancelled = True
            bench.run()
    assert check(tape, real.reference, real.n_vocab) == tape.n_decoded
    golden = [real.golden[number] for number in FEW]
    assert count_alike([bench.texts[job] for job in jobs], golden) >= LEAST_ALIKE * len(golden)


@pytest.fixture(scope="module")
def served(real: Real, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    with run_child(tmp_path_factory.mktemp("served"), "serve", real.settings) as child:
        child.supervisor.wait_for("ready")
        yield child


def test_streamed_and_whole_answers_over_http_are_the_golden_texts(real: Real, served: Child) -> None:
    whole, streamed = [], []
    for number in FEW:
        body = {"prompt": PROMPTS[number], "max_tokens": N_TOKENS, "temperature": 0, "cache_prompt": False}
        status, answer = served.request("POST", "/v1/completions", body)
        assert status == 200
        whole.append(answer["choices"][0]["text"])
        streamed.append(join_text(served.stream("/v1/completions", body)))
    assert whole == streamed == [real.golden[number] for number in FEW]


def test_a_token_that_is_not_llama_cpps_is_found(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tape's own test: the worker takes token 1000 as its third."""
    sample, calls = llama.llama_sampler_sample, itertools.count()
    monkeypatch.setattr(llama, "llama_sampler_sample", lambda *args: 1000 if next(calls) == 2 else sample(*args))
    with record(real.loaded.context) as tape:
        Bench(real).answer(PROMPTS[0])
    with pytest.raises(AssertionError, match=r"llama\.cpp says"):
        check(tape, real.reference, real.n_vocab)
