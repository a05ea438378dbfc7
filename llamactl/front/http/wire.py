"""What does a head on the wire say, and how is its message framed?

Heads are cut out of the stream first and then given to llhttp whole, one fresh parser each: so no state leaks from
one message into the next, and a pipelined request stays bytes until it is its turn. Framing is decided here once,
from a head that has been read, never from raw bytes that are passed on: that is what keeps two peers from disagreeing
about where a message ends (request smuggling). What llhttp of some version forgives (bare LF, folded lines) is
refused here before it is asked.
"""

import re
from collections.abc import Callable

import httptools

MAX_HEAD_BYTES = 32 * 1024
"""Request or status line with all headers. A longer head is answered with 431."""

_TARGET = re.compile(rb"[!-\"$-~]+")  # visible ASCII but "#": a fragment never travels
_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)(?=[/?]|$)", re.IGNORECASE)
_REQUEST_LINE = re.compile(rb"[!-~]+ [!-~]+ HTTP/[0-9]\.[0-9]\r\n")
_LENGTH = re.compile(rb"[0-9]{1,18}")

Headers = list[tuple[bytes, bytes, bytes]]
"""Name in lower case, name as it came, value."""


class WireError(Exception):
    """Bytes that are not HTTP/1.1 as we take it. `status` is what a client gets; the connection ends after it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Head:
    """What requests and responses have in common. A value: nothing changes it once it is read, except `cache`."""

    __slots__ = ("cache", "chunked", "content_length", "content_type", "headers", "keep_alive", "minor")

    def __init__(self) -> None:
        self.headers: Headers = []
        self.minor = 1
        """HTTP/1.`minor`."""
        self.content_length = -1
        """-1: not given."""
        self.content_type = b""
        """In lower case."""
        self.chunked = False
        self.keep_alive = True
        self.cache: dict[object, bytes] = {}
        """What others have formatted from this head: equal heads of one connection are read only once."""

    @property
    def has_body(self) -> bool:
        """Of a request: whether one follows."""
        return self.chunked or self.content_length > 0

    def find(self, name: bytes) -> bytes | None:
        """Value of the first header of this name (lower case), or None."""
        for lowered, _, value in self.headers:
            if lowered == name:
                return value
        return None


class RequestHead(Head):
    __slots__ = ("expect_continue", "is_form", "method", "passed_by", "path", "query", "target", "upgrade")

    def __init__(self) -> None:
        super().__init__()
        self.method = b""
        self.target = b""
        """In origin form, or `*`: what goes upstream."""
        self.path = b""
        self.query = b""
        self.expect_continue = False
        self.upgrade = b""
        """The protocol that the client would change to, if it is one that is let through: `websocket`."""
        self.passed_by: object = None
        """Whose rules have found that such a request is passed on to the model that its body names."""
        self.is_form = False


class ResponseHead(Head):
    __slots__ = ("is_event_stream", "may_tell_usage", "reason", "status")

    def __init__(self) -> None:
        super().__init__()
        self.status = 0
        self.reason = b""
        self.is_event_stream = False
        self.may_tell_usage = False
        """Whether the body may end with the tokens that it took."""


class _Collector:
    """Takes llhttp's callbacks for one head."""

    __slots__ = ("headers", "reason", "url")

    def __init__(self) -> None:
        self.headers: Headers = []
        self.url = b""
        self.reason = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), name, value.strip(b" \t")))


def find_head_end(data: bytes, start: int) -> int:
    """Where the body begins in `data` for the head that begins at `start`, or -1 when the head is not complete.

    Raises WireError for a head that can never become a good one, however it goes on.
    """
    end = data.find(b"\r\n\r\n", start)
    length = (end + 4 if end >= 0 else len(data)) - start
    stop = start + min(length, MAX_HEAD_BYTES)
    if data.count(b"\n", start, stop) != data.count(b"\r\n", start, stop):
        raise WireError(400, "bare LF in the head")
    if length > MAX_HEAD_BYTES:
        raise WireError(431, f"head of more than {MAX_HEAD_BYTES} bytes")
    return end + 4 if end >= 0 else -1


def parse_request_head(head: bytes) -> RequestHead:
    """Read one complete request head, its empty line included. Raises WireError."""
    found = _Collector()
    if not _REQUEST_LINE.match(head):  # RFC 9112 3: single spaces, which llhttp does not insist on
        raise WireError(400, "malformed request line")
    parser = _feed(httptools.HttpRequestParser, found, head)
    request = RequestHead()
    request.method = parser.get_method()
    request.headers = found.headers
    request.minor = _parse_minor(parser.get_http_version())
    _read_target(request, found.url)
    hosts = 0
    for name, _, value in found.headers:
        if name == b"host":
            hosts += 1
        elif name == b"expect":
            if value.lower() != b"100-continue":
                raise WireError(417, "unknown expectation")
            request.expect_continue = request.minor == 1
        elif name == b"upgrade" and value.lower() == b"websocket":
            request.upgrade = value
    if hosts > 1 or (hosts == 0 and request.minor == 1):
        raise WireError(400, "one Host header is needed")
    options = _read_framing(request, is_request=True)
    request.is_form = request.content_type.startswith(b"multipart/form-data")
    if request.upgrade and (b"upgrade" not in options or request.minor == 0 or request.has_body):
        request.upgrade = b""  # any other protocol (h2c) could carry requests past us
    return request


def parse_response_head(head: bytes) -> ResponseHead:
    """Read one complete response head, its empty line included. Raises WireError."""
    found = _Collector()
    parser = _feed(httptools.HttpResponseParser, found, head)
    response = ResponseHead()
    response.status = parser.get_status_code()
    response.reason = found.reason
    response.headers = found.headers
    response.minor = _parse_minor(parser.get_http_version())
    _read_framing(response, is_request=False)
    response.is_event_stream = response.content_type.startswith(b"text/event-stream")
    is_json = response.content_type.startswith(b"application/json")
    response.may_tell_usage = response.status == 200 and (is_json or response.is_event_stream)
    return response


def _feed(make: Callable[[object], "httptools.HttpParser"], found: _Collector, head: bytes) -> "httptools.HttpParser":
    if head.count(b"\r") != head.count(b"\r\n"):
        raise WireError(400, "bare CR in the head")
    if b"\n " in head or b"\n\t" in head:
        raise WireError(400, "folded header line")
    if b"\0" in head:
        raise WireError(400, "NUL in the head")
    parser = make(found)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # the head is complete; whether to change protocols is not the parser's to decide
    except httptools.HttpParserError as error:
        raise WireError(400, f"malformed head: {error}") from None
    return parser


def _parse_minor(version: str) -> int:
    if version == "1.1":
        return 1
    if version == "1.0":
        return 0
    raise WireError(505, f"HTTP/{version} is not spoken here")


def _read_target(request: RequestHead, target: bytes) -> None:
    """RFC 9112 3.2: origin form; absolute form, which a server must take; `*` for OPTIONS; no authority form."""
    if request.method == b"CONNECT":
        raise WireError(400, "CONNECT is not served")
    if not _TARGET.fullmatch(target):
        raise WireError(400, "malformed request target")
    if target == b"*" and request.method == b"OPTIONS":
        request.target = request.path = target
        return
    absolute = _ABSOLUTE.match(target)
    if absolute:  # its authority counts, whatever Host says (RFC 9112 3.2.2)
        hosts = [(name, given, absolute[1]) for name, given, _ in request.headers if name == b"host"]
        others = [header for header in request.headers if header[0] != b"host"]
        request.headers = [*(hosts or [(b"host", b"Host", absolute[1])]), *others]
        target = target[absolute.end() :]
        if not target.startswith(b"/"):
            target = b"/" + target
    if not target.startswith(b"/"):
        raise WireError(400, "malformed request target")
    request.target = target
    request.path, _, request.query = target.partition(b"?")


def _read_framing(head: Head, is_request: bool) -> list[bytes]:
    """RFC 9112 6.3, with every ambiguity refused instead of resolved. Returns what `Connection` says."""
    connection = b""
    for name, _, value in head.headers:
        if name == b"content-length":
            if head.content_length >= 0:
                raise WireError(400, "more than one Content-Length")
            if not _LENGTH.fullmatch(value):
                raise WireError(400, "malformed Content-Length")
            head.content_length = int(value)
        elif name == b"transfer-encoding":
            if head.chunked:
                raise WireError(400, "more than one Transfer-Encoding")
            if value.lower() != b"chunked":
                raise WireError(501 if is_request else 400, "transfer coding other than chunked")
            head.chunked = True
        elif name == b"content-type":
            head.content_type = head.content_type or value.lower()
        elif name == b"connection":
            connection = connection + b"," + value.lower() if connection else value.lower()
    if head.chunked and (head.content_length >= 0 or head.minor == 0):
        raise WireError(400, "Transfer-Encoding beside Content-Length, or in HTTP/1.0")
    if connection:
        options = [option.strip() for option in connection.split(b",")]
        head.keep_alive = b"close" not in options and (head.minor == 1 or b"keep-alive" in options)
        return options
    head.keep_alive = head.minor == 1
    return []
