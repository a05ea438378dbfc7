"""How does this package reach llama.cpp? Through `llama_cpp.llama_cpp`, its plain ctypes functions, and a few symbols
that these lack.

Importing the package itself runs its high-level API (numpy, templates, 0.2 s): the submodule is loaded below a
package object without that code. The symbols in `Extra` are C++ ones under mangled names and belong to no stable API:
each may be None and is checked by whoever uses it. `llama_cpp` is untyped to us, so `llama` is Any; what leaves this
package's modules is typed again.
"""

import ctypes
import importlib
import importlib.machinery
import importlib.util
import sys
import types
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

DISTRIBUTION = "llama-cpp-python"


def _import_without_package_code() -> Any:
    """The submodule `llama_cpp.llama_cpp`; an already imported package is used as it is."""
    if "llama_cpp" not in sys.modules:
        spec = importlib.util.find_spec("llama_cpp")
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError("llama_cpp is not installed", name="llama_cpp")
        package = types.ModuleType("llama_cpp")
        package.__path__ = list(spec.submodule_search_locations)
        package.__spec__ = importlib.machinery.ModuleSpec("llama_cpp", None, origin=spec.origin, is_package=True)
        sys.modules["llama_cpp"] = package
    return importlib.import_module("llama_cpp.llama_cpp")


llama: Any = _import_without_package_code()


def read_version() -> str:
    """Of llama-cpp-python, as pip knows it: the key under which measurements are kept."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""


class BreakdownNode(ctypes.Structure):
    """A node of std::map<ggml_backend_buffer_type_t, {model, context, compute}> as libstdc++ lays it out (stl_tree.h:
    _Rb_tree_node).
    """


BreakdownNodePointer = ctypes.POINTER(BreakdownNode)
BreakdownNode._fields_ = [
    ("color", ctypes.c_size_t),
    ("parent", BreakdownNodePointer),
    ("left", BreakdownNodePointer),
    ("right", BreakdownNodePointer),
    ("buffer_type", ctypes.c_void_p),
    ("model", ctypes.c_size_t),
    ("context", ctypes.c_size_t),
    ("compute", ctypes.c_size_t),
]


class BreakdownMap(ctypes.Structure):
    """std::map itself (stl_tree.h: _Rb_tree_impl): the comparator, the header node and the number of nodes."""

    _fields_ = (
        ("compare", ctypes.c_size_t),
        ("color", ctypes.c_size_t),
        ("root", BreakdownNodePointer),
        ("leftmost", BreakdownNodePointer),
        ("rightmost", BreakdownNodePointer),
        ("count", ctypes.c_size_t),
    )


class TensorBufferOverride(ctypes.Structure):
    """llama_model_tensor_buft_override: tensors that match the pattern go to that buffer type."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


@dataclass(frozen=True)
class Extra:
    """Functions that llama_cpp does not wrap. None: this build does not have it."""

    get_memory_breakdown: Any | None
    fit_params: Any | None
    ggml_base: Any
    ggml: Any


@cache
def load_extra() -> Extra:
    directory = Path(llama._base_path)
    ggml_base = ctypes.CDLL(str(directory / "libggml-base.so"))
    for name, result in (
        ("ggml_backend_buft_name", ctypes.c_char_p),
        ("ggml_backend_buft_get_device", ctypes.c_void_p),
        ("ggml_backend_buft_is_host", ctypes.c_bool),
        ("ggml_backend_dev_name", ctypes.c_char_p),
        ("ggml_backend_dev_description", ctypes.c_char_p),
        ("ggml_backend_dev_type", ctypes.c_int),
    ):
        function = getattr(ggml_base, name)
        function.argtypes, function.restype = [ctypes.c_void_p], result
    size_pointer = ctypes.POINTER(ctypes.c_size_t)
    ggml_base.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size_pointer, size_pointer]
    ggml_base.ggml_backend_dev_memory.restype = None

    ggml = ctypes.CDLL(str(directory / "libggml.so"))
    ggml.ggml_backend_dev_count.argtypes, ggml.ggml_backend_dev_count.restype = [], ctypes.c_size_t
    ggml.ggml_backend_dev_get.argtypes, ggml.ggml_backend_dev_get.restype = [ctypes.c_size_t], ctypes.c_void_p
    ggml.ggml_backend_dev_by_name.argtypes, ggml.ggml_backend_dev_by_name.restype = [ctypes.c_char_p], ctypes.c_void_p
    ggml.ggml_backend_register.argtypes, ggml.ggml_backend_register.restype = [ctypes.c_void_p], None

    breakdown = _find_symbol(llama._lib, "_Z26llama_get_memory_breakdownPK13llama_context")
    if breakdown is not None:
        breakdown.argtypes, breakdown.restype = [ctypes.c_void_p], BreakdownMap
    return Extra(get_memory_breakdown=breakdown, fit_params=_find_fit(directory), ggml_base=ggml_base, ggml=ggml)


def _find_fit(directory: Path) -> Any | None:
    """common_fit_params of llama.cpp's common library, which not every build ships."""
    try:
        common = ctypes.CDLL(str(directory / "libllama-common.so"))
    except OSError:
        return None
    fit = _find_symbol(
        common,
        "_Z17common_fit_paramsPKcP18llama_model_paramsP20llama_context_paramsPfP32llama_model_tensor_buft_override"
        "PmjPK22common_fit_extra_model14ggml_log_level",
    )
    if fit is not None:
        fit.argtypes = [
            ctypes.c_char_p,
            ctypes.POINTER(llama.llama_model_params),
            ctypes.POINTER(llama.llama_context_params),
            ctypes.POINTER(ctypes.c_float),
            ctypes.POINTER(TensorBufferOverride),
            ctypes.POINTER(ctypes.c_size_t),
            ctypes.c_uint32,
            ctypes.c_void_p,
            ctypes.c_int,
        ]
        fit.restype = ctypes.c_int
    return fit


def _find_symbol(library: Any, name: str) -> Any | None:
    try:
        return getattr(library, name)
    except AttributeError:
        return None


def register_rpc_servers(servers: tuple[str, ...]) -> None:
    """Adds the devices behind llama.cpp RPC servers ("host:port"). Before llama_backend_init. Raises OSError where
    this build has no RPC.
    """
    if not servers:
        return
    rpc = ctypes.CDLL(str(Path(llama._base_path) / "libggml-rpc.so"))
    rpc.ggml_backend_rpc_add_server.argtypes, rpc.ggml_backend_rpc_add_server.restype = (
        [ctypes.c_char_p],
        ctypes.c_void_p,
    )
    for server in servers:
        registry = rpc.ggml_backend_rpc_add_server(server.encode())
        if not registry:
            raise OSError(f"cannot use RPC server {server!r}: no answer")
        load_extra().ggml.ggml_backend_register(registry)
