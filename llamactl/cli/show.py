"""`list`, `ps`, `status NAME`: what is configured, what runs, and how is one model? (`status` alone: `machine`.)

Moments in messages are seconds of the monotonic clock, of no use to anyone else: here they become ages, in tables and
in JSON alike.
"""

import argparse
import sys
import time
from typing import Any

import msgspec

from llamactl.cli.client import Client
from llamactl.cli.output import NOTHING, clean_line, clean_text, format_known_bytes, print_json
from llamactl.cli.tables import Cell, Column, format_table
from llamactl.cli.terminal import WHOLE, Look, Style, acquire_look, wrap
from llamactl.cli.times import describe_moment, format_moment
from llamactl.errors import ERROR_TABLE, ErrorCode
from llamactl.journal_events import JournalEvent
from llamactl.names import format_command
from llamactl.paths import acquire_paths
from llamactl.protocol.control_socket import ListRequest, ModelList
from llamactl.protocol.descriptions import Ending, ModelStatus
from llamactl.protocol.values import BY_SIGNAL, Breakdown, MemoryStatus, ModelMemory, RowKind, State, format_memory
from llamactl.quantities import format_bytes, format_span

HOST = "Host"
_UNMEASURED = {
    MemoryStatus.UNMEASURED: "memory: not measured yet",
    MemoryStatus.MEASURING: "memory: being measured",
    MemoryStatus.MEASURED: "memory: nothing known",
    MemoryStatus.FAILED: "memory: not known, measuring has failed",
}
_UNKNOWN = {
    MemoryStatus.UNMEASURED: "to be measured",
    MemoryStatus.MEASURING: "measuring",
    MemoryStatus.FAILED: "measuring failed",
}
_RUNNING = (State.LOADING, State.READY, State.SLEEPING, State.STOPPING)
_STYLES = {
    State.READY: Style.GOOD,
    State.LOADING: Style.PENDING,
    State.STOPPING: Style.PENDING,
    State.FAILED: Style.BAD,
}
_CROSS = "\N{MULTIPLICATION SIGN}"
_SYMBOLS = {State.UNLOADED: "○", State.FAILED: _CROSS}
"""As systemctl marks units that are inactive or have failed."""
_ENDED: dict[str, str] = {
    JournalEvent.MODEL_UNLOADED: "Unloaded",
    JournalEvent.LOAD_FAILED: "Failed",
    JournalEvent.LOAD_REFUSED: "Refused",
    JournalEvent.INSTANCE_CRASHED: "Crashed",
}
_NAME = Column("MODEL", least=10, middle=True)
_STATE = Column("STATE", least=14)
_LIST = (
    *(_NAME, _STATE, Column("SIZE", right=True), Column("MEMORY MIN", least=12), Column("CONTEXT", right=True)),
    Column("ALIASES", least=8),
)
_PS = (
    *(_NAME, _STATE, Column("PID", right=True), Column("MEMORY", least=12), Column("BUSY", right=True)),
    *("IDLE", "UP", Column("UNIT", least=16, optional=True)),
)


def acquire_models(name: str = "") -> ModelList:
    """Ask the supervisor for all models, or for the one that a name or alias means. Raises LlamactlError."""
    with Client(acquire_paths().control_socket) as client:
        models: ModelList = client.ask(ListRequest(id=1, model=name))
        return models


# --- commands ---------------------------------------------------------------------------------------------------------


def run_list(args: argparse.Namespace) -> int:
    """Print all models of the configuration; returns the exit status."""
    listing = acquire_models()
    if args.json:
        print_json([describe_model(model, listing.now_s) for model in listing.models])
        return 0
    if not listing.models:
        print("no models are configured; see /etc/llamactl/models.d")
        return 0
    look = acquire_look(sys.stdout, args.full)
    rows = [
        (
            model.name,
            Cell("invalid" if model.invalid else format_state(model, listing.now_s), choose_style(model)),
            format_bytes(model.facts.size_bytes) if model.facts else NOTHING,
            summarize_least(model),
            format_context(model),
            ", ".join(model.aliases),
        )
        for model in listing.models
    ]
    print(format_table(_LIST, rows, look))
    invalid = [model for model in listing.models if model.invalid]
    if invalid:
        print(f"\n{look.paint('Cannot be used:', Style.BAD)}")
        for model in invalid:
            print(f"  {wrap(f'{clean_line(model.name)}: {clean_line(model.invalid)}', look.width, '    ')}")
    return 0


def run_ps(args: argparse.Namespace) -> int:
    """Print the models that are loaded, or on their way in or out; returns the exit status."""
    listing = acquire_models()
    running = [model for model in listing.models if model.state in _RUNNING]
    if args.json:
        print_json([describe_model(model, listing.now_s) for model in running])
        return 0
    rows = [
        (
            model.name,
            Cell(format_state(model, listing.now_s), choose_style(model)),
            str(model.pid or NOTHING),
            # One that waits for its turn has no instance, and holds nothing yet.
            summarize_memory(model.memory.effective or model.memory.min) if model.generation else NOTHING,
            str(model.busy),
            format_idle(model, listing.now_s),
            format_span(listing.now_s - model.ready_since_s) if model.ready_since_s else NOTHING,
            model.unit,
        )
        for model in running
    ]
    print(format_table(_PS, rows, acquire_look(sys.stdout, args.full)))
    return 0


def run_status(args: argparse.Namespace) -> int:
    """Print one model in detail, or the machine where none is named; returns the exit status, systemctl's."""
    if args.name:
        return _show_model(args)
    from llamactl.cli import machine

    return machine.run_status(args)


def _show_model(args: argparse.Namespace) -> int:
    listing = acquire_models(args.name)
    model = listing.models[0]
    if args.json:
        print_json(describe_model(model, listing.now_s))
    else:
        print(format_model(model, listing.now_s, acquire_look(sys.stdout, args.full)))
    loaded = model.state in (State.READY, State.SLEEPING)
    return 0 if loaded else ERROR_TABLE[ErrorCode.NOT_LOADED].exit_status


# --- pieces -----------------------------------------------------------------------------------------------------------


def choose_style(model: ModelStatus) -> Style:
    """Choose how a model's state is painted in a table."""
    return Style.BAD if model.invalid else _STYLES.get(model.state, Style.PLAIN)


def format_state(model: ModelStatus, now_s: float) -> str:
    """The state, with how far it is: "loading 45 %", "waiting"."""
    text = str(model.state)
    if model.state is State.FAILED and model.retry_at_s > now_s:
        text += f", refuses requests for {format_span(model.retry_at_s - now_s)}"
    if model.state is State.LOADING and model.stage is not None:
        text = str(model.stage)
        if model.progress is not None and text == "loading":
            text += f" {model.progress * 100:.0f} %"
    return f"{text}, pinned" if model.pinned else text


def find_idle_since(model: ModelStatus) -> float:
    """Since when nobody uses it; 0: somebody does, or nothing is known. Before it was ready it was not idle."""
    return max(model.last_used_s, model.ready_since_s) if model.last_used_s and not model.busy else 0.0


def format_idle(model: ModelStatus, now_s: float) -> str:
    """Format how long a model has been idle; a dash for one that is not."""
    since_s = find_idle_since(model)
    return format_span(now_s - since_s) if since_s else NOTHING


def format_context(model: ModelStatus) -> str:
    """The context that it has, or else the one that a load would give it, as far as that is known."""
    return str(model.context_length or NOTHING)


def sum_rows(breakdown: Breakdown | None) -> dict[str, int]:
    """Bytes by device; what lies on the host, in whatever buffer type, as one."""
    sums: dict[str, int] = {}
    for row in breakdown.devices if breakdown else ():
        name = row.name if row.kind is RowKind.DEVICE else HOST
        sums[name] = sums.get(name, 0) + row.used
    return sums


def summarize_least(model: ModelStatus) -> str:
    """What a model needs at least, or why that is not known."""
    if model.memory.min is None and model.memory.status in _UNKNOWN and not model.invalid:
        return _UNKNOWN[model.memory.status]
    return summarize_memory(model.memory.min)


def summarize_memory(breakdown: Breakdown | None) -> str:
    """One cell: "CUDA0 5.21 GiB, Host 312 MiB"."""
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in sum_rows(breakdown).items() if size) or NOTHING


def format_memory_table(memory: ModelMemory, look: Look = WHOLE) -> str:
    """Every row of every breakdown, and the parts of the best-known one."""
    breakdowns = {"MIN": memory.min, "MAX": memory.max, "EFFECTIVE": memory.effective}
    shown = {word: breakdown for word, breakdown in breakdowns.items() if breakdown is not None}
    why = f": {clean_text(memory.error)}" if memory.error else ""
    if not shown:
        return wrap(_UNMEASURED[memory.status] + why, look.width)
    rows: dict[tuple[RowKind, str], dict[str, int]] = {}
    for word, breakdown in shown.items():
        for row in breakdown.devices:
            rows.setdefault((row.kind, row.name), {})[word] = row.used
    best = memory.effective or memory.min or memory.max
    parts = {(row.kind, row.name): row for row in best.devices} if best else {}
    cells = []
    for key, sizes in rows.items():
        part = parts.get(key)
        cells.append(
            [key[1]]
            + [format_known_bytes(sizes.get(word)) for word in shown]
            + [format_known_bytes(size) for size in ((part.model, part.context, part.compute) if part else (None,) * 3)]
        )
    if sum(kind is not RowKind.DEVICE for kind, _ in rows) > 1:  # all of it lies in main memory: lists show the sum
        sums = [format_known_bytes(sum_rows(breakdown).get(HOST)) for breakdown in shown.values()]
        cells.append(["Host in all", *sums] + [""] * 3)
    title, unit = ("context", " tokens") if look.width is None else ("context (tokens)", "")
    cells.append([title] + [f"{breakdown.n_ctx}{unit}" for breakdown in shown.values()] + [""] * 3)
    figures = [Column(head, right=True) for head in (*shown, "OF IT MODEL", "CONTEXT", "COMPUTE")]
    columns = [Column("MEMORY", least=12, middle=True), *figures]
    table = format_table(columns, [[cell or " " for cell in row] for row in cells], look)
    return table + (f"\n{wrap(f'The last measurement has failed{why}', look.width)}" if why else "")


def format_model(model: ModelStatus, now_s: float, look: Look = WHOLE) -> str:
    """Many lines, as `systemctl status` shows a unit: what was written is wrapped, what is named is cut."""
    style, indent = choose_style(model), " " * 13
    symbol = look.paint(_CROSS if model.invalid else _SYMBOLS.get(model.state, "●"), style)
    about = f" - {model.facts.description}" if model.facts and model.facts.description else ""
    room = Look(look.width - 2 if look.width is not None else None)
    lines = [f"{symbol} {room.fit(clean_line(model.name + about))}"]

    def add(label: str, text: str, style: Style = Style.PLAIN) -> None:
        if text:
            first, *rest = wrap(clean_line(text), look.width, indent).split("\n")
            lines.append("\n".join([f"{label:>11}: {look.paint(first, style)}", *rest]))

    def add_name(label: str, text: str, middle: bool = True) -> None:
        if text:
            lines.append(look.fit(f"{label:>11}: {clean_line(text)}", middle))

    state = "invalid" if model.invalid else format_state(model, now_s)
    if model.ready_since_s and model.state is State.READY:
        state += f" for {format_span(now_s - model.ready_since_s)}"
    if model.keep_alive_s is not None and model.state in (State.READY, State.SLEEPING):
        kept_s = model.keep_alive_s
        state += ", kept until it is unloaded" if kept_s < 0 else f", kept for {format_span(kept_s)} after a request"
    add("State", state, style)
    add("Placed on", ", ".join(model.devices))
    add("Reason", model.invalid)
    if model.waiting_settings:
        add("Changed", f"{', '.join(model.waiting_settings)}: what is new counts from the next load on")
    add("Waiting for", ", ".join(model.waiting_for))
    requests = [f"{model.busy} running"] if model.busy else []
    requests += [f"{model.queued} waiting"] if model.queued else []
    idle = format_idle(model, now_s)
    add("Requests", ", ".join(requests) or (f"none for {idle}" if idle != NOTHING else ""))
    add_name("Aliases", ", ".join(model.aliases), middle=False)
    add_name("Tags", ", ".join(model.tags), middle=False)
    add_name("File", model.path)
    if model.state in _RUNNING:
        add_name("Unit", model.unit)
        add("Main PID", str(model.pid or ""))
    if model.facts is not None:
        trained = f" (trained for {model.facts.n_ctx_train})" if model.facts.n_ctx_train else ""
        sequences = f"{model.parallel} sequence{'' if model.parallel == 1 else 's'}"
        add("Context", f"{format_context(model)} tokens in {sequences}{trained}")
        if len(model.facts.input_modalities) > 1:
            add("Takes", ", ".join(model.facts.input_modalities))
        add("Can", ", ".join(model.facts.capabilities))
        add("No tools", model.facts.no_tools)
    if model.ended is not None:
        add(_ENDED.get(model.ended.event, "Ended"), _format_ending(model.ended, model.failure is None))
    if model.failure is not None:
        again = f", {model.failures} times in a row" if model.failures > 1 else ""
        how = "signal" if model.failure.result in BY_SIGNAL else "exit status"
        add("Failure", f"{model.failure.result}, {how} {model.failure.exit_code}{again}")
        if model.failure.message:
            lines.append(indent + wrap(clean_text(model.failure.message), look.width, indent))
        if model.retry_at_s > now_s:
            at_once = format_command("load", model.name)
            add("Next try", f"by a request from {format_span(model.retry_at_s - now_s)} on, or: {at_once}")
        add("Log", format_command("logs", model.name))
    return "\n".join([*lines, "", format_memory_table(model.memory, look)])


def _format_ending(ended: Ending, with_reason: bool) -> str:
    """When, why and for whom it ended."""
    reason = ended.reason if with_reason else ""
    whom = f" for {ended.for_model}" if ended.for_model else ""
    return format_moment(ended.time_s, time.time()) + (f": {reason}{whom}" if reason or whom else "")


# --- JSON -------------------------------------------------------------------------------------------------------------


def describe_model(model: ModelStatus, now_s: float) -> dict[str, Any]:
    """A model for scripts: all fields of its status; ages instead of moments."""
    fields: dict[str, Any] = msgspec.to_builtins(model)
    del fields["last_used_s"]
    ready_since_s, idle_since_s = fields.pop("ready_since_s"), find_idle_since(model)
    fields["idle_s"] = round(now_s - idle_since_s, 3) if idle_since_s else None
    retry_at_s = fields.pop("retry_at_s")
    fields["retry_in_s"] = round(max(0.0, retry_at_s - now_s), 3) if retry_at_s > now_s else None
    fields["memory"] = format_memory(model.memory)
    fields["ended"] = describe_moment(model.ended, time.time()) if model.ended is not None else None
    fields["uptime_s"] = round(now_s - ready_since_s, 3) if ready_since_s else None
    return fields
