"""What can be set, in which unit, and what does it default to?

Two frozen values, one for the machine and one for a model: what `config` makes of TOML files and everything else
reads. Sizes are integers in bytes, times are seconds; the texts that people write ("8 GiB", "5min") end in
`config`. The settings of a model travel to its instance as JSON in its unit's environment, so that a restarted
supervisor finds in systemd with what each instance was started.
"""

from enum import StrEnum
from typing import Any

import msgspec

from llamactl.escape import escape_text

GIB = 1 << 30

TEMPLATE_RESERVED = ("messages", "tools", "add_generation_prompt")
"""Variables of chat templates that say what a request says: no configuration sets them."""

AUTO_CTX_MAX = 65536
"""Enough for an agent's conversation with its tools and files, and for an 8B model with grouped attention some 8 GiB of
KV cache: what one model of several can have of a large GPU.
"""
TRAINED_CTX = (1 << 31) - 1
"""What `ctx_max = "trained"` becomes."""


class Switch(StrEnum):
    """llama.cpp's three-valued options."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class AccessLog(StrEnum):
    """At which level the front logs each request."""

    OFF = "off"
    DEBUG = "debug"
    INFO = "info"


class HttpControl(StrEnum):
    """Who may load and unload models by HTTP."""

    OPEN = "open"
    """Whoever reaches the front."""
    ADMIN = "admin"
    """Those who may use the control socket, and on the Unix socket alone, where they can be told from others."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen: llama-server's names, and llama.cpp's defaults."""

    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    """-1: all of the context."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    """-1: all of the context."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    min_keep: int = 0
    samplers: tuple[str, ...] = (
        *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
    )


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model. The defaults are those of a `[models.NAME]` table that sets only `path`."""

    name: str
    path: str
    """Absolute path of the GGUF file (of the first shard), symlinks resolved."""
    files: tuple[str, ...] = ()
    """All files of the model: every shard, `path` first; resolved."""
    mmproj: str = ""
    """Companion: a multimodal projector, or empty."""
    media_path: str = ""
    """Directory below which requests may name files to show; empty: none."""
    draft: str = ""
    """Companion: a draft model, or empty."""
    aliases: tuple[str, ...] = ()
    ctx: int = 0
    """Context size in tokens over all sequences; 0: what fits, at most `ctx_max` and what the model was trained for."""
    ctx_max: int = 0
    """What automatic context goes up to; 0: AUTO_CTX_MAX, or `fit_ctx` for each sequence where that is more."""
    parallel: int = 4
    """Sequences that are decoded together."""
    n_gpu_layers: int = -1
    """Layers on devices; -1: as many as fit."""
    devices: tuple[str, ...] = ()
    """Names of llama.cpp's devices to use (CUDA0, RPC0 ...); none: all of them. ("none",) uses the CPU alone."""
    tensor_split: tuple[float, ...] = ()
    rpc: tuple[str, ...] = ()
    """llama.cpp RPC servers ("IPv4:PORT") whose devices the model may use besides this machine's."""
    threads: int = 0
    """Threads for decoding; 0: one for each CPU that the instance may use."""
    batch: int = 2048
    ubatch: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: Switch = Switch.AUTO
    mmap: bool = True
    repack: bool = True
    """Whether llama.cpp may use its extra buffer types (AMX, repacked weights)."""
    swa_full: bool = False
    """Whether layers with a sliding window keep all of the context instead of the window."""
    context_shift: bool = False
    """Whether an answer whose context is full goes on without a part of what it has read."""
    fit: bool = True
    """Whether context and layers that are not set are fitted to the free memory."""
    fit_ctx: int = 4096
    """The smallest context per sequence that fitting may pick."""
    fit_margin_bytes: int = 0
    """What fitting leaves free on each device, where that is more than the machine's margin."""
    chat_template: str = ""
    """A Jinja template that replaces the file's own, or the name of one that llama.cpp has built in."""
    reasoning: Switch = Switch.AUTO
    """What the template's `enable_thinking` is. Auto, as in llama-server: on where the template can think."""
    tools: str = "template"
    """Who tells the model of functions: its template, or the system prompt (`prompt`)."""
    reasoning_budget: int = -1
    """Tokens that the model may think for in answers whose request says no number; -1: any."""
    chat_template_kwargs: dict[str, Any] = {}
    """Variables for the template of requests that do not set them."""
    pooling: str = ""
    """Pooling of embeddings (none, mean, cls, last, rank); empty: as the file says."""
    sampling: dict[str, int | float | list[str]] = {}
    """Sampling of requests that say nothing else, in llama-server's names: {"temperature": 0.6}."""
    seed: int = -1
    """Of requests that say none; -1: another one each time."""
    n_predict: int = -1
    """Most tokens of an answer whose request says no number, or -1; -1: no limit."""
    show_prompts: bool = False
    """Whether /slots shows the texts of requests."""
    pin: bool = False
    priority: int = 0
    idle_timeout_s: float = 0.0
    """Unload after so long without a request; 0: never."""
    sleep_after_s: float = 0.0
    """Free model and context after so long without a request, and keep the process; 0: never."""
    load_on_start: bool = False
    unlisted: bool = False
    tags: tuple[str, ...] = ()
    """Words for people and programs that choose among models; nothing here goes by them."""
    env: dict[str, str] = {}
    extra: dict[str, str | int | float | bool | list[str]] = {}
    """Unit properties in systemd's names, as in a unit file: {"MemoryMax": "8G"}."""
    source: str = ""
    """The configuration file, for messages."""
    found: bool = False
    """Found in a directory that the configuration names, not named itself."""


class FrontSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of the settings for the machine, what a front must know: it never reads the configuration itself."""

    max_body_bytes: int = 64 << 20
    """Largest request body that the front takes."""
    head_timeout_s: float = 30.0
    """How long a client may take to send the head of a request; this and the next four: 0: for ever."""
    body_timeout_s: float = 60.0
    """How long a client may stop in the middle of a body."""
    send_timeout_s: float = 60.0
    """How long a client may take nothing of an answer that waits for it."""
    keepalive_timeout_s: float = 120.0
    """How long a connection is kept between requests."""
    queue_timeout_s: float = 0.0
    """How long a request waits for its model."""
    max_queue: int = 256
    """Requests that may wait for one model."""
    max_queue_total: int = 4096
    """Requests that may wait, for whichever model; 0: any number."""
    autoload: bool = True
    """Whether a request loads its model when it does not say so itself."""
    default_model: str = ""
    """Serves requests that name no model or an unknown one; empty: they are refused."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that a Host header may hold on TCP besides localhost and addresses; `*.NAME`: all below it; `*`: any."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use the endpoint; `*`: all, `localhost`: those of this machine."""
    http_control: HttpControl = HttpControl.OPEN
    access_log: AccessLog = AccessLog.INFO


class GlobalSettings(FrontSettings, frozen=True, kw_only=True):
    """What `llamactl.toml` sets for the machine."""

    margin_bytes: int = GIB
    """Kept free on every device."""
    margins_bytes: dict[str, int] = {}
    """Kept free on single devices, by name; replaces `margin_bytes` there."""
    host_margin_bytes: int | None = None
    """Kept free of host memory; None: host memory is not a limit."""
    host_budget_bytes: int | None = None
    """What all instances together may hold of host memory; None: no such limit."""
    refresh_s: float = 60.0
    """Figures of the devices' free memory that are older are read again before a load is decided; 0: never."""
    max_loaded: int = 0
    """Instances at one time; 0: any number."""
    strict: bool = False
    """Refuse a model that would not fit even alone, instead of trying."""
    max_wait_s: float = 60.0
    """How long a request waits behind busy models before one of them is drained; 0: for ever."""
    min_resident_s: float = 5.0
    """How long a model that was just loaded stays, whoever waits for its room."""
    load_stall_s: float = 120.0
    """A load without progress for so long has failed."""
    measure_timeout_s: float = 300.0
    stop_timeout_s: float = 30.0
    idle_timeout_s: float = 0.0
    """For models that set none."""
    sleep_after_s: float = 0.0
    """For models that set none."""
    log_level: str = "info"


class InvalidModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the configuration that cannot be used, and why."""

    name: str
    reason: str
    source: str = ""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One finding of a configuration check: which file, which key or line, why, and what to do."""

    file: str
    where: str
    """`line 3`, `models.qwen.ctx`, or empty."""
    message: str
    hint: str = ""
    model: str = ""
    fatal: bool = True
    """False: worth saying, the model still works."""

    def __str__(self) -> str:
        """One line, printable."""
        where = f"{self.file}: {self.where}" if self.where else self.file
        return escape_text(f"{where}: {self.message}" + (f"; {self.hint}" if self.hint else ""))


class FoundModels(msgspec.Struct, frozen=True, kw_only=True):
    """What a [directories.LABEL] table has led to."""

    path: str
    """Of the directory, symlinks resolved."""
    places: dict[str, tuple[str, ...]] = {}
    """Names of models by the directory below that holds their files; empty: the directory itself. Those that a table
    names are among them.
    """


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """One read of the whole configuration: what works, and all that does not."""

    settings: GlobalSettings = GlobalSettings()
    models: dict[str, ModelSettings] = {}
    invalid: dict[str, InvalidModel] = {}
    problems: tuple[Problem, ...] = ()
    created: dict[str, int] = {}
    """When each model's file was written, by name: seconds since 1970."""
    defaults: dict[str, Any] = {}
    """Fields that `[defaults]` sets, for the next read: what it cannot use then stays as it is here."""
    unusable: tuple[str, ...] = ()
    """Keys that `llamactl.toml` sets to something that cannot be used, and that had no value before: not in force."""
    unread: tuple[str, ...] = ()
    """Files of `models.d`, or the directory itself, that could not be read: nobody knows which models they have."""
    found: tuple[FoundModels, ...] = ()
    """What was found in directories, in the order of their tables."""

    def resolve(self, name: str) -> str | None:
        """The model's own name for a name or an alias; None where there is no such model. Invalid models are found
        by name.
        """
        if name in self.models or name in self.invalid:
            return name
        return next((model.name for model in self.models.values() if name in model.aliases), None)

    def list_names(self) -> list[str]:
        """Every name and alias that a request may use."""
        aliases = [alias for model in self.models.values() for alias in model.aliases]
        return [*self.models, *self.invalid, *aliases]

    def may_hide(self, model: ModelSettings) -> bool:
        """Whether a model that is not among these may stand in a file that could not be read."""
        known = model.name in self.models or model.name in self.invalid
        return not known and any(model.source == place or model.source.startswith(f"{place}/") for place in self.unread)


def list_files(settings: ModelSettings) -> tuple[str, ...]:
    """All files of a model: each shard, and its companions."""
    named = (settings.path, *settings.files, settings.mmproj, settings.draft)
    return tuple(dict.fromkeys(path for path in named if path))


def list_named_files(settings: ModelSettings) -> list[tuple[str, str]]:
    """(key, path) of everything that an instance of the model opens."""
    files = [("path", path) for path in settings.files or (settings.path,)]
    return files + [(key, path) for key, path in (("mmproj", settings.mmproj), ("draft", settings.draft)) if path]


def encode_spec(settings: ModelSettings) -> str:
    """The JSON of a model's settings, as it stands in LLAMACTL_SPEC in its unit's environment."""
    return msgspec.json.encode(settings, order="deterministic").decode()


def decode_spec(text: str | bytes) -> ModelSettings:
    """The settings that `encode_spec` wrote. Raises msgspec.DecodeError or msgspec.ValidationError."""
    return msgspec.json.decode(text, type=ModelSettings)
