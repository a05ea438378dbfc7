"""Which keys does a configuration file have, what may each hold, and which setting does it become?

One table drives the parser, the messages and docs/configuration.md. A key's kind turns a TOML value into the setting
or raises ValueError with the end of a sentence ("must be ..."). Field and key differ where the file speaks in
friendly units (`margin` becomes `margin_bytes`). TOML's booleans are integers to Python: every kind that takes
numbers must refuse them itself.
"""

import difflib
import ipaddress
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llamactl.child import variables
from llamactl.config.templates import check_template
from llamactl.config.units import format_duration, format_size, parse_duration, parse_size
from llamactl.errors import LlamactlError
from llamactl.names import check_model_name
from llamactl.settings import TEMPLATE_RESERVED, TRAINED_CTX, AccessLog, GlobalSettings, ModelSettings, Sampling, Switch

ALL_LAYERS = 65536
"""What `n_gpu_layers = "all"` becomes: more than any model has, so that llama.cpp takes all and fitting sees a number
that was set.
"""

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
POOLINGS = ("none", "mean", "cls", "last", "rank")
LOG_LEVELS = ("debug", "info", "warning", "error")
SAMPLERS = (*Sampling().samplers, "infill")
MAX_TEXT = 1 << 16
MAX_INT = (1 << 31) - 1

RESERVED_ENV = variables.ORDERS | {
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
}
"""Variables by which a child is told who it is."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"\*|(\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})")
_ORIGIN = re.compile(r"\*|localhost|[a-z][a-z0-9+.-]*://[A-Za-z0-9._:\[\]-]+|null")
_PROPERTY_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")


@dataclass(frozen=True)
class Kind:
    """What a key may hold: words for the documentation, the parser, and how a default is shown."""

    words: str
    parse: Callable[[object], Any]
    format: Callable[[Any], str] = lambda value: f"`{value!r}`"


@dataclass(frozen=True)
class Key:
    """One key of a table: its name in TOML, the field that it sets, and one sentence of help."""

    name: str
    field: str
    kind: Kind
    help: str
    default: str | None = None
    """Shown instead of the field's default."""


def show_value(value: object) -> str:
    """A TOML value as messages quote it: on one line, never long, and safe (`repr` of an integer of 5000 digits
    raises).
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "an integer of more than 64 bits"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return repr(value) if len(value) <= 60 else repr(value[:57] + "...")
    return str(value)


def _show_plain(value: object) -> str:
    if isinstance(value, tuple):
        return f"`{', '.join(map(str, value))}`" if value else ""
    return f"`{str(value).lower()}`" if value not in ("", (), {}, None) else ""


def _show_text(value: object) -> str:
    return f'`"{value}"`' if value else ""


def _show_list(value: Sequence[str]) -> str:
    return f"`{json.dumps(list(value))}`"


# --- kinds ------------------------------------------------------------------------------------------------------------


def _parse_boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false, without quotes")
    return value


def _check_text(value: object, what: str = "a text") -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be {what}")
    if len(value) > MAX_TEXT:
        raise ValueError(f"must have at most {MAX_TEXT} characters, has {len(value)}")
    if "\0" in value:
        raise ValueError("must not contain NUL")
    return value


def _parse_path(value: object) -> str:
    path = _check_text(value, "an absolute path")
    if path.startswith("~"):
        raise ValueError("must be an absolute path; `~` is not expanded, since it would be the supervisor's own home")
    if not path.startswith("/"):
        raise ValueError("must be an absolute path")
    return path


def _parse_optional_path(value: object) -> str:
    return "" if value == "" else _parse_path(value)


def _parse_texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError('must be a list of texts, as in ["a", "b"]')
    for number, item in enumerate(value, start=1):
        if not isinstance(item, str):
            raise ValueError(f'must be a list of texts, as in ["a", "b"]; item {number} is {show_value(item)}')
    return tuple(dict.fromkeys(_check_text(item) for item in value))


def _parse_aliases(value: object) -> tuple[str, ...]:
    aliases = _parse_texts([value] if isinstance(value, str) else value)
    for alias in aliases:
        try:
            check_model_name(alias)
        except LlamactlError as error:
            raise ValueError(error.message.removeprefix("cannot use model name ")) from None
    return aliases


def _parse_tags(value: object) -> tuple[str, ...]:
    tags = _parse_texts([value] if isinstance(value, str) else value)
    for tag in tags:
        if not tag.strip() or "," in tag or not tag.isprintable():
            raise ValueError(f"{show_value(tag)} must be one word or some, without commas")
    return tags


def _parse_hosts(value: object) -> tuple[str, ...]:
    hosts = _parse_texts([value] if isinstance(value, str) else value)
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} must be a name without scheme and port, as in 'llm.example.org'")
    return tuple(dict.fromkeys(host.lower() for host in hosts))


def _parse_origins(value: object) -> tuple[str, ...]:
    origins = _parse_texts([value] if isinstance(value, str) else value)
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin!r} must be an origin as browsers send it, as in 'https://chat.example.org', or '*', "
                "or 'localhost' for those of this machine"
            )
    return origins


def _parse_access_log(value: object) -> AccessLog:
    if isinstance(value, bool):
        return AccessLog.INFO if value else AccessLog.OFF
    if isinstance(value, str) and value in tuple(AccessLog):
        return AccessLog(value)
    raise ValueError('must be "info", "debug" or "off"')


def _parse_devices(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    devices = _parse_texts(value)
    if not all(devices):
        raise ValueError("must not contain an empty name")
    if "none" in devices and len(devices) > 1:
        raise ValueError("'none' (the CPU alone) cannot be combined with other devices")
    return devices


def _parse_split(value: object) -> tuple[float, ...]:
    message = "must be a list of shares, one for each device, as in [3, 1]"
    if not isinstance(value, list) or not value or len(value) > 128:
        raise ValueError(message)
    shares = []
    for share in value:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1e12:
            raise ValueError(message)
        shares.append(float(share))
    if sum(shares) <= 0:
        raise ValueError("must have a share above 0")
    return tuple(shares)


def _parse_rpc(value: object) -> tuple[str, ...]:
    """Addresses only: a unit's network is opened to addresses, and inside of it nobody answers for names."""
    servers = []
    for server in _parse_texts([value] if isinstance(value, str) else value):
        host, _, port = server.rpartition(":")
        try:
            address = ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError(
                f"{server!r} must be an IPv4 address and a port, as in '127.0.0.1:50052'; names are not resolved"
            ) from None
        if not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise ValueError(f"{server!r} must end in a port from 1 to 65535, as in '127.0.0.1:50052'")
        servers.append(f"{address}:{int(port)}")
    return tuple(dict.fromkeys(servers))


def _parse_switch(value: object) -> Switch:
    if isinstance(value, bool):
        return Switch.ON if value else Switch.OFF
    if isinstance(value, str) and value in tuple(Switch):
        return Switch(value)
    raise ValueError('must be "auto", "on" or "off"')


def _parse_env(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError('must be a table of texts, as in { GGML_LOG_LEVEL = "2" }')
    env = {}
    for name, content in value.items():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if name in RESERVED_ENV:
            raise ValueError(f"{name} is set by llamactl or systemd itself")
        if isinstance(content, int) and not isinstance(content, bool) and abs(content) < 1 << 64:
            content = str(content)
        if not isinstance(content, str):
            raise ValueError(f"{name} must be a text, not {show_value(content)}")
        if _CONTROL.search(_check_text(content)):
            raise ValueError(f"{name} has control characters in its value")
        env[name] = content
    return env


def _parse_extra(value: object) -> dict[str, str | int | float | bool | list[str]]:
    """Only the shape. What each property may hold is systemd's matter, and `child.properties` knows it."""
    if not isinstance(value, dict):
        raise ValueError('must be a table of unit properties, as in { MemoryMax = "8G" }')
    for name, content in value.items():
        if not _PROPERTY_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a unit property")
        items = content if isinstance(content, list) else [content]
        if not all(isinstance(item, str) for item in items) and (
            isinstance(content, list)
            or not isinstance(content, bool | int | float)
            or (isinstance(content, float) and not math.isfinite(content))
            or (isinstance(content, int) and not -(1 << 63) <= content < 1 << 64)
        ):
            raise ValueError(f"{name} must be a text, a number, true, false or a list of texts")
        for item in items:
            if isinstance(item, str):
                _check_text(item)
    return value


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


def _parse_variables(value: object) -> dict[str, Any]:
    """What JSON can say: the settings travel as JSON."""
    if not isinstance(value, dict):
        raise ValueError("must be a table, as in { preserve_thinking = true }")
    for name, content in value.items():
        if name in TEMPLATE_RESERVED:
            raise ValueError(f"{name} is set by the request itself")
        if not _is_plain(content):
            raise ValueError(f"{name} must be a text, a number, true, false, or a list or table of these")
    return value


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))


def _parse_samplers(value: object) -> list[str]:
    samplers = list(_parse_texts(value))
    for sampler in samplers:
        if sampler not in SAMPLERS:
            raise ValueError(f"{sampler!r} must be one of " + ", ".join(SAMPLERS))
    return samplers


def _parse_margins(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ValueError('must be a table of sizes by device, as in { CUDA0 = "2 GiB" }')
    margins = {}
    for device, size in value.items():
        if device.casefold() == "host":
            raise ValueError(f"{device}: main memory has a key of its own, `host_margin`")
        try:
            margins[device] = parse_size(size)
        except ValueError as error:
            raise ValueError(f"{device if device.isprintable() else repr(device)} {error}") from None
    return margins


def _make_integer(low: int, high: int = MAX_INT, words: dict[str, int] | None = None) -> Kind:
    names = words or {}
    spelled = "".join(f' or "{word}"' for word in names)
    limits = f"an integer of {low} or more" if high == MAX_INT else f"an integer from {low} to {high}"

    def parse(value: object) -> int:
        if isinstance(value, str) and value in names:
            return names[value]
        if high == MAX_INT and isinstance(value, int) and value > high:
            raise ValueError(f"must be {limits}, and at most {high}")
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be {limits}{spelled}")
        return value

    def show(value: int) -> str:
        word = next((word for word, number in names.items() if number == value), None)
        return f'`"{word}"`' if word else f"`{value}`"

    return Kind(limits.removeprefix("an ") + spelled, parse, show)


def _make_number(low: float, high: float) -> Kind:
    limits = f"number from {low:g} to {high:g}"

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"must be a {limits}")
        return float(value)

    return Kind(limits, parse, lambda value: f"`{value:g}`")


def _make_choice(choices: tuple[str, ...], empty: bool = False) -> Kind:
    listed = ", ".join(f'"{choice}"' for choice in choices)

    def parse(value: object) -> str:
        if not isinstance(value, str) or (value not in choices and not (empty and value == "")):
            raise ValueError(f"must be one of {listed}")
        return value

    return Kind(f"one of {listed}", parse, _show_text)


def _make_duration(never: bool) -> Kind:
    def parse(value: object) -> float:
        seconds = parse_duration(value)
        if never:
            return 0.0 if math.isinf(seconds) else seconds
        if math.isinf(seconds) or seconds == 0:
            raise ValueError("must be a time above 0 that ends, as in '60s'")
        return seconds

    return Kind('time; `0` or `"infinity"`: no limit' if never else "time", parse, _show_duration)


def _show_duration(seconds: float) -> str:
    return f'`"{format_duration(seconds)}"`' if seconds else "`0`"


def parse_finite_duration(value: object) -> float:
    seconds = parse_duration(value)
    if math.isinf(seconds):
        raise ValueError("must be a time that ends, as in '5s'")
    return seconds


BOOLEAN = Kind("boolean", _parse_boolean, _show_plain)
TEXT = Kind("text", _check_text, _show_text)
TEMPLATE = Kind("text", lambda value: check_template(_check_text(value)), _show_text)
VARIABLES = Kind("table", _parse_variables, _show_plain)
PATH = Kind("absolute path", _parse_path, _show_text)
OPTIONAL_PATH = Kind("absolute path", _parse_optional_path, _show_text)
SAMPLING = Kind("table, see below", _parse_sampling, _show_plain)
SIZE = Kind("size", parse_size, lambda size: f'`"{format_size(size)}"`' if size is not None else "")
DURATION = _make_duration(never=False)
DURATION_OR_NEVER = _make_duration(never=True)
DURATION_OR_NONE = Kind("time; `0`: none", parse_finite_duration, _show_duration)
TEXTS = Kind("list of texts", lambda value: list(_parse_texts(value)), _show_list)
TAGS = Kind("list of texts", _parse_tags, _show_plain)
SAMPLER_LIST = Kind("list of texts", _parse_samplers, _show_list)
SWITCH = Kind('"auto", "on" or "off"', _parse_switch, _show_text)
HOSTS = Kind("list of names", _parse_hosts, _show_plain)
ORIGINS = Kind("list of origins", _parse_origins, _show_plain)
ACCESS_LOG = Kind('"info", "debug" or "off"', _parse_access_log, _show_text)
ALIASES = Kind("list of texts", _parse_aliases, _show_plain)
DEVICES = Kind('list of texts, or "none"', _parse_devices, _show_plain)
SPLIT = Kind("list of numbers", _parse_split, _show_plain)
RPC = Kind('list of "IPv4:PORT"', _parse_rpc, _show_plain)
ENV = Kind("table of texts", _parse_env, _show_plain)
EXTRA = Kind("table of properties", _parse_extra, _show_plain)
MARGINS = Kind("table of sizes", _parse_margins, _show_plain)

# --- tables -----------------------------------------------------------------------------------------------------------

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
    Key("max_loaded", "max_loaded", _make_integer(0), "Models loaded at one time; `0`: any number."),
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
    Key("max_queue", "max_queue", _make_integer(1), "Requests that may wait for one model; more are refused."),
    Key(
        "max_queue_total",
        "max_queue_total",
        _make_integer(0),
        "Requests that may wait for all models together; more are refused. `0`: any number.",
    ),
    Key("log_level", "log_level", _make_choice(LOG_LEVELS), "The least important lines that are logged."),
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
        _make_integer(0, words={"auto": 0}),
        "Context in tokens, over all sequences, in steps of 256. Automatic: what fits, at most `ctx_max`.",
    ),
    Key(
        "ctx_max",
        "ctx_max",
        _make_integer(0, words={"auto": 0, "trained": TRAINED_CTX}),
        "What an automatic `ctx` goes up to, and never beyond what the model was trained for (see below).",
    ),
    Key("parallel", "parallel", _make_integer(1, 256), "Sequences that are decoded together."),
    Key(
        "n_gpu_layers",
        "n_gpu_layers",
        _make_integer(-1, words={"auto": -1, "all": ALL_LAYERS}),
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
        _make_integer(0, 1024),
        "Threads that compute; `0`: one for each core, fewer while other models compute as well (see below).",
    ),
    Key("batch", "batch", _make_integer(1), "Tokens that are given to llama.cpp at once; an encoder's is its context."),
    Key("ubatch", "ubatch", _make_integer(1), "Tokens that are computed at once, at most `batch`; likewise."),
    Key("cache_type_k", "cache_type_k", _make_choice(CACHE_TYPES), "Type of the keys in the KV cache."),
    Key(
        "cache_type_v",
        "cache_type_v",
        _make_choice(CACHE_TYPES),
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
    Key("fit_ctx", "fit_ctx", _make_integer(1), "The smallest context for one sequence that fitting may choose."),
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
        _make_choice(POOLINGS, empty=True),
        "Pooling of embeddings. Unset: as the model file says.",
    ),
    Key("sampling", "sampling", SAMPLING, "Sampling of requests that do not say it themselves."),
    Key("seed", "seed", _make_integer(-1, 0xFFFFFFFF), "Of requests that say none; `-1`: another one each time."),
    Key(
        "n_predict",
        "n_predict",
        _make_integer(-1),
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
    Key(
        "priority", "priority", _make_integer(-1000, 1000), "Of several candidates, models of lower priority go first."
    ),
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

SAMPLING_KEYS: tuple[Key, ...] = (
    Key("temperature", "temperature", _make_number(0, 100), "How random the choice is; `0`: always the likeliest."),
    Key("dynatemp_range", "dynatemp_range", _make_number(0, 100), "How far the temperature moves with the entropy."),
    Key("dynatemp_exponent", "dynatemp_exponent", _make_number(0, 100), "How the entropy becomes a temperature."),
    Key("top_k", "top_k", _make_integer(0), "Of the likeliest tokens, so many; `0`: all."),
    Key("top_p", "top_p", _make_number(0, 1), "Of the likeliest tokens, those that make up so much together."),
    Key("min_p", "min_p", _make_number(0, 1), "Tokens at least so likely as this share of the likeliest."),
    Key("typical_p", "typical_p", _make_number(0, 1), "Locally typical sampling; `1`: off."),
    Key("top_n_sigma", "top_n_sigma", _make_number(-1, 1000), "Tokens within so many deviations of the likeliest."),
    Key("xtc_probability", "xtc_probability", _make_number(0, 1), "How often the likeliest tokens are left out (XTC)."),
    Key("xtc_threshold", "xtc_threshold", _make_number(0, 1), "How likely these are at least; above 0.5: off."),
    Key("repeat_penalty", "repeat_penalty", _make_number(0.001, 1000), "Against tokens that have come; `1`: off."),
    Key("repeat_last_n", "repeat_last_n", _make_integer(-1), "How far penalties look back; `-1`: all of the context."),
    Key("presence_penalty", "presence_penalty", _make_number(-100, 100), "Once for each token that has come."),
    Key("frequency_penalty", "frequency_penalty", _make_number(-100, 100), "Each time that a token has come."),
    Key("dry_multiplier", "dry_multiplier", _make_number(0, 1000), "Against repeated passages (DRY); `0`: off."),
    Key("dry_base", "dry_base", _make_number(1, 1000), "How its penalty grows with the passage."),
    Key("dry_allowed_length", "dry_allowed_length", _make_integer(0), "Passages of this length may repeat."),
    Key(
        "dry_penalty_last_n",
        "dry_penalty_last_n",
        _make_integer(-1),
        "How far it looks back; `-1`: all of the context.",
    ),
    Key("dry_sequence_breakers", "dry_sequence_breakers", TEXTS, "Texts at which passages end."),
    Key("mirostat", "mirostat", _make_integer(0, 2), "Mirostat 1 or 2, instead of the samplers; `0`: off."),
    Key("mirostat_tau", "mirostat_tau", _make_number(0, 1000), "The surprise that it aims at."),
    Key("mirostat_eta", "mirostat_eta", _make_number(0, 1000), "How fast it learns."),
    Key("min_keep", "min_keep", _make_integer(0), "Samplers leave at least so many tokens."),
    Key("samplers", "samplers", SAMPLER_LIST, "Which samplers there are, and their order."),
)
"""All in llama-server's names; what is not set is as the model file says, and else as llama.cpp has it."""

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
