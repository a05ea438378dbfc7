"""Which context size, and how many layers on devices? Bounds for measuring, one answer for loading.

Fitting is llama.cpp's own (common_fit_params) wherever devices exist: it shrinks the context first, then takes layers
off the devices, and changes only what the settings leave open. It judges devices by what is free now, less the
margin. With no device it would weigh the model against the machine's main memory, not against the limit of a cgroup:
there, and where the symbol is missing, the search below decides, by the context alone. Memory is close to linear in
the context, so two measurements and an interpolation do. The whole context is shared by all sequences (`kv_unified`):
the smallest is `fit_ctx` for each of them, the largest `ctx_max`, or what the model was trained for.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from llamactl.child.orders import ChildEnvironment
from llamactl.instance.llama.bindings import TensorBufferOverride, load_extra
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.log import LlamaLog
from llamactl.instance.llama.memory import (
    HOST,
    Device,
    acquire_devices,
    acquire_host_total_bytes,
    add_extent,
    read_breakdown,
    sum_host_bytes,
)
from llamactl.instance.llama.model import LoadedModel, create_context, load_model
from llamactl.instance.llama.params import (
    ALIGN_TOKENS,
    ModelParams,
    ModelTraits,
    build_context_params,
    build_model_params,
    read_ctx,
)
from llamactl.instance.llama.projector import measure_projector
from llamactl.protocol.values import Breakdown, RowKind
from llamactl.settings import AUTO_CTX_MAX, ModelSettings

MAX_STEPS = 8
_FIT_ERROR = 2
_LOG_LEVEL_ERROR = 4


@dataclass
class Plan:
    """With which parameters the model is to be loaded."""

    model: ModelParams
    n_ctx: int
    traits: ModelTraits
    is_fitted: bool = False
    """Whether fitting has changed the placement that the settings ask for."""


class Measurer:
    """Measures one model without loading it. Keeps the model's metadata open between measurements; `close` it."""

    def __init__(self, environment: ChildEnvironment, log: LlamaLog) -> None:
        self._environment = environment
        self._log = log
        self.model = load_model(environment, build_model_params(environment, no_alloc=True), log)
        self.traits = self.model.read_traits(environment.settings.swa_full)
        self.devices = acquire_devices(environment.settings.devices)
        self.projector = measure_projector(environment, self.devices, log)

    def close(self) -> None:
        """Free the model."""
        self.model.close()

    def measure(self, n_ctx: int) -> Breakdown:
        """With as many layers on devices as the settings say (all of them, if they say nothing)."""
        return self._measure_with(self.model, self.traits, n_ctx)

    def measure_plan(self, plan: Plan) -> Breakdown:
        """At the parameters that fitting arrived at."""
        if not plan.is_fitted:
            return self.measure(plan.n_ctx)
        params = plan.model.copy_for(no_alloc=True, mmap=False)
        model = load_model(self._environment, params, self._log)
        try:
            return self._measure_with(model, plan.traits, plan.n_ctx)
        finally:
            model.close()

    def _measure_with(self, model: LoadedModel, traits: ModelTraits, n_ctx: int) -> Breakdown:
        measured = measure_with(self._environment, model, traits, n_ctx, self.devices, self._log)
        return add_extent(measured, self.projector)

    def choose_plan(self) -> Plan:
        """Fits what the settings leave open to the memory that is free now."""
        settings = self._environment.settings
        smallest = choose_smallest_ctx(settings, self.traits.n_ctx_train)
        params = build_model_params(self._environment, no_alloc=False)
        if not fits_anything(settings):
            return Plan(params, smallest, self.traits)
        largest = choose_ctx_bound(settings, self.traits.n_ctx_train)
        if self.devices and load_extra().fit_params is not None:
            # It shrinks the context before it moves layers: what is beyond the bound can be given back afterwards.
            n_ctx = self._fit_with_llama(params, smallest)
            n_ctx = n_ctx if settings.ctx else max(smallest, min(n_ctx, largest))
            return self._check_plan(Plan(params, n_ctx, self.traits, is_fitted=True))
        if settings.ctx:
            n_ctx = settings.ctx
        else:
            room = acquire_room(self._environment, self.devices)
            n_ctx = choose_largest_ctx(self.measure, smallest, largest, room)
        return Plan(params, n_ctx, self.traits)

    def _check_plan(self, plan: Plan) -> Plan:
        """The same placement with a shorter context where the one that was fitted takes more than there is:
        llama.cpp takes memory to be linear in the context, and it is not quite.
        """
        settings = self._environment.settings
        if settings.ctx:
            return plan
        n_ctx = choose_largest_ctx(
            lambda n_ctx: self.measure_plan(replace(plan, n_ctx=n_ctx)),
            choose_smallest_ctx(settings, self.traits.n_ctx_train),
            plan.n_ctx,
            acquire_room(self._environment, self.devices),
        )
        return replace(plan, n_ctx=n_ctx)

    def _fit_with_llama(self, params: ModelParams, smallest: int) -> int:
        """common_fit_params (common/fit.cpp). Writes layers, split and overrides into `params`, returns the context
        size.
        """
        settings = self._environment.settings
        n_max = llama.llama_max_devices()
        split = (ctypes.c_float * n_max)()
        overrides = (TensorBufferOverride * llama.llama_max_tensor_buft_overrides())()
        names = self.model.read_device_names() or [device.name for device in self.devices]
        margins = (ctypes.c_size_t * n_max)(*(self._count_left_free(name) for name in names[:n_max]))
        context = build_context_params(settings, self.traits, settings.ctx)
        fit_params: Any = load_extra().fit_params
        status = fit_params(
            settings.path.encode(),
            ctypes.byref(params.struct),
            ctypes.byref(context),
            split,
            overrides,
            margins,
            smallest,
            None,
            _LOG_LEVEL_ERROR,
        )
        params.keep += [split, overrides]
        # 1, "does not fit": llama.cpp has left what it could not change. The load is tried and says how it ends.
        if status == _FIT_ERROR or not context.n_ctx:
            return smallest
        return int(context.n_ctx)

    def _count_left_free(self, device: str) -> int:
        """Bytes that fitting leaves on a device: the margin, and what the projector will take."""
        projector = self.projector
        n_shared = projector.used_bytes if projector is not None and projector.device == device else 0
        return self._environment.margin_bytes(device) + n_shared


def acquire_room(environment: ChildEnvironment, devices: list[Device]) -> dict[str, int]:
    """Bytes that a load may take, by device and for the host."""
    room = {device.name: device.free_bytes - environment.margin_bytes(device.name) for device in devices}
    # As llama.cpp does it where there is no device: the margin is kept free of main memory too.
    total, limit = acquire_host_total_bytes(), environment.host_room_bytes
    room[HOST] = total - environment.margin_bytes(HOST) if limit is None else min(total, limit)
    return room


def fits_whole(environment: ChildEnvironment, measured: Breakdown, traits: ModelTraits) -> bool:
    """Whether a measurement at hand has the largest context, and still fits. For machines without devices."""
    smallest = choose_smallest_ctx(environment.settings, traits.n_ctx_train)
    is_largest = measured.n_ctx == max(smallest, choose_ctx_bound(environment.settings, traits.n_ctx_train))
    return is_largest and _is_within(measured, acquire_room(environment, []))


def measure_with(
    environment: ChildEnvironment,
    model: LoadedModel,
    traits: ModelTraits,
    n_ctx: int,
    devices: list[Device],
    log: LlamaLog,
) -> Breakdown:
    """Measure what the model takes with a context of `n_ctx` tokens, in bytes, which is made and given back for it."""
    context = create_context(environment, model, build_context_params(environment.settings, traits, n_ctx), log)
    try:
        return read_breakdown(context, read_ctx(context, environment.settings, traits), devices)
    finally:
        llama.llama_free(context)


def fits_anything(settings: ModelSettings) -> bool:
    """Whether the settings leave fitting something to choose."""
    return settings.fit and (settings.ctx == 0 or settings.n_gpu_layers < 0)


def choose_smallest_ctx(settings: ModelSettings, n_ctx_train: int) -> int:
    """The smallest context that a load may end up with: the pinned one, or what fitting may go down to."""
    if settings.ctx:
        return settings.ctx
    bound = choose_ctx_bound(settings, n_ctx_train)
    if not settings.fit:
        return bound
    return min(settings.fit_ctx * settings.parallel, bound)


def choose_ctx_bound(settings: ModelSettings, n_ctx_train: int) -> int:
    """What automatic context goes up to. Rounded as contexts are, so that what is measured has it exactly."""
    bound = settings.ctx_max or max(AUTO_CTX_MAX, settings.fit_ctx * settings.parallel)
    return min(bound + -bound % ALIGN_TOKENS, n_ctx_train)


def choose_largest_ctx(measure: Callable[[int], Breakdown], smallest: int, largest: int, room: dict[str, int]) -> int:
    """The largest context of which the use stays within `room`, bytes by device; `smallest` if none does."""
    high = measure(largest)
    if largest <= smallest or _is_within(high, room):
        return max(largest, smallest)
    low = measure(smallest)
    # Nearly linear only: contexts shorter than a batch have smaller buffers. What was picked is measured, and if it is
    # too large it becomes the upper end.
    for _ in range(MAX_STEPS):
        n_ctx = interpolate_ctx(low, high, room)
        if n_ctx <= low.n_ctx:
            break
        high = measure(n_ctx)
        if _is_within(high, room):
            return n_ctx
    return low.n_ctx


def interpolate_ctx(low: Breakdown, high: Breakdown, room: dict[str, int]) -> int:
    """Between two measurements, as if memory were linear in the context, rounded down. Never less than `low.n_ctx`."""
    best = high.n_ctx
    for name, free in room.items():
        used_low, used_high = _sum_used(low, name), _sum_used(high, name)
        if used_high <= free:
            continue
        share = max(0, free - used_low) / (used_high - used_low) if used_high > used_low else 0.0
        best = min(best, low.n_ctx + int((high.n_ctx - low.n_ctx) * share))
    return max(low.n_ctx, best - best % ALIGN_TOKENS)


def _is_within(breakdown: Breakdown, room: dict[str, int]) -> bool:
    return all(_sum_used(breakdown, name) <= free for name, free in room.items())


def _sum_used(breakdown: Breakdown, name: str) -> int:
    if name == HOST:
        return sum_host_bytes(breakdown)
    return sum(row.used for row in breakdown.devices if row.kind is RowKind.DEVICE and row.name == name)
