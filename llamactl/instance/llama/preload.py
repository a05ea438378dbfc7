"""What can be done for a model before this process has read its orders?

Python needs as long to import the rest of this package as llama.cpp to load a small model, and the one does not need
the other: so the file begins to load as most models are loaded, mapped and on the CPU alone, as soon as llama.cpp is
there. Once the orders are read, whoever loads takes what has come of it if it is what he would have done himself.
Nothing is imported here that could wait. Only files that are in the page cache, and so small that nobody would want to
hear of progress, or be able to call it off in time.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from llamactl.child import variables
from llamactl.instance.llama.library import NO_LOG, llama
from llamactl.instance.llama.thread import ComputeThread

QUICK_BYTES = 512 << 20
_UNUSUAL = ("devices", "draft", "mmap", "mmproj", "n_gpu_layers", "repack", "rpc", "tensor_split")
"""Settings with which the load could be another one."""


class Preload:
    """One load, on `thread`."""

    def __init__(self, path: str, extra_bufts: bool) -> None:
        self.thread = ComputeThread()
        self._path = path
        self._params = llama.llama_model_default_params()
        self._params.use_extra_bufts = extra_bufts
        self._params.load_mode = llama.LLAMA_LOAD_MODE_MMAP
        self._pointer: Any = None
        self.thread.run(self._load)

    def pop_model(self, path: str, params: Any) -> Any | None:
        """On its thread: the llama_model, which is the caller's now. None: the load has failed, or is not what `params`
        mean.
        """
        pointer, self._pointer = self._pointer, None
        if pointer and not (path == self._path and _mean_the_same(params, self._params)):
            llama.llama_model_free(pointer)
            return None
        return pointer

    def _load(self) -> None:
        llama.llama_log_set(NO_LOG, None)
        llama.llama_backend_init()
        if llama._lib.ggml_backend_dev_count() == 1:  # the CPU
            self._pointer = llama.llama_model_load_from_file(os.fsencode(self._path), self._params)


def begin_preload(environ: Mapping[str, str]) -> Preload | None:
    """None: the model is not one of the usual kind, or its orders make no sense, which others tell."""
    try:
        spec = json.loads(environ.get(variables.SPEC, ""))
        files = spec.get("files") or [spec["path"]]
        is_usual = not any(name in spec for name in _UNUSUAL)
        if is_usual and environ.get(variables.LLAMA_LOG) != "debug" and _is_small_and_cached(files):
            return Preload(spec["path"], environ.get(variables.EXTRA_BUFTS) != "0")
    except (AttributeError, KeyError, OSError, TypeError, ValueError):
        pass
    return None


def _is_small_and_cached(files: Sequence[str]) -> bool:
    """Whether loading these takes no time worth telling. Raises OSError for one that cannot be read."""
    return sum(os.stat(name).st_size for name in files) <= QUICK_BYTES and all(map(_has_cached_ends, files))


def is_cached(descriptor: int, offset: int, probe: bytearray) -> bool:
    """Whether a byte of the file can be had without waiting for the disk (preadv2(2), RWF_NOWAIT)."""
    try:
        return os.preadv(descriptor, [probe], offset, os.RWF_NOWAIT) == 1
    except OSError:
        return False


def _has_cached_ends(name: str) -> bool:
    """The middle counts, too."""
    probe = bytearray(1)
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        return all(is_cached(descriptor, offset, probe) for offset in (0, size // 2, max(size - 1, 0)))
    finally:
        os.close(descriptor)


def _mean_the_same(first: Any, second: Any) -> bool:
    names = ("n_gpu_layers", "split_mode", "load_mode", "main_gpu", "check_tensors", "use_extra_bufts", "no_alloc")
    return not first.devices and all(getattr(first, name) == getattr(second, name) for name in names)
