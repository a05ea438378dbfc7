"""How much may a stranger's template use up? jinja2's sandbox keeps it from Python's objects; the bounds here keep it
from time and memory.

Every operation that makes a string or list larger than its operands pays for the result out of one budget per
rendering: concatenation, captured blocks and macros, repetition, the methods and filters that pad, replace and join.
Time is kept by SIGALRM, the one clock that also ends a loop which writes nothing, so rendering belongs on the main
thread.
"""

import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import jinja2
import jinja2.compiler
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.exceptions import SecurityError

MAX_CHARS = 16 << 20
"""Of one string, and of the whole text."""
BUDGET_CHARS = 256 << 20
"""Of all strings that one rendering makes."""
MAX_SECONDS = 2.0
_MAX_NUMBER = 1 << 20
_MAX_EXPONENT = 64
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_GROWING_METHODS = frozenset({"translate", "maketrans", "format_map"})
_PADDING_FILTERS = ("center", "indent", "wordwrap", "truncate", "batch", "slice")


class TemplateLimit(Exception):
    """A bound was reached; the text says which."""


class _CodeGenerator(jinja2.compiler.CodeGenerator):
    """Compiles `a ~ b` into a call that is counted: jinja2 itself joins without asking the environment."""

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: jinja2.compiler.Frame) -> None:
        self.write("environment.concat(map(str, (")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write(")))")


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks what the model says, for training: nothing that a prompt shows."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox with a budget. `renew_budget` before each rendering."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation])
        self._left = BUDGET_CHARS
        self.filters["join"] = self._bound_join(self.filters["join"])
        self.filters["replace"] = self._bound_replace(self.filters["replace"])
        self.filters["format"] = self._bound_format(self.filters["format"])
        for name in _PADDING_FILTERS:
            self.filters[name] = _bound_numbers(self.filters[name])

    def renew_budget(self) -> None:
        """Let the next template write BUDGET_CHARS again."""
        self._left = BUDGET_CHARS

    def charge(self, length: int) -> None:
        """Before something of this length is made."""
        self._left -= length
        if length > MAX_CHARS or self._left < 0:
            raise TemplateLimit(f"it makes texts of more than {MAX_CHARS} characters")

    # --- what jinja2 calls ------------------------------------------------------------------------

    def concat(self, parts: Iterable[str]) -> str:
        collected = []
        for part in parts:
            self.charge(len(part))
            collected.append(part)
        self.charge(sum(map(len, collected)))
        return "".join(collected)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            self.charge(_measure(left) + _measure(right))
        elif operator == "*":
            for value, count in ((left, right), (right, left)):
                if isinstance(count, int):
                    self.charge(_measure(value) * max(0, count))
        elif operator == "**" and not (abs(left) <= _MAX_NUMBER and abs(right) <= _MAX_EXPONENT):
            raise SecurityError("a power is too large")
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: jinja2.runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str | bytes):
            __self._check_method(owner, getattr(__obj, "__name__", ""), args)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def _check_method(self, owner: str | bytes, name: str, args: tuple[Any, ...]) -> None:
        if name in _GROWING_METHODS:
            raise SecurityError(f"the method {name} is not available")
        if name in _PADDING_METHODS and any(isinstance(value, int) and value > _MAX_NUMBER for value in args):
            raise SecurityError("a text is too long")
        if name == "join" and args:
            self._charge_join(owner, args[0])
        if name == "replace" and len(args) > 1:
            self._charge_replace(owner, args[0], args[1])

    def _charge_join(self, separator: Any, values: Any) -> None:
        # An iterator must not be used up here: what it yields is charged when it was made, its separators are few.
        if isinstance(values, list | tuple | dict | str):
            self.charge(sum(map(_measure, values)) + _measure(separator) * len(values))

    def _charge_replace(self, text: Any, old: Any, new: Any) -> None:
        if isinstance(text, str) and isinstance(old, str):
            self.charge(len(text) + text.count(old) * _measure(new))

    def _bound_join(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def join(eval_context: Any, value: Any, d: str = "", attribute: Any = None) -> Any:
            values = list(value)
            if attribute is None:
                self._charge_join(d, values)
            return function(eval_context, values, d, attribute)

        return _copy_marks(function, join)

    def _bound_replace(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def replace(eval_context: Any, s: Any, old: str, new: str, count: int | None = None) -> Any:
            self._charge_replace(str(s), str(old), str(new))
            return function(eval_context, s, old, new, count)

        return _copy_marks(function, replace)

    def _bound_format(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def format_text(value: Any, *args: Any, **kwargs: Any) -> Any:
            _check_format(str(value))
            return function(value, *args, **kwargs)

        return _copy_marks(function, format_text)


@contextmanager
def limit_time(seconds: float = MAX_SECONDS) -> Iterator[None]:
    """Raises TemplateLimit in the body when it takes longer. Main thread only."""

    def handle_alarm(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise TemplateLimit(f"it takes more than {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, handle_alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _measure(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 0


def _check_format(text: str) -> None:
    """Widths come as digits, as `*`, or as a field within a field's specification."""
    if re.search(r"\d{5,}|\*|\{[^{}]*\{", text.replace("{{", "")):
        raise SecurityError("a format is too wide")


def _bound_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, int) and value > _MAX_NUMBER for value in (*args, *kwargs.values())):
            raise SecurityError("a text is too long")
        return function(*args, **kwargs)

    return _copy_marks(function, bounded)


def _copy_marks(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """jinja2 marks functions with what they want to be passed first."""
    wrapper.__dict__.update(function.__dict__)
    return wrapper
