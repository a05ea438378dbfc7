"""What reads the requests for one model, and what can it therefore be asked for? Tokens, templates, and llama.cpp's
chat layer where that is there.

Made while the model's context is, since opening a template takes longer than anything else here.
"""

from dataclasses import dataclass

import msgspec

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.chat.abilities import list_abilities
from llamactl.instance.chat.choose import choose_template
from llamactl.instance.chat.layer import ChatLayer
from llamactl.instance.chat.template import ChatTemplate, Template
from llamactl.instance.http.chats import ChatPlanner
from llamactl.instance.http.prompts import PromptReader, read_infill_tokens
from llamactl.instance.llama.model import LoadedModel
from llamactl.instance.llama.params import makes_embeddings
from llamactl.journal_events import JournalEvent
from llamactl.protocol.values import Facts
from llamactl.settings import ModelSettings
from llamactl.systemd.journal import get_logger

log = get_logger()


@dataclass(frozen=True)
class Planning:
    """Of chats with tools and thoughts."""

    planner: ChatPlanner | None = None
    reason: LlamactlError | None = None
    """Why there is no planner, where it could be helped."""


@dataclass(frozen=True)
class Readers:
    prompts: PromptReader
    template: Template
    planning: Planning


def make_readers(settings: ModelSettings, model: LoadedModel) -> Readers:
    """On the main thread: templates are tried there."""
    vocabulary = model.vocabulary
    template = choose_template(
        settings.chat_template,
        model.read_meta("tokenizer.chat_template"),
        vocabulary.text_of(vocabulary.bos),
        vocabulary.text_of(vocabulary.eos),
    )
    planning = make_planning(settings, model) if isinstance(template, ChatTemplate) else Planning()
    return Readers(PromptReader(vocabulary), template, planning)


def make_planning(settings: ModelSettings, model: LoadedModel) -> Planning:
    """With a template that has been tried: llama.cpp runs it without bounds."""
    if makes_embeddings(settings, model.read_traits(settings.swa_full)):
        return Planning()
    try:
        opened = ChatLayer().open_template(settings.chat_template or None, model.pointer)
    except LlamactlError as error:
        if error.code is ErrorCode.NOT_SUPPORTED:
            return Planning(reason=error)
        log.warning(JournalEvent.CHAT_TEMPLATE_WITHOUT_TOOLS, reason=error.message)
        return Planning(reason=LlamactlError(ErrorCode.INVALID_REQUEST, error.message))
    return Planning(ChatPlanner(opened, model.vocabulary, settings.name, settings.tools == "prompt"))


def complete_facts(facts: Facts, model: LoadedModel, planning: Planning, pooling: str) -> Facts:
    """With what the model can be asked for. `pooling`: of one that makes vectors, else empty."""
    abilities = list_abilities(
        planning.planner.template.info if planning.planner is not None else None,
        facts.input_modalities,
        pooling=pooling,
        fills_gaps=read_infill_tokens(model.vocabulary).is_complete,
    )
    missing = str(planning.reason) if planning.reason is not None else ""
    return msgspec.structs.replace(facts, capabilities=abilities, no_tools=missing)
