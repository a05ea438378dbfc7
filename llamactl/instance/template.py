"""How does a conversation become a prompt? By the model file's own Jinja template, which comes from strangers.

So it runs in jinja2's immutable sandbox and within bounds: the text it may write, the sizes of strings and ranges it
may make on the way, and the time it may take. Time is kept by SIGALRM, the one clock that also ends a loop which
writes nothing: render on the main thread only. A template that breaks the bounds or raises costs the request a 400,
nothing else.
"""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2.exceptions import SecurityError

from llamactl.errors import ErrorCode, LlamactlError

MAX_CHARS = 16 << 20
MAX_SECONDS = 2.0
_MAX_REPEAT = 1 << 20

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""For files without a template, as llama-server does."""


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on what single operations may make."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_repeat(left, right)
            _check_repeat(right, left)
        elif operator == "**" and not (abs(left) <= _MAX_REPEAT and abs(right) <= 64):
            raise SecurityError("a power is too large")
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("string formatting is not available")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: jinja2.runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # str.center(10**10) and its like: no method of a value needs numbers that large.
        if isinstance(getattr(__obj, "__self__", None), str | bytes):
            for value in (*args, *kwargs.values()):
                if isinstance(value, int) and value > _MAX_REPEAT:
                    raise SecurityError("a string is too long")
        return super().call(__context, __obj, *args, **kwargs)


def _check_repeat(value: Any, count: Any) -> None:
    if isinstance(count, int) and hasattr(value, "__len__") and len(value) * count > _MAX_REPEAT:
        raise SecurityError("a repetition is too long")


class ChatTemplate:
    """One compiled template. Raises LlamactlError(INVALID_MODEL) where it is no template."""

    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        self.source = source
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols], autoescape=False
        )
        environment.filters["tojson"] = _format_json
        for name in ("center", "indent", "format"):
            environment.filters[name] = _bound_filter(environment.filters[name])
        environment.globals.update(
            bos_token=bos_token,
            eos_token=eos_token,
            raise_exception=_raise_exception,
            strftime_now=lambda text: datetime.now().strftime(text),
        )
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise LlamactlError(ErrorCode.INVALID_MODEL, f"cannot use the chat template: {error}") from None

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """The prompt. Raises LlamactlError(INVALID_REQUEST) when the template refuses these messages or breaks its
        bounds.
        """
        parts, length = [], 0
        try:
            with _time_limit(MAX_SECONDS):
                for part in self._template.generate(messages=messages, **variables):
                    length += len(part)
                    if length > MAX_CHARS:
                        raise _TemplateLimit(f"it writes more than {MAX_CHARS} characters")
                    parts.append(part)
        except (_TemplateLimit, jinja2.TemplateError) as error:
            raise LlamactlError(ErrorCode.INVALID_REQUEST, f"cannot apply the chat template: {error}") from None
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
            MemoryError,
        ) as error:
            # Whatever a template does to values that it did not expect.
            raise LlamactlError(
                ErrorCode.INVALID_REQUEST, f"cannot apply the chat template: {type(error).__name__}: {error}"
            ) from None
        return "".join(parts)


class _TemplateLimit(Exception):
    pass


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def handle_alarm(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise _TemplateLimit(f"it takes more than {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, handle_alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _bound_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, int) and value > _MAX_REPEAT for value in (*args, *kwargs.values())):
            raise SecurityError("a string is too long")
        return function(*args, **kwargs)

    bounded.__dict__.update(function.__dict__)
    return bounded


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _format_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
