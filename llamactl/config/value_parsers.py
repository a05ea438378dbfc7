"""How does a TOML value become a setting? Each parser raises ValueError with the end of a sentence ("must be ...").

TOML's booleans are integers to Python: every parser of numbers must refuse them itself.
"""

import ipaddress
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from llamactl.child import variables
from llamactl.errors import LlamactlError
from llamactl.names import check_model_name
from llamactl.quantities import parse_duration, parse_size
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


def parse_boolean(value: object) -> bool:
    """Parse true or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false, without quotes")
    return value


def check_text(value: object, what: str = "a text") -> str:
    """Check that it is a text of bearable length; `what` it must be else."""
    if not isinstance(value, str):
        raise ValueError(f"must be {what}")
    if len(value) > MAX_TEXT:
        raise ValueError(f"must have at most {MAX_TEXT} characters, has {len(value)}")
    if "\0" in value:
        raise ValueError("must not contain NUL")
    return value


def parse_path(value: object) -> str:
    """Parse an absolute path; `~` is not one."""
    path = check_text(value, "an absolute path")
    if path.startswith("~"):
        raise ValueError("must be an absolute path; `~` is not expanded, since it would be the supervisor's own home")
    if not path.startswith("/"):
        raise ValueError("must be an absolute path")
    return path


def parse_optional_path(value: object) -> str:
    """Parse an absolute path, or the empty text."""
    return "" if value == "" else parse_path(value)


def parse_texts(value: object) -> tuple[str, ...]:
    """Parse a list of texts, each of which is kept once."""
    if not isinstance(value, list):
        raise ValueError('must be a list of texts, as in ["a", "b"]')
    for number, item in enumerate(value, start=1):
        if not isinstance(item, str):
            raise ValueError(f'must be a list of texts, as in ["a", "b"]; item {number} is {show_value(item)}')
    return tuple(dict.fromkeys(check_text(item) for item in value))


def parse_aliases(value: object) -> tuple[str, ...]:
    """Parse a list of names that models may have."""
    aliases = parse_texts([value] if isinstance(value, str) else value)
    for alias in aliases:
        try:
            check_model_name(alias)
        except LlamactlError as error:
            raise ValueError(error.message.removeprefix("cannot use model name ")) from None
    return aliases


def parse_tags(value: object) -> tuple[str, ...]:
    """Parse a list of words without commas; one text is a list of one."""
    tags = parse_texts([value] if isinstance(value, str) else value)
    for tag in tags:
        if not tag.strip() or "," in tag or not tag.isprintable():
            raise ValueError(f"{show_value(tag)} must be one word or some, without commas")
    return tags


def parse_hosts(value: object) -> tuple[str, ...]:
    """Parse a list of host names, in lower case; `*.` stands for all below."""
    hosts = parse_texts([value] if isinstance(value, str) else value)
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} must be a name without scheme and port, as in 'llm.example.org'")
    return tuple(dict.fromkeys(host.lower() for host in hosts))


def parse_origins(value: object) -> tuple[str, ...]:
    """Parse a list of origins of web pages, as browsers send them."""
    origins = parse_texts([value] if isinstance(value, str) else value)
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin!r} must be an origin as browsers send it, as in 'https://chat.example.org', or '*', "
                "or 'localhost' for those of this machine"
            )
    return origins


def parse_access_log(value: object) -> AccessLog:
    """Parse the level of the lines about requests; true is `info`, false `off`."""
    if isinstance(value, bool):
        return AccessLog.INFO if value else AccessLog.OFF
    if isinstance(value, str) and value in tuple(AccessLog):
        return AccessLog(value)
    raise ValueError('must be "info", "debug" or "off"')


def parse_devices(value: object) -> tuple[str, ...]:
    """Parse a list of llama.cpp's names of devices, or `none`."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    devices = parse_texts(value)
    if not all(devices):
        raise ValueError("must not contain an empty name")
    if "none" in devices and len(devices) > 1:
        raise ValueError("'none' (the CPU alone) cannot be combined with other devices")
    return devices


def parse_split(value: object) -> tuple[float, ...]:
    """Parse shares of devices, none of them negative."""
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


def parse_rpc(value: object) -> tuple[str, ...]:
    """Addresses only: a unit's network is opened to addresses, and inside of it nobody answers for names."""
    servers = []
    for server in parse_texts([value] if isinstance(value, str) else value):
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


def parse_switch(value: object) -> Switch:
    """Parse on, off or auto; true is `on`, false `off`."""
    if isinstance(value, bool):
        return Switch.ON if value else Switch.OFF
    if isinstance(value, str) and value in tuple(Switch):
        return Switch(value)
    raise ValueError('must be "auto", "on" or "off"')


def parse_env(value: object) -> dict[str, str]:
    """Parse environment variables; those by which a child is told who it is are refused."""
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
    if _CONTROL.search(check_text(content)):
        raise ValueError(f"{name} has control characters in its value")
    return content


def parse_extra(value: object) -> dict[str, str | int | float | bool | list[str]]:
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
            check_text(item)
    return content  # type: ignore[no-any-return]


def parse_variables(value: object) -> dict[str, Any]:
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


def parse_samplers(value: object) -> list[str]:
    """Parse a chain of samplers, by llama-server's names."""
    samplers = list(parse_texts(value))
    for sampler in samplers:
        if sampler not in SAMPLERS:
            raise ValueError(f"{sampler!r} must be one of " + ", ".join(SAMPLERS))
    return samplers


def parse_margins(value: object) -> dict[str, int]:
    """Parse sizes by device, to bytes."""
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


def parse_finite_duration(value: object) -> float:
    """Seconds; raises ValueError for "infinity" as well."""
    seconds = parse_duration(value)
    if math.isinf(seconds):
        raise ValueError("must be a time that ends, as in '5s'")
    return seconds
