"""What does a completion look like to clients of OpenAI's older API? With llama-server's additions."""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from llamactl.event_stream import DATA
from llamactl.instance.engine.jobs import FinishEvent, ProgressEvent, TextEvent, TokenInfo
from llamactl.instance.http.formats import (
    Answer,
    EventFormat,
    FormatOptions,
    encode_json,
    end_stream,
    format_more,
    format_progress,
    format_sse,
    format_sums,
    format_timings,
)
from llamactl.instance.http.native_format import format_probs, format_verbose, limit_logprob
from llamactl.instance.http.pieces import TextPlaces, name_piece


class CompletionFormat(EventFormat):
    """/v1/completions."""

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self._places: dict[int, TextPlaces] = {}
        """Of each choice: its tokens may come in several chunks."""
        self._head = {
            "id": "cmpl-" + secrets.token_urlsafe(24),
            "object": "text_completion",
            "created": int(time.time()),
            "model": options.model,
            "system_fingerprint": options.build,
        }
        self._before = DATA + encode_json(self._head)[:-1] + b',"choices":[{"index":'

    def first(self, index: int) -> bytes:
        return self._chunk(index, self._options.echoes[index]) if self._options.echoes else b""

    def text(self, index: int, event: TextEvent) -> bytes:
        if not event.infos and event.timings is None:
            text = encode_json(event.text)
            return b'%b%d,"text":%b,"logprobs":null,"finish_reason":null}]}\n\n' % (self._before, index, text)
        return self._chunk(index, event.text, infos=event.infos, **format_more(event.timings))

    def progress(self, index: int, event: ProgressEvent) -> bytes:
        return self._chunk(index, "", **format_progress(event))

    def last(self, index: int, finish: FinishEvent) -> bytes:
        more = {"timings": format_timings(finish.timings), **format_verbose(self._options, index, Answer(finish))}
        return self._chunk(index, "", finish.reason, **more)

    def end(self, finishes: Sequence[FinishEvent]) -> bytes:
        return end_stream(self._head, self._options, finishes)

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        echoes = self._options.echoes or [""] * len(answers)
        choices = [
            self._choice(index, echoes[index] + answer.text, answer.finish.reason, answer.infos)
            for index, answer in enumerate(answers)
        ]
        more = {**format_sums(answers, self._options), **format_verbose(self._options, 0, answers[0])}
        return {**self._head, "choices": choices, **more}

    def _chunk(
        self, index: int, text: str, reason: str | None = None, infos: Sequence[TokenInfo] = (), **more: Any
    ) -> bytes:
        return format_sse({**self._head, "choices": [self._choice(index, text, reason, infos)], **more})

    def _choice(self, index: int, text: str, reason: str | None, infos: Sequence[TokenInfo]) -> dict[str, Any]:
        logprobs = None if self._options.n_top is None or not infos else self._format_logprobs(index, infos)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _format_logprobs(self, index: int, infos: Sequence[TokenInfo]) -> dict[str, Any]:
        """OpenAI's four lists, and llama-server's `content`."""
        places = self._places.get(index)
        if places is None:
            echo = self._options.echoes[index] if self._options.echoes else ""
            places = self._places[index] = TextPlaces(echo)
        return {
            "tokens": [name_piece(info.piece) for info in infos],
            "token_logprobs": [limit_logprob(info.value) for info in infos],
            "top_logprobs": [self._format_top(info) for info in infos],
            "text_offset": [places.place(info.piece) for info in infos],
            "content": format_probs(infos, self._options),
        }

    def _format_top(self, info: TokenInfo) -> dict[str, float | None] | None:
        """Of tokens that read alike the likeliest; the token itself in any case, as OpenAI has it."""
        if info.value is None:
            return None
        top: dict[str, float | None] = {}
        for _, piece, value in (*info.top[: self._options.n_top], (info.token, info.piece, info.value)):
            top.setdefault(name_piece(piece), limit_logprob(value))
        return top
