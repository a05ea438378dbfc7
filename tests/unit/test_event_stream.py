"""Events as a client of an event stream takes them apart again."""

import pytest

from llamactl.event_stream import format_comment, format_event, format_lines


def parse(text: bytes) -> list[dict[str, str]]:
    """As the standard says: fields by line, an event at each empty line, comments for nobody."""
    events, fields = [], {}
    for line in text.decode().split("\n"):
        if not line:
            if "data" in fields:
                events.append(fields)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = f"{fields[name]}\n{value}" if name in fields else value
    return events


def test_event_is_its_payload() -> None:
    assert parse(format_event(b'{"a":1}')) == [{"data": '{"a":1}'}]
    assert format_event(b"[DONE]") == b"data: [DONE]\n\n"


def test_event_has_a_kind_and_an_id_where_it_is_given_them() -> None:
    assert parse(format_event(b"{}", "error", b"x-1")) == [{"id": "x-1", "event": "error", "data": "{}"}]


@pytest.mark.parametrize("payload", [b"", b"one", b"one\ntwo", b"one\r\n\r\ntwo\n"])
def test_payload_of_several_lines_is_one_event(payload: bytes) -> None:
    (event,) = parse(format_lines(payload) + format_event(b"next"))[:-1]
    assert event["data"].split("\n") == [line.decode() for line in payload.splitlines() or [b""]]


def test_comment_is_no_event() -> None:
    assert parse(format_comment("loading a") + format_event(b"1")) == [{"data": "1"}]
