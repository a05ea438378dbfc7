"""Does llama.cpp's interpreter come to an end with this template? Tried once, in a process of its own with limits,
before a model is loaded: templates are strangers' programs, the interpreter has no bounds, and a recursion without end
would end the instance.

    python -m llamactl.instance.chat.trial < {"source", "tool_use_source", "bos", "eos"}

Conversations are written as requests would have them: plain, and with functions, a call and its result. However they
come out, and also where the template refuses them: what counts is that it ends.
"""

import json
import resource
import subprocess
import sys
from typing import Any

import msgspec

from llamactl.errors import LlamactlError
from llamactl.instance.chat.capabilities import TOOLS, make_history
from llamactl.instance.chat.layer import ApplyRequest, ChatLayer

MAX_SECONDS = 10
"""Of one CPU. The slowest of llama.cpp's own collection takes a fifth of a second."""
MAX_BYTES = 4 << 30
"""Of memory of its own."""
WAIT_S = 60
"""For those seconds, on a machine that has much else to do."""
_SIGNALS = {6: "it makes the interpreter give up", 11: "it recurses without end", 24: f"it takes over {MAX_SECONDS} s"}


class Tried(msgspec.Struct, frozen=True):
    """Of one model's file and configuration."""

    source: str
    tool_use_source: str = ""
    bos: str = ""
    eos: str = ""


def find_excess(tried: Tried) -> str:
    """What the template does without end; empty: nothing."""
    command = [sys.executable, "-P", "-m", "llamactl.instance.chat.trial"]
    try:
        done = subprocess.run(
            command, input=msgspec.json.encode(tried), capture_output=True, timeout=WAIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it takes over {WAIT_S} s"
    if done.returncode < 0:
        number = -done.returncode
        return _SIGNALS.get(number, f"it ends the interpreter by signal {number}")
    return "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip().rpartition("\n")[2]


def run_trial(tried: Tried) -> str:
    """In this process. The reason where memory runs out; raises nothing, but may not come back."""
    layer = ChatLayer()
    for source in filter(None, (tried.source, tried.tool_use_source)):
        try:
            template = layer.open_template(source, None, tried.bos, tried.eos)
        except LlamactlError:
            continue  # it is no template: whoever opens it says so
        for request in _list_requests():
            try:
                template.apply(request)
            except LlamactlError:
                continue
            except MemoryError:
                return f"it takes over {MAX_BYTES >> 30} GiB"
    return ""


def _list_requests() -> list[ApplyRequest]:
    user: dict[str, Any] = {"role": "user", "content": "Hello"}
    system = {"role": "system", "content": "Be brief."}
    answer = {"role": "assistant", "content": "Hi.", "reasoning_content": "A greeting."}
    history = make_history(json.dumps({"arg": "value"}))
    return [
        ApplyRequest(messages=[user]),
        ApplyRequest(messages=[system, user, answer, user], enable_thinking=False),
        ApplyRequest(messages=[user], tools=TOOLS),
        ApplyRequest(messages=[system, *history], tools=TOOLS),
    ]


def main() -> int:
    """Try the template on standard input within bounds of time and memory; returns the exit status."""
    tried = msgspec.json.decode(sys.stdin.buffer.read(), type=Tried)
    try:
        ChatLayer()  # what loading it takes is not the template's
    except LlamactlError:
        return 0  # without it templates run in bounds
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
    fault = run_trial(tried)
    if fault:
        print(fault, file=sys.stderr)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
