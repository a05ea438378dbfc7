"""Does the journal tell of fields that nothing knows, and not too much of them?"""

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from llamactl import bodies
from llamactl.dialects import messages, responses
from llamactl.instance.http.unknown_fields import FieldWatch


def list_told(watch: FieldWatch, kind: type, *given: dict[str, Any]) -> list[str]:
    with capture_logs() as lines:
        for body in given:
            watch.look(json.dumps(body).encode(), kind)
    return [line["field"] for line in lines]


def test_field_is_told_once_whatever_body_it_is_in() -> None:
    watch = FieldWatch("m")
    assert list_told(watch, bodies.ChatBody, {"messages": [], "wat": 1}, {"wat": 2, "x\n": 1}) == ["wat", "x\n"]
    assert list_told(watch, bodies.CompletionBody, {"prompt": "", "wat": 1}) == []


@pytest.mark.parametrize("kind", [messages.CountBody, responses.CountBody, bodies.TemplateBody])
def test_part_of_a_request_may_hold_all_of_one(kind: type) -> None:
    """Clients that count send what they are about to send."""
    assert list_told(FieldWatch("m"), kind, {"stream": True, "temperature": 1, "keep_alive": "5m", "metadata": 1}) == []


def test_field_of_another_api_is_unknown() -> None:
    assert list_told(FieldWatch("m"), messages.MessagesBody, {"max_completion_tokens": 1}) == ["max_completion_tokens"]


def test_field_that_is_not_done_yet_is_told_of() -> None:
    assert list_told(FieldWatch("m"), bodies.ChatBody, {"messages": [], "verbosity": "low"}) == ["verbosity"]


def test_bodies_begin_with_a_mark_or_not() -> None:
    with capture_logs() as lines:
        FieldWatch("m").look(b"\xef\xbb\xbf" + b'{"wat": 1}', bodies.ChatBody)
    assert [line["field"] for line in lines] == ["wat"]


def test_journal_is_not_filled_by_fields_that_clients_invent() -> None:
    invented = [{f"{number:03}" + "x" * 5000: 1} for number in range(1000)]
    told = list_told(FieldWatch("m"), bodies.ChatBody, *invented)
    assert len(told) == 32
    assert max(map(len, told)) == 64
