"""Which properties does a child's transient unit get?

Pure: settings in, properties out, as JSON (signatures.py turns them into D-Bus types). A unit depends on nothing but
its slice: PartOf= or BindsTo= on the supervisor would end the models with it. It stays loaded after a failure
(CollectMode=inactive), so that `systemctl --failed` and a restarted supervisor find it; a measure child's result is
held by AddRef= alone.

The sandbox: a dynamic user in the models' group, no network but the RPC servers that the model names, everything
read-only, homes hidden. Of the runtime directory it sees its own part and the report socket's: both as directories,
since a bound file would go on showing a socket that was bound again. Its own part is made by RuntimeDirectory=, which
stays out of /run/private only because it is not preserved; the front reaches it through the group. An empty BindPaths=
or BindReadOnlyPaths= would reset both lists, so empty ones are left out.
"""

import hashlib
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from llamactl.child import variables
from llamactl.child.extra import APPENDED, parse_extra
from llamactl.child.orders import ChildEnvironment, format_environment
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.names import DEVICES_SLUG, MODEL_SLICE, Role, format_slug
from llamactl.paths import Paths
from llamactl.protocol.report_socket import ChildRole
from llamactl.settings import ModelSettings

MODEL_GROUP = "llamactl-model"
WATCHDOG_S = 120
"""An instance says WATCHDOG=1 at half of it, apart from what it computes."""
SIGKILL = 9
EPERM = 1
CLONE_NEWUTS = 0x04000000
INFINITY = (1 << 64) - 1
MAX_USER_LENGTH = 31
MAX_ENTRY_BYTES = 128 << 10
"""MAX_ARG_STRLEN: the kernel executes nothing with a longer string in its environment."""

# GPUs of every make; accepted where the driver is not loaded (a path would be warned about at each start).
DEVICES = ("char-nvidia*", "char-drm", "char-kfd", "char-accel")

# Directories that no unit sees as they are: homes are hidden, temporary ones replaced.
_WHOLE = ("/", "/home", "/root", "/run", "/run/user", "/tmp", "/var/tmp", "/usr", "/etc")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ONE_WORD = re.compile(r"[^\s\"'\\%]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class Surroundings:
    """What all children of one supervisor have in common."""

    paths: Paths
    python: str
    """The interpreter."""
    python_paths: Sequence[str]
    """Directories that it needs."""
    gpu_groups: Sequence[str] = ()
    """Groups that may use the GPUs' device nodes."""


def choose_model_properties(
    orders: ChildEnvironment, surroundings: Surroundings, *, stop_timeout_s: float
) -> dict[str, Any]:
    """The properties of `llamactl-model@SLUG.service`. Raises LlamactlError (invalid_config).

    The start time-out is the stall time-out of the orders: the instance extends it with each progress.
    """
    settings, paths = orders.settings, surroundings.paths
    slug = format_slug(settings.name)
    properties = {
        "Description": f"llamactl model {settings.name}",
        "Type": "notify",
        "NotifyAccess": "main",
        "TimeoutStartUSec": _format_usec(orders.load_stall_s),
        "TimeoutStopUSec": _format_usec(stop_timeout_s),
        "WatchdogUSec": _format_usec(WATCHDOG_S),
        "WatchdogSignal": SIGKILL,  # the default dumps core: all of the model's memory
        "CollectMode": "inactive",
        "RuntimeDirectory": [str(_choose_runtime_directory(paths, slug))],
        "RuntimeDirectoryMode": 0o750,
        **_choose_common(orders, surroundings, slug),
        **_choose_sandbox(settings, slug, surroundings),
    }
    properties["BindPaths"] = [_bind(str(paths.instance_dir(slug)), required=True)]
    return _merge(properties, parse_extra(settings.extra))


def choose_measure_properties(
    orders: ChildEnvironment, surroundings: Surroundings, *, timeout_s: float
) -> dict[str, Any]:
    """The properties of `llamactl-measure@SLUG.service`: the same sandbox, killed after `timeout_s`. Of a child that
    lists devices those of a unit that no model's can be taken for.
    """
    settings = orders.settings
    lists = orders.devices_only
    slug = DEVICES_SLUG if lists else format_slug(settings.name)
    properties = {
        "Description": "llamactl listing of devices" if lists else f"llamactl measurement of model {settings.name}",
        "Type": "exec",
        "RuntimeMaxUSec": _format_usec(timeout_s),
        "TimeoutStopUSec": _format_usec(5),
        "CollectMode": "inactive-or-failed",
        "AddRef": True,
        **_choose_common(orders, surroundings, slug),
        **_choose_sandbox(settings, slug, surroundings),
    }
    # The watchdog is for those who say that they are alive.
    extra = {name: value for name, value in parse_extra(settings.extra).items() if name != "WatchdogUSec"}
    return _merge(properties, extra)


def _choose_environment(orders: ChildEnvironment) -> dict[str, str]:
    """What a child finds in its environment.

    Every local user can read it over D-Bus, so nothing secret belongs into `env`. LlamactlError: invalid_config.
    """
    settings = orders.settings
    ours = format_environment(orders) | {
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    for name, value in settings.env.items():
        reason = ""
        if not _ENVIRONMENT_NAME.fullmatch(name):
            reason = "a name is letters, digits and _, not beginning with a digit"
        elif name in variables.ORDERS:
            reason = "llamactl sets it"
        elif _CONTROL.search(value):
            reason = "its value has control characters"
        if reason:
            raise LlamactlError(
                ErrorCode.INVALID_CONFIG, f"cannot set 'env.{name}' of '{settings.name}': {reason}", model=settings.name
            )
    environment = ours | settings.env
    for name, value in environment.items():
        size_bytes = len(f"{name}={value}".encode("utf-8", "surrogateescape")) + 1
        if size_bytes > MAX_ENTRY_BYTES:
            what = "settings (a long chat template?)" if name == variables.SPEC else f"'env.{name}'"
            raise LlamactlError(
                ErrorCode.INVALID_CONFIG,
                f"cannot pass {what} of '{settings.name}' to its unit: {size_bytes} bytes, at most {MAX_ENTRY_BYTES} "
                "go into one variable",
                model=settings.name,
            )
    return environment


def format_user(slug: str) -> str:
    """The dynamic user's name: unique per slug, at most 31 of `[a-z0-9_-]`, which is less than a slug may have."""
    if len(slug) + 4 <= MAX_USER_LENGTH and "." not in slug:
        return f"llm-{slug}"
    digest = hashlib.sha256(slug.encode()).hexdigest()[:8]
    return f"llm-{slug.replace('.', '-')[: MAX_USER_LENGTH - 4 - 9]}-{digest}"


def _choose_common(orders: ChildEnvironment, surroundings: Surroundings, slug: str) -> dict[str, Any]:
    command = [surroundings.python, "-P", "-m", "llamactl.instance", str(orders.role)]
    role = Role.MODEL if orders.role is ChildRole.SERVE else Role.MEASURE
    # A listing is no model's.
    model = "" if orders.devices_only else orders.model
    return {
        # Not ExecStartEx=, for its no-env-expand: systemd 252 writes that name into the unit's file, where it is not
        # a setting, so that the unit is bad after the next daemon-reload. Dollars are doubled instead.
        "ExecStart": [[command[0], [argument.replace("$", "$$") for argument in command], False]],
        "Environment": [f"{name}={value}" for name, value in _choose_environment(orders).items()],
        "Slice": MODEL_SLICE,
        "Restart": "no",
        "OOMPolicy": "kill",
        "OOMScoreAdjust": 500,  # rather a model than the machine's other services
        "LimitCORE": 0,
        "LimitMEMLOCK": INFINITY,  # pinned host memory; systemd takes less where it may not raise it
        "SyslogIdentifier": f"llamactl-{slug}",
        "LogExtraFields": _choose_log_fields(role, orders.generation, model),
    }


def _choose_log_fields(role: Role, generation: str, model: str) -> list[str]:
    """What the journal notes with each line of a unit. systemd 252 writes them unquoted: after a daemon-reload what is
    not one word would be cut, with a warning.
    """
    fields = {"LLAMACTL_ROLE": str(role), variables.GENERATION: generation, variables.MODEL: model}
    return [f"{name}={value}" for name, value in fields.items() if _ONE_WORD.fullmatch(value)]


def _choose_sandbox(settings: ModelSettings, slug: str, surroundings: Surroundings) -> dict[str, Any]:
    paths = surroundings.paths
    properties: dict[str, Any] = {
        "DynamicUser": True,
        "User": format_user(slug),
        "Group": MODEL_GROUP,
        "UMask": 0o007,  # the socket is for the group
        "NoNewPrivileges": True,
        "CapabilityBoundingSet": 0,
        **_choose_network(settings.rpc),
        "ProtectSystem": "strict",
        "ProtectHome": "tmpfs",
        "PrivateTmp": True,
        "TemporaryFileSystem": [[str(paths.runtime_dir), "ro"]],
        "BindReadOnlyPaths": [
            _bind(str(paths.report_socket.parent), required=True),
            *(_bind(path) for path in choose_read_only(settings, surroundings.python_paths)),
        ],
        # Not ProtectKernelTunables=, a quarter of what this sandbox costs a start: it binds fourteen paths, of which an
        # unprivileged user could write to hardly one.
        "ReadOnlyPaths": ["/proc/sys", "/sys", "-/proc/irq", "-/proc/sysrq-trigger"],
        # Over D-Bus, and in the files of transient units, stand the environments of all other models.
        "InaccessiblePaths": ["-/run/dbus", "-/run/systemd/transient"],
        # No PrivateDevices=: it would hide the GPUs. No MemoryDenyWriteExecute=: their compilers write code.
        "DevicePolicy": "closed",
        "DeviceAllow": [[device, "rw"] for device in DEVICES],
        "ProtectClock": True,
        "ProtectControlGroups": True,
        "ProtectHostname": True,
        "ProtectKernelLogs": True,
        "ProtectKernelModules": True,
        "ProtectProc": "invisible",
        "LockPersonality": True,
        # One of them, and no other: systemd 252 writes "none" as an empty setting, which after a daemon-reload allows
        # all. To make it takes a privilege, and that another one.
        "RestrictNamespaces": CLONE_NEWUTS,
        "RestrictRealtime": True,
        "RestrictSUIDSGID": True,
        "SystemCallArchitectures": ["native"],
        "SystemCallFilter": [True, ["@system-service"]],
        "SystemCallErrorNumber": EPERM,  # a library that tries something else falls back, rather than die
    }
    if surroundings.gpu_groups:
        properties["SupplementaryGroups"] = list(surroundings.gpu_groups)
    return properties


def _choose_network(rpc: Sequence[str]) -> dict[str, Any]:
    """None at all; or, for a model with RPC servers, these addresses alone (systemd has no filter by port)."""
    if not rpc:
        return {"PrivateNetwork": True, "RestrictAddressFamilies": [True, ["AF_UNIX"]]}
    hosts = dict.fromkeys(ipaddress.IPv4Address(server.rpartition(":")[0]) for server in rpc)
    return {
        "PrivateNetwork": False,
        "RestrictAddressFamilies": [True, ["AF_UNIX", "AF_INET"]],
        "IPAddressDeny": [[socket.AF_INET, [0] * 4, 0], [socket.AF_INET6, [0] * 16, 0]],
        "IPAddressAllow": [[socket.AF_INET, list(host.packed), 32] for host in hosts],
    }


def choose_read_only(settings: ModelSettings, python_paths: Iterable[str]) -> list[str]:
    """What to bind read-only so that the unit sees it wherever it lies: directories of the model and the interpreter.

    A file is bound alone when its directory is one that must not be shown whole, such as a home.
    """
    wanted: dict[str, None] = {}
    for file in (settings.path, *settings.files, settings.mmproj, settings.draft):
        if file:
            directory = PurePath(file).parent
            whole = str(directory) in _WHOLE or str(directory.parent) == "/home"
            wanted[file if whole else str(directory)] = None
    if settings.media_path:
        wanted[settings.media_path] = None
    for path in python_paths:
        if path not in _WHOLE:
            wanted[path] = None
    return [path for path in wanted if not any(other != path and _holds(other, path) for other in wanted)]


def _holds(directory: str, path: str) -> bool:
    return PurePath(path).is_relative_to(directory)


def _choose_runtime_directory(paths: Paths, slug: str) -> PurePath:
    """Of an instance, relative to /run as RuntimeDirectory= wants it."""
    directory = PurePath(paths.instance_dir(slug))
    if not directory.is_relative_to("/run"):
        raise LlamactlError(
            ErrorCode.INVALID_CONFIG,
            f"cannot use runtime directory '{paths.runtime_dir}' for models: systemd makes theirs below /run",
            hint="set LLAMACTL_RUNTIME_DIR to a directory below /run",
        )
    return directory.relative_to("/run")


def _bind(path: str, *, required: bool = False) -> list[Any]:
    """Source, destination, whether absence is ignored (the child then reports it in better words), MS_REC."""
    return [path, path, not required, 0x4000]


def _format_usec(seconds: float) -> int:
    """For a `t` of D-Bus; 0 and less mean never."""
    return round(seconds * 1e6) if seconds > 0 else INFINITY


def _merge(properties: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The administrator's properties replace ours; lists are added to ours."""
    merged = dict(properties)
    for name, value in extra.items():
        merged[name] = merged.get(name, []) + value if name in APPENDED else value
    if "MemoryMax" in extra or "MemoryMaxScale" in extra:
        merged.setdefault("MemorySwapMax", 0)  # or swap would hide the limit
    return merged
