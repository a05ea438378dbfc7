"""`plan`: what would happen if this model were loaded now, and why? Asks, and changes nothing.

The first line is the answer. The tables below are the figures it follows from: what the model needs and what there is
on each device, and for each instance whether it would go and why.
"""

import argparse
import sys

import msgspec

from llamactl.cli.client import Client
from llamactl.cli.output import NOTHING, clean_line, print_json
from llamactl.cli.tables import Column, format_table
from llamactl.cli.terminal import WHOLE, Look, acquire_look, wrap
from llamactl.errors import ERROR_TABLE, ErrorCode
from llamactl.paths import acquire_paths
from llamactl.protocol.control_socket import PlanRequest, PlanResult
from llamactl.protocol.descriptions import LoadPlan, PlanDevice, PlanInstance
from llamactl.quantities import format_bytes, format_span

_INSTANCES = (
    *(Column("INSTANCE", least=10, middle=True), "GOES", Column("WHY", least=16), "IDLE"),
    Column("HOLDS", least=12),
)
_REFUSALS = {
    "invalid": ErrorCode.INVALID_MODEL,
    "pinned": ErrorCode.PINNED,
    "refused": ErrorCode.DOES_NOT_FIT,
}
"""Outcomes with which a load would end in an error."""


def run_plan(args: argparse.Namespace) -> int:
    """Prints the plan. The exit status that a load would have, where it would be refused; else 0."""
    with Client(acquire_paths().control_socket) as client:
        result: PlanResult = client.ask(PlanRequest(id=1, model=args.name))
    if args.json:
        print_json(msgspec.to_builtins(result.plan))
    else:
        print(format_plan(result.plan, acquire_look(sys.stdout, args.full)))
    refusal = _REFUSALS.get(result.plan.outcome)
    return 0 if refusal is None else ERROR_TABLE[refusal].exit_status


def format_plan(plan: LoadPlan, look: Look = WHOLE) -> str:
    """The answer, then its reasons."""
    lines = [wrap(clean_line(f"{plan.model}: {plan.words}"), look.width)]
    if plan.max_loaded:
        lines.append(f"{plan.loaded} of at most {plan.max_loaded} models are loaded")
    if plan.devices:
        figures = ("NEEDS", "TOTAL", "OTHERS", "HELD", "MARGIN", "AVAILABLE", "MISSING")
        columns = [Column("DEVICE", least=8, middle=True), *(Column(title, right=True) for title in figures)]
        lines += ["", format_table(columns, [_format_device(device) for device in plan.devices], look)]
    if plan.instances:
        lines += ["", format_table(_INSTANCES, [_format_instance(one) for one in plan.instances], look)]
    return "\n".join(lines)


def _format_device(device: PlanDevice) -> tuple[str, ...]:
    if not device.limit:
        return (
            device.name,
            format_bytes(device.needs),
            "no limit",
            NOTHING,
            format_bytes(device.held),
            *(NOTHING,) * 3,
        )
    sizes = (
        device.needs,
        device.total,
        device.external,
        device.held,
        device.margin,
        device.available,
    )
    return (device.name, *map(format_bytes, sizes), format_bytes(device.missing) if device.missing else NOTHING)


def _format_instance(one: PlanInstance) -> tuple[str, ...]:
    holds = ", ".join(f"{name} {format_bytes(size)}" for name, size in sorted(one.frees.items()) if size)
    return (
        one.model,
        "yes" if one.goes else "no",
        one.why,
        format_span(one.idle_s) if one.idle_s else NOTHING,
        holds or NOTHING,
    )
