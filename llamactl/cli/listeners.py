"""At which addresses can clients reach the models, and which of them are in force?

The front's sockets are systemd's: it alone knows whether they listen, and its answer is to be had when the supervisor
is down. A port that somebody else has taken fails the TCP socket's unit and nothing else, so that nobody notices who
uses the Unix socket; who has taken it stands in /proc, as far as we may look there.
"""

import ipaddress
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FRONT = "llamactl-front.service"
SOCKETS = ("llamactl-front.socket", "llamactl-front-tcp.socket")
_PROPERTIES = "Id,LoadState,ActiveState,Result,Listen"
_TIMEOUT_S = 10.0
_LISTENING = "0A"
"""TCP_LISTEN of include/net/tcp_states.h, as /proc/net/tcp shows it."""
_TCP = re.compile(r"\[?(?P<host>[^\]]*?)\]?:(?P<port>\d+)")


@dataclass(frozen=True)
class Unit:
    """What systemd says of one unit."""

    name: str
    load: str = ""
    active: str = ""
    result: str = ""
    listen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listener:
    """One address. `why`: what keeps it from being in force, or what should be known of it."""

    address: str
    unit: str
    in_force: bool
    why: str = ""
    wanted: bool = True
    """Somebody wants it to be in force: its unit has failed, or could not start now."""


def acquire_listeners(proc: Path = Path("/proc")) -> list[Listener]:
    """All addresses of the front; empty where systemd cannot be asked, or has no such units."""
    units = acquire_units()
    front = next((unit for unit in units if unit.name == FRONT), Unit(FRONT))
    return [listener for unit in units if unit.name in SOCKETS for listener in judge_unit(unit, front, proc)]


def acquire_units() -> list[Unit]:
    """Ask systemd for the front's units and sockets; none where it does not answer."""
    command = ("systemctl", "show", f"--property={_PROPERTIES}", *SOCKETS, FRONT)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_units(done.stdout) if done.returncode == 0 else []


def parse_units(text: str) -> list[Unit]:
    """Units as `systemctl show` prints them: blocks of NAME=VALUE, and `Listen` once for each address."""
    units = []
    for block in text.split("\n\n"):
        pairs = [line.partition("=")[::2] for line in block.splitlines()]
        fields = dict(pairs)
        listen = tuple(value.rpartition(" (")[0] or value for name, value in pairs if name == "Listen" and value)
        if "Id" in fields:
            load, active, result = (fields.get(name, "") for name in ("LoadState", "ActiveState", "Result"))
            units.append(Unit(fields["Id"], load, active, result, listen))
    return units


def judge_unit(unit: Unit, front: Unit, proc: Path = Path("/proc")) -> Iterator[Listener]:
    """What is to be said of each address of a socket's unit."""
    if unit.load == "masked":
        yield Listener(unit.name, unit.name, False, "it is masked", wanted=False)
    elif unit.load == "loaded":
        for address in unit.listen:
            yield _judge_address(address, unit, front, proc)


def _judge_address(address: str, unit: Unit, front: Unit, proc: Path) -> Listener:
    if unit.active == "active":
        if _is_removed(address):
            cure = f"systemctl restart {unit.name}"
            return Listener(
                address, unit.name, False, f"somebody has removed it, which systemd does not notice: {cure}"
            )
        if front.active != "failed":
            return Listener(address, unit.name, True)
        return Listener(address, unit.name, False, f"{FRONT} has failed; see: journalctl -u llamactl-front")
    holder = find_holder(address, proc)
    if holder is not None:
        cure = f"free it, or choose another one (systemctl edit {unit.name}); then: systemctl restart llamactl-front"
        return Listener(
            address,
            unit.name,
            False,
            f"the port is taken{holder.name and f' by {holder.name} (PID {holder.pid})'}; {cure}",
        )
    if unit.active == "failed":
        why = f"{unit.name} has failed ({unit.result}); see: systemctl status {unit.name}; then: "
        return Listener(address, unit.name, False, f"{why}systemctl restart llamactl-front")
    return Listener(address, unit.name, False, f"{unit.name} is {unit.active or 'unknown'}", wanted=False)


def _is_removed(address: str) -> bool:
    """Whether a Unix socket has gone from its place. Where we may not look it counts as there."""
    if not address.startswith("/"):
        return False
    try:
        os.lstat(address)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


# --- who has taken a port ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holder:
    """A process that has a port; both empty where we may not see which."""

    name: str = ""
    pid: str = ""


def find_holder(address: str, proc: Path = Path("/proc")) -> Holder | None:
    """Who listens at a TCP address, so that nobody else can; None: nobody."""
    match = _TCP.fullmatch(address)
    if match is None:
        return None
    try:
        host = ipaddress.ip_address(match["host"])
    except ValueError:
        return None
    inodes = [
        inode
        for name in ("tcp", "tcp6")
        for listening, port, inode in _list_listening(proc / "net" / name)
        if port == int(match["port"]) and _overlap(host, listening)
    ]
    return _find_process(inodes, proc) if inodes else None


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _overlap(ours: Address, theirs: Address) -> bool:
    """Whether both cannot listen at one port; an IPv6 socket for all addresses mostly takes IPv4's, too."""
    return ours == theirs or (theirs.is_unspecified and theirs.version >= ours.version) or ours.is_unspecified


def _list_listening(path: Path) -> Iterator[tuple[Address, int, str]]:
    """(address, port, inode) of /proc/net/tcp: proc(5). Addresses are words in the order of the machine."""
    try:
        lines = path.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if fields[3] != _LISTENING:
            continue
        host, _, port = fields[1].partition(":")
        words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
        address = ipaddress.ip_address(b"".join(words))
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        yield mapped or address, int(port, 16), fields[9]


def _find_process(inodes: Sequence[str], proc: Path) -> Holder:
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for directory in proc.iterdir():
        if not directory.name.isdecimal():
            continue
        with suppress(OSError):
            if any(os.readlink(entry.path) in wanted for entry in os.scandir(directory / "fd")):
                return Holder((directory / "comm").read_text().strip(), directory.name)
    return Holder()
