"""What can a model be asked for? One word for each thing, in Ollama's words, which clients know to look for."""

from collections.abc import Iterable

from llamactl.instance.chat.layer import TemplateInfo

_SENSES = {"image": "vision", "audio": "audio"}
"""By what requests may carry."""


def list_abilities(
    template: TemplateInfo | None,
    modalities: Iterable[str] = (),
    *,
    pooling: str = "",
    fills_gaps: bool = False,
) -> tuple[str, ...]:
    """`template`: None where the chat layer knows none. `pooling`: of a model that makes vectors, else empty."""
    if pooling:
        return ("rerank",) if pooling == "rank" else ("embedding",)
    found = ["completion"]
    if fills_gaps:
        found.append("insert")
    if template is not None:
        known = template.capabilities
        if known.get("supports_tools") and known.get("supports_tool_calls"):
            found.append("tools")
        if template.supports_thinking:
            found.append("thinking")
    return (*found, *(_SENSES[name] for name in modalities if name in _SENSES))
