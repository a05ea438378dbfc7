"""How does a model get from its file to a context that has decoded once? All on one thread, with progress for the
supervisor.

The last step is a warm-up decode, because on some machines the first decode is what kills the process (llama.cpp's
AMX code in virtual machines). A process cannot report its own death by signal, so the supervisor must know beforehand
that the warm-up has begun: `on_stage("warmup")` returns when it does, or when it is known not to listen.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from llamactl.child.orders import ChildEnvironment
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.llama.batch import Batch
from llamactl.instance.llama.bindings import register_rpc_servers
from llamactl.instance.llama.fit import Measurer, Plan, choose_smallest_ctx, fits_anything, fits_whole
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.log import LlamaLog
from llamactl.instance.llama.memory import (
    acquire_devices,
    add_extent,
    mapped_range_is_exact,
    places_alike,
    read_breakdown,
    replace_host_model,
)
from llamactl.instance.llama.model import LoadedModel, create_context, create_context_quickly, load_model
from llamactl.instance.llama.params import (
    ModelTraits,
    build_context_params,
    build_model_params,
    makes_embeddings,
    read_ctx,
)
from llamactl.instance.llama.preload import Preload, is_cached
from llamactl.instance.llama.projector import Projector, load_projector, measure_projector
from llamactl.protocol.values import Breakdown, Facts

PROGRESS_INTERVAL_S = 0.2
READ_AHEAD_BYTES = 8 << 20


@dataclass(frozen=True)
class Loaded:
    """A model that can decode."""

    model: LoadedModel
    context: Any
    traits: ModelTraits
    embeds: bool
    effective: Breakdown
    facts: Facts
    projector: Projector | None = None


class Cancelled(Exception):
    """The load was called off."""


def load(
    environment: ChildEnvironment,
    on_stage: Callable[[str], None],
    on_progress: Callable[[float], None],
    is_cancelled: Callable[[], bool],
    on_model: Callable[[LoadedModel], None] = lambda model: None,
    preload: Preload | None = None,
) -> Loaded:
    """Raises LlamactlError with the reason, or Cancelled. `on_progress` is called five times a second at most, 0 to 1
    within stage `model`, `on_model` at its end. On the thread of `preload`, if there is one.
    """
    log = LlamaLog(environment.llama_debug)
    log.install()
    register_rpc_servers(environment.settings.rpc)
    llama.llama_backend_init()
    plan = _choose_placement(environment, log)

    on_stage("model")
    pointer = preload.pop_model(environment.settings.path, plan.model.struct) if preload is not None else None
    if pointer:
        model = LoadedModel(pointer, plan.model)
    else:
        model = _load_weights(environment, plan, log, on_progress, is_cancelled)
    on_model(model)
    plan = _complete_plan(environment, plan, model.read_traits(environment.settings.swa_full), log)

    on_stage("context")
    context_params = build_context_params(environment.settings, plan.traits, plan.n_ctx)
    context = create_context_quickly(model, context_params, log) if pointer else None
    if not context:
        context = create_context(environment, model, context_params, log)
    effective = _read_effective(environment, context, plan, log)

    embeds = makes_embeddings(environment.settings, plan.traits)
    projector = None if embeds else _load_projector(environment, model, log, on_stage, on_progress, is_cancelled)
    on_stage("warmup")
    if is_cancelled():
        raise Cancelled
    _warm_up(model, context, embeds)
    return Loaded(
        model=model,
        context=context,
        traits=plan.traits,
        embeds=embeds,
        effective=effective,
        facts=model.read_facts(
            effective.n_ctx, environment.extra_bufts, ("text",) if projector is None else projector.modalities
        ),
        projector=projector,
    )


def _load_projector(
    environment: ChildEnvironment,
    model: LoadedModel,
    log: LlamaLog,
    on_stage: Callable[[str], None],
    on_progress: Callable[[float], None],
    is_cancelled: Callable[[], bool],
) -> Projector | None:
    if not environment.settings.mmproj:
        return None
    on_stage("projector")

    try:
        return load_projector(environment, model, log, _make_reporter(on_progress, is_cancelled))
    except LlamactlError:
        if is_cancelled():
            raise Cancelled from None
        raise


def _load_weights(
    environment: ChildEnvironment,
    plan: Plan,
    log: LlamaLog,
    on_progress: Callable[[float], None],
    is_cancelled: Callable[[], bool],
) -> LoadedModel:
    share_read = 0.0
    report = _make_reporter(on_progress, is_cancelled)
    settings = environment.settings
    if settings.mmap and read_ahead(settings.files or (settings.path,), lambda fraction: report(fraction / 2)):
        share_read = 0.5
    if is_cancelled():
        raise Cancelled
    try:
        return load_model(
            environment, plan.model, log, lambda fraction: report(share_read + (1 - share_read) * fraction)
        )
    except LlamactlError:
        if is_cancelled():
            raise Cancelled from None
        raise


def _make_reporter(on_progress: Callable[[float], None], is_cancelled: Callable[[], bool]) -> Callable[[float], bool]:
    """Passes progress on, not too often; False ends a load."""
    last_s = 0.0

    def report(fraction: float) -> bool:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= PROGRESS_INTERVAL_S:
            last_s = now_s
            on_progress(fraction)
        return not is_cancelled()

    return report


def read_ahead(files: Sequence[str], report: Callable[[float], bool]) -> bool:
    """Brings files into the page cache, part by part, until `report` returns False. Whether anything had to be read.

    llama.cpp maps files with MAP_POPULATE: one call that may take minutes on a slow disk and says nothing meanwhile.
    """
    total = sum(os.stat(name).st_size for name in files if os.path.exists(name))
    buffer, probe = bytearray(READ_AHEAD_BYTES), bytearray(1)
    done, was_read = 0, False
    for name in files:
        if not os.path.isfile(name):
            continue
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # Loading it says what is wrong with it.
        try:
            size = os.fstat(descriptor).st_size
            for offset in range(0, size, READ_AHEAD_BYTES):
                if not is_cached(descriptor, min(offset + READ_AHEAD_BYTES, size) - 1, probe):
                    was_read = True
                    os.preadv(descriptor, [buffer], offset)
                    if not report((done + offset) / total):
                        return was_read
            done += size
        finally:
            os.close(descriptor)
    return was_read


def _choose_placement(environment: ChildEnvironment, log: LlamaLog) -> Plan:
    """Which layers go where, and the context if that is chosen with them. Without devices all go to main memory, and
    the file need not be read twice before anything is loaded.
    """
    settings = environment.settings
    if fits_anything(settings) and acquire_devices(settings.devices):
        with closing(Measurer(environment, log)) as measurer:
            return measurer.choose_plan()
    return Plan(build_model_params(environment, no_alloc=False), settings.ctx, ModelTraits(n_ctx_train=0))


def _complete_plan(environment: ChildEnvironment, plan: Plan, traits: ModelTraits, log: LlamaLog) -> Plan:
    """The context where the placement left it open. What the supervisor knows of the model saves measuring here."""
    settings = environment.settings
    if plan.n_ctx or not fits_anything(settings):
        n_ctx = plan.n_ctx or choose_smallest_ctx(settings, traits.n_ctx_train)
    elif environment.measured is not None and fits_whole(environment, environment.measured, traits):
        n_ctx = environment.measured.n_ctx
    else:
        with closing(Measurer(environment, log)) as measurer:
            n_ctx = measurer.choose_plan().n_ctx
    return Plan(plan.model, n_ctx, traits, plan.is_fitted)


def _read_effective(environment: ChildEnvironment, context: Any, plan: Plan, log: LlamaLog) -> Breakdown:
    devices = acquire_devices(environment.settings.devices)
    effective = read_breakdown(context, read_ctx(context, environment.settings, plan.traits), devices)
    effective = add_extent(effective, measure_projector(environment, devices, log))
    if not environment.settings.mmap or mapped_range_is_exact(effective):
        return effective
    if environment.measured is not None and places_alike(effective, environment.measured):
        return replace_host_model(effective, environment.measured)
    with closing(Measurer(environment, log)) as measurer:
        return replace_host_model(effective, measurer.measure_plan(plan))


def _warm_up(model: LoadedModel, context: Any, embeds: bool) -> None:
    """One decode with all weights touched. Raises LlamactlError where llama.cpp refuses; it may also kill the process.

    Of two tokens: one alone is multiplied by other code than the many of a prompt, and passes where that code (AMX in
    a virtual machine that does not have it) ends the process.
    """
    vocabulary = model.vocabulary
    token = next((token for token in (vocabulary.bos, vocabulary.eos) if token >= 0), 0)
    n_tokens = min(2, int(llama.llama_n_batch(context)))
    batch = Batch(n_tokens)
    batch.add(0, [token] * n_tokens, 0, output_last=True, output_all=embeds)
    llama.llama_set_warmup(context, True)
    result = llama.llama_decode(context, batch.struct)
    llama.llama_synchronize(context)
    llama.llama_set_warmup(context, False)
    memory = llama.llama_get_memory(context)
    if memory:
        llama.llama_memory_clear(memory, False)
    if result != 0:
        raise LlamactlError(
            ErrorCode.LOAD_FAILED, f"cannot decode with the loaded model: llama_decode returned {result}"
        )
