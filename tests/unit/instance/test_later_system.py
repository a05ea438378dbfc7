"""Is what a system says in the middle told, whatever the template makes of it?"""

import asyncio
from collections.abc import Callable

import pytest

from llamactl.bodies import ChatBody, ChatMessage, ContentPart
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.http.later_system import LaterSystem

SAID = [("system", "a"), ("user", "b"), ("system", "c"), ("user", "d"), ("assistant", "e"), ("system", "f")]


def tell_all(body: ChatBody) -> str:
    return "".join(str(message.content) for message in body.messages)


def tell_first_alone(body: ChatBody) -> str:
    return "".join(str(message.content) for n, message in enumerate(body.messages) if not n or message.role != "system")


def tell_last_alone(body: ChatBody) -> str:
    return tell_first_alone(ChatBody(messages=[*body.messages[2:3], body.messages[1], body.messages[3]]))


def refuse(body: ChatBody) -> str:
    raise LlamactlError(ErrorCode.INVALID_REQUEST, "System message must be at the beginning")


def settle(template: Callable[[ChatBody], str], said: list[tuple[str, str]], times: int = 1) -> tuple[ChatBody, int]:
    n_written = 0

    async def write(body: ChatBody) -> str:
        nonlocal n_written
        n_written += 1
        return template(body)

    async def run() -> ChatBody:
        places = LaterSystem(write)
        body = ChatBody(messages=[ChatMessage(role=role, content=text) for role, text in said])
        for _ in range(times):
            settled = await places.settle(body)
        return settled

    return asyncio.run(run()), n_written


def test_template_that_tells_it_gets_it_as_it_is() -> None:
    body, n_written = settle(tell_all, SAID, times=3)
    assert [(message.role, message.content) for message in body.messages] == SAID
    assert n_written == 1, "tried once"


@pytest.mark.parametrize("template", [tell_first_alone, tell_last_alone, refuse])
def test_to_others_it_is_what_the_user_says(template: Callable[[ChatBody], str]) -> None:
    body, _ = settle(template, SAID)
    assert [message.role for message in body.messages] == ["system", "user", "assistant", "user"]
    assert body.messages[1].content == [ContentPart(type="text", text=text) for text in "bcd"]
    assert body.messages[3].content == "f"


def test_conversation_without_one_tries_nothing() -> None:
    body, n_written = settle(refuse, SAID[:2])
    assert [message.role for message in body.messages] == ["system", "user"]
    assert n_written == 0
