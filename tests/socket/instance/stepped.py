"""How do tests step a Generator by hand, without its thread?

Every interleaving is exact then, and after each step its books are compared with what llama.cpp holds.
"""

from dataclasses import dataclass, field
from pathlib import Path

from llamactl.child.orders import ChildEnvironment
from llamactl.instance.engine.generate import Generator
from llamactl.instance.engine.jobs import FailureEvent, FinishEvent, GenerationRequest, Job, TextEvent, TokenInfo
from llamactl.instance.engine.sampling import SamplingParams
from llamactl.instance.engine.shift import ContextShift
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.loading import Loaded, load
from llamactl.instance.llama.model import Vocabulary
from llamactl.protocol.report_socket import ChildRole
from llamactl.settings import ModelSettings

N_CTX = 256
GREEDY = SamplingParams(temperature=0, ignore_eos=True)


def load_tiny(path: Path, *, parallel: int, n_ctx: int) -> Loaded:
    settings = ModelSettings(name="tiny", path=str(path), ctx=n_ctx, parallel=parallel, threads=1, ubatch=64)
    environment = ChildEnvironment(
        role=ChildRole.SERVE, model="tiny", settings=settings, generation="", socket=None, report=Path("/nowhere")
    )
    return load(environment, lambda stage: None, lambda fraction: None, lambda: False)


@dataclass
class Result:
    text: str
    finish: FinishEvent | None
    failure: FailureEvent | None
    infos: list[TokenInfo] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class Bench:
    """A fresh Generator on the shared context."""

    def __init__(self, loaded: Loaded, shift: ContextShift | None = None, patience: int | None = None) -> None:
        self.vocabulary: Vocabulary = loaded.model.vocabulary
        self.generator = Generator(
            *(loaded.context, self.vocabulary, loaded.traits, 4, N_CTX, 64), shift=shift, patience=patience
        )
        self.generator.abandon()
        self.results: dict[Job, Result] = {}

    def submit(self, prompt: str | list[int], n: int = 24, sampling: SamplingParams = GREEDY, **more: object) -> Job:
        tokens = self.vocabulary.tokenize_prompt(prompt) if isinstance(prompt, str) else prompt
        request = GenerationRequest(prompt=tokens, sampling=sampling, max_tokens=n, special_text=True, **more)  # type: ignore[arg-type]
        job = Job(request)
        self.results[job] = Result("", None, None)
        self.generator.accept(job)
        return job

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            for job, event in self.generator.step():
                result = self.results[job]
                assert result.finish is None, "an event after the end"
                if isinstance(event, TextEvent):
                    result.text += event.text
                    result.tokens += event.tokens
                    result.infos += event.infos
                elif isinstance(event, FinishEvent):
                    result.finish = event
                elif isinstance(event, FailureEvent):
                    result.failure = event
            self.check()

    def check(self) -> None:
        """What the slots claim to hold is what llama.cpp holds."""
        memory = llama.llama_get_memory(self.generator.context)
        for prefix in self.generator.cache.prefixes:
            assert llama.llama_memory_seq_pos_max(memory, prefix.id) == len(prefix.tokens) - 1
        assert self.generator.cache.n_used <= N_CTX

    def run(self, limit: int = 2000) -> None:
        for _ in range(limit):
            if not self.generator.has_work():
                return
            self.step()
        raise AssertionError("the generator does not come to an end")
