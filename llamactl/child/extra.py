"""Which unit properties may a model's `extra` table set, and how does unit-file text become their D-Bus values?

One table names each property and the parser of its text (systemd.resource-control(5), systemd.exec(5)); D-Bus wants
other names and numbers for many (CPUQuota=200% is CPUQuotaPerSecUSec=2000000). What llamactl itself relies on is
refused by name, with the setting to use instead where there is one. All values are JSON; signatures.py knows their
types.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.quantities import get_size_factor, scan_duration, scan_size

INFINITY = (1 << 64) - 1
Value = str | int | float | bool | list[str]
Parser = Callable[[str, Value], dict[str, Any]]

APPENDED = frozenset(
    {
        "BindPaths",
        "BindReadOnlyPaths",
        "DeviceAllow",
        "InaccessiblePaths",
        "ReadOnlyPaths",
        "ReadWritePaths",
        "SupplementaryGroups",
    }
)
"""Lists that are added to those of every unit; all else replaces."""

# What llamactl sets itself and cannot let go, and what to use instead.
_OURS = """
    AddRef AmbientCapabilities BindsTo BusName CapabilityBoundingSet CollectMode Delegate Description
    DynamicUser ExecCondition ExecReload ExecStart ExecStartEx ExecStartPost ExecStartPre ExecStop
    ExecStopPost Group LogExtraFields LogNamespace NotifyAccess PartOf RemainAfterExit Restart RestartSec
    RootDirectory RootImage RuntimeDirectory RuntimeDirectoryMode RuntimeDirectoryPreserve RuntimeMaxSec Slice
    StandardError StandardInput StandardOutput SyslogIdentifier TemporaryFileSystem Type UMask User
    WatchdogSignal WorkingDirectory
"""
REFUSED = {
    **dict.fromkeys(_OURS.split(), "llamactl sets it itself"),
    "Environment": "use the model's 'env'",
    "EnvironmentFile": "use the model's 'env'",
    "TimeoutStartSec": "use 'load_stall'",
    "TimeoutStopSec": "use 'stop_timeout'",
    "RuntimeMaxSec": "use 'idle_timeout'",
    "User": "models run as users of their own; use 'SupplementaryGroups' to let one read files",
    "Group": "models run as users of their own; use 'SupplementaryGroups' to let one read files",
}

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def parse_extra(extra: Mapping[str, Value]) -> dict[str, Any]:
    """D-Bus properties for unit-file spellings. LlamactlError (invalid_config) names the key and what is accepted."""
    properties: dict[str, Any] = {}
    for name, value in extra.items():
        if name in REFUSED:
            raise LlamactlError(ErrorCode.INVALID_CONFIG, f"cannot set 'extra.{name}': {REFUSED[name]}")
        parse = PARSERS.get(name)
        if parse is None:
            raise LlamactlError(
                ErrorCode.INVALID_CONFIG, f"cannot set 'extra.{name}': not a supported property", hint=_suggest(name)
            )
        try:
            properties.update(parse(name, value))
        except ValueError as error:
            raise LlamactlError(ErrorCode.INVALID_CONFIG, f"cannot set 'extra.{name}' to {value!r}: {error}") from None
    return properties


def choose_unenforced(extra: Mapping[str, Value], controllers: Iterable[str]) -> dict[str, str]:
    """Which of the properties systemd takes and cannot apply: property -> the cgroup controller that is not there."""
    missing = {"memory", "cpu", "cpuset", "pids", "io"} - set(controllers)
    needed = {name: controller for name in extra if (controller := _CONTROLLERS.get(name)) in missing}
    return {name: controller for name, controller in needed.items() if controller is not None}


def _suggest(name: str) -> str:
    close = difflib.get_close_matches(name, PARSERS, n=3)
    if close:
        return f"did you mean {' or '.join(repr(match) for match in close)}?"
    return "a drop-in of llamactl-model@.service takes any (`systemctl edit llamactl-model@.service`)"


# --- parsers of one value -------------------------------------------------------------------------


def _text(value: Value) -> str:
    if isinstance(value, bool | list):
        raise ValueError("one text or number is needed")
    text = str(value).strip()
    if not text or not text.isprintable():
        raise ValueError("a printable text is needed")
    return text


def _texts(value: Value) -> list[str]:
    """A list, or the words of a text."""
    texts = [_text(item) for item in value] if isinstance(value, list) else _text(value).split()
    if not texts:
        raise ValueError("at least one entry is needed")
    return texts


def parse_size(value: Value) -> int:
    """Bytes: 8G, 512M, 1.5GiB, a number, or infinity. Suffixes are powers of 1024."""
    text = _text(value)
    if text == "infinity":
        return INFINITY
    number, unit = scan_size(text) or (0, "?")
    unit = unit[:1].upper() + unit[1:].lower().replace("b", "B")  # systemd takes them in any case
    if len(unit) == 2 and unit.endswith("B"):
        raise ValueError(f"{unit} may mean 1000 or 1024 to a step; write {unit[0]} (steps of 1024)")
    factor = get_size_factor(unit)
    if factor is None:
        raise ValueError("a size such as 8G, 512M or infinity is needed")
    size_bytes = int(number * factor)
    if not 0 <= size_bytes < INFINITY:
        raise ValueError("too large")
    return size_bytes


def parse_span_us(value: Value) -> int:
    """Microseconds: 90, 90s, 2min 30s, or infinity."""
    text = _text(value)
    if text == "infinity":
        return INFINITY
    try:
        seconds = scan_duration(text)
    except ValueError:
        seconds = None
    if seconds is None:
        raise ValueError("a time such as 90s, 2min or infinity is needed")
    if seconds * 1e6 >= INFINITY:
        raise ValueError("too long")
    return round(seconds * 1e6)


def parse_cpus(value: Value) -> list[int]:
    """A little-endian bit mask of bytes from numbers and ranges: 0-3,8 10."""
    numbers: set[int] = set()
    for part in re.split(r"[,\s]+", " ".join(_texts(value))):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]) or int(match[2] or match[1]) > 8191:
            raise ValueError("numbers and ranges such as 0-3,8 are needed")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    mask = bytearray(max(numbers) // 8 + 1)
    for number in numbers:
        mask[number // 8] |= 1 << (number % 8)
    return list(mask)


def _parse_integer(value: Value, low: int, high: int) -> int:
    try:
        number = int(_text(value))
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise ValueError(f"a whole number from {low} to {high} is needed")
    return number


# --- makers of parsers, for the table -------------------------------------------------------------


def _boolean(name: str, value: Value) -> dict[str, Any]:
    text = str(value).lower()
    if isinstance(value, list) or text not in ("1", "yes", "true", "on", "0", "no", "false", "off"):
        raise ValueError("true or false is needed")
    return {name: text in ("1", "yes", "true", "on")}


def _integer(low: int, high: int, rename: str = "", **words: int) -> Parser:
    def parse(name: str, value: Value) -> dict[str, Any]:
        if isinstance(value, str) and value.strip() in words:
            return {rename or name: words[value.strip()]}
        return {rename or name: _parse_integer(value, low, high)}

    return parse


def _choice(*words: str) -> Parser:
    def parse(name: str, value: Value) -> dict[str, Any]:
        text = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else _text(value)
        if text not in words:
            raise ValueError(f"one of {', '.join(words)} is needed")
        return {name: text}

    return parse


def _number_of(**words: int) -> Parser:
    def parse(name: str, value: Value) -> dict[str, Any]:
        text = _text(value).replace("-", "_")
        if text not in words:
            raise ValueError(f"one of {', '.join(words).replace('_', '-')} is needed")
        return {name: words[text]}

    return parse


def _limit(name: str, value: Value) -> dict[str, Any]:
    """Bytes, or a share of the machine's."""
    percent = _PERCENT.fullmatch(_text(value))
    if percent is None:
        return {name: parse_size(value)}
    return {f"{name}Scale": _scale(percent[1])}


def _tasks(name: str, value: Value) -> dict[str, Any]:
    text = _text(value)
    percent = _PERCENT.fullmatch(text)
    if percent is not None:
        return {f"{name}Scale": _scale(percent[1])}
    return {name: INFINITY if text == "infinity" else _parse_integer(value, 1, INFINITY - 1)}


def _scale(percent: str) -> int:
    """A share as D-Bus has it: of 2^32 - 1."""
    if float(percent) > 100:
        raise ValueError("at most 100% is possible")
    return int(float(percent) / 100 * ((1 << 32) - 1))


def _quota(name: str, value: Value) -> dict[str, Any]:
    percent = _PERCENT.fullmatch(_text(value))
    if percent is None or float(percent[1]) <= 0:
        raise ValueError("a percentage of one CPU such as 200% is needed")
    return {"CPUQuotaPerSecUSec": round(float(percent[1]) * 10000)}


def _span(rename: str) -> Parser:
    return lambda name, value: {rename: parse_span_us(value)}


def _cpus(name: str, value: Value) -> dict[str, Any]:
    if name == "CPUAffinity" and value == "numa":
        return {"CPUAffinityFromNUMA": True}
    return {name: parse_cpus(value)}


def _rlimit(parse_one: Callable[[Value], int]) -> Parser:
    """A value, or soft:hard."""

    def parse(name: str, value: Value) -> dict[str, Any]:
        soft, _, hard = _text(value).partition(":")
        limits = {name: parse_one(hard or soft), f"{name}Soft": parse_one(soft)}
        if limits[f"{name}Soft"] > limits[name]:
            raise ValueError("the soft limit is above the hard one")
        return limits

    return parse


def _count(value: Value) -> int:
    return INFINITY if value == "infinity" else _parse_integer(value, 0, INFINITY - 1)


def _list(name: str, value: Value) -> dict[str, Any]:
    return {name: _texts(value)}


def _paths(name: str, value: Value) -> dict[str, Any]:
    for path in (paths := _texts(value)):
        if not path.lstrip("-+").startswith("/"):
            raise ValueError(f"'{path}' is not an absolute path")
    return {name: paths}


def _filter(name: str, value: Value) -> dict[str, Any]:
    """An allow list, or with ~ before the first entry a deny list; none stands for an empty allow list."""
    entries = _texts(value)
    allow = not entries[0].startswith("~")
    entries[0] = entries[0].removeprefix("~")
    return {name: [allow, [] if entries == ["none"] else entries]}


def _devices(name: str, value: Value) -> dict[str, Any]:
    devices = []
    for entry in value if isinstance(value, list) else [value]:
        device, *access = _text(entry).split()
        if len(access) > 1 or not re.fullmatch(r"[rwm]{1,3}", access[0] if access else "rwm"):
            raise ValueError("entries such as '/dev/nvidia0 rw' are needed")
        if not device.startswith(("/dev/", "char-", "block-")):
            raise ValueError(f"'{device}' is neither below /dev nor char-NAME or block-NAME")
        devices.append([device, access[0] if access else "rwm"])
    return {name: devices}


def _binds(name: str, value: Value) -> dict[str, Any]:
    """[-]SOURCE[:DESTINATION[:rbind|norbind]]"""
    binds: list[list[Any]] = []
    for entry in _texts(value):
        source, *rest = entry.removeprefix("-").split(":")
        destination, options = ([*rest, "", ""])[0] or source, ([*rest, "", ""])[1] or "rbind"
        if not source.startswith("/") or not destination.startswith("/") or len(rest) > 2:
            raise ValueError("entries such as /source:/destination are needed")
        if options not in ("rbind", "norbind"):
            raise ValueError(f"'{options}' is neither rbind nor norbind")
        binds.append([source, destination, entry.startswith("-"), 0x4000 if options == "rbind" else 0])
    return {name: binds}


PARSERS: dict[str, Parser] = {
    "AllowedCPUs": _cpus,
    "AllowedMemoryNodes": _cpus,
    "BindPaths": _binds,
    "BindReadOnlyPaths": _binds,
    "CPUAffinity": _cpus,
    "CPUQuota": _quota,
    "CPUSchedulingPolicy": _number_of(other=0, batch=3, idle=5),
    "CPUWeight": _integer(1, 10000, idle=0),
    "DeviceAllow": _devices,
    "DevicePolicy": _choice("auto", "closed", "strict"),
    "IOSchedulingClass": _number_of(none=0, best_effort=2, idle=3),
    "IOSchedulingPriority": _integer(0, 7),
    "IOWeight": _integer(1, 10000),
    "InaccessiblePaths": _paths,
    "KeyringMode": _choice("inherit", "private", "shared"),
    **{f"Limit{name}": _rlimit(parse_size) for name in ("AS", "CORE", "DATA", "FSIZE", "MEMLOCK", "RSS", "STACK")},
    **{f"Limit{name}": _rlimit(_count) for name in ("NOFILE", "NPROC")},
    "LockPersonality": _boolean,
    "LogLevelMax": _number_of(emerg=0, alert=1, crit=2, err=3, warning=4, notice=5, info=6, debug=7),
    "LogRateLimitBurst": _integer(0, (1 << 32) - 1),
    "LogRateLimitIntervalSec": _span("LogRateLimitIntervalUSec"),
    "ManagedOOMMemoryPressure": _choice("auto", "kill"),
    "ManagedOOMPreference": _choice("none", "avoid", "omit"),
    "ManagedOOMSwap": _choice("auto", "kill"),
    "MemoryDenyWriteExecute": _boolean,
    **dict.fromkeys(("MemoryHigh", "MemoryLow", "MemoryMax", "MemoryMin", "MemorySwapMax"), _limit),
    "MemoryZSwapMax": _limit,
    "NUMAMask": _cpus,
    "NUMAPolicy": _number_of(default=0, preferred=1, bind=2, interleave=3, local=4),
    "Nice": _integer(-20, 19),
    "NoNewPrivileges": _boolean,
    "OOMPolicy": _choice("continue", "stop", "kill"),
    "OOMScoreAdjust": _integer(-1000, 1000),
    "PrivateDevices": _boolean,
    "PrivateIPC": _boolean,
    "PrivateNetwork": _boolean,
    "PrivateTmp": _boolean,
    "PrivateUsers": _boolean,
    "ProcSubset": _choice("all", "pid"),
    "ProtectClock": _boolean,
    "ProtectControlGroups": _boolean,
    "ProtectHome": _choice("yes", "no", "read-only", "tmpfs"),
    "ProtectHostname": _boolean,
    "ProtectKernelLogs": _boolean,
    "ProtectKernelModules": _boolean,
    "ProtectKernelTunables": _boolean,
    "ProtectProc": _choice("noaccess", "invisible", "ptraceable", "default"),
    "ProtectSystem": _choice("yes", "no", "full", "strict"),
    "ReadOnlyPaths": _paths,
    "ReadWritePaths": _paths,
    "RestrictAddressFamilies": _filter,
    "RestrictRealtime": _boolean,
    "RestrictSUIDSGID": _boolean,
    "StartupAllowedCPUs": _cpus,
    "StartupCPUWeight": _integer(1, 10000, idle=0),
    "StartupIOWeight": _integer(1, 10000),
    "SupplementaryGroups": _list,
    "SystemCallFilter": _filter,
    "TasksMax": _tasks,
    "WatchdogSec": _span("WatchdogUSec"),
}

_CONTROLLERS = {
    **dict.fromkeys(("AllowedCPUs", "AllowedMemoryNodes", "StartupAllowedCPUs"), "cpuset"),
    **dict.fromkeys(("CPUQuota", "CPUWeight", "StartupCPUWeight"), "cpu"),
    **dict.fromkeys(("IOWeight", "StartupIOWeight"), "io"),
    **dict.fromkeys(
        [name for name in PARSERS if name.startswith("Memory") and name != "MemoryDenyWriteExecute"], "memory"
    ),
    "TasksMax": "pids",
}
