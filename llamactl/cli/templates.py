"""Can chats be written with the templates of the configured models? Those of the configuration, and those in the heads
of model files.

Templates are read, not run: they come from strangers, and this runs as root. A model whose file has none that can be
used is good for all but chats, so that is worth a note; one that somebody configured is a mistake.
"""

from llamactl.config.builtin_templates import BUILTIN
from llamactl.config.gguf import acquire_text
from llamactl.config.toml_tables import Place, format_key
from llamactl.settings import Config, ModelSettings, Problem

_IN_FILE = "tokenizer.chat_template"


def check_templates(config: Config) -> list[Problem]:
    """One finding for each model that cannot chat for its template's sake. Models for embeddings need none."""
    problems = [_check_template(model) for model in config.models.values() if not model.pooling]
    return [problem for problem in problems if problem is not None]


def _check_template(model: ModelSettings) -> Problem | None:
    # Jinja is imported when it is needed: no other command does.
    from llamactl.template.faults import find_fault

    place = Place(model.source, f"models.{format_key(model.name)}", model.name)
    if model.chat_template:
        fault = "" if model.chat_template in BUILTIN else find_fault(model.chat_template)
        return place.report(f"cannot use the chat template: {fault}", "chat_template") if fault else None
    try:
        source = acquire_text(model.path, _IN_FILE)
    except OSError:
        return None  # told by others
    fault = find_fault(source) if source else ""
    if not fault:
        return None
    message = f"chats will be refused: the chat template in {model.path!r} cannot be used: {fault}"
    hint = 'set chat_template (a text, or a name, as "chatml") or chat_template_file'
    return place.report(message, "path", hint, fatal=False)
