"""What was this child told to do? Its whole configuration, read once from the environment that its unit sets.

A child has no command line beyond its role and reads no configuration file: the unit's environment is what survives a
restart of the supervisor, so it is the one place where the settings of a running instance can be looked up.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.protocol import Breakdown, ChildRole
from llamactl.settings import ModelSettings, decode_spec

T = TypeVar("T")


@dataclass(frozen=True)
class ChildEnvironment:
    """The orders of one child."""

    role: ChildRole
    model: str
    settings: ModelSettings
    generation: str
    socket: Path | None
    """Where `serve` listens; None for `measure`."""
    report: Path
    margins_bytes: dict[str, int] = field(default_factory=dict)
    """What fitting must leave free, by device; "" is every device not named."""
    host_room_bytes: int | None = None
    """What fitting may take of main memory; None: all that this process may use."""
    measured: Breakdown | None = None
    """What the model took at the largest context that fitted when it was measured; None: nobody knows."""
    load_stall_s: float = 120.0
    """How long a load may go without progress: by so much each progress extends the unit's start time-out."""
    extra_bufts: bool = True
    rpc_servers: tuple[str, ...] = ()
    devices_only: bool = False
    """`measure` lists devices, and measures no model."""
    device_ids: dict[str, str] = field(default_factory=dict)
    """Devices of which nothing but the free memory is asked: their bus addresses by name."""
    llama_debug: bool = False

    def margin_bytes(self, device: str) -> int:
        return self.margins_bytes.get(device, self.margins_bytes.get("", 0))


def parse_environment(role: ChildRole, environ: Mapping[str, str]) -> ChildEnvironment:
    """Raises LlamactlError(INVALID_CONFIG) that names the variable."""
    try:
        settings = decode_spec(_require(environ, "LLAMACTL_SPEC"))
    except msgspec.DecodeError as error:
        raise _refuse("LLAMACTL_SPEC", str(error)) from None
    margins = _decode_table(environ, "LLAMACTL_MARGINS", dict[str, int])
    if any(value < 0 for value in margins.values()):
        raise _refuse("LLAMACTL_MARGINS", "a margin is negative")
    host_room = environ.get("LLAMACTL_HOST_ROOM", "")
    if host_room and not (host_room.isascii() and host_room.isdecimal()):
        raise _refuse("LLAMACTL_HOST_ROOM", f"{host_room!r} is not a number of bytes")
    measured = environ.get("LLAMACTL_MEASURED", "")
    try:
        breakdown = msgspec.json.decode(measured, type=Breakdown) if measured else None
    except msgspec.DecodeError as error:
        raise _refuse("LLAMACTL_MEASURED", str(error)) from None
    load_stall = environ.get("LLAMACTL_LOAD_STALL") or "120"
    try:
        load_stall_s = float(load_stall)
    except ValueError:
        load_stall_s = -1.0
    if not 0 < load_stall_s < math.inf:
        raise _refuse("LLAMACTL_LOAD_STALL", f"{load_stall!r} is not a number of seconds above 0")
    extra_bufts = environ.get("LLAMACTL_EXTRA_BUFTS") or "1"
    if extra_bufts not in ("0", "1"):
        raise _refuse("LLAMACTL_EXTRA_BUFTS", f"{extra_bufts!r} is neither 0 nor 1")
    return ChildEnvironment(
        role=role,
        model=environ.get("LLAMACTL_MODEL") or settings.name,
        settings=settings,
        generation=environ.get("LLAMACTL_GENERATION", ""),
        socket=Path(_require(environ, "LLAMACTL_SOCKET")) if role is ChildRole.SERVE else None,
        report=Path(_require(environ, "LLAMACTL_REPORT")),
        margins_bytes=margins,
        host_room_bytes=int(host_room) if host_room else None,
        measured=breakdown,
        load_stall_s=load_stall_s,
        extra_bufts=extra_bufts == "1" and settings.repack,
        devices_only=environ.get("LLAMACTL_DEVICES_ONLY", "") == "1",
        device_ids=_decode_table(environ, "LLAMACTL_DEVICE_IDS", dict[str, str]),
        rpc_servers=tuple(part.strip() for part in environ.get("LLAMACTL_RPC", "").split(",") if part.strip()),
        llama_debug=environ.get("LLAMACTL_LLAMA_LOG", "") == "debug",
    )


def _decode_table(environ: Mapping[str, str], name: str, kind: type[dict[str, T]]) -> dict[str, T]:
    try:
        return msgspec.json.decode(environ.get(name) or "{}", type=kind)
    except msgspec.DecodeError as error:
        raise _refuse(name, str(error)) from None


def _require(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise _refuse(name, "not set")
    return value


def _refuse(name: str, why: str) -> LlamactlError:
    return LlamactlError(
        ErrorCode.INVALID_CONFIG,
        f"cannot start: {name}: {why}",
        hint="instances are started by llamactl.service",
    )
