"""What does a client of an event stream read that no instance has written?"""

import msgspec

from llamactl.endpoints import format_http_error, is_anthropics
from llamactl.errors import LlamactlError
from llamactl.event_stream import format_comment, format_event
from llamactl.protocol.control_socket import Progress
from llamactl.protocol.values import Stage

KEEP_ALIVE = format_comment("keep-alive")


def format_loading_comment(name: str, progress: Progress | None) -> bytes:
    """A comment of an event stream that says what the model is doing, for proxies and for people who watch."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    stage = progress.stage if progress is not None else Stage.WAITING
    text = f"{stage} {name}"
    if progress is not None and progress.fraction is not None:
        text += f" {progress.fraction * 100:.0f} %"
    if progress is not None and progress.waiting_for:
        text += f", after {', '.join(progress.waiting_for)}"
    return format_comment(text)


def format_stream_error(error: LlamactlError, mid_event: bool, path: bytes = b"") -> bytes:
    """The event that ends a stream which cannot go on. `mid_event`: what was sent last was no whole event."""
    payload = msgspec.json.encode(format_http_error(error, path))
    return (b"\n\n" if mid_event else b"") + format_event(payload, "error" if is_anthropics(path) else "")


def ends_with_error(tail: bytes) -> bool:
    """Whether the last event of a stream that has ended is an instance's error. `tail`: its last bytes."""
    last = tail[:-2].rpartition(b"\n\n")[2]
    return last.startswith(b"event: error\n")
