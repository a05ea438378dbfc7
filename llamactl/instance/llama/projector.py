"""How do pictures and sounds become what a language model reads? By libmtmd, with the projector that belongs to the
model.

A prompt is cut into chunks: tokens of text, and embeddings in their place for what is seen or heard. Reading files,
cutting prompts and counting embeddings is safe on any thread; encoding is not, and takes long: one at a time. Bytes
come here only when their magic number and size were looked at: for what libmtmd knows no decoder for, it would start
ffprobe.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from llamactl.child.orders import ChildEnvironment
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.llama.bindings import BreakdownMap, find_symbol
from llamactl.instance.llama.library import NO_LOG, llama
from llamactl.instance.llama.log import LlamaLog
from llamactl.instance.llama.memory import Device, Extent, acquire_devices
from llamactl.instance.llama.model import LoadedModel
from llamactl.instance.llama.params import FLASH_ATTN
from llamactl.instance.llama.processors import count_compute_threads

_MROPE_SECTIONS = 4
_NO_PROGRAMS = b"/dev/null/none"
"""Where libmtmd looks for ffprobe, which it tries on pictures that are damaged."""
_MEMORY_USAGE = "_Z21mtmd_get_memory_usagePKc19mtmd_context_params"


class MediaError(ValueError):
    """Bytes that cannot be read, or that this projector cannot use. The text says why."""


def load_library() -> Any:
    """`llama_cpp.mtmd_cpp`, which is imported for models with a projector alone."""
    import llama_cpp.mtmd_cpp as mtmd

    return mtmd


# --- before it is loaded ----------------------------------------------------------------------------------------------


def read_modalities(path: str) -> tuple[str, ...]:
    """What requests to a model with this projector may carry; only the file's head is read."""
    if not path:
        return ("text",)
    caps = load_library().mtmd_get_cap_from_file(os.fsencode(path))
    return ("text", *(["image"] if caps.inp_vision else []), *(["audio"] if caps.inp_audio else []))


def measure_projector(environment: ChildEnvironment, devices: Sequence[Device], log: LlamaLog) -> Extent | None:
    """What the model's projector takes beside the model; None: it has none. Raises LlamactlError with the reason why
    it cannot be loaded.

    Counted on the CPU, where nothing is touched, also for one that goes to a device: libmtmd would allocate it there
    to count it, and end the process where there is no room.
    """
    path = environment.settings.mmproj
    if not path:
        return None
    mtmd = load_library()
    measure = find_symbol(mtmd._libmtmd, _MEMORY_USAGE)
    if measure is None:
        raise RuntimeError("this llama.cpp does not tell what a projector takes")
    measure.argtypes, measure.restype = [ctypes.c_char_p, mtmd.mtmd_context_params], BreakdownMap
    device = choose_device(environment, devices)

    def sum_bytes(*, warmup: bool) -> int:
        params = _build_params(environment, None)
        params.warmup = warmup
        tree = measure(os.fsencode(path), params)
        return sum(node.model for node in _walk(tree))

    with _heard(mtmd, log):
        n_weights = sum_bytes(warmup=False)
        if not n_weights:
            raise _explain_failure(environment, log)
        return Extent(device.name if device is not None else "", n_weights, sum_bytes(warmup=True) - n_weights)


def choose_device(environment: ChildEnvironment, devices: Sequence[Device]) -> Device | None:
    """Where a projector goes: to the first of the model's devices, unless no layer may go there. None: the CPU."""
    if environment.settings.n_gpu_layers == 0 or not devices:
        return None
    return devices[0]


# --- loading ----------------------------------------------------------------------------------------------------------


def load_projector(
    environment: ChildEnvironment, model: LoadedModel, log: LlamaLog, on_progress: Callable[[float], bool]
) -> "Projector | None":
    """None: the model has none. Raises LlamactlError with libmtmd's reason. `on_progress` as for models."""
    path = environment.settings.mmproj
    if not path:
        return None
    mtmd = load_library()
    params = _build_params(environment, choose_device(environment, acquire_devices(environment.settings.devices)))
    callback = mtmd.mtmd_progress_callback(lambda fraction, _data: on_progress(fraction))
    params.progress_callback = callback
    with _heard(mtmd, log):
        pointer = mtmd.mtmd_init_from_file(os.fsencode(path), model.pointer, params)
        if not pointer:
            raise _explain_failure(environment, log)
    return Projector(pointer, int(llama.llama_model_n_embd_inp(model.pointer)), log)


def _build_params(environment: ChildEnvironment, device: Device | None) -> Any:
    settings = environment.settings
    params = load_library().mtmd_context_params_default()
    params.use_gpu = device is not None
    params.device = device.pointer if device is not None else None
    params.print_timings = False
    params.n_threads = settings.threads or count_compute_threads()
    params.flash_attn_type = FLASH_ATTN[settings.flash_attn]
    params.warmup = True
    return params


@contextmanager
def _heard(mtmd: Any, log: LlamaLog) -> Iterator[None]:
    """The log hears what libmtmd says, from here on and for as long as the process lives."""
    log.forget()
    mtmd.mtmd_helper_log_set(log.callback, None)
    yield


def _explain_failure(environment: ChildEnvironment, log: LlamaLog) -> LlamactlError:
    reason, *_ = (log.explain() or "llama.cpp gives no reason").removeprefix("error: ").splitlines()
    return LlamactlError(
        ErrorCode.LOAD_FAILED,
        f"cannot load projector {environment.settings.mmproj}: {reason}",
        hint="set `mmproj` to the projector that was made for this model, or to an empty text",
        model=environment.model,
    )


def _walk(tree: Any) -> list[Any]:
    """Of std::map<ggml_backend_dev_t, size_t>, whose nodes begin as those of a breakdown do: the number stands where
    these have `model`.
    """

    def visit(node: Any) -> Iterator[Any]:
        if node:
            yield from visit(node.contents.left)
            yield node.contents
            yield from visit(node.contents.right)

    nodes = list(visit(tree.root))
    if len(nodes) != tree.count:
        raise RuntimeError(f"a projector's memory is unreadable: {len(nodes)} of {tree.count} entries found")
    return nodes


# --- loaded -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MediaShape:
    """How large something decoded is, which is all that decides how many embeddings it becomes."""

    width: int = 0
    height: int = 0
    n_samples: int = 0
    """Of a sound; 0: it is a picture."""


class Bitmap:
    """A decoded picture or sound, or a placeholder of its size."""

    def __init__(self, pointer: Any) -> None:
        self._free = load_library().mtmd_bitmap_free  # modules may be gone when the last object goes
        self.pointer = pointer

    def __del__(self) -> None:
        self.close()

    @property
    def n_bytes(self) -> int:
        return int(load_library().mtmd_bitmap_get_n_bytes(self.pointer))

    @property
    def shape(self) -> MediaShape:
        mtmd = load_library()
        if mtmd.mtmd_bitmap_is_audio(self.pointer):
            return MediaShape(n_samples=int(mtmd.mtmd_bitmap_get_nx(self.pointer)))
        return MediaShape(int(mtmd.mtmd_bitmap_get_nx(self.pointer)), int(mtmd.mtmd_bitmap_get_ny(self.pointer)))

    def close(self) -> None:
        """Free it, if that has not been done."""
        if self.pointer:
            self._free(self.pointer)
            self.pointer = None


class MediaChunk:
    """Embeddings that stand in a prompt for (a part of) a picture or sound. Owns libmtmd's chunk."""

    def __init__(self, pointer: Any, item: int) -> None:
        """`item`: of the prompt's pictures and sounds the one that it belongs to."""
        mtmd = load_library()
        self._free = mtmd.mtmd_input_chunk_free  # modules may be gone when the last object goes
        self.pointer = mtmd.mtmd_input_chunk_copy(pointer)
        self.item = item
        self.n_tokens = int(mtmd.mtmd_input_chunk_get_n_tokens(pointer))
        self.n_positions = int(mtmd.mtmd_input_chunk_get_n_pos(pointer))

    def __del__(self) -> None:
        if self.pointer:
            self._free(self.pointer)
            self.pointer = None


class Projector:
    """A loaded one. `close` it before its model, when nothing uses it."""

    def __init__(self, pointer: Any, n_embd: int, log: LlamaLog) -> None:
        """`n_embd`: numbers in each embedding."""
        mtmd = self._mtmd = load_library()
        self.pointer = pointer
        self.n_embd = n_embd
        self._log = log
        self.sees: bool = mtmd.mtmd_support_vision(pointer)
        self.hears: bool = mtmd.mtmd_support_audio(pointer)
        self.uses_mrope: bool = mtmd.mtmd_decode_use_mrope(pointer)

    @property
    def modalities(self) -> tuple[str, ...]:
        """What the model takes with it, in OpenAI's words: `text`, `image`, `audio`."""
        return ("text", *(["image"] if self.sees else []), *(["audio"] if self.hears else []))

    def close(self) -> None:
        """Free it, if that has not been done; nothing may be encoded meanwhile."""
        if self.pointer:
            self._mtmd.mtmd_free(self.pointer)
            self.pointer = None

    def decode(self, data: bytes) -> Bitmap:
        """Raises MediaError. Only for bytes that begin as a file of a known kind."""
        options = self._mtmd.mtmd_helper_init_opt_default()
        options.video_params.ffmpeg_bin_dir = _NO_PROGRAMS
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        self._mtmd.mtmd_helper_log_set(NO_LOG, None)  # of what it tried last, which is no reason
        found = self._mtmd.mtmd_helper_bitmap_init_from_buf_wrapper(self.pointer, buffer, len(data), False, options)
        self._mtmd.mtmd_helper_log_set(self._log.callback, None)
        if found.video_ctx:  # never: a decoder for its kind exists, or it would not have come here
            self._mtmd.mtmd_helper_video_free(found.video_ctx)
        if not found.bitmap:
            raise MediaError("it is damaged, or of a kind that its decoder does not know")
        return Bitmap(found.bitmap)

    def make_placeholder(self, shape: MediaShape) -> Bitmap:
        """Becomes the same chunks as what has this shape, without anything in them."""
        if shape.n_samples:
            return Bitmap(self._mtmd.mtmd_bitmap_init_from_audio(shape.n_samples, None))
        return Bitmap(self._mtmd.mtmd_bitmap_init(shape.width, shape.height, None))

    def cut_prompt(self, parts: Sequence[str | Bitmap]) -> list[list[int] | MediaChunk]:
        """Tokens and chunks in the order in which the model reads them. Raises MediaError for what cannot become
        embeddings.
        """
        mtmd = self._mtmd
        with ExitStack() as stack:
            built, n_items = (mtmd.mtmd_input_part * len(parts))(), 0
            keep = []
            for part, entry in zip(parts, built, strict=True):
                if isinstance(part, Bitmap):
                    mtmd.mtmd_bitmap_set_id(part.pointer, str(n_items).encode())
                    entry.bitmap = part.pointer
                    n_items += 1
                else:
                    data = part.encode("utf-8", "replace")
                    text = mtmd.mtmd_input_text(data, len(data), False, True)
                    keep.append(text)
                    entry.text = ctypes.pointer(text)
            pointers = (ctypes.POINTER(mtmd.mtmd_input_part) * len(parts))(*map(ctypes.pointer, built))
            chunks = mtmd.mtmd_input_chunks_init()
            stack.callback(mtmd.mtmd_input_chunks_free, chunks)
            self._log.forget()
            status = mtmd.mtmd_tokenize_from_parts(self.pointer, chunks, pointers, len(parts), True)
            if status != 0:
                raise MediaError(self._log.explain() or "the projector cannot use it")
            n_chunks = mtmd.mtmd_input_chunks_size(chunks)
            return [self._read_chunk(mtmd.mtmd_input_chunks_get(chunks, index)) for index in range(n_chunks)]

    def _read_chunk(self, pointer: Any) -> list[int] | MediaChunk:
        mtmd = self._mtmd
        if mtmd.mtmd_input_chunk_get_type(pointer) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            count = ctypes.c_size_t()
            tokens = mtmd.mtmd_input_chunk_get_tokens_text(pointer, ctypes.byref(count))
            return list(tokens[: count.value])
        return MediaChunk(pointer, int(mtmd.mtmd_input_chunk_get_id(pointer)))

    def encode(self, chunk: MediaChunk) -> Any:
        """The embeddings, as an array of floats. Raises MediaError. One at a time, on any thread."""
        self._log.forget()
        if self._mtmd.mtmd_encode_chunk(self.pointer, chunk.pointer) != 0:
            raise MediaError(self._log.explain() or "encoding it failed")
        size = chunk.n_tokens * self.n_embd
        embeddings = (ctypes.c_float * size)()
        ctypes.memmove(embeddings, self._mtmd.mtmd_get_output_embd(self.pointer), ctypes.sizeof(embeddings))
        return embeddings

    def list_positions(self, chunk: MediaChunk, start: int) -> list[list[int]]:
        """Where its embeddings stand when it begins at `start`: one list, or with M-RoPE one for each section."""
        mtmd = self._mtmd
        plain = list(range(start, start + chunk.n_tokens))
        if not self.uses_mrope:
            return [plain]
        tokens = mtmd.mtmd_input_chunk_get_tokens_image(chunk.pointer)
        if not tokens:
            return [plain] * _MROPE_SECTIONS
        places = (mtmd.mtmd_decoder_pos * chunk.n_tokens)()
        mtmd.mtmd_helper_image_get_decoder_pos(tokens, start, places)
        return [[getattr(place, axis) for place in places] for axis in ("t", "y", "x", "z")]

    def is_noncausal(self, chunk: MediaChunk) -> bool:
        """Whether each of its embeddings attends to all others of them, so that they must be decoded together."""
        return bool(self._mtmd.mtmd_decode_use_non_causal(self.pointer, chunk.pointer))
