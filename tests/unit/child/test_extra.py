"""Do unit properties written as in a unit file become the numbers that systemd means?"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.child.extra import PARSERS, REFUSED, choose_unenforced, parse_extra
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.systemd.signatures import pack_properties

INFINITY = (1 << 64) - 1

# Good values of each property, and what becomes of them: by systemd.resource-control(5) and systemd.exec(5).
GOOD: list[tuple[str, Any, dict[str, Any]]] = [
    ("AllowedCPUs", "0-3,8 10", {"AllowedCPUs": [0b1111, 0b101]}),
    ("AllowedMemoryNodes", "0", {"AllowedMemoryNodes": [1]}),
    ("BindPaths", "/a", {"BindPaths": [["/a", "/a", False, 0x4000]]}),
    ("BindReadOnlyPaths", ["-/a:/b:norbind"], {"BindReadOnlyPaths": [["/a", "/b", True, 0]]}),
    ("CPUAffinity", "1", {"CPUAffinity": [2]}),
    ("CPUAffinity", "numa", {"CPUAffinityFromNUMA": True}),
    ("CPUQuota", "200%", {"CPUQuotaPerSecUSec": 2_000_000}),
    ("CPUSchedulingPolicy", "batch", {"CPUSchedulingPolicy": 3}),
    ("CPUWeight", 50, {"CPUWeight": 50}),
    ("CPUWeight", "idle", {"CPUWeight": 0}),
    ("DeviceAllow", ["/dev/nvidia0 rw", "char-usb"], {"DeviceAllow": [["/dev/nvidia0", "rw"], ["char-usb", "rwm"]]}),
    ("DevicePolicy", "strict", {"DevicePolicy": "strict"}),
    ("IOSchedulingClass", "best-effort", {"IOSchedulingClass": 2}),
    ("IOSchedulingPriority", 7, {"IOSchedulingPriority": 7}),
    ("IOWeight", "10", {"IOWeight": 10}),
    ("InaccessiblePaths", "-/mnt /media", {"InaccessiblePaths": ["-/mnt", "/media"]}),
    ("KeyringMode", "shared", {"KeyringMode": "shared"}),
    ("LimitAS", "1G", {"LimitAS": 1 << 30, "LimitASSoft": 1 << 30}),
    ("LimitCORE", "infinity", {"LimitCORE": INFINITY, "LimitCORESoft": INFINITY}),
    ("LimitDATA", "1M:2M", {"LimitDATA": 2 << 20, "LimitDATASoft": 1 << 20}),
    ("LimitFSIZE", 0, {"LimitFSIZE": 0, "LimitFSIZESoft": 0}),
    ("LimitMEMLOCK", "8G", {"LimitMEMLOCK": 8 << 30, "LimitMEMLOCKSoft": 8 << 30}),
    ("LimitRSS", "5K", {"LimitRSS": 5120, "LimitRSSSoft": 5120}),
    ("LimitSTACK", "16M", {"LimitSTACK": 16 << 20, "LimitSTACKSoft": 16 << 20}),
    ("LimitNOFILE", "1024:4096", {"LimitNOFILE": 4096, "LimitNOFILESoft": 1024}),
    ("LimitNPROC", "infinity", {"LimitNPROC": INFINITY, "LimitNPROCSoft": INFINITY}),
    ("LockPersonality", False, {"LockPersonality": False}),
    ("LogLevelMax", "warning", {"LogLevelMax": 4}),
    ("LogRateLimitBurst", 0, {"LogRateLimitBurst": 0}),
    ("LogRateLimitIntervalSec", "1min 30s", {"LogRateLimitIntervalUSec": 90_000_000}),
    ("ManagedOOMMemoryPressure", "kill", {"ManagedOOMMemoryPressure": "kill"}),
    ("ManagedOOMPreference", "avoid", {"ManagedOOMPreference": "avoid"}),
    ("ManagedOOMSwap", "auto", {"ManagedOOMSwap": "auto"}),
    ("MemoryDenyWriteExecute", "yes", {"MemoryDenyWriteExecute": True}),
    ("MemoryHigh", "1.5G", {"MemoryHigh": 3 << 29}),
    ("MemoryLow", "512MiB", {"MemoryLow": 512 << 20}),
    ("MemoryMax", "50%", {"MemoryMaxScale": (1 << 31) - 1}),
    ("MemoryMax", "8G", {"MemoryMax": 8 << 30}),
    ("MemoryMin", 4096, {"MemoryMin": 4096}),
    ("MemorySwapMax", 0, {"MemorySwapMax": 0}),
    ("MemoryZSwapMax", "infinity", {"MemoryZSwapMax": INFINITY}),
    ("NUMAMask", "0-1", {"NUMAMask": [3]}),
    ("NUMAPolicy", "interleave", {"NUMAPolicy": 3}),
    ("Nice", -5, {"Nice": -5}),
    ("NoNewPrivileges", "off", {"NoNewPrivileges": False}),
    ("OOMPolicy", "stop", {"OOMPolicy": "stop"}),
    ("OOMScoreAdjust", "-999", {"OOMScoreAdjust": -999}),
    ("PrivateDevices", True, {"PrivateDevices": True}),
    ("PrivateIPC", 1, {"PrivateIPC": True}),
    ("PrivateNetwork", "false", {"PrivateNetwork": False}),
    ("PrivateTmp", "no", {"PrivateTmp": False}),
    ("PrivateUsers", "true", {"PrivateUsers": True}),
    ("ProcSubset", "pid", {"ProcSubset": "pid"}),
    ("ProtectClock", "yes", {"ProtectClock": True}),
    ("ProtectControlGroups", "yes", {"ProtectControlGroups": True}),
    ("ProtectHome", True, {"ProtectHome": "yes"}),
    ("ProtectHostname", "yes", {"ProtectHostname": True}),
    ("ProtectKernelLogs", "yes", {"ProtectKernelLogs": True}),
    ("ProtectKernelModules", "yes", {"ProtectKernelModules": True}),
    ("ProtectKernelTunables", "yes", {"ProtectKernelTunables": True}),
    ("ProtectProc", "default", {"ProtectProc": "default"}),
    ("ProtectSystem", "full", {"ProtectSystem": "full"}),
    ("ReadOnlyPaths", "/srv", {"ReadOnlyPaths": ["/srv"]}),
    ("ReadWritePaths", ["/srv", "-/mnt"], {"ReadWritePaths": ["/srv", "-/mnt"]}),
    ("RestrictAddressFamilies", "AF_UNIX AF_INET", {"RestrictAddressFamilies": [True, ["AF_UNIX", "AF_INET"]]}),
    ("RestrictAddressFamilies", "none", {"RestrictAddressFamilies": [True, []]}),
    ("RestrictRealtime", "no", {"RestrictRealtime": False}),
    ("RestrictSUIDSGID", "yes", {"RestrictSUIDSGID": True}),
    ("StartupAllowedCPUs", "0", {"StartupAllowedCPUs": [1]}),
    ("StartupCPUWeight", 1, {"StartupCPUWeight": 1}),
    ("StartupIOWeight", 10000, {"StartupIOWeight": 10000}),
    ("SupplementaryGroups", "video render", {"SupplementaryGroups": ["video", "render"]}),
    ("SystemCallFilter", ["~@mount", "ptrace"], {"SystemCallFilter": [False, ["@mount", "ptrace"]]}),
    ("TasksMax", "10%", {"TasksMaxScale": 429496729}),
    ("TasksMax", 64, {"TasksMax": 64}),
    ("WatchdogSec", "infinity", {"WatchdogUSec": INFINITY}),
]

BAD: list[tuple[str, Any, str]] = [
    ("MemoryMax", "lots", "8G"),
    ("MemoryMax", "-1", "8G"),
    ("MemoryMax", "200%", "100%"),
    ("MemoryMax", True, "text or number"),
    ("MemoryMax", ["8G"], "text or number"),
    ("MemoryMax", "9999999999999E", "too large"),
    ("MemoryMax", "12GB", "write G (steps of 1024)"),
    ("MemoryHigh", "500 kb", "write K (steps of 1024)"),
    ("CPUQuota", "2", "200%"),
    ("CPUQuota", "0%", "200%"),
    ("CPUWeight", 0, "1 to 10000"),
    ("CPUWeight", 1.5, "whole number"),
    ("AllowedCPUs", "3-1", "ranges"),
    ("AllowedCPUs", "all", "ranges"),
    ("AllowedCPUs", "99999", "ranges"),
    ("AllowedCPUs", "", "printable text"),
    ("Nice", 20, "-20 to 19"),
    ("OOMPolicy", "panic", "continue, stop, kill"),
    ("PrivateNetwork", "maybe", "true or false"),
    ("DeviceAllow", "/etc/passwd rw", "below /dev"),
    ("DeviceAllow", "/dev/x execute", "rw"),
    ("BindPaths", "a:/b", "/source"),
    ("BindPaths", "/a:/b:ro", "rbind"),
    ("ReadOnlyPaths", "srv", "absolute path"),
    ("LimitNOFILE", "4096:1024", "soft limit"),
    ("LimitNOFILE", "1K", "whole number"),
    ("WatchdogSec", "soon", "90s"),
    ("TasksMax", 0, "whole number"),
    ("SupplementaryGroups", [], "at least one"),
    ("SystemCallFilter", "a\x00b", "printable"),
]


@pytest.mark.parametrize(("name", "value", "expected"), GOOD)
def test_value_becomes_what_systemd_means(name: str, value: Any, expected: dict[str, Any]) -> None:
    assert parse_extra({name: value}) == expected


@pytest.mark.parametrize(("name", "value", "expected"), GOOD)
def test_value_has_a_type_that_goes_over_the_bus(name: str, value: Any, expected: dict[str, Any]) -> None:
    pack_properties(parse_extra({name: value}))


def test_every_property_has_an_example() -> None:
    assert {name for name, _, _ in GOOD} == PARSERS.keys()


@pytest.mark.parametrize(("name", "value", "words"), BAD)
def test_bad_value_is_refused_with_the_key_and_what_is_accepted(name: str, value: Any, words: str) -> None:
    with pytest.raises(LlamactlError) as refused:
        parse_extra({name: value})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert f"extra.{name}" in refused.value.message
    assert words in refused.value.message


@pytest.mark.parametrize("name", ["ExecStart", "Type", "User", "Slice", "Restart", "Environment", "TimeoutStopSec"])
def test_what_llamactl_relies_on_is_refused(name: str) -> None:
    with pytest.raises(LlamactlError, match=name):
        parse_extra({name: "x"})
    assert name in REFUSED


def test_refused_and_accepted_do_not_overlap() -> None:
    assert not REFUSED.keys() & PARSERS.keys()


def test_unknown_property_gets_no_list_of_all() -> None:
    with pytest.raises(LlamactlError) as refused:
        parse_extra({"Zzz": "1"})
    assert len(refused.value.hint) < 120
    assert "drop-in" in refused.value.hint


def test_misspelt_property_gets_a_suggestion() -> None:
    with pytest.raises(LlamactlError) as refused:
        parse_extra({"MemoryMaximum": "8G"})
    assert "MemoryMax" in refused.value.hint


@given(st.sampled_from(sorted(PARSERS)), st.one_of(st.text(), st.integers(), st.floats(), st.lists(st.text())))
def test_junk_is_refused_or_goes_over_the_bus(name: str, value: Any) -> None:
    try:
        properties = parse_extra({name: value})
    except LlamactlError:
        return
    pack_properties(properties)


def test_limits_without_their_controller_are_named() -> None:
    extra = {"MemoryMax": "8G", "CPUQuota": "50%", "TasksMax": 5, "Nice": 5}
    assert choose_unenforced(extra, ["memory"]) == {"CPUQuota": "cpu", "TasksMax": "pids"}
    assert choose_unenforced(extra, ["memory", "cpu", "pids"]) == {}


def test_a_time_that_systemd_cannot_count_is_refused() -> None:
    with pytest.raises(LlamactlError, match="too long"):
        parse_extra({"WatchdogSec": 18_446_744_073_710})
