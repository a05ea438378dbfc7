"""How does a model get from its file to a context that has decoded once? All on one thread, with progress for the supervisor.

The last step is a warm-up decode, because on some machines the first decode is what kills the process (llama.cpp's AMX code in virtual machines).
A process cannot report its own death by signal, so the supervisor must know beforehand that the warm-up has begun: `on_stage("warmup")`
returns when it does, or when it is known not to listen.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.batch import Batch
from llamactl.instance.bindings import llama, register_rpc_servers
from llamactl.instance.environ import ChildEnvironment
from llamactl.instance.fit import Measurer, Plan, choose_smallest_ctx, fits_anything
from llamactl.instance.llamalog import LlamaLog
from llamactl.instance.memory import acquire_devices, mapped_range_is_exact, read_breakdown, replace_host_model
from llamactl.instance.model import LoadedModel, create_context, load_model
from llamactl.instance.params import ModelTraits, build_context_params, build_model_params, makes_embeddings
from llamactl.protocol import Breakdown, Facts

PROGRESS_INTERVAL_S = 0.2


@dataclass(frozen=True)
class Loaded:
    """A model that can decode."""

    model: LoadedModel
    context: Any
    traits: ModelTraits
    embeds: bool
    effective: Breakdown
    facts: Facts


class Cancelled(Exception):
    """The load was called off."""


def load(
    environment: ChildEnvironment,
    on_stage: Callable[[str], None],
    on_progress: Callable[[float], None],
    is_cancelled: Callable[[], bool],
) -> Loaded:
    """Raises LlamactlError with the reason, or Cancelled. `on_progress` is called five times a second at most, 0 to 1 within stage `model`."""
    log = LlamaLog(environment.llama_debug)
    log.install()
    register_rpc_servers(environment.rpc_servers)
    llama.llama_backend_init()
    plan, measured = _choose_plan(environment, log)

    on_stage("model")
    last_s = 0.0

    def handle_progress(fraction: float) -> bool:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= PROGRESS_INTERVAL_S:
            last_s = now_s
            on_progress(fraction)
        return not is_cancelled()

    try:
        model = load_model(environment, plan.model, log, handle_progress)
    except LlamactlError:
        if is_cancelled():
            raise Cancelled from None
        raise
    traits = plan.traits if measured else model.read_traits()
    n_ctx = plan.n_ctx or choose_smallest_ctx(environment.settings, traits.n_ctx_train)

    on_stage("context")
    context = create_context(environment, model, build_context_params(environment.settings, traits, n_ctx), log)
    effective = _read_effective(environment, context, Plan(plan.model, n_ctx, traits), log)
    if is_cancelled():
        raise Cancelled

    on_stage("warmup")
    _warm_up(model, context)
    n_ctx = int(llama.llama_n_ctx(context))
    return Loaded(
        model=model,
        context=context,
        traits=traits,
        embeds=makes_embeddings(environment.settings, traits),
        effective=effective,
        facts=model.read_facts(n_ctx, environment.extra_bufts),
    )


def _choose_plan(environment: ChildEnvironment, log: LlamaLog) -> tuple[Plan, bool]:
    """The plan, and whether the file was read for it. Where nothing is left to choose, it need not be, and starting is faster."""
    settings = environment.settings
    nothing_to_fit = not fits_anything(settings) or (settings.ctx and not acquire_devices(settings.devices))
    if nothing_to_fit:
        return Plan(build_model_params(environment, no_alloc=False), settings.ctx, ModelTraits(n_ctx_train=0)), False
    measurer = Measurer(environment, log)
    try:
        return measurer.choose_plan(), True
    finally:
        measurer.close()


def _read_effective(environment: ChildEnvironment, context: Any, plan: Plan, log: LlamaLog) -> Breakdown:
    devices = acquire_devices(environment.settings.devices)
    effective = read_breakdown(context, devices)
    if not environment.settings.mmap or mapped_range_is_exact(effective):
        return effective
    measurer = Measurer(environment, log)
    try:
        return replace_host_model(effective, measurer.measure_plan(plan))
    finally:
        measurer.close()


def _warm_up(model: LoadedModel, context: Any) -> None:
    """One decode of one token, with all weights touched. Raises LlamactlError where llama.cpp refuses; it may also kill the process."""
    vocabulary = model.vocabulary
    token = next((token for token in (vocabulary.bos, vocabulary.eos) if token >= 0), 0)
    batch = Batch(1)
    batch.add(0, [token], 0, output_last=True)
    llama.llama_set_warmup(context, True)
    result = llama.llama_decode(context, batch.struct)
    llama.llama_synchronize(context)
    llama.llama_set_warmup(context, False)
    memory = llama.llama_get_memory(context)
    if memory:
        llama.llama_memory_clear(memory, True)
    if result != 0:
        raise LlamactlError(ErrorCode.LOAD_FAILED, f"cannot decode with the loaded model: llama_decode returned {result}")
