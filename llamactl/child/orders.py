"""What is a child told to do? Its whole configuration, as the environment of its unit, written and read here alone.

A child has no command line beyond its role and reads no configuration file: the unit's environment is what survives a
restart of the supervisor, so it is the one place where the settings of a running instance can be looked up.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from llamactl.child import variables
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.protocol.report_socket import ChildRole
from llamactl.protocol.values import Breakdown
from llamactl.settings import ModelSettings, decode_spec, encode_spec

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
    """How long a load may go without progress: by so much each progress extends the unit's start time-out. 0: for ever,
    which is nothing that a child needs to know.
    """
    extra_bufts: bool = True
    devices_only: bool = False
    """`measure` lists devices, and measures no model."""
    device_ids: dict[str, str] = field(default_factory=dict)
    """Devices of which nothing but the free memory is asked: their bus addresses by name."""
    log_level: str = "info"
    llama_debug: bool = False

    def margin_bytes(self, device: str) -> int:
        """What fitting must leave free on this device."""
        return self.margins_bytes.get(device, self.margins_bytes.get("", 0))


def format_environment(orders: ChildEnvironment) -> dict[str, str]:
    """What `parse_environment` reads, and a restarted supervisor too, from systemd."""
    told = {
        variables.MODEL: orders.model,
        variables.SPEC: encode_spec(orders.settings),
        variables.GENERATION: orders.generation,
        variables.SOCKET: "" if orders.socket is None else str(orders.socket),
        variables.REPORT: str(orders.report),
        variables.MARGINS: _encode_table(orders.margins_bytes),
        variables.HOST_ROOM: "" if orders.host_room_bytes is None else str(orders.host_room_bytes),
        variables.MEASURED: "" if orders.measured is None else msgspec.json.encode(orders.measured).decode(),
        variables.EXTRA_BUFTS: "1" if orders.extra_bufts else "0",
        variables.LOG_LEVEL: orders.log_level,
    }
    if orders.load_stall_s > 0:
        told[variables.LOAD_STALL] = str(orders.load_stall_s)
    if orders.devices_only:
        told |= {variables.DEVICES_ONLY: "1", variables.DEVICE_IDS: _encode_table(orders.device_ids)}
    if orders.llama_debug:
        told[variables.LLAMA_LOG] = "debug"
    return told


def parse_environment(role: ChildRole, environ: Mapping[str, str]) -> ChildEnvironment:
    """Raises LlamactlError(INVALID_CONFIG) that names the variable."""
    try:
        settings = decode_spec(_require(environ, variables.SPEC))
    except msgspec.DecodeError as error:
        raise _refuse(variables.SPEC, str(error)) from None
    margins = _decode_table(environ, variables.MARGINS, dict[str, int])
    if any(value < 0 for value in margins.values()):
        raise _refuse(variables.MARGINS, "a margin is negative")
    host_room = environ.get(variables.HOST_ROOM, "")
    if host_room and not (host_room.isascii() and host_room.isdecimal()):
        raise _refuse(variables.HOST_ROOM, f"{host_room!r} is not a number of bytes")
    measured = environ.get(variables.MEASURED, "")
    try:
        breakdown = msgspec.json.decode(measured, type=Breakdown) if measured else None
    except msgspec.DecodeError as error:
        raise _refuse(variables.MEASURED, str(error)) from None
    load_stall = environ.get(variables.LOAD_STALL) or "120"
    try:
        load_stall_s = float(load_stall)
    except ValueError:
        load_stall_s = -1.0
    if not 0 < load_stall_s < math.inf:
        raise _refuse(variables.LOAD_STALL, f"{load_stall!r} is not a number of seconds above 0")
    extra_bufts = environ.get(variables.EXTRA_BUFTS) or "1"
    if extra_bufts not in ("0", "1"):
        raise _refuse(variables.EXTRA_BUFTS, f"{extra_bufts!r} is neither 0 nor 1")
    return ChildEnvironment(
        role=role,
        model=environ.get(variables.MODEL) or settings.name,
        settings=settings,
        generation=environ.get(variables.GENERATION, ""),
        socket=Path(_require(environ, variables.SOCKET)) if role is ChildRole.SERVE else None,
        report=Path(_require(environ, variables.REPORT)),
        margins_bytes=margins,
        host_room_bytes=int(host_room) if host_room else None,
        measured=breakdown,
        load_stall_s=load_stall_s,
        extra_bufts=extra_bufts == "1" and settings.repack,
        devices_only=environ.get(variables.DEVICES_ONLY, "") == "1",
        device_ids=_decode_table(environ, variables.DEVICE_IDS, dict[str, str]),
        log_level=environ.get(variables.LOG_LEVEL) or "info",
        llama_debug=environ.get(variables.LLAMA_LOG, "") == "debug",
    )


def _encode_table(table: Mapping[str, int] | Mapping[str, str]) -> str:
    return json.dumps(dict(table), sort_keys=True)


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
