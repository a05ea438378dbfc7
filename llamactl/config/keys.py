"""Which keys does a configuration file have, and which setting does each become?

One table drives the parser, the messages and docs/configuration.md; what a key may hold is its kind's matter (`kinds`).
Field and key differ where the file speaks in friendly units (`margin` becomes `margin_bytes`).
"""

import difflib
from dataclasses import dataclass
from typing import Any

from llamactl.config.kinds import (
    ACCESS_LOG,
    ALIASES,
    BOOLEAN,
    DEVICES,
    DURATION,
    DURATION_OR_NEVER,
    DURATION_OR_NONE,
    ENV,
    EXTRA,
    HOSTS,
    MARGINS,
    OPTIONAL_PATH,
    ORIGINS,
    PATH,
    RPC,
    SAMPLER_LIST,
    SIZE,
    SPLIT,
    SWITCH,
    TAGS,
    TEMPLATE,
    TEXT,
    TEXTS,
    VARIABLES,
    Kind,
    make_choice,
    make_integer,
    make_number,
    show_plain,
)
from llamactl.settings import TRAINED_CTX, GlobalSettings, ModelSettings, Sampling

ALL_LAYERS = 65536
"""What `n_gpu_layers = "all"` becomes: more than any model has, so that llama.cpp takes all and fitting sees a number
that was set.
"""

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
POOLINGS = ("none", "mean", "cls", "last", "rank")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Key:
    """One key of a table: its name in TOML, the field that it sets, and one sentence of help."""

    name: str
    field: str
    kind: Kind
    help: str
    default: str | None = None
    """Shown instead of the field's default."""


SAMPLING_KEYS: tuple[Key, ...] = (
    Key("temperature", "temperature", make_number(0, 100), "How random the choice is; `0`: always the likeliest."),
    Key("dynatemp_range", "dynatemp_range", make_number(0, 100), "How far the temperature moves with the entropy."),
    Key("dynatemp_exponent", "dynatemp_exponent", make_number(0, 100), "How the entropy becomes a temperature."),
    Key("top_k", "top_k", make_integer(0), "Of the likeliest tokens, so many; `0`: all."),
    Key("top_p", "top_p", make_number(0, 1), "Of the likeliest tokens, those that make up so much together."),
    Key("min_p", "min_p", make_number(0, 1), "Tokens at least so likely as this share of the likeliest."),
    Key("typical_p", "typical_p", make_number(0, 1), "Locally typical sampling; `1`: off."),
    Key("top_n_sigma", "top_n_sigma", make_number(-1, 1000), "Tokens within so many deviations of the likeliest."),
    Key("xtc_probability", "xtc_probability", make_number(0, 1), "How often the likeliest tokens are left out (XTC)."),
    Key("xtc_threshold", "xtc_threshold", make_number(0, 1), "How likely these are at least; above 0.5: off."),
    Key("repeat_penalty", "repeat_penalty", make_number(0.001, 1000), "Against tokens that have come; `1`: off."),
    Key("repeat_last_n", "repeat_last_n", make_integer(-1), "How far penalties look back; `-1`: all of the context."),
    Key("presence_penalty", "presence_penalty", make_number(-100, 100), "Once for each token that has come."),
    Key("frequency_penalty", "frequency_penalty", make_number(-100, 100), "Each time that a token has come."),
    Key("dry_multiplier", "dry_multiplier", make_number(0, 1000), "Against repeated passages (DRY); `0`: off."),
    Key("dry_base", "dry_base", make_number(1, 1000), "How its penalty grows with the passage."),
    Key("dry_allowed_length", "dry_allowed_length", make_integer(0), "Passages of this length may repeat."),
    Key(
        "dry_penalty_last_n",
        "dry_penalty_last_n",
        make_integer(-1),
        "How far it looks back; `-1`: all of the context.",
    ),
    Key("dry_sequence_breakers", "dry_sequence_breakers", TEXTS, "Texts at which passages end."),
    Key("mirostat", "mirostat", make_integer(0, 2), "Mirostat 1 or 2, instead of the samplers; `0`: off."),
    Key("mirostat_tau", "mirostat_tau", make_number(0, 1000), "The surprise that it aims at."),
    Key("mirostat_eta", "mirostat_eta", make_number(0, 1000), "How fast it learns."),
    Key("min_keep", "min_keep", make_integer(0), "Samplers leave at least so many tokens."),
    Key("samplers", "samplers", SAMPLER_LIST, "Which samplers there are, and their order."),
)
"""All in llama-server's names; what is not set is as the model file says, and else as llama.cpp has it."""


def _parse_sampling(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be a table, as in { temperature = 0.6 }")
    known = {key.name: key for key in SAMPLING_KEYS}
    sampling = {}
    for name, content in value.items():
        if name not in known:
            close = difflib.get_close_matches(name[:100], known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{name!r} is no setting of sampling{hint}")
        try:
            sampling[name] = known[name].kind.parse(content)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    return sampling


SAMPLING = Kind("table, see below", _parse_sampling, show_plain)

GLOBAL_KEYS: tuple[Key, ...] = (
    Key("margin", "margin_bytes", SIZE, "Kept free on every device; not of main memory, which has `host_margin`."),
    Key("margins", "margins_bytes", MARGINS, "Kept free on single devices, by name; replaces `margin` there."),
    Key("host_margin", "host_margin_bytes", SIZE, "Kept free of host memory. Unset: host memory is not a limit."),
    Key("host_budget", "host_budget_bytes", SIZE, "What all models together may hold of host memory. Unset: no limit."),
    Key(
        "refresh",
        "refresh_s",
        DURATION_OR_NEVER,
        "What is free on devices is read anew before a load when it is known for longer; at once where that is cheap.",
    ),
    Key("max_loaded", "max_loaded", make_integer(0), "Models loaded at one time; `0`: any number."),
    Key("strict", "strict", BOOLEAN, "Refuse a model that would not fit even alone, instead of trying."),
    Key(
        "max_wait",
        "max_wait_s",
        DURATION_OR_NEVER,
        "How long a request waits behind busy models before one of them is drained.",
    ),
    Key(
        "min_resident",
        "min_resident_s",
        DURATION_OR_NONE,
        "How long a model that was just loaded stays at least, whoever waits for its room.",
    ),
    Key("load_stall", "load_stall_s", DURATION, "A load without any progress for so long has failed."),
    Key("measure_timeout", "measure_timeout_s", DURATION, "A measurement that takes longer has failed."),
    Key("stop_timeout", "stop_timeout_s", DURATION, "How long a model that stops may take before it is killed."),
    Key(
        "idle_timeout",
        "idle_timeout_s",
        DURATION_OR_NEVER,
        "Unload models after so long without a request, unless they set their own.",
    ),
    Key(
        "sleep_after",
        "sleep_after_s",
        DURATION_OR_NEVER,
        "Put models to sleep after so long without a request, unless they set their own.",
    ),
    Key("max_body", "max_body_bytes", SIZE, "Largest request body that is taken."),
    Key("head_timeout", "head_timeout_s", DURATION_OR_NEVER, "How long a client may take to send a request's head."),
    Key("body_timeout", "body_timeout_s", DURATION_OR_NEVER, "How long a client may stop in the middle of a body."),
    Key(
        "send_timeout",
        "send_timeout_s",
        DURATION_OR_NEVER,
        "How long a client may take nothing of an answer that waits for it; then its connection is cut.",
    ),
    Key(
        "keepalive_timeout", "keepalive_timeout_s", DURATION_OR_NEVER, "How long connections are kept between requests."
    ),
    Key(
        "queue_timeout",
        "queue_timeout_s",
        DURATION_OR_NEVER,
        "How long a request waits for its model, whatever the reason; then 504.",
    ),
    Key("max_queue", "max_queue", make_integer(1), "Requests that may wait for one model; more are refused."),
    Key(
        "max_queue_total",
        "max_queue_total",
        make_integer(0),
        "Requests that may wait for all models together; more are refused. `0`: any number.",
    ),
    Key("log_level", "log_level", make_choice(LOG_LEVELS), "The least important lines that are logged."),
    Key(
        "autoload",
        "autoload",
        BOOLEAN,
        "Load the model that a request names. Without it only requests with `?autoload=true` do, and commands.",
    ),
    Key("default_model", "default_model", TEXT, "Serves requests that name no model, or one that does not exist."),
    Key(
        "allowed_hosts",
        "allowed_hosts",
        HOSTS,
        'Names in the Host header that are taken on TCP, besides localhost and addresses; `"*.NAME"`: all below it.',
    ),
    Key(
        "cors_origins",
        "cors_origins",
        ORIGINS,
        'Origins whose pages may use the endpoint from a browser; `"*"`: all, `"localhost"`: those of this machine.',
    ),
    Key("access_log", "access_log", ACCESS_LOG, "The level at which each request is logged."),
)

CHAT_TEMPLATE_FILE = Key(
    "chat_template_file", "chat_template", PATH, "A file with that template; instead of `chat_template`.", default=""
)

MODEL_KEYS: tuple[Key, ...] = (
    Key("path", "path", PATH, "The GGUF file, or the first of its shards; symlinks are followed.", default="required"),
    Key("aliases", "aliases", ALIASES, "Other names under which requests find the model."),
    Key(
        "ctx",
        "ctx",
        make_integer(0, words={"auto": 0}),
        "Context in tokens, over all sequences, in steps of 256. Automatic: what fits, at most `ctx_max`.",
    ),
    Key(
        "ctx_max",
        "ctx_max",
        make_integer(0, words={"auto": 0, "trained": TRAINED_CTX}),
        "What an automatic `ctx` goes up to, and never beyond what the model was trained for (see below).",
    ),
    Key("parallel", "parallel", make_integer(1, 256), "Sequences that are decoded together."),
    Key(
        "n_gpu_layers",
        "n_gpu_layers",
        make_integer(-1, words={"auto": -1, "all": ALL_LAYERS}),
        "Layers on devices. Automatic: as many as fit.",
    ),
    Key("devices", "devices", DEVICES, 'llama.cpp\'s devices to use ("CUDA0"); `"none"`: the CPU alone. Unset: all.'),
    Key("tensor_split", "tensor_split", SPLIT, "Shares of the model on the devices, in their order."),
    Key(
        "rpc",
        "rpc",
        RPC,
        "llama.cpp RPC servers whose devices the model may use too. Loopback or a trusted tunnel only (see below).",
    ),
    Key(
        "threads",
        "threads",
        make_integer(0, 1024),
        "Threads that compute; `0`: one for each core, fewer while other models compute as well (see below).",
    ),
    Key("batch", "batch", make_integer(1), "Tokens that are given to llama.cpp at once; an encoder's is its context."),
    Key("ubatch", "ubatch", make_integer(1), "Tokens that are computed at once, at most `batch`; likewise."),
    Key("cache_type_k", "cache_type_k", make_choice(CACHE_TYPES), "Type of the keys in the KV cache."),
    Key(
        "cache_type_v",
        "cache_type_v",
        make_choice(CACHE_TYPES),
        "Type of the values; quantized ones need flash attention.",
    ),
    Key("flash_attn", "flash_attn", SWITCH, "Flash attention."),
    Key("mmap", "mmap", BOOLEAN, "Map the file instead of reading it."),
    Key("repack", "repack", BOOLEAN, "Let llama.cpp use extra buffer types (AMX, repacked weights)."),
    Key(
        "swa_full",
        "swa_full",
        BOOLEAN,
        "Layers with a sliding window keep all of the context: more memory, and beginnings that are shared are kept.",
    ),
    Key("fit", "fit", BOOLEAN, "Fit context and layers that are not set to the memory that is free."),
    Key("fit_ctx", "fit_ctx", make_integer(1), "The smallest context for one sequence that fitting may choose."),
    Key("fit_margin", "fit_margin_bytes", SIZE, "What fitting leaves free on each device, if more than `margin`."),
    Key(
        "chat_template",
        "chat_template",
        TEMPLATE,
        "A Jinja template instead of the model file's own, or the name of one that llama.cpp has built in (`chatml`).",
    ),
    CHAT_TEMPLATE_FILE,
    Key(
        "reasoning",
        "reasoning",
        SWITCH,
        "Whether the model thinks before it answers, where its template can say so (`enable_thinking`).",
    ),
    Key(
        "chat_template_kwargs",
        "chat_template_kwargs",
        VARIABLES,
        "Variables that the chat template gets, unless a request sets them itself.",
    ),
    Key(
        "pooling",
        "pooling",
        make_choice(POOLINGS, empty=True),
        "Pooling of embeddings. Unset: as the model file says.",
    ),
    Key("sampling", "sampling", SAMPLING, "Sampling of requests that do not say it themselves."),
    Key("seed", "seed", make_integer(-1, 0xFFFFFFFF), "Of requests that say none; `-1`: another one each time."),
    Key(
        "n_predict",
        "n_predict",
        make_integer(-1),
        "Most tokens of an answer whose request sets no limit of its own; `-1`: no limit.",
    ),
    Key("show_prompts", "show_prompts", BOOLEAN, "Show the texts of requests in `/slots`."),
    Key(
        "mmproj",
        "mmproj",
        OPTIONAL_PATH,
        "The multimodal projector that belongs to the model. Checked, but not used yet: images are refused.",
    ),
    Key("draft", "draft", OPTIONAL_PATH, "A draft model for speculative decoding. Checked, but not used yet."),
    Key("pin", "pin", BOOLEAN, "Never unload this model to make room for another."),
    Key("priority", "priority", make_integer(-1000, 1000), "Of several candidates, models of lower priority go first."),
    Key(
        "idle_timeout",
        "idle_timeout_s",
        DURATION_OR_NEVER,
        "Unload after so long without a request.",
        default="the global `idle_timeout`",
    ),
    Key(
        "sleep_after",
        "sleep_after_s",
        DURATION_OR_NEVER,
        "After so long without a request, free the model and its context and keep its process.",
        default="the global `sleep_after`",
    ),
    Key("load_on_start", "load_on_start", BOOLEAN, "Load the model when llamactl starts."),
    Key("unlisted", "unlisted", BOOLEAN, "Leave the model out of the lists that HTTP clients get."),
    Key("tags", "tags", TAGS, "Words that lists show with the model, for people and programs that choose."),
    Key("env", "env", ENV, "Environment variables of the instance. Not for secrets: any local user can read them."),
    Key("extra", "extra", EXTRA, "Properties of the model's unit, in systemd's names."),
)

SINGLE_MODEL_KEYS = frozenset({"path", "aliases", "mmproj", "draft"})
"""Keys that make no sense as defaults for several models."""

DEFAULT_KEYS: tuple[Key, ...] = tuple(key for key in MODEL_KEYS if key.name not in SINGLE_MODEL_KEYS)

DIRECTORY_KEYS: tuple[Key, ...] = (
    Key("path", "path", PATH, "The directory.", default="required"),
    Key("prefix", "prefix", TEXT, "Put before the name of each model.", default=""),
    Key("recursive", "recursive", BOOLEAN, "Look into its subdirectories too, at any depth.", default="`true`"),
)

OTHER_NAMES = {
    "alias": "aliases",
    "cache_k": "cache_type_k",
    "cache_v": "cache_type_v",
    "context": "ctx",
    "context_size": "ctx",
    "ctx_size": "ctx",
    "max_ctx": "ctx_max",
    "device": "devices",
    "environment": "env",
    "file": "path",
    "gpu_layers": "n_gpu_layers",
    "model": "path",
    "n_batch": "batch",
    "n_ctx": "ctx",
    "n_parallel": "parallel",
    "n_threads": "threads",
    "n_ubatch": "ubatch",
    "ngl": "n_gpu_layers",
    "np": "parallel",
    "pinned": "pin",
    "properties": "extra",
    "ttl": "idle_timeout",
    "predict": "n_predict",
    "max_tokens": "n_predict",
    "tag": "tags",
    "keep_alive": "idle_timeout",
    "sleep": "sleep_after",
    "sleep_idle_seconds": "sleep_after",
}
"""What llama-server and its neighbours call these things; only for hints."""


def show_default(key: Key, owner: type[ModelSettings] | type[GlobalSettings] | type[Sampling]) -> str:
    """The default of a key as the documentation shows it; empty where there is none."""
    if key.default is not None:
        return key.default
    defaults = ModelSettings(name="", path="") if issubclass(owner, ModelSettings) else owner()
    return key.kind.format(getattr(defaults, key.field))
