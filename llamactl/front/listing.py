"""How does a model look in `GET /models`? As in llama-server's router, word for word where it has a word.

A failed model is `unloaded` with `failed` beside it, because that is how clients of the router tell it from one that
was never loaded; one that stops is what it was until its memory is free; a model with a configuration that cannot be
used is listed the same way, with the reason, or its owner would look for it in vain.
"""

from typing import Any

from llamactl.protocol.control_socket import ModelList
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.values import Stage, State, format_memory, format_meta

_VALUES = {
    State.UNLOADED: "unloaded",
    State.LOADING: "loading",
    State.READY: "loaded",
    State.SLEEPING: "sleeping",
    State.FAILED: "unloaded",
}
_RUNNING = (State.READY, State.SLEEPING)


def format_model_list(models: ModelList) -> dict[str, Any]:
    """All models that are not unlisted."""
    data = [format_model(model) for model in models.models if not model.unlisted]
    return {"object": "list", "data": data}


def format_model(model: ModelStatus) -> dict[str, Any]:
    """Format a model for `GET /models`, as llama-server's router does, with our additions."""
    listed = {
        "id": model.name,
        "aliases": list(model.aliases),
        "tags": list(model.tags),
        "object": "model",
        "owned_by": "llamactl",
        "created": model.created,
        "status": format_status(model),
        "architecture": {
            "input_modalities": list(model.facts.input_modalities) if model.facts is not None else ["text"],
            "output_modalities": ["text"],
        },
        "capabilities": list(model.facts.capabilities) if model.facts is not None else [],
        "source": "models_dir" if model.found else "preset",
        "can_remove": False,
        "path": model.path,
        "context_length": model.context_length or None,
        "memory": format_memory(model.memory),
    }
    if model.state in _RUNNING and model.facts is not None:
        listed["meta"] = format_meta(model.facts, model.context_length)
    return listed


def choose_value(model: ModelStatus) -> str:
    """llama-server's word for its state."""
    if model.state is State.STOPPING:
        return _VALUES[model.stopped_from or State.READY]
    return _VALUES[model.state]


def format_status(model: ModelStatus) -> dict[str, Any]:
    """`value`, and what else there is to say of it."""
    status: dict[str, Any] = {"value": choose_value(model), "args": list(model.args)}
    if model.state is State.LOADING:
        status["progress"] = {
            "stages": [str(stage) for stage in Stage if stage is not Stage.READY],
            "current": str(model.stage or Stage.QUEUED),
            "value": model.progress or 0.0,
        }
        if model.waiting_for:
            status["waiting_for"] = list(model.waiting_for)
    if model.invalid:
        status.update(failed=True, reason=model.invalid)
    elif model.failure is not None and model.state in (State.FAILED, State.UNLOADED):
        status.update(failed=True, exit_code=model.failure.exit_code, reason=model.failure.message)
    elif model.state is State.FAILED:
        status.update(failed=True)
    return status


def format_info(model: ModelStatus) -> dict[str, Any]:
    """What a running instance says of itself."""
    info: dict[str, Any] = {"id": model.name, "context_length": model.context_length or None}
    if model.facts is not None:
        info["meta"] = format_meta(model.facts, model.context_length)
    return info
