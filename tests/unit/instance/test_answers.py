"""What does a stream say while the model says nothing, and where do tokens begin in a text?"""

import asyncio

import pytest
from starlette.types import Message

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.engine.jobs import EmbeddingRequest, Event, FailureEvent, FinishEvent, FinishReason, Job, Timings
from llamactl.instance.http.chat_format import ChatFormat
from llamactl.instance.http.formats import FormatOptions
from llamactl.instance.http.pieces import TextPlaces, name_piece
from llamactl.instance.http.responses import StreamedText

FINISH = FinishEvent(FinishReason.STOP, 1, 0, 0, Timings(0, 1, 1.0, 0, 0.0))
FAILURE = FailureEvent(LlamactlError(ErrorCode.INTERNAL, "it broke"))


def stream(event: Event, *, after_comments: int) -> list[Message]:
    """What is sent when an event comes after so many comments."""

    async def run() -> list[Message]:
        job = Job(EmbeddingRequest([]))
        sent: list[Message] = []

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)
            if sum(message.get("body") == b":\n\n" for message in sent) == after_comments:
                job.push(event)

        if not after_comments:
            job.push(event)
        await StreamedText([job], lambda job: None, ChatFormat(FormatOptions("m")), 0.001)(
            {"type": "http"}, receive, send
        )
        return sent

    return asyncio.run(run())


def test_stream_that_is_quiet_for_long_says_so_with_comments() -> None:
    start, *bodies = stream(FINISH, after_comments=3)
    assert start["status"] == 200
    assert [message["body"] for message in bodies[:3]] == [b":\n\n"] * 3
    assert bodies[3]["body"].endswith(b"data: [DONE]\n\n")
    assert [message["more_body"] for message in bodies] == [True, True, True, False]


def test_failure_is_an_http_error_only_as_long_as_nothing_was_sent() -> None:
    assert stream(FAILURE, after_comments=0)[0]["status"] == 500
    start, *bodies = stream(FAILURE, after_comments=1)
    assert start["status"] == 200
    assert bodies[-1]["body"].startswith(b"event: error\ndata: ")
    assert not bodies[-1]["more_body"]


@pytest.mark.parametrize(
    ("echo", "pieces", "offsets"),
    [
        ("", [b"ab", b"\xe6", b"\xbc\xa2", b"c"], [0, 2, 2, 3]),
        ("", [b"\xe6", b"\xe6", b"\xbc", b"\xa2", b"\xff", b"x"], [0, 1, 1, 1, 2, 3]),
        ("", [b"a\xf0\x9f", b"\x99\x82b", b"c"], [0, 1, 3]),
        ("hello!", [b"<s>", b" hello", b"!", b"x"], [0, 0, 5, 6]),
        ("<s>hello", [b"<s>", b"hello", b"!"], [0, 3, 8]),
        (" hello", [b"<s>", b" hello", b"!"], [0, 0, 6]),
        ("\N{CJK UNIFIED IDEOGRAPH-6F22}", [b"<s>", b"\xe6\xbc", b"\xa2", b"\xff"], [0, 0, 0, 1]),
    ],
)
def test_token_begins_with_the_character_that_it_is_part_of(echo: str, pieces: list[bytes], offsets: list[int]) -> None:
    places = TextPlaces(echo)
    assert [places.place(piece) for piece in pieces] == offsets


def test_pieces_have_names_that_no_other_piece_has() -> None:
    assert name_piece("é".encode()) == "é"
    assert name_piece(b"\xe6\xbc") == r"bytes:\xe6\xbc"
    assert name_piece(b" \xe6") == r"bytes: \xe6"
    assert name_piece(b"\\xe6\xe6") == r"bytes:\x5cxe6\xe6"
    assert len({name_piece(bytes([byte])) for byte in range(256)}) == 256
