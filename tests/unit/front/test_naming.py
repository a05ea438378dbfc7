"""Which model a request names, and what is said when it names none."""

from typing import Any

import pytest

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.http.wire import RequestHead, parse_request_head
from llamactl.front.naming import BOM, find_autoload, find_model, read_members, require_model


def make_head(target: str = "/v1/chat/completions", content_type: str = "") -> RequestHead:
    field = f"Content-Type: {content_type}\r\n" if content_type else ""
    return parse_request_head(f"POST {target} HTTP/1.1\r\nHost: x\r\n{field}\r\n".encode())


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\nname="model"\r\n\r\nno\r\n'
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'
)


@pytest.mark.parametrize(
    ("target", "content_type", "body", "name"),
    [
        ("/x", "application/json", b'{"model":"a"}', "a"),
        ("/x", "", b'{"messages":[{"model":"no"}],"model":"a"}', "a"),
        ("/x", "application/x-www-form-urlencoded", b' {"model" : "a\\u00e9\\n"} ', "aé\n"),
        ("/x?model=q", "", b'{"model":"a"}', "a"),
        ("/x?model=q", "", b'{"n":1}', "q"),
        ("/x?model=q%2Fr+s", "", b"", "q/r s"),
        ("/x?model=q", "audio/wav", b"RIFF", "q"),
        ("/x", "application/json", BOM + b'{"model":"a"}', "a"),
        ("/x?model=q", "", BOM + b' {"n":1}', "q"),
        ("/x", "multipart/form-data; boundary=b", FORM, "whisper"),
        ("/x", 'Multipart/Form-Data; charset=x; boundary="b"', FORM, "whisper"),
        ("/x", "multipart/form-data; boundary=c", FORM, None),
        ("/x", "multipart/form-data", FORM, None),
        ("/x", "", b'{"model":null}', None),
        ("/x", "", b'{"model":""}', None),
        ("/x", "", b'{"Model":"a"}', None),
        ("/x?models=q", "", b"", None),
        ("/x?model=", "", b"", None),
    ],
)
def test_model_is_found(target: str, content_type: str, body: bytes, name: str | None) -> None:
    head = make_head(target, content_type)
    assert find_model(head, read_members(head, body)) == name


def test_body_behind_a_byte_order_mark_says_all_that_it_says_without() -> None:
    body = b'{"keep_alive":"5m","model":"a","stream":true}'
    marked, plain = (read_members(make_head(), text) for text in (BOM + body, body))
    assert marked == plain
    assert (marked.read_keep_alive_s(), marked.wants_stream) == (300.0, True)


@pytest.mark.parametrize(
    ("content_type", "body", "message"),
    [
        ("", b"{", "not valid JSON"),
        ("", BOM, "not valid JSON"),
        ("", BOM + BOM + b'{"model":"a"}', "not valid JSON"),
        ("", b" " + BOM + b'{"model":"a"}', "not valid JSON"),
        ("", b'{"model":"a"', "not valid JSON"),
        ("", b'{"model":"a"} x', "not valid JSON"),
        ("", b'{"model":"\xff"}', "not valid JSON"),
        ("application/json", b"\x00", "not valid JSON"),
        ("", b'{"x":' + b"[" * 100_000, "not valid JSON"),
        ("", rb'{"model":"a","x":"\ud800"}', "not valid JSON: half a surrogate pair"),
        ("", rb'{"model":"a","x":["\udBfFab"]}', "not valid JSON: half a surrogate pair"),
        ("", rb'{"model":"a","x":"\ud800', "not valid JSON: Input data was truncated"),
        ("", rb'{"model":"a","x":"\ud800 and so on"}', "not valid JSON: .*byte 24"),
        ("", b"[]", "not a JSON object"),
        ("", b'"a"', "not a JSON object"),
        ("", b'{"model":1}', '"model" is not a string'),
        ("", b'{"model":["a"]}', '"model" is not a string'),
        ("application/json", b"{}", "names no model"),
    ],
)
def test_body_that_names_no_model_is_refused_with_the_reason(content_type: str, body: bytes, message: str) -> None:
    def require(head: RequestHead) -> None:
        require_model(head, read_members(head, body))

    with pytest.raises(LlamactlError, match=message) as caught:
        require(make_head("/x", content_type))
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_bad_json_is_refused_even_if_the_query_names_a_model() -> None:
    with pytest.raises(LlamactlError, match="not valid JSON"):
        read_members(make_head("/x?model=a", "application/json"), b"{")


def test_missing_model_names_the_cure() -> None:
    with pytest.raises(LlamactlError) as caught:
        require_model(make_head(), read_members(make_head(), b"{}"))
    assert '"model": "NAME"' in caught.value.hint


@pytest.mark.parametrize(
    ("query", "expected"),
    [(b"", None), (b"model=a", None), (b"autoload=true", True), (b"autoload=false&x", False), (b"x&autoload=0", False)],
)
def test_autoload_is_read(query: bytes, expected: Any) -> None:
    assert find_autoload(query) is expected


@pytest.mark.parametrize("word", ["maybe", "2", "truefalse", "%00"])
def test_autoload_that_is_neither_yes_nor_no_is_refused(word: str) -> None:
    with pytest.raises(LlamactlError, match=r"autoload=.*: it must be true or false") as raised:
        find_autoload(f"autoload={word}".encode())
    assert raised.value.kind.http_status == 400
    assert str(raised.value).isprintable()
