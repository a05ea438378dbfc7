"""With which template does a model chat? As configured, else as its file says, else ChatML, as llama-server does.

A template that cannot be used costs the model its chats, not its completions, tokens and embeddings: what is wrong is
kept, and whoever wants to chat is told.
"""

from typing import Any

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.chat.capabilities import Capabilities
from llamactl.instance.chat.template import CHATML, ChatTemplate, Messages, Template
from llamactl.instance.llama.chat import apply_builtin_template, list_builtin_templates
from llamactl.journal_events import JournalEvent
from llamactl.systemd.journal import get_logger
from llamactl.template.faults import find_fault

log = get_logger()


def choose_template(configured: str, in_file: str | None, bos_token: str, eos_token: str) -> Template:
    """`configured`: a text, the name of a built-in template, or empty."""
    if configured in list_builtin_templates():
        return BuiltinTemplate(configured)
    source = configured or in_file or CHATML
    fault = find_fault(source)
    if not fault:
        try:
            template = ChatTemplate(source, bos_token, eos_token)
        except LlamactlError as error:
            fault = error.message
        else:
            fault = template.find_excess()
            if not fault:
                return template
    log.warning(JournalEvent.CHAT_TEMPLATE_UNUSABLE, reason=fault, configured=bool(configured))
    return UnusableTemplate(source, fault)


class BuiltinTemplate:
    """One of llama.cpp's own."""

    capabilities = Capabilities(supports_system_role=True)

    def __init__(self, name: str) -> None:
        self.source = name

    def render(self, messages: Messages, **variables: Any) -> str:
        """Raises LlamactlError(INVALID_REQUEST) for what these templates cannot say."""
        if variables.get("tools") or any(entry.get("tool_calls") for entry in messages):
            raise LlamactlError(
                ErrorCode.INVALID_REQUEST,
                f"cannot use `tools`: the built-in chat template {self.source!r} knows none",
                hint="set chat_template_file to a Jinja template that does",
            )
        pairs = [("system" if entry["role"] == "developer" else entry["role"], entry["content"]) for entry in messages]
        add = bool(variables.get("add_generation_prompt"))
        text = apply_builtin_template(self.source, pairs, add_generation_prompt=add)
        if text is None:
            raise LlamactlError(
                ErrorCode.INVALID_REQUEST, f"cannot apply the built-in chat template {self.source!r} to these messages"
            )
        return text


class UnusableTemplate:
    """One that no conversation can be written with. `source` is kept, to be shown."""

    capabilities = Capabilities(supports_string_content=False)

    def __init__(self, source: str, fault: str) -> None:
        self.source = source
        self._fault = fault

    def render(self, messages: Messages, **variables: Any) -> str:
        """Raise LlamactlError(INVALID_REQUEST) that says what is wrong with the model's template."""
        raise LlamactlError(
            ErrorCode.INVALID_REQUEST,
            f"cannot chat with this model: its chat template cannot be used: {self._fault}",
            hint='set chat_template in its configuration (a text, or a name, as "chatml") or chat_template_file',
        )
