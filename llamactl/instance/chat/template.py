"""How does a conversation become a prompt? By the model file's own Jinja template, which comes from strangers.

It runs in a bounded sandbox (`llamactl.template`). A template that breaks the bounds, or that refuses these messages,
costs the request a 400, nothing else.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn, Protocol

import jinja2

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.chat.capabilities import TOOLS, Capabilities, make_history, probe_capabilities
from llamactl.template.faults import NOT_COMPILED
from llamactl.template.limits import MAX_CHARS, BoundedEnvironment, TemplateLimit, limit_time

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""For files without a template, as llama-server does."""

_KNOWS_DEVELOPERS = "<|channel|>"
"""In the templates that take a `developer` beside a `system`; to all others it is another word for it."""

_PROBE = "PROBE"
_HELLO = {"role": "user", "content": "Hello"}
_MAX_INDENT = 16

Messages = Sequence[dict[str, Any]]


class Template(Protocol):
    """What writes prompts."""

    source: str

    @property
    def capabilities(self) -> Capabilities: ...

    def render(self, messages: Messages, **variables: Any) -> str:
        """The prompt. Raises LlamactlError(INVALID_REQUEST) where it cannot say this."""


class ChatTemplate:
    """One compiled template. Raises LlamactlError(INVALID_MODEL) where it is no template."""

    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._environment = BoundedEnvironment()
        self._environment.filters["tojson"] = _format_json
        # Prompts are no HTML: what jinja2 marks as safe makes it escape all that is added to it.
        self._environment.filters["safe"] = str
        self._environment.globals.update(
            bos_token=bos_token,
            eos_token=eos_token,
            raise_exception=_raise_exception,
            strftime_now=lambda text: datetime.now().strftime(text),
        )
        try:
            self._template = self._environment.from_string(source)
        except NOT_COMPILED as error:
            raise LlamactlError(ErrorCode.INVALID_MODEL, f"cannot use the chat template: {error}") from None

    def render(self, messages: Messages, **variables: Any) -> str:
        """The prompt. Raises LlamactlError(INVALID_REQUEST) when the template refuses these messages or breaks its
        bounds.

        Templates that know nothing but lists of parts, or no system message, get what they know, as from llama-server.
        That is tried out only when something of the messages is missing in the prompt, or the template refuses them.
        """
        if _KNOWS_DEVELOPERS not in self.source:
            messages = [{**entry, "role": "system"} if entry["role"] == "developer" else entry for entry in messages]
        if any(entry.get("tool_calls") for entry in messages) and self.capabilities.supports_object_arguments:
            messages = _open_arguments(messages)
        try:
            text = self._write(messages, variables)
        except LlamactlError:
            adapted = self._adapt(messages)
            if adapted is messages:
                raise
            return self._write(adapted, variables)
        if all(entry["content"].strip() in text for entry in messages):
            return text
        adapted = self._adapt(messages)
        return text if adapted is messages else self._write(adapted, variables)

    def _adapt(self, messages: Messages) -> Messages:
        if messages and messages[0]["role"] == "system" and not self._takes_system:
            system, *others = messages
            user = others[0] if others else {"role": "user", "content": ""}
            messages = [{**user, "content": f"{system['content']}\n{user['content']}".rstrip()}, *others[1:]]
        return _to_parts(messages) if self._takes_parts_only else messages

    @cached_property
    def capabilities(self) -> Capabilities:
        """What it knows besides roles and texts."""

        def write(messages: Messages, variables: dict[str, Any]) -> str | None:
            try:
                return self._write(messages, variables)
            except LlamactlError:
                return None

        return probe_capabilities(write)

    @cached_property
    def _takes_parts_only(self) -> bool:
        message = {"role": "user", "content": _PROBE}
        return not self._tells([message]) and self._tells(_to_parts([message]))

    @cached_property
    def _takes_system(self) -> bool:
        """Also of templates that tell nothing at all: to those it makes no difference."""
        user = {"role": "user", "content": "x"}
        system, alone = [{"role": "system", "content": _PROBE}, user], [{"role": "user", "content": _PROBE}]
        if self._takes_parts_only:
            system, alone = _to_parts(system), _to_parts(alone)
        return self._tells(system) or not self._tells(alone)

    def _tells(self, messages: Messages) -> bool:
        with suppress(LlamactlError):
            return _PROBE in self._write(messages, {"add_generation_prompt": True})
        return False

    def find_excess(self) -> str:
        """What bound it breaks with short conversations, whatever they say; empty: none. Such a template must not come
        to an interpreter without bounds.
        """
        for messages, tools in (([_HELLO], None), (make_history('{"arg": "x"}'), TOOLS)):
            try:
                self._generate(messages, {"add_generation_prompt": True, **({"tools": tools} if tools else {})})
            except TemplateLimit as error:
                return str(error)
            except RecursionError:
                return "it recurses without end"
            except OverflowError as error:  # what jinja2's sandbox says of a range
                return str(error)
            except MemoryError:
                return "it takes too much memory"
            except Exception:  # it refuses this conversation
                continue
        return ""

    def _write(self, messages: Messages, variables: dict[str, Any]) -> str:
        try:
            return self._generate(messages, variables)
        except (TemplateLimit, jinja2.TemplateError) as error:
            raise _refuse(str(error)) from None
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            # Whatever a template does to values that it did not expect.
            raise _refuse(f"{type(error).__name__}: {error}") from None

    def _generate(self, messages: Messages, variables: dict[str, Any]) -> str:
        """Raises TemplateLimit, and whatever the template does."""
        parts, length = [], 0
        # What llama-server tells beside: some templates show a day of long ago without it.
        today = datetime.now()
        variables = {"date_string": today.strftime("%d %b %Y"), "datetime": today.strftime("%b %d %Y"), **variables}
        self._environment.renew_budget()
        with limit_time():
            for part in self._template.generate(messages=messages, **variables):
                length += len(part)
                if length > MAX_CHARS:
                    raise TemplateLimit(f"it writes more than {MAX_CHARS} characters")
                parts.append(part)
        return "".join(parts)


def _open_arguments(messages: Messages) -> Messages:
    """Clients send arguments of calls as a text of JSON; a template that writes them one by one wants the object."""
    opened = []
    for entry in messages:
        if calls := entry.get("tool_calls"):
            entry = {**entry, "tool_calls": [_open_call(call) for call in calls]}
        opened.append(entry)
    return opened


def _open_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    with suppress(ValueError, RecursionError):
        arguments = json.loads(function["arguments"])
        if isinstance(arguments, dict):
            return {**call, "function": {**function, "arguments": arguments}}
    return call


def _to_parts(messages: Messages) -> list[dict[str, Any]]:
    return [{**entry, "content": [{"type": "text", "text": entry["content"]}]} for entry in messages]


def _refuse(reason: str) -> LlamactlError:
    return LlamactlError(ErrorCode.INVALID_REQUEST, f"cannot apply the chat template: {reason}")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _format_json(
    value: Any,
    indent: int | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML."""
    if (indent or 0) > _MAX_INDENT or len("".join(separators or ())) > _MAX_INDENT:
        raise TemplateLimit("it writes JSON too wide")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_open_generator,
    )


def _open_generator(value: Any) -> list[Any]:
    """What `map` and `select` make is a list to templates."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no value of JSON")


def format_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """As templates expect a function: many write its description and parameters without asking whether it has any."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    return {**tool, "function": {"name": function.get("name"), "description": "", "parameters": {}, **function}}
