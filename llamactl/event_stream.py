"""How does an event lie on the wire of an event stream? (HTML, "Server-sent events")

Payloads are lines of UTF-8; JSON as we write it is always one. An empty line ends an event, a line that begins with a
colon is for nobody: it keeps a connection alive.
"""

DATA = b"data: "


def format_event(payload: bytes, kind: str = "", event_id: bytes = b"") -> bytes:
    """One event. `payload` is one line; `kind`: its type, where clients listen for more than the default one;
    `event_id`: what a client that comes back says it has seen last.
    """
    before = b"id: %b\n" % event_id if event_id else b""
    if kind:
        before += b"event: %b\n" % kind.encode()
    return before + DATA + payload + b"\n\n"


def format_lines(payload: bytes) -> bytes:
    """One event of a payload that may have several lines."""
    return b"".join(b"data: %b\n" % line for line in payload.splitlines() or [b""]) + b"\n"


def format_comment(text: str) -> bytes:
    """`text` is one line."""
    return b": " + text.encode() + b"\n\n"
