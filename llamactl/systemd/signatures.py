"""With which D-Bus types does systemd take the properties of a transient unit?

pystemd knows most of them; this is what it lacks, in one place. pystemd's own conversion is too kind: a
float for an integer is cut without a word (RuntimeMaxUSec=1.5 becomes a microsecond, and the unit is killed at once),
so each value is checked before. Values arrive as JSON: text for s, lists of numbers or text for ay.
"""

from collections.abc import Mapping
from typing import Any

# By org.freedesktop.systemd1(5).
EXTRA_SIGNATURES = {
    "AddRef": "b",
    "AllowedCPUs": "ay",
    "AllowedMemoryNodes": "ay",
    "CPUAffinity": "ay",
    "CPUAffinityFromNUMA": "b",
    "CPUSchedulingPolicy": "i",
    "CPUSchedulingPriority": "i",
    "CPUWeight": "t",
    "CapabilityBoundingSet": "t",
    "CoredumpFilter": "t",
    "DeviceAllow": "a(ss)",
    "FinalKillSignal": "i",
    "IODeviceLatencyTargetUSec": "a(st)",
    "IODeviceWeight": "a(st)",
    "IOReadBandwidthMax": "a(st)",
    "IOReadIOPSMax": "a(st)",
    "IOSchedulingClass": "i",
    "IOSchedulingPriority": "i",
    "IOWeight": "t",
    "IOWriteBandwidthMax": "a(st)",
    "IOWriteIOPSMax": "a(st)",
    "LoadCredential": "a(ss)",
    "LogExtraFields": "aay",
    "LogLevelMax": "i",
    "LogNamespace": "s",
    "LogRateLimitBurst": "u",
    "LogRateLimitIntervalUSec": "t",
    "ManagedOOMMemoryPressure": "s",
    "ManagedOOMPreference": "s",
    "ManagedOOMSwap": "s",
    "MemoryMin": "t",
    "MemoryZSwapMax": "t",
    "NUMAMask": "ay",
    "NUMAPolicy": "i",
    "OOMPolicy": "s",
    "OOMScoreAdjust": "i",
    "ProcSubset": "s",
    "ProtectClock": "b",
    "ProtectHostname": "b",
    "ProtectKernelLogs": "b",
    "ProtectProc": "s",
    "RestrictAddressFamilies": "(bas)",
    "RestrictNamespaces": "t",
    "RestrictSUIDSGID": "b",
    "RuntimeDirectoryMode": "u",
    "StartupAllowedCPUs": "ay",
    "StartupCPUWeight": "t",
    "StartupIOWeight": "t",
    "SystemCallErrorNumber": "i",
    "TimeoutAbortUSec": "t",
    "TimerSlackNSec": "t",
    "UMask": "u",
    "WatchdogSignal": "i",
}

_BITS = {"i": (-(1 << 31), (1 << 31) - 1), "u": (0, (1 << 32) - 1), "t": (0, (1 << 64) - 1), "y": (0, 255)}


def pack_properties(properties: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """pystemd's argument list (the `a(sv)` of StartTransientUnit) for properties given as JSON.

    Raises ValueError with the property's name and type, never its value: environments and credentials may hold secrets.
    """
    from pystemd.systemd1 import unit_signatures

    known: dict[bytes, Any] = unit_signatures.KNOWN_UNIT_SIGNATURES
    for name, signature in EXTRA_SIGNATURES.items():
        known[name.encode()] = signature.encode()
    packed: dict[bytes, Any] = {}
    for name, value in properties.items():
        encoded = known.get(name.encode())
        if not isinstance(encoded, bytes):  # unknown, or one of pystemd's shorthands that take floats
            raise ValueError(f"property '{name}' has no known D-Bus type")
        try:
            packed[name.encode()] = _pack(encoded.decode(), value)
        except ValueError as error:
            raise ValueError(f"property '{name}' of D-Bus type '{encoded.decode()}' {error}") from None
    arguments: list[tuple[int, Any]] = unit_signatures.signature_array(packed)
    return arguments


def _split(signature: str) -> tuple[str, str]:
    """The first complete type of a signature, and the rest."""
    if signature.startswith("a"):
        first, rest = _split(signature[1:])
        return "a" + first, rest
    if signature.startswith("("):
        depth = 0
        for index, character in enumerate(signature):
            depth += (character == "(") - (character == ")")
            if depth == 0:
                return signature[: index + 1], signature[index + 1 :]
    return signature[:1], signature[1:]


def _pack(signature: str, value: Any) -> Any:
    if signature in _BITS:
        low, high = _BITS[signature]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"needs an integer from {low} to {high}")
        return value
    if signature == "b":
        if not isinstance(value, bool):
            raise ValueError("needs true or false")
        return value
    if signature == "s":
        if not isinstance(value, str) or "\0" in value:
            raise ValueError("needs text without NUL")
        return value.encode("utf-8", "surrogateescape")
    if signature == "ay" and isinstance(value, str):
        return list(value.encode("utf-8", "surrogateescape"))
    if not isinstance(value, list | tuple):
        raise ValueError("needs a list")
    if signature.startswith("a"):
        return [_pack(signature[1:], item) for item in value]
    members, rest = [], signature[1:-1]
    while rest:
        first, rest = _split(rest)
        members.append(first)
    if len(members) != len(value):
        raise ValueError(f"needs {len(members)} members")
    return tuple(_pack(kind, item) for kind, item in zip(members, value, strict=True))
