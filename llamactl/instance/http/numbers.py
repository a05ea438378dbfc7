"""Whose token numbers are these? A model that goes by one of OpenAI's names is sent numbers of OpenAI's vocabulary by
some clients (LangChain's embeddings by default), and nothing in a number says so: those below the model's own count are
taken for other words, and the answers are wrong without an error.
"""

import re
from typing import Any

from llamactl.journal_events import JournalEvent
from llamactl.systemd.journal import get_logger

log = get_logger()

_OF_OPENAI = re.compile(
    r"(openai/)?(text-(embedding|ada|babbage|curie|davinci)-|gpt-(?!oss)|chatgpt-|davinci-|babbage-|o\d(-|$))"
)
"""What they name models that tokenize with their own vocabularies; files of gpt-oss bring theirs."""


def is_openais(name: str) -> bool:
    """Whether a model of this name is OpenAI's, with a vocabulary of its own."""
    return _OF_OPENAI.match(name.lower()) is not None


def holds_numbers(given: Any) -> bool:
    """Whether token numbers are among prompts or inputs."""
    return isinstance(given, list) and any(
        isinstance(entry, int) or (isinstance(entry, list) and any(isinstance(part, int) for part in entry))
        for entry in given
    )


class NumberWatch:
    """Says it in the journal, once while a model runs."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._has_warned = False

    def look(self, asked_for: str | None, given: Any) -> None:
        """`asked_for`: the model as the client names it."""
        if self._has_warned or not asked_for or not is_openais(asked_for) or not holds_numbers(given):
            return
        self._has_warned = True
        log.warning(
            JournalEvent.TOKENS_OF_ANOTHER_VOCABULARY,
            model=self._model,
            asked_for=asked_for,
            reason="the client sends token numbers under a name of OpenAI's, whose vocabulary is not this model's",
            hint="let it send texts (LangChain: check_embedding_ctx_length=False)",
        )
