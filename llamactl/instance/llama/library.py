"""How is llama.cpp itself imported? As `llama`: the plain ctypes functions of `llama_cpp.llama_cpp`, and nothing else.

Importing the package runs its high-level API (numpy, templates, 0.2 s): the submodule is loaded below a package object
without that code. This is all that a process needs to begin loading a model, so nothing is imported here that it can
do without. `llama_cpp` is untyped to us, so `llama` is Any; what leaves this package's modules is typed again.
"""

import ctypes
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from typing import Any

# Where ggml aborts it would start a debugger on this process to print a backtrace: slow, and nothing for a sandboxed
# unit.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

# How often libgomp looks at a barrier before a thread sleeps; read once, when it is loaded. Its own 300,000 are
# milliseconds at each of a step's hundreds of barriers as soon as other programs have a share of the CPUs. A count
# would go before a policy, so where that was set there is none of ours.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


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

NO_LOG = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, llama.llama_log_callback)
"""For llama_log_set: a function in C that looks at none of its arguments. llama.cpp writes some thousand lines about a
model, and each one that Python hears of waits for its lock while other threads run.
"""
