"""Which keys may the table of a model have, and which that of a directory of models?

What is right for one model or for all stands here once; a new key is an entry here and a field of ModelSettings.
"""

from llamactl.config.keys import Applies, Key, Measured, ModelKey
from llamactl.config.kinds import (
    ALIASES,
    BOOLEAN,
    DEVICES,
    DURATION_OR_NEVER,
    ENV,
    EXTRA,
    OPTIONAL_PATH,
    PATH,
    RPC,
    SIZE,
    SPLIT,
    SWITCH,
    TAGS,
    TEMPLATE,
    TEXT,
    VARIABLES,
    make_choice,
    make_integer,
)
from llamactl.config.sampling_keys import SAMPLING
from llamactl.settings import TRAINED_CTX

ALL_LAYERS = 65536
"""What `n_gpu_layers = "all"` becomes: more than any model has, so that llama.cpp takes all and fitting sees a number
that was set.
"""

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
POOLINGS = ("none", "mean", "cls", "last", "rank")

AT_ONCE, NEXT_LOAD, NEXT_START = Applies.AT_ONCE, Applies.NEXT_LOAD, Applies.NEXT_START
AGAIN, IF_FAILED, KEPT = Measured.AGAIN, Measured.IF_FAILED, Measured.KEPT

CHAT_TEMPLATE_FILE = ModelKey(
    "chat_template_file",
    PATH,
    "A file with that template; instead of `chat_template`.",
    default="",
    sets="chat_template",
    applies=NEXT_LOAD,
    measured=KEPT,
)

MODEL_KEYS: tuple[ModelKey, ...] = (
    ModelKey(
        "path",
        PATH,
        "The GGUF file, or the first of its shards; symlinks are followed.",
        default="required",
        applies=NEXT_LOAD,
        measured=AGAIN,
        single=True,
    ),
    ModelKey(
        "aliases",
        ALIASES,
        "Other names under which requests find the model.",
        applies=AT_ONCE,
        measured=KEPT,
        single=True,
    ),
    ModelKey(
        "ctx",
        make_integer(0, words={"auto": 0}),
        "Context in tokens, over all sequences, in steps of 256. Automatic: what fits, at most `ctx_max`.",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "ctx_max",
        make_integer(0, words={"auto": 0, "trained": TRAINED_CTX}),
        "What an automatic `ctx` goes up to, and never beyond what the model was trained for (see below).",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "parallel", make_integer(1, 256), "Sequences that are decoded together.", applies=NEXT_LOAD, measured=AGAIN
    ),
    ModelKey(
        "n_gpu_layers",
        make_integer(-1, words={"auto": -1, "all": ALL_LAYERS}),
        "Layers on devices. Automatic: as many as fit.",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "devices",
        DEVICES,
        'llama.cpp\'s devices to use ("CUDA0"); `"none"`: the CPU alone. Unset: all.',
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "tensor_split", SPLIT, "Shares of the model on the devices, in their order.", applies=NEXT_LOAD, measured=AGAIN
    ),
    ModelKey(
        "rpc",
        RPC,
        "llama.cpp RPC servers whose devices the model may use too. Loopback or a trusted tunnel only (see below).",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "threads",
        make_integer(0, 1024),
        "Threads that compute; `0`: one for each core, fewer while other models compute as well (see below).",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "batch",
        make_integer(1),
        "Tokens that are given to llama.cpp at once; an encoder's is its context.",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "ubatch",
        make_integer(1),
        "Tokens that are computed at once, at most `batch`; likewise.",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "cache_type_k", make_choice(CACHE_TYPES), "Type of the keys in the KV cache.", applies=NEXT_LOAD, measured=AGAIN
    ),
    ModelKey(
        "cache_type_v",
        make_choice(CACHE_TYPES),
        "Type of the values; quantized ones need flash attention.",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey("flash_attn", SWITCH, "Flash attention.", applies=NEXT_LOAD, measured=AGAIN),
    ModelKey("mmap", BOOLEAN, "Map the file instead of reading it.", applies=NEXT_LOAD, measured=AGAIN),
    ModelKey(
        "repack",
        BOOLEAN,
        "Let llama.cpp use extra buffer types (AMX, repacked weights).",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "swa_full",
        BOOLEAN,
        "Layers with a sliding window keep all of the context: more memory, and beginnings that are shared are kept.",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "context_shift",
        BOOLEAN,
        "An answer goes on when the context is full, without the older half of what it has read (see below).",
        applies=NEXT_LOAD,
        measured=KEPT,
    ),
    ModelKey(
        "fit",
        BOOLEAN,
        "Fit context and layers that are not set to the memory that is free.",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "fit_ctx",
        make_integer(1),
        "The smallest context for one sequence that fitting may choose.",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "fit_margin",
        SIZE,
        "What fitting leaves free on each device, if more than `margin`.",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "chat_template",
        TEMPLATE,
        "A Jinja template instead of the model file's own, or the name of one that llama.cpp has built in (`chatml`).",
        applies=NEXT_LOAD,
        measured=KEPT,
    ),
    CHAT_TEMPLATE_FILE,
    ModelKey(
        "reasoning",
        SWITCH,
        "Whether the model thinks before it answers, where its template can say so (`enable_thinking`).",
        applies=NEXT_LOAD,
        measured=KEPT,
    ),
    ModelKey(
        "tools",
        make_choice(("template", "prompt")),
        "Who tells the model of functions: its chat template, or a system prompt where the template cannot.",
        applies=NEXT_LOAD,
        measured=KEPT,
    ),
    ModelKey(
        "reasoning_budget",
        make_integer(-1),
        "Tokens after which thinking is ended, unless the request says how many; `-1`: none.",
        applies=NEXT_LOAD,
        measured=KEPT,
    ),
    ModelKey(
        "chat_template_kwargs",
        VARIABLES,
        "Variables that the chat template gets, unless a request sets them itself.",
        applies=NEXT_LOAD,
        measured=KEPT,
    ),
    ModelKey(
        "pooling",
        make_choice(POOLINGS, empty=True),
        "Pooling of embeddings. Unset: as the model file says.",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "sampling", SAMPLING, "Sampling of requests that do not say it themselves.", applies=NEXT_LOAD, measured=KEPT
    ),
    ModelKey(
        "seed",
        make_integer(-1, 0xFFFFFFFF),
        "Of requests that say none; `-1`: another one each time.",
        applies=NEXT_LOAD,
        measured=KEPT,
    ),
    ModelKey(
        "n_predict",
        make_integer(-1),
        "Most tokens of an answer whose request sets no limit of its own; `-1`: no limit.",
        applies=NEXT_LOAD,
        measured=KEPT,
    ),
    ModelKey("show_prompts", BOOLEAN, "Show the texts of requests in `/slots`.", applies=NEXT_LOAD, measured=KEPT),
    ModelKey(
        "mmproj",
        OPTIONAL_PATH,
        "The multimodal projector that belongs to the model, with which it sees or hears.",
        applies=NEXT_LOAD,
        measured=AGAIN,
        single=True,
    ),
    ModelKey(
        "media_path",
        OPTIONAL_PATH,
        "Directory below which requests may name pictures and sounds as `file://` URLs. Unset: none.",
        applies=NEXT_LOAD,
        measured=KEPT,
    ),
    ModelKey(
        "draft",
        OPTIONAL_PATH,
        "A draft model for speculative decoding. Checked, but not used yet.",
        applies=NEXT_LOAD,
        measured=AGAIN,
        single=True,
    ),
    ModelKey("pin", BOOLEAN, "Never unload this model to make room for another.", applies=AT_ONCE, measured=KEPT),
    ModelKey(
        "priority",
        make_integer(-1000, 1000),
        "Of several candidates, models of lower priority go first.",
        applies=AT_ONCE,
        measured=KEPT,
    ),
    ModelKey(
        "idle_timeout",
        DURATION_OR_NEVER,
        "Unload after so long without a request.",
        default="the global `idle_timeout`",
        applies=AT_ONCE,
        measured=KEPT,
    ),
    ModelKey(
        "sleep_after",
        DURATION_OR_NEVER,
        "After so long without a request, free the model and its context and keep its process.",
        default="the global `sleep_after`",
        applies=AT_ONCE,
        measured=KEPT,
    ),
    ModelKey("load_on_start", BOOLEAN, "Load the model when llamactl starts.", applies=NEXT_START, measured=KEPT),
    ModelKey(
        "unlisted", BOOLEAN, "Leave the model out of the lists that HTTP clients get.", applies=AT_ONCE, measured=KEPT
    ),
    ModelKey(
        "tags",
        TAGS,
        "Words that lists show with the model, for people and programs that choose.",
        applies=AT_ONCE,
        measured=KEPT,
    ),
    ModelKey(
        "env",
        ENV,
        "Environment variables of the instance. Not for secrets: any local user can read them.",
        applies=NEXT_LOAD,
        measured=AGAIN,
    ),
    ModelKey(
        "extra", EXTRA, "Properties of the model's unit, in systemd's names.", applies=NEXT_LOAD, measured=IF_FAILED
    ),
)

DEFAULT_KEYS: tuple[ModelKey, ...] = tuple(key for key in MODEL_KEYS if not key.single)

DIRECTORY_KEYS: tuple[Key, ...] = (
    Key("path", PATH, "The directory.", default="required"),
    Key("prefix", TEXT, "Put before the name of each model.", default=""),
    Key("recursive", BOOLEAN, "Look into its subdirectories too, at any depth.", default="`true`"),
)

UNMEASURED = frozenset(key.field for key in MODEL_KEYS if key.measured is not AGAIN)
"""Fields of ModelSettings that change no breakdown."""

HARMLESS = frozenset(key.field for key in MODEL_KEYS if key.measured is KEPT)
"""Of these, the ones that cannot be why a measurement failed either."""

AT_NEXT_LOAD = {key.field: key.name for key in reversed(MODEL_KEYS) if key.applies is NEXT_LOAD}
"""Fields of ModelSettings that an instance keeps as it was started with, and how the file calls them."""

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
