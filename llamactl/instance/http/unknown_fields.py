"""Which fields of a request does nothing here know? They change nothing, as with llama-server, and the journal says so
once for each: a client that relies on one finds out why nothing comes of it.

Only a body's own fields are looked at, not what is nested in them. Those that docs/http.md calls ignored are known, but
not those of which it says that they are not done yet.
"""

from collections.abc import Collection
from typing import Any

import msgspec

from llamactl import bodies
from llamactl.dialects import messages, responses
from llamactl.journal_events import JournalEvent
from llamactl.systemd.journal import get_logger

log = get_logger()

_IGNORED: dict[type, str] = {
    bodies.GenerationBody: (
        "n_cache_reuse backend_sampling speculative.n_max speculative.n_min speculative.p_min "
        "speculative.type t_max_prompt_ms preserved_tokens grammar_triggers grammar_type user "
        "safety_identifier metadata store service_tier prompt_cache_key prompt_cache_retention"
    ),
    bodies.ChatBody: (
        "prediction parse_tool_calls reasoning_budget_start_tag "
        "reasoning_budget_end_tag reasoning_budget_end_tags chat_format chat_parser generation_prompt "
        "message_delimiters"
    ),
    responses.ResponsesBody: (
        "max_tool_calls stream_options user safety_identifier service_tier prompt_cache_key "
        "prompt_cache_retention prompt_cache_options context_management moderation client_metadata"
    ),
    messages.MessagesBody: "cache_control metadata service_tier inference_geo speed diagnostics betas",
    bodies.EmbeddingBody: "user",
}
IGNORED = {kind: frozenset(names.split()) for kind, names in _IGNORED.items()}
"""Fields that may be anything, by the body that has them."""
_WHOLE: dict[type, type] = {
    messages.CountBody: messages.MessagesBody,
    responses.CountBody: responses.ResponsesBody,
    bodies.TemplateBody: bodies.ChatBody,
}
"""Bodies of which a part is asked for, and what clients send them as."""
_OF_ALL = frozenset({"model", "keep_alive"})
"""What the front reads."""
_MAX_TOLD = 32
_MAX_SHOWN = 64


def list_known(kind: type) -> frozenset[str]:
    """The fields of a body that are read, or ignored for a reason."""
    whole = _WHOLE.get(kind, kind)
    ignored = (IGNORED.get(base, frozenset()) for base in whole.__mro__)
    return _OF_ALL.union(_list_fields(kind), _list_fields(whole), *ignored)


def _list_fields(kind: Any) -> tuple[str, ...]:
    return tuple(kind.__struct_fields__)


class FieldWatch:
    """Says it in the journal, once for each field while a model runs, and of so many fields."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._known: dict[type, frozenset[str]] = {}
        self._told: set[str] = set()

    def look(self, data: bytes, kind: type) -> None:
        """`data`: a body that was read as `kind`."""
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = list_known(kind)
        self.compare(msgspec.json.decode(data.removeprefix(bodies.BOM), type=dict[str, msgspec.Raw]), known)

    def compare(self, fields: Collection[str], known: Collection[str]) -> None:
        for field in fields:
            if field in known or len(self._told) >= _MAX_TOLD:
                continue
            shown = field[:_MAX_SHOWN]
            if shown not in self._told:
                self._told.add(shown)
                log.info(JournalEvent.FIELD_IGNORED, model=self._model, field=shown)
