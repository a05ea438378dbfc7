"""What do lists show of the scheduler's state?

A model with a queued load is shown as `loading`, with the stage that says whether it waits: to a client both are the
same, "not yet". Socket, unit and process are the supervisor's to add.
"""

from llamactl.names import format_slug
from llamactl.protocol import Breakdown, ModelMemory, ModelStatus, Stage, State
from llamactl.sched.args import format_args
from llamactl.sched.core import Core
from llamactl.sched.instances import Model


def describe_model(core: Core, model: Model) -> ModelStatus:
    instance, entry = model.instance, core.queue.get(model.name)
    settings = model.settings or (instance.settings if instance is not None else None)
    state = model.state
    stage: Stage | None = None
    if instance is None and entry is not None:
        state, stage = State.LOADING, entry.stage
    elif model.state is State.LOADING and instance is not None:
        stage = Stage.LOADING if instance.stage else Stage.STARTING
    effective: Breakdown | None = instance.effective if instance is not None else None
    return ModelStatus(
        name=model.name,
        state=state,
        aliases=settings.aliases if settings is not None else (),
        slug=format_slug(model.name),
        path=settings.path if settings is not None else "",
        invalid=model.invalid,
        stage=stage,
        progress=instance.progress if instance is not None and model.state is State.LOADING else None,
        waiting_for=entry.waiting_for if entry is not None and instance is None else (),
        generation=instance.generation if instance is not None else "",
        busy=max(instance.count_busy(), instance.requests) if instance is not None else 0,
        queued=len(entry.leases) if entry is not None else 0,
        pinned=model.is_pinned(),
        unlisted=settings.unlisted if settings is not None else False,
        found=settings.found if settings is not None else False,
        args=format_args(settings) if settings is not None else (),
        ctx=settings.ctx if settings is not None else 0,
        last_used_s=instance.last_used_s if instance is not None else 0.0,
        ready_since_s=instance.ready_since_s if instance is not None else 0.0,
        memory=ModelMemory(
            status=model.memory, error=model.measure_error, min=model.min, max=model.max, effective=effective
        ),
        facts=(instance.facts if instance is not None else None) or model.facts,
        failure=model.failure,
        parallel=settings.parallel if settings is not None else 1,
    )


def list_models(core: Core) -> tuple[ModelStatus, ...]:
    """All models by name, those included that run and are in the configuration no more."""
    return tuple(describe_model(core, core.models[name]) for name in sorted(core.models))


def list_waiting(core: Core) -> tuple[str, ...]:
    """Models whose loads have not begun, in order."""
    return tuple(entry.model for entry in core.queue if core.models[entry.model].instance is None)
