"""Does a model take what was predicted? Each part of each row, as a measure child says it and as an instance has it.

Real models and generated ones, on the CPU and on devices (llama.cpp's RPC servers on loopback, which account for
memory as a GPU does). Files are read, not mapped: of a mapped file llama.cpp does not say what it takes. The children
run without llamactl around them; what they report is what decisions are made of.
"""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchlib.report import BenchError, Result

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from llamactl.protocol.values import Breakdown, Row  # noqa: E402
from llamactl.settings import ModelSettings, Switch  # noqa: E402
from tests.models import write_embedding_model, write_model  # noqa: E402
from tests.socket.instance.harness import run_child  # noqa: E402

LISTENER = CHECKOUT / "tests" / "system" / "supervisor" / "rpc_listener.py"
PARTS = {"model": "weights", "context": "context", "compute": "compute"}
WHERE = ("CPU", "one device", "two devices", "two devices, 1:5")


@dataclass(frozen=True)
class Case:
    """One model with settings; `where` is one of WHERE."""

    model: str
    settings: dict[str, Any]
    where: str = WHERE[0]

    @property
    def title(self) -> str:
        shown = {name: str(value) for name, value in self.settings.items() if name not in ("threads", "mmap")}
        return ", ".join(f"{name} {value}" for name, value in shown.items())


@dataclass(frozen=True)
class Line:
    """One row of a breakdown, predicted and allocated."""

    case: Case
    row: str
    predicted: dict[str, int] = field(default_factory=dict)
    allocated: dict[str, int] = field(default_factory=dict)


def list_cases() -> list[Case]:
    """What is measured: heads, widths, context lengths, cache types, batches, placements."""
    cases = [
        Case("SmolLM2 135M Q4_1", {"ctx": 4096, "parallel": 4}),
        Case("SmolLM2 135M Q4_1", {"ctx": 8192, "parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
        Case("SmolLM2 135M Q4_1", {"ctx": 4096, "parallel": 1, "repack": False}),
        Case("SmolLM2 135M Q4_1", {"ctx": 4096, "parallel": 1}, WHERE[1]),
        Case("SmolLM2 135M Q4_1", {"ctx": 4096, "parallel": 1}, WHERE[2]),
        Case("Gemma 3 270M Q4_K_M", {"ctx": 4096, "parallel": 1}),
        Case("Gemma 3 270M Q4_K_M", {"ctx": 32768, "parallel": 4}),
        Case("Gemma 3 270M Q4_K_M", {"ctx": 4096, "parallel": 1}, WHERE[1]),
        Case("2 heads of 32", {"ctx": 512, "parallel": 1}),
        Case("4 heads of 32", {"ctx": 8192, "parallel": 8, "ubatch": 128}),
        Case("4 heads of 32", {"ctx": 4096, "parallel": 1, "cache_type_k": "f32", "flash_attn": Switch.OFF}),
        Case("4 heads of 32", {"ctx": 4096, "parallel": 1}, WHERE[2]),
        Case("4 heads of 32", {"ctx": 4096, "parallel": 1}, WHERE[3]),
        Case("8 heads of 64", {"ctx": 2048, "parallel": 2, "cache_type_k": "q4_0", "cache_type_v": "q4_0"}),
        Case("8 heads of 64", {"ctx": 2048, "parallel": 2, "batch": 64, "ubatch": 64}, WHERE[1]),
        Case("embeddings (BERT)", {"ctx": 512, "parallel": 4}),
        Case("embeddings (BERT)", {"ctx": 8192, "parallel": 4}),
    ]
    return [Case(case.model, {**case.settings, "threads": 1, "mmap": False}, case.where) for case in cases]


def measure() -> list[Line]:
    """Raises BenchError."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        files = make_models(directory)
        servers = tuple(stack.enter_context(serve_device()) for _ in range(2))
        lines = []
        for number, case in enumerate(list_cases()):
            place = directory / str(number)
            place.mkdir()
            lines += measure_case(place, files[case.model], case, servers)
        return lines


def make_models(directory: Path) -> dict[str, Path]:
    fetched = {name: fetch_model(name) for name in ("smollm2", "gemma3")}
    shape = {"n_layer": 4, "n_ctx_train": 8192}
    return {
        "SmolLM2 135M Q4_1": fetched["smollm2"],
        "Gemma 3 270M Q4_K_M": fetched["gemma3"],
        "2 heads of 32": write_model(directory / "2.gguf", n_head=2, n_embd=64, **shape),
        "4 heads of 32": write_model(directory / "4.gguf", n_head=4, n_embd=128, **shape),
        "8 heads of 64": write_model(directory / "8.gguf", n_head=8, n_embd=512, **shape),
        "embeddings (BERT)": write_embedding_model(directory / "bert.gguf", n_ctx_train=8192),
    }


def fetch_model(name: str) -> Path:
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "scripts" / "fetch-models"), name], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchError(f"cannot measure: no {name}: {done.stderr.strip()}")
    return Path(done.stdout.strip())


@contextmanager
def serve_device() -> Iterator[str]:
    """An RPC server on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, str(LISTENER), endpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "listening\n":
            raise BenchError("cannot measure: llama.cpp's RPC server does not start; is this build without RPC?")
        try:
            yield endpoint
        finally:
            process.terminate()


def measure_case(directory: Path, file: Path, case: Case, servers: Sequence[str]) -> list[Line]:
    placement: dict[str, Any] = {"devices": ("none",)}
    if case.where != WHERE[0]:
        rpc = tuple(servers[: 1 if case.where == WHERE[1] else 2])
        placement = {"rpc": rpc, "n_gpu_layers": 1000, "tensor_split": (1.0, 5.0) if case.where == WHERE[3] else ()}
    settings = ModelSettings(name="m", path=str(file), fit=False, **case.settings, **placement)
    reports = {}
    for role, state in (("measure", "measured"), ("serve", "ready")):
        place = directory / role
        place.mkdir()
        with run_child(place, role, settings) as child:
            reports[role] = child.supervisor.wait_for(state)
    predicted, allocated = reports["measure"].min, reports["serve"].effective
    if predicted is None or allocated is None:
        raise BenchError(f"cannot measure {case.model}, {case.title}: it reports no figures")
    rows = list_rows(predicted) | list_rows(allocated)
    names = name_rows(list(rows))
    return [
        Line(case, names[name], split_row(list_rows(predicted).get(name)), split_row(list_rows(allocated).get(name)))
        for name in rows
        if sum((*split_row(list_rows(predicted).get(name)).values(), *split_row(rows[name]).values()))
    ]


def list_rows(breakdown: Breakdown) -> dict[str, Row]:
    return {row.name: row for row in breakdown.devices}


def name_rows(names: Sequence[str]) -> dict[str, str]:
    """Ports differ from run to run: devices are numbered instead."""
    devices = [name for name in names if name.startswith("RPC")]
    return {name: f"device {devices.index(name) + 1}" if name in devices else name for name in names}


def split_row(row: Row | None) -> dict[str, int]:
    return {title: getattr(row, part, 0) for part, title in PARTS.items()}


def list_results(lines: Sequence[Line]) -> list[Result]:
    """One figure for each part: bytes allocated, and their ratio to what was predicted."""
    return [
        Result(
            bench="memory",
            name=f"{line.case.model}, {line.case.title}, {line.case.where}: {line.row}, {part}",
            value=size,
            unit="bytes",
            ratio=size / line.predicted[part] if line.predicted[part] else None,
            against="predicted",
        )
        for line in lines
        for part, size in line.allocated.items()
        if size or line.predicted[part]
    ]


def format_table(lines: Sequence[Line]) -> str:
    """In Markdown: bytes allocated, and in brackets how many more were predicted, where that differs."""
    titles = ["model", "settings", "where", "row", *PARTS.values()]
    rows = [f"| {' | '.join(titles)} |", f"|---|---|---|---|{'--:|' * len(PARTS)}"]
    for line in lines:
        cells = [line.case.model, line.case.title, line.case.where, line.row]
        for part, size in line.allocated.items():
            more = line.predicted[part] - size
            cells.append(f"{size:,}" + (f" ({more:+,})" if more else ""))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
