"""How would llama-server be called for this model? For clients that read `status.args` of its router.

Only what is set and llama-server has a word for; paths and numbers as they are used, in llama-server's long options.
Nothing here starts a process: instances get their settings as JSON.
"""

import json

from llamactl.settings import ModelSettings

_OPTIONS = (
    ("path", "--model"),
    ("mmproj", "--mmproj"),
    ("media_path", "--media-path"),
    ("draft", "--model-draft"),
    ("ctx", "--ctx-size"),
    ("parallel", "--parallel"),
    ("n_gpu_layers", "--n-gpu-layers"),
    ("devices", "--device"),
    ("tensor_split", "--tensor-split"),
    ("rpc", "--rpc"),
    ("threads", "--threads"),
    ("batch", "--batch-size"),
    ("ubatch", "--ubatch-size"),
    ("cache_type_k", "--cache-type-k"),
    ("cache_type_v", "--cache-type-v"),
    ("flash_attn", "--flash-attn"),
    ("fit", "--fit"),
    ("fit_ctx", "--fit-ctx"),
    ("pooling", "--pooling"),
    ("seed", "--seed"),
    ("n_predict", "--n-predict"),
    ("tags", "--tags"),
    ("chat_template", "--chat-template"),
    ("reasoning", "--reasoning"),
    ("reasoning_budget", "--reasoning-budget"),
    ("chat_template_kwargs", "--chat-template-kwargs"),
)
_SWITCHES = (
    ("mmap", False, "--no-mmap"),
    ("repack", False, "--no-repack"),
    ("swa_full", True, "--swa-full"),
    ("context_shift", True, "--context-shift"),
)
_DEFAULTS = ModelSettings(name="", path="")


def format_args(settings: ModelSettings) -> tuple[str, ...]:
    """Options and values, without a program's name."""
    args = ["--alias", settings.name]
    for field, option in _OPTIONS:
        value = getattr(settings, field)
        if value != getattr(_DEFAULTS, field):
            args += [option, _format_value(value)]
    args += [option for field, value, option in _SWITCHES if getattr(settings, field) is value]
    return tuple(args)


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return ",".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)
    return str(value)
