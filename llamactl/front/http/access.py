"""What happened to one request? The record that metrics and the access log are made from.

Made when a request's head has been read and finished when its answer has ended, however it ended. Everything on the
way is plain stores: a record must cost next to nothing beside the request. Tokens are what the answer's own `usage`
(or llama-server's `timings`) says, looked for in the last bytes of a body once it is complete; nothing is decoded on
the way. `"usage"` inside a generated text cannot be mistaken for it: JSON escapes the quotes there.
"""

import itertools
import os
import re

from llamactl.front.http.wire import RequestHead

TAIL_BYTES = 4096
"""How much of an answer's end is kept for the search."""

MAX_REQUEST_ID_BYTES = 128
STATUS_CLIENT_GONE = 499
"""What nginx logs, too, for a client that left before it had an answer."""

_REQUEST_ID = re.compile(rb"[!-~]{1,%d}" % MAX_REQUEST_ID_BYTES)
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})')
_APART = re.compile(rb'"cache_(?:read|creation)_input_tokens"\s*:\s*(\d{1,12})')
"""Of Anthropic's usage: tokens of the prompt that its `input_tokens` leaves out."""
_COMPLETION = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,12})')
_CACHE_N = re.compile(rb'"cache_n"\s*:\s*(\d{1,12})')
_PROMPT_N = re.compile(rb'"prompt_n"\s*:\s*(\d{1,12})')
_PREDICTED_N = re.compile(rb'"predicted_n"\s*:\s*(\d{1,12})')

_process = os.urandom(6).hex().encode()
_numbers = itertools.count(1)


def choose_request_id(head: RequestHead | None) -> bytes:
    """The client's own X-Request-Id where it has a usable one, else a new one."""
    if head is not None:
        taken = head.cache.get("request id")
        if taken is None:
            taken = head.find(b"x-request-id") or b""
            taken = head.cache["request id"] = taken if _REQUEST_ID.fullmatch(taken) else b""
        if taken:
            return taken
    return b"%b-%x" % (_process, next(_numbers))


class RequestRecord:
    """One request. Times are seconds of CLOCK_MONOTONIC; `first_byte_s`, `waited_s`: since its start, and together.
    Nothing changes it once it has ended.
    """

    # Defaults of the class, not stores in every object: most requests never touch most of these.
    model = ""
    """Its own name, once a lease says it; empty for requests that the front answers."""
    status = 0
    """0: nothing was answered."""
    queued_s = 0.0
    """Since when it waits for a lease; 0: it does not."""
    waited_s = 0.0
    first_byte_s = 0.0
    received_bytes = 0
    sent_bytes = 0
    prompt_tokens = 0
    completion_tokens = 0
    ended_s = 0.0
    """0: it has not."""
    is_cut = False
    """The answer did not end as it should have."""

    def __init__(self, method: bytes, path: bytes, request_id: bytes, cors: bytes, now_s: float) -> None:
        self.method = method
        self.path = path
        self.request_id = request_id
        self.id_line = id_line = b"X-Request-Id: %b\r\n" % request_id
        self.added = id_line + cors if cors else id_line
        """Header lines that every answer to this request gets."""
        self.began_s = now_s

    def parse_usage(self, tail: bytes) -> None:
        """Read the tokens from the last bytes of a body that is complete."""
        at = tail.rfind(b'"usage"')
        if at >= 0:
            apart = sum(int(n_tokens) for n_tokens in _APART.findall(tail, at))
            self.prompt_tokens = _read_number(_PROMPT, tail, at) + apart
            self.completion_tokens = _read_number(_COMPLETION, tail, at)
        if not self.prompt_tokens and not self.completion_tokens:
            at = tail.rfind(b'"timings"')
            if at >= 0:
                # Timings count what was computed, usage the whole prompt: what the cache had belongs to it.
                self.prompt_tokens = _read_number(_CACHE_N, tail, at) + _read_number(_PROMPT_N, tail, at)
                self.completion_tokens = _read_number(_PREDICTED_N, tail, at)

    def end_wait(self, now_s: float) -> None:
        """Add the time since the request was queued to its waiting; nothing for one that does not wait."""
        if self.queued_s:
            self.waited_s += now_s - self.queued_s
            self.queued_s = 0.0


def _read_number(pattern: re.Pattern[bytes], text: bytes, start: int) -> int:
    found = pattern.search(text, start)
    return int(found[1]) if found else 0
