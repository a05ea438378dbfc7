"""Which model does this request name?

The body's top-level `model` where there is a JSON body (whatever Content-Type says: curl -d claims to send a form),
the `model` field of a multipart form, else the query's `model`. All other members of the body are skipped, not
decoded. A body that is no JSON is refused unless the query names a model and nobody claimed that it is JSON:
endpoints that take other bodies name their model there.
"""

from urllib.parse import parse_qs, unquote

import msgspec

from llamactl.errors import ErrorCode, LlamactlError, explain_json_error
from llamactl.escape import escape_text
from llamactl.front.http.body import BodyStream
from llamactl.front.http.members import NO_MEMBERS, Members
from llamactl.front.http.scan import find_delimiter, find_field_value
from llamactl.front.http.wire import RequestHead
from llamactl.names import MAX_NAME_LENGTH

_CURE = 'add "model": "NAME" to the JSON body, or ?model=NAME to the URL; GET /v1/models lists the names'


BOM = b"\xef\xbb\xbf"
"""Some editors and languages begin UTF-8 with it; instances pass over it."""


_YES = ("true", "1", "yes", "on")
_NO = ("false", "0", "no", "off")
_decoder = msgspec.json.Decoder(Members)


def read_members(head: RequestHead, body: bytes, stream: BodyStream | None = None) -> Members:
    """What the body says; of a `stream` instead, as far as it has come. Raises LlamactlError for one that nobody can
    read, unless its type does not say JSON and the query names a model.
    """
    if stream is not None:
        scanner = stream.scanner
        if not scanner.is_object and not _may_be_anything(head):
            raise LlamactlError(ErrorCode.INVALID_REQUEST, "cannot read body: not a JSON object")
        return scanner.members
    if not body:
        return NO_MEMBERS
    if head.is_form:
        return Members(_find_form_field(head.find(b"content-type") or b"", body, b"model"))
    if body.startswith(BOM):
        body = body.removeprefix(BOM)
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise LlamactlError(ErrorCode.INVALID_REQUEST, f"cannot read body: not a JSON object: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if _may_be_anything(head):
            return NO_MEMBERS
        why = explain_json_error(body, error)
        raise LlamactlError(ErrorCode.INVALID_REQUEST, f"cannot read body: not valid JSON: {why}") from None


def _may_be_anything(head: RequestHead) -> bool:
    """Endpoints that take other bodies than JSON name their model in the query."""
    return b"json" not in head.content_type and bool(head.query and find_query_value(head.query, "model"))


def find_model(head: RequestHead, members: Members) -> str | None:
    """The name that a request is for, from its body, else from its query; None: neither has one. Raises
    LlamactlError for one that is no text.
    """
    name = members.read_model()
    if name is None and head.query:
        name = find_query_value(head.query, "model")
    return name


def require_model(head: RequestHead, members: Members, default: str = "") -> str:
    """As find_model, but a request without a name is one for `default`, or an error that names the cure."""
    name = find_model(head, members) or default
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
    """Find the first value of a key in a query, decoded; None where the key is not there."""
    if key.encode() not in query:
        return None
    values = parse_qs(query.decode("ascii")).get(key)
    return values[0] if values else None


def find_autoload(query: bytes) -> bool | None:
    """`?autoload=`, or None where the request does not say. Raises LlamactlError for a word that is no answer."""
    value = find_query_value(query, "autoload")
    if value is None:
        return None
    if value.lower() not in (*_YES, *_NO):
        raise LlamactlError(
            ErrorCode.INVALID_REQUEST, f"cannot use ?autoload={escape_text(value[:40])}: it must be true or false"
        )
    return value.lower() in _YES


def is_set(query: bytes, key: str) -> bool:
    """Whether the query says yes: any value but those that mean no."""
    value = find_query_value(query, key)
    return value is not None and value.lower() not in _NO


def decode_path(path: bytes) -> str:
    """Decode what is percent-encoded in a path; what is no UTF-8 becomes a replacement character."""
    return unquote(path.decode("ascii"), errors="replace")


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
