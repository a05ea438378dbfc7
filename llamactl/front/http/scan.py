"""Which model does a large body name, found while the body is still on its way?

Scanners are fed pieces of any size and hold next to nothing: they look at the top-level members of a JSON object, or at
the parts of a form, and skip the rest. They do not validate: whether a large body makes sense is the instance's to
say. The first `model` counts here, where a JSON decoder takes the last; a body that has two is sent to one instance
all the same, and it serves but one model.
"""

import re
from enum import Enum, auto

import msgspec

from llamactl.front.http.members import Members

Bytes = bytes | bytearray

MAX_VALUE_BYTES = 4096
"""Longer names of members, and longer values of those that are looked for, are none of ours."""

_STRING_REST = re.compile(rb"(?:[^\"\\]++|\\.)*+", re.DOTALL)
_NESTED_REST = re.compile(rb"[^\"{}\[\]]*+")
_SCALAR_REST = re.compile(rb"[^,}\]\s]*+")
_BOM = (b"\xef", b"\xbb", b"\xbf")
_SPACE = re.compile(rb"[ \t\r\n]*+")
_WANTED = frozenset(Members.__struct_fields__)


class _At(Enum):
    START = auto()
    KEY = auto()
    KEY_REST = auto()
    COLON = auto()
    VALUE = auto()
    STRING = auto()
    SCALAR = auto()
    NESTED = auto()
    NESTED_STRING = auto()
    END = auto()


class JsonScanner:
    """Finds the top-level `model`, `stream` and `keep_alive` of a JSON object."""

    __slots__ = ("_at", "_depth", "_escaped", "_key", "_text", "is_object", "members")

    def __init__(self) -> None:
        self.members = Members()
        """As far as they have come; in place of a list or an object stands an empty one."""
        self.is_object = True
        """False: the body is something else."""
        self._at = _At.START
        self._depth = 0
        self._escaped = False
        """The last byte fed was a backslash inside a string that is skipped."""
        self._key = ""
        self._text: bytearray | None = None
        """Bytes of the name or value that is being read; None: skipped."""

    @property
    def done(self) -> bool:
        """Nothing that follows can matter."""
        return self._at is _At.END

    def feed(self, data: Bytes, end: int | None = None) -> None:
        """Go on with `data[:end]`, which may change afterwards. Raises LlamactlError for a bad `keep_alive`."""
        pos = 0
        if end is None:
            end = len(data)
        while pos < end and self._at is not _At.END:
            pos = self._step(data, pos, end)

    def _step(self, data: Bytes, pos: int, end: int) -> int:
        at = self._at
        if at in (_At.KEY_REST, _At.STRING, _At.NESTED_STRING):
            return self._read_string(data, pos, end)
        if at is _At.NESTED:
            return self._skip_nested(data, pos, end)
        if at is _At.SCALAR:
            return self._read_scalar(data, pos, end)
        found = _SPACE.match(data, pos, end)
        pos = found.end() if found else pos
        if pos == end:
            return pos
        byte = bytes(data[pos : pos + 1])
        if at is _At.START:
            if byte in _BOM:  # where the bytes are not that mark the instance says so
                return pos + 1
            self._at, self.is_object = (_At.KEY, True) if byte == b"{" else (_At.END, False)
        elif at is _At.KEY:
            if byte == b'"':
                self._at, self._text = _At.KEY_REST, bytearray()
            elif byte != b",":
                self._at = _At.END
        elif at is _At.COLON:
            self._at = _At.VALUE if byte == b":" else _At.END
        else:
            return self._begin_value(byte, pos)
        return pos + 1

    def _begin_value(self, byte: bytes, pos: int) -> int:
        self._text = bytearray() if self._key in _WANTED else None
        if byte == b'"':
            self._at = _At.STRING
        elif byte in (b"{", b"["):
            if self._text is not None:
                self._on_value([] if byte == b"[" else {})
            self._at, self._depth = _At.NESTED, 1
        else:
            self._at = _At.SCALAR
            return pos
        return pos + 1

    def _read_string(self, data: Bytes, pos: int, end: int) -> int:
        start = pos
        if self._escaped:
            self._escaped = False
            pos += 1
        stop = _find_string_stop(data, pos, end)
        if self._text is not None:
            self._text += data[start:stop]
            if len(self._text) > MAX_VALUE_BYTES:
                if self._at is _At.STRING and self._key == "model":  # it will be told that this is too long
                    self._on_value(self._text.decode("utf-8", "replace"))
                self._text = None
        if stop == end:
            return stop
        if data[stop] == 0x5C:  # a backslash at the very end of the piece
            self._escaped = True
            if self._text is not None:
                self._text += b"\\"
            return stop + 1
        self._end_string()
        return stop + 1

    def _end_string(self) -> None:
        at = self._at
        if at is _At.NESTED_STRING:
            self._at = _At.NESTED
            return
        text: object = ""
        if self._text is not None:
            text = _decode(b'"' + bytes(self._text) + b'"')
        if at is _At.KEY_REST:
            self._key = text if isinstance(text, str) else ""
            self._at = _At.COLON
        else:
            if self._key in _WANTED:
                self._on_value(text)
            self._at = _At.KEY
        self._text = None

    def _read_scalar(self, data: Bytes, pos: int, end: int) -> int:
        found = _SCALAR_REST.match(data, pos, end)
        stop = found.end() if found else pos
        if self._text is not None and len(self._text) <= MAX_VALUE_BYTES:
            self._text += data[pos:stop]
        if stop == end:
            return stop
        if self._text is not None:
            self._on_value(_decode(bytes(self._text)))
            self._text = None
        self._at = _At.END if data[stop] in b"}]" else _At.KEY
        return stop + 1

    def _skip_nested(self, data: Bytes, pos: int, end: int) -> int:
        found = _NESTED_REST.match(data, pos, end)
        pos = found.end() if found else pos
        if pos == end:
            return pos
        byte = data[pos]
        if byte == 0x22:
            self._at, self._text = _At.NESTED_STRING, None
        elif byte in b"{[":
            self._depth += 1
        else:
            self._depth -= 1
            if not self._depth:
                self._at = _At.KEY
        return pos + 1

    def _on_value(self, value: object) -> None:
        members = self.members
        if self._key == "stream":
            members.stream = value
        elif self._key == "keep_alive":
            Members(keep_alive=value).read_keep_alive_s()  # a bad one ends the request, however far it has got
            members.keep_alive = value
        elif members.model is None:
            members.model = value


def _find_string_stop(data: Bytes, pos: int, end: int) -> int:
    """Where reading a string from `pos` on stops: at its quote, at a backslash that is the last byte, or at `end`."""
    quote = data.find(b'"', pos, end)
    stop = quote if quote >= 0 else end
    escape = data.find(b"\\", pos, stop)
    if escape < 0:  # an image, most likely: looked for twice, it is still passed ten times as fast as it is matched
        return stop
    found = _STRING_REST.match(data, escape, end)
    return found.end() if found else escape


def _decode(text: bytes) -> object:
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return value


class FormScanner:
    """Finds the simple field `model` of a multipart form (RFC 7578)."""

    __slots__ = ("_buffer", "_delimiter", "_in_part", "done", "members")

    is_object = True

    def __init__(self, content_type: bytes) -> None:
        self.members = Members()
        self._delimiter = find_delimiter(content_type)
        self.done = not self._delimiter
        self._buffer = b""
        self._in_part = False
        """The buffer begins behind a delimiter."""

    def feed(self, data: Bytes, end: int | None = None) -> None:
        """See JsonScanner.feed."""
        if self.done:
            return
        self._buffer += data[:end]
        while not self.done and self._advance():
            pass

    def _advance(self) -> bool:
        """Take one step; False: it needs more bytes."""
        buffer, delimiter = self._buffer, self._delimiter
        if not self._in_part:
            at = buffer.find(delimiter)
            if at < 0:
                self._buffer = buffer[-len(delimiter) - 2 :]
                return False
            self._buffer = buffer[at + len(delimiter) :]
            self._in_part = True
            return True
        if buffer.startswith(b"--"):
            self.done = True
            return True
        end = buffer.find(b"\r\n" + delimiter)
        name = find_field_value(buffer[: end if end >= 0 else None], b"model")
        if name is not None and (end >= 0 or len(name) > MAX_VALUE_BYTES):
            self.members.model = name.decode("utf-8", "replace")
            self.done = True
        elif end >= 0 or len(buffer) > MAX_VALUE_BYTES + len(delimiter) + 2:
            self._buffer = buffer[max(end, 0) :]
            self._in_part = False
        else:
            return False
        return True


def find_delimiter(content_type: bytes) -> bytes:
    """What separates the parts of a form; empty where its type does not say."""
    _, _, boundary = content_type.partition(b"boundary=")
    boundary = boundary.partition(b";")[0].strip().strip(b'"')
    return b"--" + boundary if boundary else b""


def find_field_value(part: bytes, field: bytes) -> bytes | None:
    """What a part of a form holds, if it is the simple field of this name: no file."""
    head, separator, value = part.partition(b"\r\n\r\n")
    wanted = (b'name="%b"' % field, b"name=%b" % field)
    if not separator or len(head) > 1024:
        return None
    for line in head.split(b"\r\n"):
        name, _, rest = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            parameters = [part.strip() for part in rest.split(b";")]
            is_file = any(part.startswith(b"filename") for part in parameters)
            return value if any(part in wanted for part in parameters) and not is_file else None
    return None


Scanner = JsonScanner | FormScanner


def make_scanner(content_type: bytes) -> Scanner:
    """Make the scanner for a body of this content type: a form, or else JSON."""
    if content_type.lower().startswith(b"multipart/form-data"):
        return FormScanner(content_type)
    return JsonScanner()
