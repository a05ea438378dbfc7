"""Does the engine read pictures as llama.cpp does, keep what it has read, and go on with others while one is encoded?

Golden is libmtmd's own loop over the chunks of a prompt, on a context that nobody shares. Steps are made by hand, and
encoding waits for the test: nothing here depends on how fast anything is.
"""

import codecs
import ctypes
import threading
from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llamactl.child.orders import ChildEnvironment
from llamactl.instance.engine.generate import Generator
from llamactl.instance.engine.jobs import Event, FailureEvent, FinishEvent, GenerationRequest, Job, TextEvent
from llamactl.instance.engine.media import Encoder, ItemError, MediaPrompt, MediaReader, Span
from llamactl.instance.engine.media_steps import MediaSteps
from llamactl.instance.engine.places import find_chunk_start
from llamactl.instance.engine.prefixes import count_common_prefix
from llamactl.instance.engine.sampling import SamplingParams
from llamactl.instance.engine.sequence import Sequence
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.loading import Loaded, load
from llamactl.instance.llama.log import LlamaLog
from llamactl.instance.llama.model import create_context
from llamactl.instance.llama.params import build_context_params
from llamactl.instance.llama.projector import MediaChunk, MediaError, Projector, load_library
from llamactl.protocol.report_socket import ChildRole
from llamactl.settings import ModelSettings
from tests.media import BLUE, RED, slope, write_png
from tests.models import write_eye, write_model

N_CTX, N_STEP, N_TOKENS = 512, 24, 10
TIMEOUT_S = 30.0
RED_PNG, BLUE_PNG, SLOPE_PNG = write_png(56, 112, RED), write_png(56, 112, BLUE), write_png(200, 100, slope)
Parts = Several[str | bytes]


@dataclass
class Seeing:
    """A model with its projector, and a second context for libmtmd alone."""

    loaded: Loaded
    projector: Projector
    reference: Any


@pytest.fixture(scope="module", params=["mlp", "qwen2vl_merger", "gemma3"])
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeing]:
    directory, mrope = tmp_path_factory.mktemp("eyes"), request.param == "qwen2vl_merger"
    model = write_model(directory / "m.gguf", mrope=mrope)
    eye = write_eye(
        directory / "eye.gguf", projector=request.param, image_size=112 if request.param == "gemma3" else 28
    )
    settings = ModelSettings(
        name="m", path=str(model), mmproj=str(eye), ctx=N_CTX, parallel=3, threads=1, repack=False, ubatch=N_STEP
    )
    environment = ChildEnvironment(
        ChildRole.SERVE, "m", settings, generation="", socket=None, report=Path("/nowhere"), extra_bufts=False
    )
    loaded = load(environment, lambda stage: None, lambda fraction: None, lambda: False)
    assert loaded.projector is not None
    assert loaded.projector.uses_mrope is mrope
    reference = create_context(
        environment, loaded.model, build_context_params(settings, loaded.traits, N_CTX), LlamaLog()
    )
    yield Seeing(loaded, loaded.projector, reference)
    llama.llama_free(reference)
    loaded.projector.close()
    llama.llama_free(loaded.context)
    loaded.model.close()


def is_noncausal(seeing: Seeing) -> bool:
    (chunk,) = (
        piece
        for piece in seeing.projector.cut_prompt([seeing.projector.decode(RED_PNG)])
        if isinstance(piece, MediaChunk)
    )
    return seeing.projector.is_noncausal(chunk)


def decode_alone(seeing: Seeing, parts: Parts, n_tokens: int = N_TOKENS) -> str:
    """Greedy, by libmtmd's helpers."""
    mtmd, context, projector = load_library(), seeing.reference, seeing.projector
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    marker, bitmaps = (
        mtmd.mtmd_get_marker(projector.pointer),
        [projector.decode(p) for p in parts if isinstance(p, bytes)],
    )
    text = b"".join(part.encode() if isinstance(part, str) else marker for part in parts)
    chunks = mtmd.mtmd_input_chunks_init()
    given = mtmd.mtmd_input_text(text, len(text), True, True)
    pointers = (mtmd.mtmd_bitmap_p_ctypes * len(bitmaps))(*(bitmap.pointer for bitmap in bitmaps))
    assert mtmd.mtmd_tokenize(projector.pointer, chunks, ctypes.byref(given), pointers, len(bitmaps)) == 0
    n_past = llama.llama_pos(0)
    status = mtmd.mtmd_helper_eval_chunks(projector.pointer, context, chunks, 0, 0, N_STEP, True, ctypes.byref(n_past))
    assert status == 0
    mtmd.mtmd_input_chunks_free(chunks)
    vocabulary, said, position = seeing.loaded.model.vocabulary, b"", n_past.value
    batch = llama.llama_batch_init(1, 0, 1)
    for _ in range(n_tokens):
        logits = llama.llama_get_logits_ith(context, -1)
        token = max(range(vocabulary.n_tokens), key=lambda token: logits[token])
        if vocabulary.is_end(token):
            break
        said += vocabulary.piece(token)
        batch.n_tokens, batch.token[0], batch.pos[0], batch.logits[0] = 1, token, position, 1
        batch.n_seq_id[0], batch.seq_id[0][0] = 1, 0
        assert llama.llama_decode(context, batch) == 0
        position += 1
    llama.llama_batch_free(batch)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(said)


class GatedReader(MediaReader):
    """Encodes when it may."""

    def __init__(self, projector: Projector) -> None:
        super().__init__(projector, N_STEP)
        self.gate, self.entered, self.fault = threading.Event(), threading.Event(), ""
        self.gate.set()

    def encode(self, span: Span) -> Any:
        self.entered.set()
        assert self.gate.wait(TIMEOUT_S)
        if self.fault:
            raise MediaError(self.fault)
        return super().encode(span)


class Bench:
    """An engine's worker, stepped by hand on an empty context."""

    def __init__(self, seeing: Seeing) -> None:
        self.reader = GatedReader(seeing.projector)
        self._stirred = threading.Event()
        self.encoder = Encoder(self.reader, self._stirred.set)
        self._vocabulary = seeing.loaded.model.vocabulary
        self.generator = Generator(seeing.loaded.context, self._vocabulary, seeing.loaded.traits, 3, N_CTX, N_STEP)
        self.generator.media = MediaSteps(seeing.loaded.context, self.encoder, N_STEP)
        self.generator.abandon()
        self.events: dict[Job, list[Event]] = {}

    def read(self, parts: Parts) -> MediaPrompt:
        items = [part for part in parts if isinstance(part, bytes)]
        numbers = iter(range(len(items)))
        given = [part if isinstance(part, str) else next(numbers) for part in parts]
        return self.reader.read(given, items, bos=self._vocabulary.bos)

    def submit(self, parts: Parts, n_tokens: int = N_TOKENS, *, n: int = 1) -> list[Job]:
        prompt = self.read(parts)
        jobs = []
        for index in range(n):
            sampling = SamplingParams(temperature=0)
            request = GenerationRequest(
                prompt=prompt.tokens, sampling=sampling, max_tokens=n_tokens, media=prompt.spans, special_text=False
            )
            jobs.append(Job(request, index))
            self.events[jobs[-1]] = []
            self.generator.accept(jobs[-1])
        return jobs

    def step(self) -> None:
        for job, event in self.generator.step():
            self.events[job].append(event)

    def run_until_stuck(self) -> None:
        """All that can be done without what is being encoded."""
        while self.generator.has_work():
            self.step()

    def run(self) -> None:
        """Until nothing is left."""
        while True:
            self._stirred.clear()
            self.run_until_stuck()
            if not self.generator.list_running() and not self.generator.read_load().n_waiting:
                return
            assert self._stirred.wait(TIMEOUT_S)

    def text(self, job: Job) -> str:
        return "".join(event.text for event in self.events[job] if isinstance(event, TextEvent))

    def end(self, job: Job) -> FinishEvent:
        last = self.events[job][-1]
        assert isinstance(last, FinishEvent), last
        return last


@pytest.fixture
def bench(seeing: Seeing) -> Iterator[Bench]:
    bench = Bench(seeing)
    yield bench
    bench.reader.gate.set()
    bench.encoder.close()
    bench.generator.abandon()


CASES: dict[str, Parts] = {
    "picture": ("look: ", RED_PNG, " what is it?"),
    "first": (SLOPE_PNG, "what is it?"),
    "two": ("one ", RED_PNG, BLUE_PNG, " and ", SLOPE_PNG, " three"),
    "long": ("word " * 9, SLOPE_PNG, " and word" * 5),
}


@pytest.mark.parametrize("name", CASES)
def test_answer_is_that_of_libmtmd(seeing: Seeing, bench: Bench, name: str) -> None:
    (job,) = bench.submit(CASES[name])
    bench.run()
    assert bench.text(job) == decode_alone(seeing, CASES[name])


def test_answer_is_the_same_again_with_all_of_its_prompt_in_memory(seeing: Seeing, bench: Bench) -> None:
    for name in (*CASES, *CASES):
        (job,) = bench.submit(CASES[name])
        bench.run()
        assert bench.text(job) == decode_alone(seeing, CASES[name]), name
    assert bench.end(job).n_cached == bench.end(job).n_prompt - 1


def test_next_turn_decodes_and_encodes_only_what_is_new(seeing: Seeing, bench: Bench) -> None:
    first: Parts = ("look: ", SLOPE_PNG, " what?")
    (job,) = bench.submit(first)
    bench.run()
    held = bench.end(job)
    second: Parts = (
        *first[:-1],
        first[-1] + bench.text(job) if isinstance(first[-1], str) else "",
        " and ",
        RED_PNG,
        "?",
    )
    bench.encoder._kept.clear()
    n_encoded = bench.encoder.n_encoded
    (job,) = bench.submit(second)
    bench.run()
    assert bench.end(job).n_cached >= held.n_prompt - 2
    assert bench.encoder.n_encoded == n_encoded + 1
    assert bench.text(job) == decode_alone(seeing, second)


def test_choices_of_one_request_have_it_encoded_once(seeing: Seeing, bench: Bench) -> None:
    jobs = bench.submit(CASES["picture"], n=3)
    bench.run()
    assert {bench.text(job) for job in jobs} == {decode_alone(seeing, CASES["picture"])}
    assert bench.encoder.n_encoded == 1


def test_others_go_on_while_a_picture_is_encoded(bench: Bench) -> None:
    bench.reader.gate.clear()
    (seeing,) = bench.submit(CASES["picture"])
    bench.step()
    assert bench.reader.entered.wait(TIMEOUT_S)
    (other,) = bench.submit(("just text, please",))
    bench.run_until_stuck()
    assert bench.end(other).n_generated, "it ends meanwhile"
    assert not bench.events[seeing]
    assert not bench.generator.has_work(), "and nothing spins"
    bench.reader.gate.set()
    bench.run()
    assert bench.end(seeing).n_generated


def test_encoding_that_does_not_end_is_seen(bench: Bench) -> None:
    """By the watchdog: the engine itself only waits, and does not compute."""
    assert (bench.encoder.since_progress_s(), bench.encoder.count_step_tokens()) == (0, 0)
    bench.reader.gate.clear()
    (job,) = bench.submit(CASES["picture"])
    bench.run_until_stuck()
    assert bench.reader.entered.wait(TIMEOUT_S)
    first = bench.encoder.since_progress_s()
    assert bench.encoder.since_progress_s() > first > 0
    (span,) = job.request.media.values()  # type: ignore[union-attr]
    assert bench.encoder.count_step_tokens() == span.chunk.n_tokens
    bench.reader.gate.set()
    bench.run()
    bench.encoder.close()
    assert bench.encoder.since_progress_s() == 0


def test_no_part_of_a_picture_is_longer_than_a_step(bench: Bench) -> None:
    sizes = []
    decode, media = MediaSteps.decode, bench.generator.media
    assert media is not None

    class Watched(MediaSteps):
        def decode(self, step: Any, cache: Any) -> int:
            sizes.append(step.n_tokens)
            return decode(self, step, cache)

    media.__class__ = Watched
    (job,) = bench.submit(("a ", SLOPE_PNG, " b"))
    bench.run()
    assert bench.end(job).n_generated
    assert sizes
    assert max(sizes) <= N_STEP


def test_picture_that_must_be_computed_at_once_and_is_too_large_for_that_is_refused(seeing: Seeing) -> None:
    if not is_noncausal(seeing):
        assert MediaReader(seeing.projector, 1).read([0, "what?"], [RED_PNG], bos=1).spans
        return
    with pytest.raises(ItemError, match="it becomes 16 embeddings, which must be computed at once; set `ubatch`"):
        MediaReader(seeing.projector, 15).read([0, "what?"], [RED_PNG], bos=1)


def test_client_that_leaves_frees_its_place_at_once(bench: Bench) -> None:
    bench.reader.gate.clear()
    leaving = [bench.submit(("left ", data, "?"))[0] for data in (RED_PNG, BLUE_PNG, SLOPE_PNG)]
    bench.step()
    assert bench.reader.entered.wait(TIMEOUT_S)
    (waiting,) = bench.submit(("text",))
    bench.run_until_stuck()
    assert not bench.events[waiting], "all places are taken"
    for job in leaving:
        job.cancelled = True
    assert bench.generator.has_work()
    bench.run_until_stuck()
    assert bench.end(waiting).n_generated
    bench.reader.gate.set()
    bench.encoder.close()
    assert bench.encoder.n_encoded <= 1, "what nobody waits for is not begun"


def test_client_that_leaves_in_the_midst_of_a_picture_leaves_no_half_of_it(seeing: Seeing, bench: Bench) -> None:
    parts: Parts = ("half ", SLOPE_PNG, " of it")
    bench.reader.gate.clear()
    (job,) = bench.submit(parts)
    span = next(iter(job.request.media.values())) if isinstance(job.request, GenerationRequest) else None
    assert span is not None
    bench.run_until_stuck()
    assert bench.reader.entered.wait(TIMEOUT_S)
    bench.reader.gate.set()
    bench.encoder.close()
    bench.step()
    (running,) = bench.generator.list_running()
    is_half = span.start < running.n_past < span.end
    job.cancelled = True
    bench.run_until_stuck()
    assert is_half or span.chunk.n_tokens <= N_STEP
    held = max(bench.generator.cache.prefixes, key=lambda prefix: len(prefix.tokens))
    assert find_chunk_start(span.prompt.tokens, len(held.tokens)) == len(held.tokens) >= span.start
    (again,) = bench.submit(parts)
    bench.run()
    assert bench.text(again) == decode_alone(seeing, parts)


def test_failure_to_encode_costs_that_request_alone(bench: Bench) -> None:
    bench.reader.fault = "out of order"
    (seeing,) = bench.submit(CASES["picture"])
    (other,) = bench.submit(("text",))
    bench.run()
    failure = bench.events[seeing][-1]
    assert isinstance(failure, FailureEvent)
    assert failure.error.message == "cannot encode item 0 of the request: out of order"
    assert bench.end(other).n_generated


def test_sequences_that_are_put_back_see_again(seeing: Seeing, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the context has room for together. Of the others batches differ, and with them, at times, a word."""
    n_words = 40 if seeing.projector.uses_mrope or is_noncausal(seeing) else 55
    cases: list[Parts] = [(f"{number} " * n_words, SLOPE_PNG, " what?") for number in range(3)]
    put_back = bench.generator._put_back
    seen: dict[Job, int] = {}

    def watch(sequence: Sequence) -> None:
        seen.setdefault(sequence.job, len(bench.text(sequence.job)))
        put_back(sequence)

    monkeypatch.setattr(bench.generator, "_put_back", watch)
    jobs = [bench.submit(parts, 130)[0] for parts in cases]
    bench.run()
    common = {
        job: count_common_prefix(list(bench.text(job)), list(decode_alone(seeing, cases[jobs.index(job)], 130)))
        for job in seen
    }
    assert any(common[job] >= seen[job] + 4 for job in seen), (seen.values(), common.values())
