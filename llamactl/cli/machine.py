"""`status`: the supervisor, where clients reach it, its accounts, its queue, what it decided last and what is wrong.

What keeps something from working is loud. The endpoints are asked of systemd, not of the supervisor (`listeners`).
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from llamactl.cli.client import Client
from llamactl.cli.listeners import Listener, acquire_listeners
from llamactl.cli.output import NOTHING, clean_line, print_json
from llamactl.cli.tables import Cell, Column, format_table
from llamactl.cli.terminal import WHOLE, Look, Style, acquire_look, wrap
from llamactl.cli.times import describe_moment
from llamactl.controllers import describe_missing
from llamactl.journal_events import JournalEvent
from llamactl.paths import acquire_paths
from llamactl.protocol.control_socket import MachineStatus, StatusRequest
from llamactl.protocol.descriptions import Decision, DeviceStatus
from llamactl.quantities import format_bytes, format_span

_INDENT = " " * 13
_COLUMNS = (
    Column("DEVICE", least=8, middle=True),
    *(Column(title, right=True) for title in ("TOTAL", "OTHERS", "HELD", "MARGIN", "AVAILABLE")),
    Column("HELD BY", least=10),
)
_DECISIONS = ("WHEN", Column("MODEL", least=10, middle=True), Column("DECISION", least=16), Column("WHY", least=16))


def run_status(args: argparse.Namespace) -> int:
    """Print the machine: endpoints, accounts of devices, queue, decisions, problems; returns the exit status."""
    with Client(acquire_paths().control_socket) as client:
        machine: MachineStatus = client.ask(StatusRequest(id=1))
    listeners, now_s = acquire_listeners(), time.time()
    if args.json:
        print_json(describe_machine(machine, listeners, now_s))
    else:
        print(format_machine(machine, listeners, now_s, acquire_look(sys.stdout, args.full)))
    return 0


def format_machine(
    machine: MachineStatus, listeners: Sequence[Listener] = (), now_s: float = 0.0, look: Look = WHOLE
) -> str:
    """`now_s`: of CLOCK_REALTIME."""
    limit = f" of at most {machine.max_loaded}" if machine.max_loaded else ""
    up = format_span(machine.now_s - machine.since_s)
    lines = [
        f"{look.paint('●', Style.GOOD)} llamactl {clean_line(machine.llamactl)}: up {up}, PID {machine.pid}",
        *(_format_listener(listener, look, first=at == 0) for at, listener in enumerate(listeners)),
        f"     Loaded: {machine.loaded}{limit}",
        f"      Queue: {wrap(clean_line(', '.join(machine.queue)) or 'empty', look.width, _INDENT)}",
    ]
    if missing := describe_missing(machine.controllers):
        lines.append(f"    Cgroups: {wrap(missing, look.width, _INDENT)}")
    if machine.devices:
        lines += ["", format_table(_COLUMNS, [_format_device(device) for device in machine.devices], look)]
        lines += [
            look.fit(f"{clean_line(device.name)}: {clean_line(device.description)}")
            for device in machine.devices
            if device.description
        ]
    if machine.decisions:
        lines += ["", format_table(_DECISIONS, [_format_decision(one, now_s) for one in machine.decisions], look)]
    if machine.problems:
        lines += ["", look.paint("Problems:", Style.BAD)]
        lines += [f"  {wrap(clean_line(problem), look.width, '  ')}" for problem in machine.problems]
    return "\n".join(lines)


def _format_listener(listener: Listener, look: Look, first: bool) -> str:
    label = "  Endpoints: " if first else _INDENT
    state = "in force" if listener.in_force else "NOT IN FORCE" if listener.wanted else "off"
    text = f"{listener.address}: {state}" + (f": {listener.why}" if listener.why else "")
    style = Style.BAD if listener.wanted and not listener.in_force else Style.PLAIN
    lines = wrap(clean_line(text), look.width, _INDENT).split("\n")
    return label + "\n".join([look.paint(lines[0], style), *(_paint_behind(line, look, style) for line in lines[1:])])


def _paint_behind(line: str, look: Look, style: Style) -> str:
    """Colour a line but for its indent."""
    text = line.lstrip()
    return line[: len(line) - len(text)] + look.paint(text, style)


def _format_device(device: DeviceStatus) -> tuple[str, ...]:
    known = bool(device.total)
    return (
        device.name,
        format_bytes(device.total) if known else NOTHING,
        format_bytes(device.external) if known else NOTHING,
        format_bytes(device.held),
        format_bytes(device.margin),
        format_bytes(device.available) if known else NOTHING,
        ", ".join(f"{name} {format_bytes(size)}" for name, size in device.holders.items()),
    )


def _format_decision(decision: Decision, now_s: float) -> tuple[Cell | str, ...]:
    loud = decision.event == JournalEvent.LOAD_REFUSED
    event = f"{decision.event} for {decision.for_model}" if decision.for_model else decision.event
    when = f"{format_span(now_s - decision.time_s)} ago"
    return when, decision.model, Cell(event, Style.BAD if loud else Style.PLAIN), decision.why


def describe_machine(machine: MachineStatus, listeners: Sequence[Listener], now_s: float) -> dict[str, Any]:
    """The same for scripts: ages instead of moments of the monotonic clock."""
    fields: dict[str, Any] = msgspec.to_builtins(machine)
    for name in ("id", "type", "since_s", "now_s"):
        fields.pop(name, None)
    fields["uptime_s"] = round(machine.now_s - machine.since_s, 3)
    fields["endpoints"] = msgspec.to_builtins(listeners)
    fields["decisions"] = [describe_moment(decision, now_s) for decision in machine.decisions]
    return fields
