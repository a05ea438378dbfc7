"""What does an answer look like on llama-server's own routes? Its JSON, word for word; a request may ask for it beside
OpenAI's (`verbose`).
"""

from collections.abc import Sequence
from typing import Any

from llamactl.instance.engine.jobs import FinishEvent, FinishReason, ProgressEvent, TextEvent, TokenInfo
from llamactl.instance.http.formats import (
    Answer,
    EventFormat,
    FormatOptions,
    format_more,
    format_progress,
    format_sse,
    format_timings,
)

_MISSING = object()
_LOWEST = -3.4028234663852886e38
"""llama-server's word for the logarithm of 0, which JSON does not have."""


class NativeFormat(EventFormat):
    """llama-server's own /completion and /infill."""

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self._has_new_line: set[int] = set()

    def first(self, index: int) -> bytes:
        return b""

    def text(self, index: int, event: TextEvent) -> bytes:
        if "\n" in event.text:
            self._has_new_line.add(index)
        more = format_more(event.timings)
        if event.infos and self._options.n_top is not None:
            more["completion_probabilities"] = format_probs(event.infos, self._options)
        return format_sse(
            {
                "index": index,
                "content": event.text,
                "tokens": list(event.tokens),
                "stop": False,
                "id_slot": -1,
                "tokens_predicted": event.n_generated,
                "tokens_evaluated": self._options.n_prompt[index],
                **more,
            }
        )

    def progress(self, index: int, event: ProgressEvent) -> bytes:
        chunk = {
            "index": index,
            "content": "",
            "tokens": [],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": 0,
            "tokens_evaluated": self._options.n_prompt[index],
            **format_progress(event),
        }
        return format_sse(chunk)

    def last(self, index: int, finish: FinishEvent) -> bytes:
        return format_sse(self.format_final(index, Answer(finish)))

    def end(self, finishes: Sequence[FinishEvent]) -> bytes:
        return b""

    def whole(self, answers: Sequence[Answer]) -> Any:
        finals = [self.format_final(index, answer) for index, answer in enumerate(answers)]
        return finals[0] if len(finals) == 1 else finals

    def format_final(self, index: int, answer: Answer) -> dict[str, Any]:
        """Format the last event of choice `index`, which is its whole answer as well."""
        finish = answer.finish
        final = {
            "index": index,
            "content": answer.text,
            "tokens": answer.tokens if self._options.return_tokens else [],
            "id_slot": finish.slot,
            "stop": True,
            "model": self._options.model,
            "tokens_predicted": finish.n_generated,
            "tokens_evaluated": finish.n_prompt,
            **self._options.describe(index),
            "has_new_line": index in self._has_new_line or "\n" in answer.text,
            "truncated": finish.truncated,
            "stop_type": _find_stop_type(finish),
            "stopping_word": finish.stopped_by or "",
            "tokens_cached": finish.n_prompt + finish.n_generated,
            "timings": format_timings(finish.timings),
        }
        if answer.infos and self._options.n_top is not None:
            final["completion_probabilities"] = format_probs(answer.infos, self._options)
        return final if self._options.fields is None else _select_fields(final, self._options.fields)


def format_verbose(options: FormatOptions, index: int, answer: Answer) -> dict[str, Any]:
    """Where it is asked for, llama-server's own answer beside OpenAI's."""
    return {"__verbose": NativeFormat(options).format_final(index, answer)} if options.verbose else {}


def format_probs(infos: Sequence[TokenInfo], options: FormatOptions) -> list[dict[str, Any]]:
    """llama-server's list, which holds what OpenAI's has."""
    word, words = ("prob", "top_probs") if options.post_sampling else ("logprob", "top_logprobs")

    def describe(token: int, piece: bytes, value: float | None) -> dict[str, Any]:
        text = piece.decode(errors="replace")
        return {"id": token, "token": text, "bytes": list(piece), word: limit_logprob(value)}

    return [
        {
            **describe(info.token, info.piece, info.value),
            words: [describe(*entry) for entry in info.top[: options.n_top]],
        }
        for info in infos
    ]


def limit_logprob(value: float | None) -> float | None:
    """Limit a logarithm to what JSON has: that of 0 becomes llama-server's lowest number."""
    return None if value is None else max(value, _LOWEST)


def _select_fields(answer: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Those that are there, each under its path ("timings/prompt_n")."""
    selected = {}
    for path in paths:
        value: Any = answer
        for key in path.split("/"):
            value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
        if value is not _MISSING:
            selected[path] = value
    return selected


def _find_stop_type(finish: FinishEvent) -> str:
    if finish.reason is FinishReason.LENGTH:
        return "limit"
    return "eos" if finish.stopped_by is None else "word"
