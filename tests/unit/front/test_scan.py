"""The model of a large body is found however the body is cut, and as a JSON decoder finds it."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.errors import LlamactlError
from llamactl.front.http.scan import FormScanner, JsonScanner, make_scanner
from llamactl.front.http.wire import parse_request_head
from llamactl.front.naming import BOM, read_members

NAMES = st.sampled_from(["model", "stream", "models", "mode", "", "x", 'mo"del', "mod\\el", "é", "\ud800"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(alphabet='ab"\\{}[],: \né\u2028', max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)


def scan(body: bytes, cuts: list[int]) -> JsonScanner:
    scanner = JsonScanner()
    places = sorted({min(cut, len(body)) for cut in cuts} | {0, len(body)})
    buffer = bytearray(b'"' * (len(body) + 1))  # what stands behind the piece is none of it
    for start, stop in itertools.pairwise(places):
        buffer[: stop - start] = body[start:stop]
        scanner.feed(buffer, stop - start)
    return scanner


@given(
    st.dictionaries(NAMES, VALUES, max_size=5),
    st.lists(st.integers(0, 80), max_size=6),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_scan_finds_what_a_decoder_finds(body: dict[str, Any], cuts: list[int], indent: Any, ascii_only: bool) -> None:
    body.pop("\ud800" if not ascii_only else "", None)
    try:
        text = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    scanner = scan(text, cuts)
    expected = body.get("model")
    assert type(scanner.members.model) is type(expected)
    if not isinstance(expected, (dict, list)):
        assert scanner.members.model == expected
    assert scanner.members.wants_stream is (body.get("stream") is True)
    assert scanner.is_object


@given(
    model=SCALARS,
    stream=SCALARS,
    keep_alive=st.one_of(SCALARS, st.sampled_from(["5m", "-1", "1h30m", [], {}])),
    cuts=st.lists(st.integers(0, 80), max_size=4),
)
def test_large_body_means_what_a_small_one_does(model: Any, stream: Any, keep_alive: Any, cuts: list[int]) -> None:
    text = json.dumps({"keep_alive": keep_alive, "model": model, "stream": stream}).encode()
    head = parse_request_head(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")

    def read_small() -> Any:
        members = read_members(head, text)
        return members.read_keep_alive_s(), members.read_model(), members.wants_stream

    def read_large() -> Any:
        members = scan(text, cuts).members
        return members.read_keep_alive_s(), members.read_model(), members.wants_stream

    assert describe(read_small) == describe(read_large)


def describe(read: Callable[[], Any]) -> Any:
    """What it gives, or says."""
    try:
        return read()
    except LlamactlError as error:
        return str(error)


@given(
    st.dictionaries(NAMES.filter(lambda name: name != "\ud800"), VALUES, max_size=5),
    st.lists(st.integers(0, 80), max_size=6),
)
def test_byte_order_mark_changes_nothing(body: dict[str, Any], cuts: list[int]) -> None:
    text = json.dumps(body).encode()
    marked, plain = scan(BOM + text, cuts), scan(text, [])
    assert marked.members == plain.members
    assert (marked.is_object, marked.done) == (plain.is_object, plain.done)


def test_large_body_behind_a_byte_order_mark_may_be_cut_anywhere() -> None:
    body = BOM + json.dumps({"keep_alive": 7, "stream": True, "prompt": "x" * 100_000, "model": "a"}).encode()
    edges = [*range(60), *range(len(body) - 40, len(body))]
    for cut in edges:
        members = scan(body, [cut]).members
        assert (members.read_model(), members.wants_stream, members.read_keep_alive_s()) == ("a", True, 7.0)
    assert scan(body, edges).members.read_model() == "a"


def test_byte_order_mark_alone_is_no_object_yet_and_names_nothing() -> None:
    scanner = JsonScanner()
    for byte in BOM:
        scanner.feed(bytes([byte]))
    assert (scanner.is_object, scanner.done, scanner.members.read_model()) == (True, False, None)
    scanner.feed(b"[")
    assert (scanner.is_object, scanner.done) == (False, True)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_garbage_is_scanned_alike_however_it_is_cut(body: bytes, cuts: list[int]) -> None:
    for raw in (body, b"{" + body, b'{"a":' + body):
        whole, cut = scan(raw, []), scan(raw, cuts)
        assert (whole.members.model, whole.members.wants_stream, whole.done, whole.is_object) == (
            cut.members.model,
            cut.members.wants_stream,
            cut.done,
            cut.is_object,
        )


def test_model_is_known_before_the_rest_has_come() -> None:
    scanner = JsonScanner()
    scanner.feed(b'{"messages":[{"model":"no","content":"]}\\""}],"model":"ye')
    assert scanner.members.read_model() is None
    scanner.feed(b's"')
    assert scanner.members.read_model() == "yes"
    assert not scanner.done
    scanner.feed(b',"stream":true,"image":"' + b"A" * 100_000)
    assert scanner.members.wants_stream


@pytest.mark.parametrize("body", [b"[1]", b'"model"', b"  7", b"\xff"])
def test_what_is_no_object_is_told(body: bytes) -> None:
    scanner = JsonScanner()
    scanner.feed(body)
    assert (scanner.is_object, scanner.done) == (False, True)


@pytest.mark.parametrize("value", [b"1,", b"[]", b"{}", b"true}"])
def test_model_that_is_no_string_is_an_error(value: bytes) -> None:
    scanner = JsonScanner()
    scanner.feed(b'{"model":' + value)
    with pytest.raises(LlamactlError, match="not a string"):
        scanner.members.read_model()


PARTS = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\nname="model"\r\n\r\nno'
    + b"x" * 10_000
    + b'\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'
)


@given(st.lists(st.integers(0, len(PARTS)), max_size=5))
def test_form_field_is_found_however_the_form_is_cut(cuts: list[int]) -> None:
    scanner = make_scanner(b"multipart/form-data; boundary=b")
    assert isinstance(scanner, FormScanner)
    places = sorted({0, len(PARTS), *cuts})
    for start, stop in itertools.pairwise(places):
        scanner.feed(PARTS[start:stop])
        assert len(scanner._buffer) < 20_100
    assert scanner.members.read_model() == "whisper"


def test_form_without_the_field_ends_without_a_name() -> None:
    scanner = FormScanner(b"multipart/form-data; boundary=c")
    scanner.feed(PARTS)
    assert scanner.members.read_model() is None
    scanner = FormScanner(b"multipart/form-data")
    assert scanner.done
