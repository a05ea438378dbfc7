"""What came of each thing that a program did with a client? One JSON object: a case's result, or why it failed."""

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

URL = sys.argv[1]
LONG = "hello world " * 3000
RESULTS = {"get_weather": "18 degrees", "get_time": "noon"}
_cases: dict[str, Callable[[], Any]] = {}


def case(use: Callable[[], Any]) -> Callable[[], Any]:
    _cases[use.__name__] = use
    return use


def find_refusal(use: Callable[[], Any]) -> dict[str, Any]:
    """The error that `use` ends with."""
    try:
        use()
    except Exception as error:
        return {"name": type(error).__name__, "status": getattr(error, "status_code", None), "message": str(error)}
    raise AssertionError("nothing was refused")


def run() -> None:
    results = {}
    for name in sys.argv[2:] or _cases:
        try:
            results[name] = _cases[name]()
        except Exception:
            results[name] = {"failed": traceback.format_exc()}
    print(json.dumps(results))
