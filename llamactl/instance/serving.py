"""What serves a model that is loaded, and how is all of it given back? The worker that computes, the engine that runs
it on its thread, and the service that turns requests into its jobs.

Imported while the model loads: nothing here is needed before.
"""

import asyncio
import gc
import os
from collections.abc import Callable
from dataclasses import dataclass

from llamactl.instance.engine.background import trim_memory
from llamactl.instance.engine.embed import Embedder
from llamactl.instance.engine.engine import Engine
from llamactl.instance.engine.generate import Generator
from llamactl.instance.engine.media import Encoder, MediaReader
from llamactl.instance.engine.media_steps import MediaSteps
from llamactl.instance.engine.prefixes import choose_patience
from llamactl.instance.engine.shift import choose_context_shift
from llamactl.instance.engine.stats import Stats
from llamactl.instance.http.media_prompts import MediaPrompts
from llamactl.instance.http.parameters import choose_defaults
from llamactl.instance.http.service import Service
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.loading import Loaded
from llamactl.instance.llama.params import POOLING_NAMES
from llamactl.instance.llama.thread import ComputeThread
from llamactl.instance.readers import Readers, complete_facts
from llamactl.settings import ModelSettings

HANG_S = 120.0
HANG_PER_TOKEN_S = 1.0
"""A step that takes longer than both together hangs. Generous: a large model on a slow machine is no hang, nor is an
encoder beside threads that go first.
"""


@dataclass
class Serving:
    """One load of the model, from when it serves until it sleeps or the process ends."""

    loaded: Loaded
    """Kept for the arrays that llama.cpp's parameters point to."""
    service: Service
    engine: Engine
    encoder: Encoder | None
    """Of a model that has a projector."""
    n_threads: int
    """With which the model computes where it computes alone."""
    stats: Stats

    def is_stuck(self) -> bool:
        """Whether a step takes longer than any of its size does: nothing will come of it any more."""
        computing: tuple[Engine | Encoder | None, ...] = (self.engine, self.encoder)
        return any(
            part.since_progress_s() >= HANG_S + HANG_PER_TOKEN_S * part.count_step_tokens()
            for part in computing
            if part is not None
        )

    def end(self) -> None:
        """End the engine, and whatever else computes. Blocks until the running step has ended."""
        self.engine.close()
        if self.encoder is not None:
            self.encoder.close()

    def free(self) -> None:
        """Free all that llama.cpp holds, the context before its model. Blocks; only after `end`."""
        if self.loaded.projector is not None:
            self.loaded.projector.close()
        llama.llama_free(self.loaded.context)
        self.loaded.model.close()
        gc.collect()
        trim_memory()  # the heap's free pages go back to the kernel


def begin_serving(
    settings: ModelSettings,
    loaded: Loaded,
    readers: Readers,
    thread: ComputeThread,
    on_broken: Callable[[str], None],
    stats: Stats | None = None,
) -> Serving:
    """Start an engine on `thread`. `on_broken` is told why, when it cannot compute any longer; `stats` is gone on with.
    Raises LlamactlError or RuntimeError for a model that cannot be served.
    """
    worker, encoder = _make_worker(settings, loaded, lambda: engine.wake())
    # What has been counted is of the process, not of one load.
    worker.stats = stats or worker.stats
    engine = Engine(worker, asyncio.get_running_loop(), on_broken, thread)
    pooling = _read_pooling(loaded)
    service = Service(
        settings=settings,
        facts=complete_facts(loaded.facts, loaded.model, readers.planning, pooling if loaded.embeds else ""),
        vocabulary=loaded.model.vocabulary,
        prompts=readers.prompts,
        template=readers.template,
        engine=engine,
        worker=worker,
        n_ctx=loaded.facts.n_ctx,
        n_batch=int(llama.llama_n_batch(loaded.context)),
        embeds=loaded.embeds,
        pooling=pooling,
        sampling=choose_defaults(settings.sampling, loaded.model.read_meta),
        created=_read_time(settings.path),
        planner=readers.planning.planner,
        no_planner=readers.planning.reason,
        media=MediaPrompts(encoder, settings.media_path, loaded.model.vocabulary, readers.prompts.background),
        rerank_template=loaded.model.read_meta("tokenizer.chat_template.rerank"),
    )
    engine.start()
    return Serving(loaded, service, engine, encoder, int(llama.llama_n_threads(loaded.context)), worker.stats)


def _make_worker(
    settings: ModelSettings, loaded: Loaded, wake: Callable[[], None]
) -> tuple[Generator | Embedder, Encoder | None]:
    """`wake` has the engine look again: an encoder, which has a thread of its own, has finished something."""
    n_step = int(llama.llama_n_ubatch(loaded.context))
    if loaded.embeds:
        pooling = _read_pooling(loaded)
        n_values = llama.llama_model_n_cls_out(loaded.model.pointer) if pooling == "rank" else loaded.facts.n_embd
        return Embedder(loaded.context, n_values, settings.parallel, n_step, pooling), None
    n_ctx, rows = loaded.facts.n_ctx, loaded.effective.devices
    patience = choose_patience(n_ctx, sum(row.model for row in rows), sum(row.context for row in rows))
    generator = Generator(
        *(loaded.context, loaded.model.vocabulary, loaded.traits, settings.parallel, n_ctx, n_step), patience=patience
    )
    generator.shift = choose_context_shift(settings, loaded)
    if loaded.projector is None:
        return generator, None
    encoder = Encoder(MediaReader(loaded.projector, n_step), wake)
    generator.media = MediaSteps(loaded.context, encoder, n_step)
    return generator, encoder


def _read_pooling(loaded: Loaded) -> str:
    return POOLING_NAMES.get(int(llama.llama_pooling_type(loaded.context)), "none")


def _read_time(path: str) -> int:
    """When a file was written; 0 where it is gone meanwhile."""
    try:
        return int(os.stat(path).st_mtime)
    except OSError:
        return 0
