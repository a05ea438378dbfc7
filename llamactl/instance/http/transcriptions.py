"""How does a recording become a transcript? A form with a file is a chat that shows it, as llama-server makes it, and
the answer is its text.

Only models whose projector hears can do it, and how well they do is theirs: those made for it know what is asked for.
"""

import base64
import math
import re
from collections.abc import Sequence
from typing import Any

from llamactl.bodies import ChatBody, ChatMessage, ContentPart, InputAudio, refuse
from llamactl.event_stream import format_event
from llamactl.instance.engine.jobs import FinishEvent, ProgressEvent, TextEvent
from llamactl.instance.http.deltas import ContentDelta, Delta, read_message
from llamactl.instance.http.formats import Answer, EventFormat, FormatOptions, encode_json, format_usage

PROMPT = "Transcribe audio to text"
"""llama-server's words."""
FIELDS = {"messages": "file"}
"""Of the chat, as they are called here."""
MAX_PARTS = 64
_NAME = re.compile(rb';\s*name="?([^";]*)')
_REFUSED = ("timestamp_granularities[]", "include[]", "known_speaker_names[]", "known_speaker_references[]")
KNOWN = frozenset(
    ("file", "model", "prompt", "language", "response_format", "stream", "temperature", "max_tokens", "seed", *_REFUSED)
)
"""Fields that are read, or refused; `model` by the front."""


def parse_form(content_type: str, data: bytes) -> dict[str, bytes]:
    """The fields of a form; of several with one name the last. Raises LlamactlError."""
    kind, _, parameters = content_type.partition(";")
    boundary = re.search(r'boundary="?([^";]+)', parameters)
    if kind.strip().lower() != "multipart/form-data" or boundary is None:
        raise refuse("cannot read the request body: it must be a form (multipart/form-data)")
    delimiter = b"\r\n--" + boundary[1].strip().encode("utf-8", "replace")
    parts = (b"\r\n" + data).split(delimiter, MAX_PARTS)
    if len(parts) < 3 or not parts[-1].startswith(b"--"):
        raise refuse("cannot read the request body: the form is cut off, or has too many fields")
    fields = {}
    for part in parts[1:-1]:
        head, separator, value = part.partition(b"\r\n\r\n")
        name = next(
            (
                found[1].decode("utf-8", "replace")
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-disposition:") and (found := _NAME.search(line))
            ),
            None,
        )
        if not separator or name is None:
            raise refuse("cannot read the request body: a part of the form has no name")
        fields[name] = value
    return fields


def make_chat(fields: dict[str, bytes]) -> ChatBody:
    """The chat that a form asks for. Raises LlamactlError that names the field."""

    def read(name: str) -> str:
        return fields.get(name, b"").decode("utf-8", "replace").strip()

    if not fields.get("file"):
        raise refuse("cannot use `file`: it is missing, or empty")
    if read("response_format") not in ("", "json"):
        raise refuse(f"cannot use `response_format`: {read('response_format')[:40]!r} is not json")
    for name in _REFUSED:
        if name in fields:
            raise refuse(f"cannot use `{name}`: models answer with text alone")
    prompt = read("prompt") or PROMPT
    if language := read("language"):
        prompt += f" (language: {language})"
    audio = InputAudio(data=base64.b64encode(fields["file"]).decode())
    parts = [ContentPart(type="text", text=prompt), ContentPart(type="input_audio", input_audio=audio)]
    return ChatBody(
        messages=[ChatMessage(role="user", content=parts)],
        stream=read("stream").lower() in ("true", "1"),
        temperature=_read_number("temperature", read("temperature")),
        max_tokens=_read_whole("max_tokens", read("max_tokens")),
        seed=_read_whole("seed", read("seed")),
    )


def _read_number(name: str, text: str) -> float | None:
    try:
        number = float(text) if text else None
    except ValueError:
        number = math.nan
    if number is not None and not math.isfinite(number):
        raise refuse(f"cannot use `{name}`: {text[:40]!r} is no number")
    return number


def _read_whole(name: str, text: str) -> int | None:
    number = _read_number(name, text)
    return None if number is None else int(number)


class TranscriptionFormat(EventFormat):
    """/v1/audio/transcriptions. What the model thinks is not told."""

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self._reader = options.make_reader()
        self._text = ""

    def first(self, index: int) -> bytes:
        return b""

    def progress(self, index: int, event: ProgressEvent) -> bytes:
        return b""

    def text(self, index: int, event: TextEvent) -> bytes:
        return self._tell(self._reader.read(event))

    def last(self, index: int, finish: FinishEvent) -> bytes:
        return self._tell(self._reader.end(finish))

    def end(self, finishes: Sequence[FinishEvent]) -> bytes:
        return _format({"type": "transcript.text.done", "text": self._text, "usage": _format_usage(finishes)})

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        (answer,) = answers
        text = read_message(self._reader, answer.parts, answer.finish).content
        return {"text": text, "usage": _format_usage([answer.finish])}

    def _tell(self, deltas: Sequence[Delta]) -> bytes:
        text = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
        self._text += text
        return _format({"type": "transcript.text.delta", "delta": text}) if text else b""


def _format(event: dict[str, Any]) -> bytes:
    return format_event(encode_json(event))


def _format_usage(finishes: Sequence[FinishEvent]) -> dict[str, Any]:
    usage = format_usage(finishes, 1)
    return {
        "type": "tokens",
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
    }
