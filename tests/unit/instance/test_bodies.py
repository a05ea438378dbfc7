"""What a body that cannot be read is told."""

import pytest

from llamactl.bodies import ChatBody, CompletionBody, parse_body
from llamactl.errors import LlamactlError


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (rb'{"prompt":"\ud800"}', "half a surrogate pair"),
        (rb'{"prompt":"\ud83d\ude00', "truncated"),
        (rb'{"prompt":"\ud800 and so on"}', "surrogate pair"),
    ],
)
def test_half_a_surrogate_pair_is_called_that(body: bytes, why: str) -> None:
    with pytest.raises(LlamactlError, match=why):
        parse_body(body, CompletionBody)


def test_whole_surrogate_pair_is_a_character() -> None:
    assert parse_body(rb'{"prompt":"\ud83d\ude00"}', CompletionBody).prompt == "😀"


def test_message_without_content_is_refused_but_a_calls_and_a_results() -> None:
    with pytest.raises(LlamactlError) as refused:
        parse_body(b'{"messages":[{"role":"user","content":"x"},{"role":"system","text":"y"}]}', ChatBody)
    assert refused.value.message.endswith("Object missing required field `content` - at `$.messages[1]`")
    silent = b'{"role":"user","content":null},{"role":"assistant","tool_calls":[]},{"role":"tool","tool_call_id":"a"}'
    body = parse_body(b'{"messages":[%b]}' % silent, ChatBody)
    assert [message.content for message in body.messages] == [None, None, None]
