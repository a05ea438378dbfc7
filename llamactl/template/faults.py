"""Can a chat be written with this template? Read from its text alone: nothing of a stranger's template runs here, so
`check` may look at it as root.

Templates for other engines (Go's, of Ollama) are no Jinja. A text without a word of the conversation renders without an
error, and the model reads the same few tokens whatever it is told.
"""

import jinja2
import jinja2.meta

from llamactl.template.limits import BoundedEnvironment

NOT_COMPILED = (jinja2.TemplateError, RecursionError, SyntaxError, ValueError, MemoryError)
"""Jinja makes Python of a template, and leaves some of what makes no sense to Python."""


def find_fault(source: str) -> str:
    """Why no conversation can be written with it; empty where one can."""
    environment = BoundedEnvironment()
    try:
        names = jinja2.meta.find_undeclared_variables(environment.parse(source))
        compile(environment.compile(source, raw=True), "<template>", "exec")
    except NOT_COMPILED as error:
        line = getattr(error, "lineno", None) if isinstance(error, jinja2.TemplateError) else None
        return f"it is no Jinja template: {f'line {line}: ' if line else ''}{error}"
    return "" if "messages" in names else "it uses no message: it never asks for `messages`"
