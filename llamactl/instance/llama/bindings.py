"""What of llama.cpp does this package use that `llama_cpp` does not wrap?

The symbols in `Extra` are C++ ones under mangled names and belong to no stable API: each may be None and is checked by
whoever uses it.
"""

import ctypes
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llamactl.instance.llama.copies import needs_only_what_is_here
from llamactl.instance.llama.library import llama

DISTRIBUTION = "llama-cpp-python"
RPC_TIMEOUT_S = 5.0
RPC_ANSWER_S = 2.0
_rpc_servers: set[str] = set()


def read_version() -> str:
    """Of llama-cpp-python, as pip knows it: the key under which measurements are kept."""
    # The directory's name says it; importlib.metadata, which parses e-mail to read it, would cost a tenth of a start.
    stem = DISTRIBUTION.replace("-", "_")
    for directory in Path(llama.__file__).parents[1].glob(f"{stem}-*.dist-info"):
        return directory.name.removeprefix(f"{stem}-").removesuffix(".dist-info")
    from importlib import metadata

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


class DeviceProps(ctypes.Structure):
    """ggml-backend.h: ggml_backend_dev_props."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("caps", ctypes.c_bool * 4),
    )


class TensorBufferOverride(ctypes.Structure):
    """llama_model_tensor_buft_override: tensors that match the pattern go to that buffer type."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


@dataclass(frozen=True)
class Extra:
    """Functions that llama_cpp does not wrap. None: this build does not have it."""

    ggml: Any
    get_memory_breakdown: Any | None
    model_n_devices: Any | None
    model_get_device: Any | None
    fit_params: Any | None
    add_rpc_server: Any | None


@cache
def load_extra() -> Extra:
    """Look up the functions that the Python binding lacks; those that this llama.cpp lacks, too, are None."""
    # ggml is looked up through libllama, which depends on it. Opened by its path it could be a second copy, with no
    # devices:
    # wheels hold libggml.so and libggml.so.0 as two files.
    ggml = llama._lib
    for name, result in (
        ("ggml_backend_buft_name", ctypes.c_char_p),
        ("ggml_backend_buft_get_device", ctypes.c_void_p),
        ("ggml_backend_buft_is_host", ctypes.c_bool),
        ("ggml_backend_dev_name", ctypes.c_char_p),
        ("ggml_backend_dev_description", ctypes.c_char_p),
        ("ggml_backend_dev_type", ctypes.c_int),
        ("ggml_backend_dev_buffer_type", ctypes.c_void_p),
        ("ggml_backend_dev_backend_reg", ctypes.c_void_p),
        ("ggml_backend_reg_name", ctypes.c_char_p),
        ("ggml_backend_register", None),
    ):
        function = getattr(ggml, name)
        function.argtypes, function.restype = [ctypes.c_void_p], result
    size_pointer = ctypes.POINTER(ctypes.c_size_t)
    ggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size_pointer, size_pointer]
    ggml.ggml_backend_dev_memory.restype = None
    ggml.ggml_backend_dev_get_props.argtypes = [ctypes.c_void_p, ctypes.POINTER(DeviceProps)]
    ggml.ggml_backend_dev_get_props.restype = None
    ggml.ggml_backend_dev_count.argtypes, ggml.ggml_backend_dev_count.restype = [], ctypes.c_size_t
    ggml.ggml_backend_dev_get.argtypes, ggml.ggml_backend_dev_get.restype = [ctypes.c_size_t], ctypes.c_void_p
    ggml.ggml_backend_dev_by_name.argtypes, ggml.ggml_backend_dev_by_name.restype = [ctypes.c_char_p], ctypes.c_void_p

    breakdown = find_symbol(ggml, "_Z26llama_get_memory_breakdownPK13llama_context")
    if breakdown is not None:
        breakdown.argtypes, breakdown.restype = [ctypes.c_void_p], BreakdownMap
    n_devices = find_symbol(ggml, "_Z21llama_model_n_devicesPK11llama_model")
    get_device = find_symbol(ggml, "_Z22llama_model_get_devicePK11llama_modeli")
    if n_devices is not None and get_device is not None:
        n_devices.argtypes, n_devices.restype = [ctypes.c_void_p], ctypes.c_int32
        get_device.argtypes, get_device.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_void_p
    add_rpc_server = find_symbol(ggml, "ggml_backend_rpc_add_server")
    if add_rpc_server is not None:
        add_rpc_server.argtypes, add_rpc_server.restype = [ctypes.c_char_p], ctypes.c_void_p
    return Extra(
        ggml=ggml,
        get_memory_breakdown=breakdown,
        model_n_devices=n_devices,
        model_get_device=get_device,
        fit_params=_find_fit(Path(llama._base_path)),
        add_rpc_server=add_rpc_server,
    )


def _find_fit(directory: Path) -> Any | None:
    """common_fit_params of llama.cpp's common library."""
    fit = _find_common(
        directory,
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


def _find_common(directory: Path, name: str) -> Any | None:
    """A function of llama.cpp's common library, which not every build ships, and wheels only outside of the package."""
    for path in (directory / "libllama-common.so", directory.parents[1] / "lib" / "libllama-common.so"):
        # The libllama that it needs must be the one that is loaded, which the linker knows by its SONAME: in repaired
        # wheels it has another one.
        if not path.exists() or not needs_only_what_is_here(path):
            continue
        try:
            common = ctypes.CDLL(str(path))
        except OSError:
            continue
        function = find_symbol(common, name)
        if function is not None:
            return function
    return None


@cache
def read_build() -> str:
    """llama.cpp's build as llama-server says it: `b`, a number, `-`, a commit. 0 where the library does not tell."""
    tell = _find_common(Path(llama._base_path), "_Z16llama_build_infov")
    if tell is None:
        return f"b0-{read_version() or 'unknown'}"
    tell.argtypes, tell.restype = [], ctypes.c_char_p
    return str(tell().decode(errors="replace"))


def find_symbol(library: Any, name: str) -> Any | None:
    """A function of a library; None: this build does not have it."""
    try:
        return getattr(library, name)
    except AttributeError:
        return None


class ServerBusy(OSError):
    """An RPC server listens and does not answer: it serves one client at a time."""


def register_rpc_servers(servers: tuple[str, ...]) -> None:
    """Adds the devices behind llama.cpp RPC servers ("host:port"). Before llama_backend_init. Raises OSError where
    this build has no RPC, or a server cannot be used.
    """
    servers = tuple(server for server in servers if server not in _rpc_servers)  # a model that wakes has them already
    if not servers:
        return
    extra = load_extra()
    if extra.add_rpc_server is None:
        raise OSError("cannot use RPC servers: this llama.cpp is built without RPC")
    for server in servers:
        probe_rpc_server(server)
        registry = extra.add_rpc_server(server.encode())
        if not registry:
            raise OSError(f"cannot use RPC server {server!r}: no answer")
        extra.ggml.ggml_backend_register(registry)
        _rpc_servers.add(server)


def probe_rpc_server(server: str) -> None:
    """Raises OSError unless a client would be served now. llama.cpp aborts the process when nobody listens, and waits
    for ever while the server has another client. One that is free ends a connection that begins with nonsense.
    """
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), RPC_TIMEOUT_S) as connection:
            connection.settimeout(RPC_ANSWER_S)
            connection.sendall(b"\xff")
            connection.recv(1)
    except TimeoutError:
        raise ServerBusy(f"cannot use RPC server {server!r}: no answer; it serves one client at a time") from None
    except ConnectionResetError:
        return  # that is an end too
    except (OSError, ValueError, OverflowError) as error:
        raise OSError(f"cannot use RPC server {server!r}: {error}") from None
