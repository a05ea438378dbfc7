"""Which headers travel on, and which end here? The one place that decides it, for both directions.

A head is rewritten, never passed on: fields that describe one connection (RFC 9110 7.6.1), and the framing, are
ours on either side. Fields that `Connection` names are dropped too, or a client could smuggle one past us by naming
it. What is formatted is remembered in the head itself, because most heads of a connection are equal.
"""

import http

import msgspec

from llamactl.endpoints import format_http_error
from llamactl.errors import RETRY_AFTER_S, ErrorCode, LlamactlError
from llamactl.front.http.wire import Head, RequestHead, ResponseHead

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
        b"content-length",
        b"expect",
    )
)
_TO_INSTANCE = _HOP_BY_HOP | {b"x-request-id"}
_TO_CLIENT = _HOP_BY_HOP | {
    b"x-request-id",
    b"access-control-allow-origin",
    b"access-control-allow-credentials",
    b"access-control-expose-headers",
}
"""Whether other origins may read an answer is the front's to say."""


def is_forwarding(name: bytes) -> bool:
    """Whether a field says where a request came from before it reached us."""
    return name.startswith(b"x-forwarded-") or name in (b"forwarded", b"x-real-ip")


def _format_fields(head: Head, dropped: frozenset[bytes]) -> list[bytes]:
    named = head.find(b"connection")
    if named is not None:
        options = {
            option.strip().lower()
            for name, _, value in head.headers
            if name == b"connection"
            for option in value.split(b",")
        }
        dropped = dropped | (options - {b"host"})
    return [b"%b: %b\r\n" % (name, value) for lowered, name, value in head.headers if lowered not in dropped]


def format_upstream_head(head: RequestHead, body_bytes: int, id_line: bytes = b"", peer: str = "") -> bytes:
    """The request as the instance gets it. `body_bytes` is known for a body that is here, however the client framed
    it; -1: it follows in our own chunks. `id_line`: the header line with the request's id.

    `peer`: the address of a client on TCP, whose word on where a request came from counts for nothing; empty for
    a peer on the Unix socket, which is trusted.
    """
    cached = head.cache.get("upstream")
    if cached is None:
        dropped = _TO_INSTANCE
        if peer:
            dropped = dropped | {name for name, _, _ in head.headers if is_forwarding(name)}
        lines = [b"%b %b HTTP/1.1\r\n" % (head.method, head.target), *_format_fields(head, dropped)]
        if peer:
            lines.append(_format_forwarded(peer, head.find(b"host")))
        if head.find(b"host") is None:
            lines.append(b"Host: llamactl\r\n")
        if head.upgrade:
            lines.append(b"Connection: Upgrade\r\nUpgrade: %b\r\n" % head.upgrade)
        if body_bytes < 0:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        elif body_bytes or head.content_length >= 0 or head.chunked:
            lines.append(b"Content-Length: %d\r\n" % body_bytes)
        cached = b"".join(lines)
        if not head.chunked:  # else the next body of an equal head may have another length
            head.cache["upstream"] = cached
    return cached + id_line + b"\r\n"


def _format_forwarded(peer: str, host: bytes | None) -> bytes:
    """RFC 7239, and the older fields that say the same."""
    address = peer.encode("latin-1")
    node = b'"[%b]"' % address if b":" in address else address
    lines = [b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: http\r\n" % address]
    forwarded = b"for=%b;proto=http" % node
    if host is not None:
        lines.append(b"X-Forwarded-Host: %b\r\n" % host)
        forwarded += b';host="%b"' % host.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return b"".join([*lines, b"Forwarded: %b\r\n" % forwarded])


def format_client_head(head: ResponseHead, minor: int, keep_alive: bool, rechunk: bool, added: bytes = b"") -> bytes:
    """The response as the client gets it. `minor`: of its HTTP/1.x; `rechunk`: the body follows in our own chunks;
    `added`: header lines of this one answer.
    """
    key = (minor, keep_alive, rechunk)
    cached = head.cache.get(key)
    if cached is None:
        lines = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason), *_format_fields(head, _TO_CLIENT)]
        if rechunk:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        elif head.content_length >= 0:
            lines.append(b"Content-Length: %d\r\n" % head.content_length)
        if head.is_event_stream and head.find(b"x-accel-buffering") is None:
            lines.append(b"X-Accel-Buffering: no\r\n")  # nginx would collect the stream
        if head.status == 101:
            lines.append(b"Connection: Upgrade\r\nUpgrade: %b\r\n" % (head.find(b"upgrade") or b""))
        elif not keep_alive:
            lines.append(b"Connection: close\r\n")
        elif minor == 0:
            lines.append(b"Connection: keep-alive\r\n")
        cached = head.cache[key] = b"".join(lines)
    return cached + added + b"\r\n"


def format_stream_head(minor: int, keep_alive: bool, added: bytes) -> bytes:
    """The head of an event stream of the front's own."""
    framing = b"Transfer-Encoding: chunked\r\n" if minor else b""
    ending = b"" if keep_alive else b"Connection: close\r\n"
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
        b"%b%b%b\r\n" % (framing, ending, added)
    )


def format_chunk(piece: bytes) -> bytes:
    """Format one chunk of a body of unknown length (RFC 9112, 7.1)."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def format_answer(
    status: int,
    body: object,
    *,
    minor: int = 1,
    keep_alive: bool = True,
    to_head: bool = False,
    fields: tuple[tuple[str, str], ...] = (),
    added: bytes = b"",
    content_type: str = "application/json",
) -> bytes:
    """A whole response of the front's own: with a body that is JSON or, as bytes, of `content_type`; None: without."""
    payload = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"]
    if body is not None:
        lines.append(f"Content-Type: {content_type}\r\n")
    if status != 204:
        lines.append(f"Content-Length: {len(payload)}\r\n")
    lines.extend(f"{name}: {value}\r\n" for name, value in fields)
    if not keep_alive:
        lines.append("Connection: close\r\n")
    elif minor == 0:
        lines.append("Connection: keep-alive\r\n")
    head = "".join(lines).encode("latin-1") + added + b"\r\n"
    return head if to_head else head + payload


def format_answer_to(
    head: RequestHead,
    status: int,
    body: object,
    *,
    keep_alive: bool,
    fields: tuple[tuple[str, str], ...],
    added: bytes,
    content_type: str,
) -> bytes:
    """As format_answer, to the request with this head."""
    return format_answer(
        status,
        body,
        minor=head.minor,
        keep_alive=keep_alive,
        to_head=head.method == b"HEAD",
        fields=fields,
        added=added,
        content_type=content_type,
    )


def format_error_fields(status: int) -> tuple[tuple[str, str], ...]:
    """Headers of an error answer: those that say "later" say when."""
    return (("Retry-After", str(RETRY_AFTER_S)),) if status in (429, 503, 507) else ()


def format_wire_error(status: int, message: str, added: bytes = b"") -> bytes:
    """The last answer on a connection whose bytes made no sense."""
    code = ErrorCode.TOO_LARGE if status == 413 else ErrorCode.INVALID_REQUEST
    body = format_http_error(LlamactlError(code, f"cannot read request: {message}"), status=status)
    return format_answer(status, body, keep_alive=False, added=added)


def format_refusal(error: LlamactlError, path: bytes, added: bytes) -> bytes:
    """The last answer on a connection whose request is not read to its end."""
    status = error.kind.http_status
    fields = format_error_fields(status)
    return format_answer(status, format_http_error(error, path), keep_alive=False, fields=fields, added=added)
