"""A device for tests on machines without one: llama.cpp's RPC backend on loopback, computing on the CPU. `python
-u rpc_server.py HOST:PORT`.

It never returns. It says where it listens right before it does; `-u` takes the buffer off C's standard output too.
"""

import ctypes
import importlib.util
import sys
from pathlib import Path


def main(endpoint: str) -> None:
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.submodule_search_locations
    directory = Path(spec.submodule_search_locations[0]) / "lib"
    ggml = ctypes.CDLL(str(directory / "libggml.so"))
    rpc = ctypes.CDLL(str(directory / "libggml-rpc.so"))
    ggml.ggml_backend_dev_by_name.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_by_name.argtypes = [ctypes.c_char_p]
    devices = (ctypes.c_void_p * 1)(ggml.ggml_backend_dev_by_name(b"CPU"))
    rpc.ggml_backend_rpc_start_server.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]
    rpc.ggml_backend_rpc_start_server(endpoint.encode(), None, 1, 1, devices)


if __name__ == "__main__":
    main(sys.argv[1])
