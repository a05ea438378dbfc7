"""What does a breakdown mean for the accounts?

A breakdown is llama.cpp's own figure per device, host and other buffer type. The accounts know devices by name and one
host: the rows of kind `host` and `buffer_type` together, because both are host memory. Which settings change a
breakdown, and which loads fit themselves to what is free, is decided here too, so that measuring, fitting and the
accounts agree.
"""

from collections.abc import Iterable

import msgspec

from llamactl.config.model_keys import HARMLESS, UNMEASURED
from llamactl.protocol.values import Breakdown, Row, RowKind
from llamactl.settings import ModelSettings

HOST = "Host"
"""Name of the host's account."""


def list_device_rows(breakdown: Breakdown) -> tuple[Row, ...]:
    """The rows of real devices."""
    return tuple(row for row in breakdown.devices if row.kind is RowKind.DEVICE)


def sum_per_account(breakdown: Breakdown | None) -> dict[str, int]:
    """Bytes per account: each device by its name, everything else as HOST. Accounts without bytes are left out."""
    sums: dict[str, int] = {}
    for row in breakdown.devices if breakdown is not None else ():
        if row.used > 0:
            name = row.name if row.kind is RowKind.DEVICE else HOST
            sums[name] = sums.get(name, 0) + row.used
    return sums


def is_self_fitting(settings: ModelSettings) -> bool:
    """Whether llama.cpp picks context or layers by what is free at that moment, so that nobody knows yet what it will
    take.
    """
    return settings.fit and (settings.ctx == 0 or settings.n_gpu_layers == -1)


def list_claimed_devices(settings: ModelSettings, breakdown: Breakdown | None) -> frozenset[str]:
    """Devices on which a load may allocate. One that fits itself may use each device that it lists, whatever its
    smallest form takes.
    """
    if breakdown is None:
        return frozenset()
    fitting = is_self_fitting(settings)
    return frozenset(row.name for row in list_device_rows(breakdown) if fitting or row.used > 0)


def sees_device(settings: ModelSettings, name: str) -> bool:
    """Whether a child of this model finds the device, unless its environment or its unit hides it."""
    server = get_rpc_server(name)
    if server:
        return server in settings.rpc
    return settings.devices != ("none",)


def hides_devices(settings: ModelSettings) -> bool:
    """Whether its environment (CUDA_VISIBLE_DEVICES) or its unit (DeviceAllow) may hide devices from a model."""
    return bool(settings.env) or bool(settings.extra)


def get_rpc_server(name: str) -> str:
    """`HOST:PORT` of a device's name `RPC0[HOST:PORT]`; empty for devices of this machine."""
    head, bracket, server = name.rstrip("]").partition("[")
    return server if bracket and head.startswith("RPC") else ""


_OF_NO_KEY = frozenset(("name", "source", "found"))
"""Where a model comes from says nothing about what it takes."""


def strip_unmeasured(settings: ModelSettings) -> ModelSettings:
    """The settings with all that does not change a breakdown set to one value: equal results share a measurement."""
    return _reset(settings, _OF_NO_KEY | UNMEASURED)


def strip_harmless(settings: ModelSettings) -> ModelSettings:
    """The settings with all that cannot be why a measurement failed set to one value. Its unit's properties can."""
    return _reset(settings, _OF_NO_KEY | HARMLESS)


_DEFAULTS = ModelSettings(name="", path="")


def _reset(settings: ModelSettings, fields: frozenset[str]) -> ModelSettings:
    return msgspec.structs.replace(settings, **{name: getattr(_DEFAULTS, name) for name in fields})


def add_bytes(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Sum of several charges, per account."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, size in part.items():
            sums[name] = sums.get(name, 0) + size
    return sums
