"""What may a key of the configuration hold?

A kind turns a TOML value into a setting or raises ValueError with the end of a sentence ("must be ..."). TOML's
booleans are integers to Python: every kind that takes numbers must refuse them itself.
"""

import ipaddress
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from llamactl.child import variables
from llamactl.config.builtin_templates import check_template
from llamactl.errors import LlamactlError
from llamactl.names import check_model_name
from llamactl.quantities import format_duration, format_size, parse_duration, parse_size
from llamactl.settings import TEMPLATE_RESERVED, AccessLog, Sampling, Switch

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


_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Kind:
    """What a key may hold: words for the documentation, the parser, and how a default is shown."""

    words: str
    parse: Callable[[object], Any]
    format: Callable[[Any], str] = lambda value: f"`{value!r}`"
    unit: str = ""
    """What fields of this kind have behind their name."""


class EntryErrors(ValueError):
    """The ends of several sentences: what is wrong with each entry of a table."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


def list_reasons(error: ValueError) -> tuple[str, ...]:
    """What a kind says of a value, each mistake by itself."""
    return error.reasons if isinstance(error, EntryErrors) else (str(error),)


def parse_entries(table: dict[str, Any], parse: Callable[[str, Any], _Value]) -> dict[str, _Value]:
    """Each entry as `parse` takes it. Raises EntryErrors with all that is wrong."""
    entries: dict[str, _Value] = {}
    reasons: list[str] = []
    for name, content in table.items():
        try:
            entries[name] = parse(name, content)
        except ValueError as error:
            reasons += list_reasons(error)
    if reasons:
        raise EntryErrors(reasons)
    return entries


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


def show_plain(value: object) -> str:
    """A default as the documentation shows it; empty where there is none."""
    if isinstance(value, tuple):
        return f"`{', '.join(map(str, value))}`" if value else ""
    return f"`{str(value).lower()}`" if value not in ("", (), {}, None) else ""


def _show_text(value: object) -> str:
    return f'`"{value}"`' if value else ""


def _show_list(value: Sequence[str]) -> str:
    return f"`{json.dumps(list(value))}`"


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
    return parse_entries(value, _parse_variable)


def _parse_variable(name: str, content: object) -> str:
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
    return content


def _parse_extra(value: object) -> dict[str, str | int | float | bool | list[str]]:
    """Only the shape. What each property may hold is systemd's matter, and `child.properties` knows it."""
    if not isinstance(value, dict):
        raise ValueError('must be a table of unit properties, as in { MemoryMax = "8G" }')
    return parse_entries(value, _parse_property)


def _parse_property(name: str, content: Any) -> str | int | float | bool | list[str]:
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
    return content  # type: ignore[no-any-return]


def _parse_variables(value: object) -> dict[str, Any]:
    """What JSON can say: the settings travel as JSON."""
    if not isinstance(value, dict):
        raise ValueError("must be a table, as in { preserve_thinking = true }")
    return parse_entries(value, _parse_template_variable)


def _parse_template_variable(name: str, content: object) -> Any:
    if name in TEMPLATE_RESERVED:
        raise ValueError(f"{name} is set by the request itself")
    if not _is_plain(content):
        raise ValueError(f"{name} must be a text, a number, true, false, or a list or table of these")
    return content


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
    return parse_entries(value, _parse_margin)


def _parse_margin(device: str, size: object) -> int:
    if device.casefold() == "host":
        raise ValueError(f"{device}: main memory has a key of its own, `host_margin`")
    try:
        return parse_size(size)
    except ValueError as error:
        raise ValueError(f"{device if device.isprintable() else repr(device)} {error}") from None


def make_integer(low: int, high: int = MAX_INT, words: dict[str, int] | None = None) -> Kind:
    """Integers within these limits; `words` stand for some of them."""
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


def make_number(low: float, high: float) -> Kind:
    """Numbers within these limits."""
    limits = f"number from {low:g} to {high:g}"

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"must be a {limits}")
        return float(value)

    return Kind(limits, parse, lambda value: f"`{value:g}`")


def make_choice(choices: tuple[str, ...], empty: bool = False) -> Kind:
    """One of these texts; with `empty`, none is right, too."""
    listed = ", ".join(f'"{choice}"' for choice in choices)

    def parse(value: object) -> str:
        if not isinstance(value, str) or (value not in choices and not (empty and value == "")):
            raise ValueError(f"must be one of {listed}")
        return value

    return Kind(f"one of {listed}", parse, _show_text)


def make_duration(never: bool) -> Kind:
    """Times in seconds; with `never`, 0 and "infinity" mean no limit and become 0."""

    def parse(value: object) -> float:
        seconds = parse_duration(value)
        if never:
            return 0.0 if math.isinf(seconds) else seconds
        if math.isinf(seconds) or seconds == 0:
            raise ValueError("must be a time above 0 that ends, as in '60s'")
        return seconds

    return Kind('time; `0` or `"infinity"`: no limit' if never else "time", parse, _show_duration, "_s")


def _show_duration(seconds: float) -> str:
    return f'`"{format_duration(seconds)}"`' if seconds else "`0`"


def parse_finite_duration(value: object) -> float:
    """Seconds; raises ValueError for "infinity" as well."""
    seconds = parse_duration(value)
    if math.isinf(seconds):
        raise ValueError("must be a time that ends, as in '5s'")
    return seconds


BOOLEAN = Kind("boolean", _parse_boolean, show_plain)
TEXT = Kind("text", _check_text, _show_text)
TEMPLATE = Kind("text", lambda value: check_template(_check_text(value)), _show_text)
VARIABLES = Kind("table", _parse_variables, show_plain)
PATH = Kind("absolute path", _parse_path, _show_text)
OPTIONAL_PATH = Kind("absolute path", _parse_optional_path, _show_text)
SIZE = Kind("size", parse_size, lambda size: f'`"{format_size(size)}"`' if size is not None else "", "_bytes")
DURATION = make_duration(never=False)
DURATION_OR_NEVER = make_duration(never=True)
DURATION_OR_NONE = Kind("time; `0`: none", parse_finite_duration, _show_duration, "_s")
TEXTS = Kind("list of texts", lambda value: list(_parse_texts(value)), _show_list)
TAGS = Kind("list of texts", _parse_tags, show_plain)
SAMPLER_LIST = Kind("list of texts", _parse_samplers, _show_list)
SWITCH = Kind('"auto", "on" or "off"', _parse_switch, _show_text)
HOSTS = Kind("list of names", _parse_hosts, show_plain)
ORIGINS = Kind("list of origins", _parse_origins, show_plain)
ACCESS_LOG = Kind('"info", "debug" or "off"', _parse_access_log, _show_text)
ALIASES = Kind("list of texts", _parse_aliases, show_plain)
DEVICES = Kind('list of texts, or "none"', _parse_devices, show_plain)
SPLIT = Kind("list of numbers", _parse_split, show_plain)
RPC = Kind('list of "IPv4:PORT"', _parse_rpc, show_plain)
ENV = Kind("table of texts", _parse_env, show_plain)
EXTRA = Kind("table of properties", _parse_extra, show_plain)
MARGINS = Kind("table of sizes", _parse_margins, show_plain, "_bytes")
