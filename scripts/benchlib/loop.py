"""What share of a step is not llama.cpp's? The engine with its thread and an event loop, four sequences, no HTTP.

    python -m benchlib.loop MODEL        prints one JSON object: milliseconds per step

Every function of llama.cpp that the engine calls in a step is replaced by itself with a stopwatch; what remains of the
time from decode to decode is ours, the stopwatch included.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llamactl.child.orders import ChildEnvironment
from llamactl.instance.engine.engine import Engine
from llamactl.instance.engine.generate import Generator
from llamactl.instance.engine.jobs import FinishEvent, GenerationRequest, Job
from llamactl.instance.engine.sampling import SamplingParams
from llamactl.instance.llama.background_load import BackgroundLoad
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.loading import Loaded
from llamactl.protocol.report_socket import ChildRole
from llamactl.settings import ModelSettings

PARALLEL = 4
N_TOKENS = 128
CTX = 8192
WARM_STEPS = 8


class Stopwatch:
    """Sums up what the functions take that it was put around."""

    def __init__(self) -> None:
        self.sum_s = 0.0
        self.steps: list[tuple[float, float]] = []
        """Of each decode: when it began, and the sum by then."""

    def wrap(self, name: str) -> None:
        function = getattr(llama, name)

        def timed(*arguments: Any) -> Any:
            begin_s = time.perf_counter()
            if name == "llama_decode":
                self.steps.append((begin_s, self.sum_s))
            try:
                return function(*arguments)
            finally:
                self.sum_s += time.perf_counter() - begin_s

        setattr(llama, name, timed)


async def receive_all(job: Job) -> None:
    while not any(isinstance(event, FinishEvent) for event in await job.receive()):
        pass


def load_model(path: str, repack: bool) -> tuple[BackgroundLoad, Loaded]:
    settings = ModelSettings(name="bench", path=path, ctx=CTX, parallel=PARALLEL, threads=2)
    environment = ChildEnvironment(
        role=ChildRole.SERVE,
        model="bench",
        settings=settings,
        generation="",
        socket=None,
        report=Path(os.devnull),
        extra_bufts=repack,
    )
    load = BackgroundLoad(environment)
    load.attach(lambda stage: None, lambda fraction: None)
    return load, load.wait()


async def main(path: str, *options: str) -> None:
    load, loaded = load_model(path, "--no-repack" not in options)
    n_step = int(llama.llama_n_ubatch(loaded.context))
    vocabulary = loaded.model.vocabulary
    worker = Generator(loaded.context, vocabulary, loaded.traits, PARALLEL, CTX, n_step)
    watch = Stopwatch()
    for name in ("llama_decode", "llama_sampler_sample", "llama_synchronize"):
        watch.wrap(name)
    fail: Callable[[str], None] = sys.exit
    engine = Engine(worker, asyncio.get_running_loop(), fail, load.thread)
    engine.start()
    jobs = []
    for number in range(PARALLEL):
        prompt = vocabulary.tokenize_prompt(f"Story number {number} begins")
        jobs.append(Job(GenerationRequest(prompt, SamplingParams(ignore_eos=True, seed=number), N_TOKENS)))
        engine.submit(jobs[-1])
    await asyncio.gather(*map(receive_all, jobs))
    engine.close()
    # From the first step with all sequences to the last of them.
    (begin_s, sum_begin_s), *_, (end_s, sum_end_s) = watch.steps[WARM_STEPS:N_TOKENS]
    n_steps = N_TOKENS - WARM_STEPS - 1
    step_s, inside_s = (end_s - begin_s) / n_steps, (sum_end_s - sum_begin_s) / n_steps
    print(json.dumps({"step_ms": 1e3 * step_s, "inside_ms": 1e3 * inside_s}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
