"""Which model does this request name?

The body's top-level `model` where there is a JSON body (whatever Content-Type says: curl -d claims to send a form),
the `model` field of a multipart form, else the query's `model`. All other members of the body are skipped, not
decoded. A body that is no JSON is refused unless the query names a model and nobody claimed that it is JSON:
endpoints that take other bodies name their model there.
"""

from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from llamactl.errors import ErrorCode, LlamactlError, explain_json_error
from llamactl.front.http.body import BodyStream
from llamactl.front.http.scan import find_delimiter, find_field_value, parse_keep_alive
from llamactl.front.http.wire import RequestHead
from llamactl.names import MAX_NAME_LENGTH

_CURE = 'add "model": "NAME" to the JSON body, or ?model=NAME to the URL; GET /v1/models lists the names'


BOM = b"\xef\xbb\xbf"
"""Some editors and languages begin UTF-8 with it; instances pass over it."""


class _Named(msgspec.Struct):
    model: str | None = None


class _Kept(msgspec.Struct):
    keep_alive: int | float | str | None = None


class _Streamed(msgspec.Struct):
    stream: Any = None


_decoder = msgspec.json.Decoder(_Named)
_keep_alive_decoder = msgspec.json.Decoder(_Kept)
_stream_decoder = msgspec.json.Decoder(_Streamed)


def find_model(head: RequestHead, body: bytes) -> str | None:
    """The name as the client wrote it; None where there is none. Raises LlamactlError for an unreadable body."""
    if body:
        if head.is_form:
            name = _find_form_field(head.find(b"content-type") or b"", body, b"model")
        else:
            name = _find_json_model(head, body)
        if name:
            return name
    return find_query_value(head.query, "model") if head.query else None


def wants_stream(body: bytes) -> bool:
    """Whether a body asks for an event stream."""
    try:
        return b'"stream"' in body and _stream_decoder.decode(body.removeprefix(BOM)).stream is True
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False


def find_keep_alive(body: bytes) -> float | None:
    """Seconds that a body's `keep_alive` asks for, negative for ever; None: nothing. Raises LlamactlError."""
    if b'"keep_alive"' not in body:
        return None
    try:
        value = _keep_alive_decoder.decode(body.removeprefix(BOM)).keep_alive
    except msgspec.ValidationError as error:
        if "$.keep_alive" not in str(error):
            return None
        raise _refuse_keep_alive("it is neither a number nor a text") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if value is None or value == "":
        return None
    try:
        return parse_keep_alive(value)
    except ValueError as error:
        raise _refuse_keep_alive(str(error)) from None


def _refuse_keep_alive(why: str) -> LlamactlError:
    return LlamactlError(ErrorCode.INVALID_REQUEST, f'cannot read "keep_alive": {why}', hint='as in 300, "5m", -1 or 0')


def find_scanned_model(head: RequestHead, stream: BodyStream) -> str | None:
    """As find_model, for a body of which only so much has come."""
    scanner = stream.scanner
    named = find_query_value(head.query, "model") if head.query else None
    if not scanner.is_object and not (named and b"json" not in head.content_type):
        raise LlamactlError(ErrorCode.INVALID_REQUEST, "cannot read body: not a JSON object")
    return scanner.find_model() or named


def require_model(head: RequestHead, body: bytes, stream: BodyStream | None = None, default: str = "") -> str:
    """As find_model, but a request without a name is one for `default`, or an error that names the cure."""
    name = (find_model(head, body) if stream is None else find_scanned_model(head, stream)) or default
    if not name:
        raise LlamactlError(ErrorCode.INVALID_REQUEST, "cannot route request: it names no model", hint=_CURE)
    return name


def check_length(name: str) -> None:
    """Raise LlamactlError for a name that is too long for any model: nobody shall look for it."""
    if len(name) > MAX_NAME_LENGTH:
        raise LlamactlError(
            ErrorCode.UNKNOWN_MODEL,
            f"cannot find model '{name[:40]}...': a name has at most {MAX_NAME_LENGTH} characters, this one has more",
            hint="GET /v1/models lists the names",
        )


def find_query_value(query: bytes, key: str) -> str | None:
    if key.encode() not in query:
        return None
    values = parse_qs(query.decode("ascii")).get(key)
    return values[0] if values else None


def find_autoload(query: bytes) -> bool | None:
    """`?autoload=`, or None where the request does not say."""
    return None if find_query_value(query, "autoload") is None else is_set(query, "autoload")


def is_set(query: bytes, key: str) -> bool:
    """Whether the query says yes: any value but those that mean no."""
    value = find_query_value(query, key)
    return value is not None and value.lower() not in ("false", "0", "no", "off")


def decode_path(path: bytes) -> str:
    return unquote(path.decode("ascii"), errors="replace")


def _find_json_model(head: RequestHead, body: bytes) -> str | None:
    body = body.removeprefix(BOM)
    try:
        return _decoder.decode(body).model
    except msgspec.ValidationError as error:
        if "$.model" in str(error):
            raise LlamactlError(
                ErrorCode.INVALID_REQUEST, f'cannot route request: "model" is not a string: {error}'
            ) from None
        raise LlamactlError(ErrorCode.INVALID_REQUEST, f"cannot read body: not a JSON object: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if b"json" not in head.content_type and find_query_value(head.query, "model"):
            return None
        why = explain_json_error(body, error)
        raise LlamactlError(ErrorCode.INVALID_REQUEST, f"cannot read body: not valid JSON: {why}") from None


def _find_form_field(content_type: bytes, body: bytes, field: bytes) -> str | None:
    """A simple field of a multipart form (RFC 7578); None where there is none that is simple."""
    delimiter = find_delimiter(content_type)
    if not delimiter:
        return None
    start = body.find(delimiter)
    while start >= 0:
        start += len(delimiter)
        end = body.find(b"\r\n" + delimiter, start)
        value = find_field_value(body[start : end if end >= 0 else None], field)
        if value is not None:
            return value.decode("utf-8", "replace")
        start = end + 2 if end >= 0 else -1
    return None
