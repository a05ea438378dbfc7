"""Which llama.cpp parameters do a model's settings mean? One answer for measuring and for serving.

What a model takes must not depend on who asks, so both roles build their parameters here and differ only in
`no_alloc`. That flag needs load mode NONE: with any other llama.cpp aborts the process. Contexts that generate are
built for one output per sequence and step: without `n_outputs_max` llama.cpp reserves logits for a whole batch,
hundreds of megabytes for a large vocabulary.
"""

import ctypes
from dataclasses import dataclass, field
from typing import Any

from llamactl.child.orders import ChildEnvironment
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.llama.bindings import load_extra
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.memory import names_device, read_device_name
from llamactl.instance.llama.processors import count_compute_threads
from llamactl.settings import ModelSettings, Switch

CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
"""ggml.h: enum ggml_type, those that a KV cache can have."""

POOLING_TYPES = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
POOLING_NAMES = {number: name for name, number in POOLING_TYPES.items()}
"""llama.h: enum llama_pooling_type."""

ALIGN_TOKENS = 256
"""llama.cpp rounds contexts up to this."""

FLASH_ATTN = {Switch.AUTO: -1, Switch.OFF: 0, Switch.ON: 1}
_POOLING_UNSPECIFIED = -1
_CPU_ONLY = ("none",)


@dataclass(frozen=True)
class ModelTraits:
    """What the parameters of a context depend on, read from the model file."""

    n_ctx_train: int
    n_swa: int = 0
    pooling: int | None = None
    """Pooling that the file names; None: it names none, the model generates text."""
    causal: bool = True
    recurrent: bool = False
    uses_mrope: bool = False
    """Whether positions have several parts, so that those of a picture are fewer than its embeddings."""

    @property
    def is_encoder(self) -> bool:
        """Whether each token attends to all others, so that an input must be computed in one piece."""
        return not self.causal

    @property
    def prefix_is_cuttable(self) -> bool:
        """Whether the memory of a sequence can be cut at any position."""
        return not self.recurrent and self.n_swa == 0


@dataclass
class ModelParams:
    """llama_model_params together with the arrays that it points to, which must live as long."""

    struct: Any
    devices: Any = None
    tensor_split: Any = None
    overrides: Any = None
    keep: list[Any] = field(default_factory=list)

    def copy_for(self, no_alloc: bool, mmap: bool) -> "ModelParams":
        """The same placement for a load of the other kind."""
        struct = type(self.struct)()
        ctypes.pointer(struct)[0] = self.struct
        _set_load_mode(struct, no_alloc, mmap)
        return ModelParams(struct, self.devices, self.tensor_split, self.overrides, self.keep)


def build_model_params(environment: ChildEnvironment, *, no_alloc: bool) -> ModelParams:
    """Raises LlamactlError for devices that do not exist."""
    settings = environment.settings
    struct = llama.llama_model_default_params()
    params = ModelParams(struct)
    struct.n_gpu_layers = settings.n_gpu_layers
    struct.use_extra_bufts = environment.extra_bufts
    _set_load_mode(struct, no_alloc, settings.mmap)
    if settings.devices:
        pointers = [] if settings.devices == _CPU_ONLY else [_find_device(name) for name in settings.devices]
        params.devices = (ctypes.c_void_p * (len(pointers) + 1))(*pointers, None)
        struct.devices = ctypes.cast(params.devices, ctypes.c_void_p)
    if settings.tensor_split:
        n_max = llama.llama_max_devices()
        params.tensor_split = (ctypes.c_float * n_max)(*settings.tensor_split[:n_max])
        struct.tensor_split = params.tensor_split
    return params


def build_context_params(settings: ModelSettings, traits: ModelTraits, n_ctx: int) -> Any:
    """`n_ctx` 0 leaves the choice to llama.cpp: what the model was trained for. Others are rounded up, as by llama.cpp
    itself, whose dry run would count batches of the smaller number.
    """
    struct = llama.llama_context_default_params()
    embeds = makes_embeddings(settings, traits)
    if embeds and traits.is_encoder:
        n_ctx = min(n_ctx, traits.n_ctx_train)
    struct.n_ctx = n_ctx + -n_ctx % ALIGN_TOKENS
    struct.n_seq_max = settings.parallel
    struct.kv_unified = True
    struct.swa_full = settings.swa_full
    struct.n_batch = settings.batch
    struct.n_ubatch = min(settings.ubatch, settings.batch)
    threads = settings.threads or count_compute_threads()
    struct.n_threads = struct.n_threads_batch = threads
    struct.flash_attn_type = FLASH_ATTN[settings.flash_attn]
    struct.type_k = _find_cache_type(settings.cache_type_k)
    struct.type_v = _find_cache_type(settings.cache_type_v)
    struct.no_perf = True
    struct.pooling_type = choose_pooling(settings)
    if embeds:
        struct.embeddings = True
        if traits.is_encoder:
            # An input must be one physical batch, so that is as large as the context. No larger: llama.cpp's dry run
            # counts no more, and what a decode takes beyond that nobody would be charged for.
            struct.n_ubatch = struct.n_batch = n_ctx or traits.n_ctx_train
    else:
        struct.n_outputs_max = settings.parallel
        struct.n_outputs_max_per_seq = 1
    return struct


def read_ctx(context: Any, settings: ModelSettings, traits: ModelTraits) -> int:
    """Tokens that one input or conversation may have. An encoder has no places for more than it was trained for, and
    llama.cpp ends the process over one that it does not have, or over an input that is longer than a physical batch
    where nothing is kept between batches.
    """
    n_ctx = int(llama.llama_n_ctx(context))
    if makes_embeddings(settings, traits):
        n_ctx = min(n_ctx, traits.n_ctx_train) if traits.is_encoder else n_ctx
        n_ctx = n_ctx if llama.llama_get_memory(context) else min(n_ctx, int(llama.llama_n_ubatch(context)))
    return n_ctx


def choose_pooling(settings: ModelSettings) -> int:
    """Choose llama.cpp's number for the configured pooling. Raises LlamactlError for a name that it lacks."""
    if not settings.pooling:
        return _POOLING_UNSPECIFIED
    if settings.pooling not in POOLING_TYPES:
        raise LlamactlError(
            ErrorCode.INVALID_CONFIG,
            f"cannot use pooling {settings.pooling!r}: unknown",
            hint="one of " + ", ".join(POOLING_TYPES),
            model=settings.name,
        )
    return POOLING_TYPES[settings.pooling]


def makes_embeddings(settings: ModelSettings, traits: ModelTraits) -> bool:
    """Whether the model is for embeddings: pooling is configured, or named by the file, or it is an encoder, from which
    llama.cpp makes no text whatever its file says: to ask it would end the process. Such a model generates no
    text here.
    """
    return bool(settings.pooling) or traits.pooling is not None or not traits.causal


def _find_cache_type(name: str) -> int:
    if name not in CACHE_TYPES:
        raise LlamactlError(
            ErrorCode.INVALID_CONFIG,
            f"cannot use cache type {name!r}: unknown",
            hint="one of " + ", ".join(CACHE_TYPES),
        )
    return CACHE_TYPES[name]


def _set_load_mode(struct: Any, no_alloc: bool, mmap: bool) -> None:
    struct.no_alloc = no_alloc
    use_mmap = mmap and not no_alloc and llama.llama_supports_mmap()
    struct.load_mode = llama.LLAMA_LOAD_MODE_MMAP if use_mmap else llama.LLAMA_LOAD_MODE_NONE


def _find_device(name: str) -> int:
    ggml = load_extra().ggml
    pointers = [ggml.ggml_backend_dev_get(index) for index in range(ggml.ggml_backend_dev_count())]
    for pointer in pointers:
        if names_device((name,), pointer):
            return int(pointer)
    known = ", ".join(read_device_name(pointer) for pointer in pointers)
    raise LlamactlError(ErrorCode.INVALID_CONFIG, f"cannot use device {name!r}: this llama.cpp has {known or 'none'}")
