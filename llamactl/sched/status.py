"""What do lists show of the scheduler's state?

A model with a queued load is shown as `loading`, with the stage that says whether it waits: to a client both are the
same, "not yet". Socket, unit and process are the supervisor's to add.
"""

from llamactl.config.model_keys import AT_NEXT_LOAD
from llamactl.names import format_slug
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.values import Stage, State
from llamactl.sched.admission import is_to_be_admitted
from llamactl.sched.args import format_args
from llamactl.sched.core import Core
from llamactl.sched.instances import Model


def list_waiting_settings(model: Model) -> tuple[str, ...]:
    """Keys that are configured otherwise than the instance was started with, and wait for the next load; `files` where
    those were replaced.
    """
    instance, settings = model.instance, model.settings
    if instance is None or settings is None:
        return ()
    fields = [name for name in settings.__struct_fields__ if name in AT_NEXT_LOAD]
    if not settings.devices:
        fields.remove("devices")  # they may have been chosen for the instance
    changed = [AT_NEXT_LOAD[name] for name in fields if getattr(settings, name) != getattr(instance.settings, name)]
    return (*changed, "files") if model.has_other_files() else tuple(changed)


def describe_model(core: Core, model: Model) -> ModelStatus:
    """One model as lists show it, but for what only the supervisor knows (unit, process, how it ended)."""
    instance, entry = model.instance, core.queue.get(model.name)
    settings = model.settings or (instance.settings if instance is not None else None)
    # What an instance was started with holds until it ends.
    used = instance.settings if instance is not None else settings
    state = model.state
    stage: Stage | None = None
    if entry is not None and (instance is None or state is State.SLEEPING):
        state, stage = State.LOADING, entry.stage
    elif model.state is State.LOADING and instance is not None:
        stage = Stage.LOADING if instance.stage else Stage.STARTING
    return ModelStatus(
        name=model.name,
        state=state,
        aliases=settings.aliases if settings is not None else (),
        slug=format_slug(model.name),
        path=used.path if used is not None else "",
        invalid=model.invalid,
        stage=stage,
        progress=instance.progress if instance is not None and model.state is State.LOADING else None,
        waiting_for=entry.waiting_for if entry is not None and is_to_be_admitted(model) else (),
        generation=instance.generation if instance is not None else "",
        busy=max(instance.count_busy(), instance.requests) if instance is not None else 0,
        queued=len(entry.leases) if entry is not None else 0,
        pinned=model.is_pinned(),
        unlisted=settings.unlisted if settings is not None else False,
        tags=settings.tags if settings is not None else (),
        found=settings.found if settings is not None else False,
        args=format_args(used) if used is not None else (),
        ctx=used.ctx if used is not None else 0,
        waiting_settings=list_waiting_settings(model),
        last_used_s=instance.last_used_s if instance is not None else 0.0,
        ready_since_s=instance.ready_since_s if instance is not None else 0.0,
        memory=model.describe_memory(),
        facts=(instance.facts if instance is not None else None) or model.facts,
        failure=model.failure,
        failures=model.failures,
        exit_code=model.exit_code,
        stopped_from=model.stopped_from,
        retry_at_s=model.retry_at_s if model.state is State.FAILED else 0.0,
        keep_alive_s=instance.note.keep_alive_s if instance is not None else None,
        devices=instance.placement if instance is not None else (),
        parallel=used.parallel if used is not None else 1,
    )


def list_models(core: Core) -> tuple[ModelStatus, ...]:
    """All models by name, those included that run and are no longer in the configuration."""
    return tuple(describe_model(core, core.models[name]) for name in sorted(core.models))


def list_waiting(core: Core) -> tuple[str, ...]:
    """Models whose loads have not begun, in order."""
    return tuple(entry.model for entry in core.queue if is_to_be_admitted(core.models[entry.model]))
