"""What would a model write that was trained on a template? What the template itself writes of a former answer: with
thoughts, calls and contents, cut out of the conversation.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from llamactl.errors import LlamactlError
from llamactl.instance.chat.layer import Applied, ApplyRequest, LayerTemplate

CONTENT, THOUGHT = "ALPHA BRAVO.", "DELTA ECHO."
_MARK = "MARK"
_USER = {"role": "user", "content": "Question"}
_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "Tells it.", "parameters": _PARAMETERS}}
    for name in ("get_weather", "get_time")
]
CALLS = (("get_weather", {"city": "PARIS", "days": 3}), ("get_time", {"city": "ROME"}))
KINDS = ("content", "call", "calls", "content+call", "thought+content", "thought+call")
_ENDS = (
    *("<|eom_id|>", "<|eot_id|>", "<|calls|>", "<|tool_response>", "<SPECIAL_12>", "<|END_OF_TURN_TOKEN|>"),
    *(
        "<\uff5cend▁of▁sentence\uff5c>",
        "<turn|>",
        "<|im_end|>",
        "<|end_of_text|>",
        "</s>",
        "<|eom|>",
        "<|eot|>",
        "<|call|>",
    ),
)
"""Tokens that end a turn in one of the templates, where that is not what follows a plain answer."""


@dataclass(frozen=True)
class Written:
    """An answer as a model writes it, and what it means."""

    applied: Applied
    text: str
    end_text: str
    content: str
    thought: str
    calls: tuple[tuple[str, dict[str, Any]], ...]


@dataclass(frozen=True)
class _Setting:
    """What stands before and behind an answer."""

    before: str
    begun: Applied
    plain: str
    """With an answer that is but a mark."""


def write_answers(template: LayerTemplate) -> dict[str, Written]:
    """By kind, those that the template writes, and behind what it has written before."""
    settings = {thinks: _make_setting(template, thinks) for thinks in (False, True)}
    written = {}
    for kind in KINDS:
        setting = settings["thought" in kind]
        answer = None if setting is None else _write_answer(template, kind, setting)
        if answer is not None:
            written[kind] = answer
    return written


def _apply(template: LayerTemplate, thinks: bool, *messages: dict[str, Any], begin: bool = False) -> Applied:
    more: dict[str, Any] = {"tools": TOOLS, "parallel_tool_calls": True, "enable_thinking": thinks}
    return template.apply(ApplyRequest(messages=list(messages), add_generation_prompt=begin, **more))


def _make_setting(template: LayerTemplate, thinks: bool) -> _Setting | None:
    try:
        return _Setting(
            _apply(template, thinks, _USER).prompt,
            _apply(template, thinks, _USER, begin=True),
            _apply(template, thinks, _USER, {"role": "assistant", "content": _MARK}).prompt,
        )
    except LlamactlError:
        return None


def _write_answer(template: LayerTemplate, kind: str, setting: _Setting) -> Written | None:
    parts = kind.split("+")
    thinks = "thought" in parts
    n_calls = {"call": 1, "calls": 2}.get(parts[-1], 0)
    message: dict[str, Any] = {"role": "assistant", "content": CONTENT if "content" in parts else ""}
    if thinks:
        message["reasoning_content"] = THOUGHT
    if n_calls:
        message["tool_calls"] = [
            {"id": f"abcdefg{n:02d}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for n, (name, given) in enumerate(CALLS[:n_calls])
        ]
    before, begun, plain = setting.before, setting.begun, setting.plain
    try:
        after = _apply(template, thinks, _USER, message).prompt
    except LlamactlError:
        return None
    if after.startswith(begun.prompt):
        text = after.removeprefix(begun.prompt)
    elif after.startswith(before):
        text = _skip_header(after.removeprefix(before), begun)
    else:
        return None
    text, end_text = _cut_end(text, plain[plain.rindex(_MARK) + len(_MARK) :])
    if n_calls and not all(name in text and given["city"] in text for name, given in CALLS[:n_calls]):
        return None
    if not n_calls and CONTENT not in text:
        return None
    return Written(
        begun,
        text,
        end_text,
        CONTENT if CONTENT in text else "",
        THOUGHT if THOUGHT in text else "",
        CALLS[:n_calls],
    )


def _skip_header(text: str, begun: Applied) -> str:
    """What the prompt has of the answer may be more than what is left of it afterwards: thoughts that it begins."""
    written = begun.generation_prompt
    n_common = next((n for n, (a, b) in enumerate(zip(text, written, strict=False)) if a != b), len(written))
    open_tag = written.rfind("<", 0, n_common)
    if open_tag > written.rfind(">", 0, n_common):
        n_common = open_tag  # tags that only begin alike
    rest = written[n_common:]
    ends = begun.thinking_end_tags
    for end in ends:
        if end in rest and text[n_common:].startswith(end):
            return text[n_common:].removeprefix(end)
    if begun.thinking_start_tag in rest and not any(end in rest for end in ends):
        return text[n_common:].lstrip() if THOUGHT in text else ends[0] + text[n_common:]
    return text[n_common:]


def _cut_end(text: str, usual: str) -> tuple[str, str]:
    """Of the turn. `usual`: with what it ends behind a text."""
    end_text = ""
    if usual.strip() and text.endswith(usual):
        first = re.match(r"\s*(<[^>]*>|\S+)", usual)
        text, end_text = text.removesuffix(usual), first[1] if first else ""
    found = [(text.find(end), end) for end in _ENDS if end in text]
    if found:
        start, end_text = min(found)
        return text[:start], end_text
    return text.rstrip("\n"), end_text
