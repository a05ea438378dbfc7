"""Is an instance as fast as llama-server on the same llama.cpp?

    scripts/bench engine --llama-server PATH [--model FILE ...] [--rounds N]

PATH is a llama-server built from the sources inside llama-cpp-python's sdist, with the flags of the installed library.
Both serve the same file with the same settings on a Unix socket of their own, and each round asks one after the other,
in turning order; for every other round both are restarted. llama-server's cache of prompts in main memory, which it
would fill while it is measured, is off, but for the one scenario that it is there for. Prompts are token numbers, so
that both get the same. `bound` is the 95 % bound of the ratio on the side that would be bad. Rounds in which other
processes had more than a little of the processors are taken again some times, then kept as they are, with a warning.
"""

import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchlib import router
from benchlib.cold import CHECKOUT, run_checked
from benchlib.pairs import MIN_ROUNDS, compare_pairs
from benchlib.processes import stop_process
from benchlib.quiet import QUIET_SHARE, OthersWatch
from benchlib.report import BenchError, Result
from benchlib.scenarios import CACHED, RATES, ROWS, WORDS, Figures, Prompts, Scenario, Setup, format_body
from benchlib.streams import run_streams
from llamactl.config.gguf import read_head
from llamactl.settings import ModelSettings
from tests.models import write_eye, write_model
from tests.sdist import read_templates
from tests.socket.instance.harness import Child, run_child

THREADS = 2
CTX = 8192
LOOP, RESIDENT, COLD = "loop with 4 sequences", "resident memory", "cold start"
FETCH_MODELS = CHECKOUT / "scripts" / "fetch-models"
OURS, YARDSTICK = "llamactl", "llama-server"
ROUNDS_A_START = 2
ATTEMPTS = 4
"""At a round that is not quiet."""


@dataclass(frozen=True)
class Server:
    """One of the two that are compared."""

    socket: Path
    pid: int


def measure(llama_server: Path, models: Sequence[Path], rounds: int, only: str, repack: bool = True) -> list[Result]:
    """Raises BenchError."""
    if rounds < MIN_ROUNDS:
        raise BenchError(f"cannot measure: {rounds} rounds are too few for a bound, {MIN_ROUNDS} are not")
    models = models or [Path(name) for name in run_checked([sys.executable, str(FETCH_MODELS)]).split()]
    results = []
    groups = group_scenarios(only)
    for model in models:
        for setup, scenarios in groups.items():
            if not setup.is_tiny:
                results += compare_streams(llama_server, model, rounds, scenarios, setup, repack)
    with tempfile.TemporaryDirectory() as name:
        for setup, scenarios in groups.items():
            if setup.is_tiny:
                tiny = write_model(Path(name) / "tiny.gguf", n_ctx_train=CTX)
                results += compare_streams(llama_server, tiny, rounds, scenarios, setup, repack)
    if only in LOOP:
        results += [result for model in models for result in measure_loop(model, repack)]
    if only in RESIDENT:
        results.append(Result("engine", f"{RESIDENT}, without a model", measure_resident_mib(), "MiB"))
    if only in COLD:
        announce(COLD)
        results += router.measure(llama_server, models, rounds)
    return results


def announce(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def group_scenarios(only: str) -> dict[Setup, dict[str, Scenario]]:
    """Those with `only` in their name, by what the servers are started with."""
    groups: dict[Setup, dict[str, Scenario]] = {}
    for title, row in ROWS.items():
        if only in title:
            groups.setdefault(row.setup, {})[title] = row.scenario
    return groups


def compare_streams(
    llama_server: Path, model: Path, rounds: int, wanted: dict[str, Scenario], setup: Setup, repack: bool
) -> list[Result]:
    """Both servers are restarted for every few rounds: from process to process the same model differs by some percent
    in speed, and that is no difference between the two.
    """
    samples: dict[str, list[dict[str, Figures]]] = {title: [] for title in wanted}
    for first in range(0, rounds, ROUNDS_A_START):
        numbers = range(first, min(first + ROUNDS_A_START, rounds))
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
            directory = Path(name)
            settings = choose_settings(directory, model, setup, repack)
            child = running.enter_context(run_instance(directory, settings))
            yardstick = running.enter_context(run_yardstick(directory, llama_server, settings, setup.yardstick))
            servers = {
                OURS: Server(child.http_socket, child.process.pid),
                YARDSTICK: Server(directory / "llama.sock", yardstick),
            }
            pool = child.request("POST", "/tokenize", {"content": WORDS})[1]["tokens"]
            for title, scenario in wanted.items():
                announce(f"{model.stem}: {title}, rounds {numbers.start + 1} to {numbers.stop} of {rounds}")
                samples[title] += run_rounds(title, scenario, servers, pool, numbers)
    return [result for title in wanted for result in summarize(_name_row(model, title), samples[title])]


def _name_row(model: Path, title: str) -> str:
    return title if title.startswith(model.stem) else f"{model.stem}, {title}"


def measure_loop(model: Path, repack: bool) -> list[Result]:
    """Medians over some runs of a process of its own."""
    announce(f"{model.stem}: {LOOP}")
    command = [
        "env",
        f"--chdir={CHECKOUT / 'scripts'}",
        sys.executable,
        "-m",
        "benchlib.loop",
        str(model),
        *([] if repack else ["--no-repack"]),
    ]
    runs = [json.loads(run_checked(command)) for _ in range(MIN_ROUNDS)]
    step_ms = statistics.median(run["step_ms"] for run in runs)
    outside_ms = statistics.median(run["step_ms"] - run["inside_ms"] for run in runs)
    share = statistics.median(1 - run["inside_ms"] / run["step_ms"] for run in runs)
    name = f"{model.stem}, {LOOP}"
    return [
        Result("engine", f"{name}, outside of llama.cpp", outside_ms, "ms", share, "the step"),
        Result("engine", f"{name}, the step", step_ms, "ms"),
    ]


def measure_resident_mib() -> float:
    """Of an instance that is ready and has answered, with a model of some hundred kilobytes."""
    announce(RESIDENT)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        settings = choose_settings(directory, write_model(directory / "tiny.gguf"), Setup(), repack=True, ctx=256)
        with run_instance(directory, settings) as child:
            (stream,) = run_streams(child.http_socket, [format_body([5, 6, 7], 8)])
            stream.read_usage()
            for line in Path(f"/proc/{child.process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
    raise BenchError("cannot measure: /proc tells no resident memory")


def run_rounds(
    title: str, scenario: Scenario, servers: dict[str, Server], pool: list[int], numbers: range
) -> list[dict[str, Figures]]:
    """One scenario on both, round by round, after one that does not count."""
    samples: list[dict[str, Figures]] = []
    loudest = 0.0
    run_round(title, scenario, servers, pool, -1, 0)  # warms up
    for number in numbers:
        attempts = [run_round(title, scenario, servers, pool, number, 0)]
        while attempts[-1][0] > QUIET_SHARE and len(attempts) < ATTEMPTS:
            attempts.append(run_round(title, scenario, servers, pool, number, len(attempts)))
        share, figures = min(attempts, key=lambda attempt: attempt[0])
        samples.append(figures)
        loudest = max(loudest, share)
    if loudest > QUIET_SHARE:
        print(f"  not quiet: others had up to {loudest:.0%} of the processors", file=sys.stderr, flush=True)
    return samples


def summarize(name: str, samples: list[dict[str, Figures]]) -> list[Result]:
    results = []
    for what in samples[0][OURS]:
        compared = compare_pairs(*([sample[side][what] for sample in samples] for side in (OURS, YARDSTICK)))
        is_rate = what.startswith(RATES)
        unit, scale = ("1/s", 1.0) if is_rate else ("ms", 1e3)
        if what == CACHED:
            unit = "tokens"
        bound = compared.low if is_rate else compared.high
        label = f"{name}, {what}"
        results.append(Result("engine", label, compared.ours * scale, unit, compared.ratio, YARDSTICK, bound))
        results.append(Result("engine", f"{label}, {YARDSTICK}", compared.theirs * scale, unit))
    return results


def run_round(
    title: str, scenario: Scenario, servers: dict[str, Server], pool: list[int], number: int, attempt: int
) -> tuple[float, dict[str, Figures]]:
    """The share of others, and each server's figures."""
    names = list(servers) if (number + attempt) % 2 else list(reversed(servers))
    watch = OthersWatch([server.pid for server in servers.values()])
    figures = {
        name: scenario(servers[name].socket, Prompts(pool, random.Random(f"{title} {number} {attempt}")))
        for name in names
    }
    return watch.compute_share(), figures


# --- servers ---


def choose_settings(directory: Path, model: Path, setup: Setup, repack: bool, ctx: int = CTX) -> ModelSettings:
    """Of both: what llama-server calls otherwise `run_yardstick` knows."""
    mmproj = ""
    if setup.sees:
        with model.open("rb") as file:
            head = read_head(file.fileno())
        if head is None:
            raise BenchError(f"cannot measure: {model} is no GGUF file")
        mmproj = str(write_eye(directory / "mmproj.gguf", width=head.width, image_size=448, projector="gemma3"))
    return ModelSettings(
        name="bench",
        path=str(model),
        mmproj=mmproj,
        ctx=ctx,
        parallel=setup.parallel,
        threads=THREADS,
        batch=2048,
        ubatch=512,
        repack=repack,
        chat_template=read_templates()[setup.template] if setup.template else "",
    )


@contextlib.contextmanager
def run_instance(directory: Path, settings: ModelSettings) -> Iterator[Child]:
    with run_child(directory, "serve", settings) as child:
        child.supervisor.wait_for("ready")
        yield child


@contextlib.contextmanager
def run_yardstick(directory: Path, program: Path, settings: ModelSettings, more: str) -> Iterator[int]:
    """Its process ID, when it listens."""
    options = (
        f"--ctx-size {settings.ctx} --parallel {settings.parallel} --kv-unified --threads {settings.threads} "
        f"--batch-size {settings.batch} --ubatch-size {settings.ubatch} "
        f"{more} {'' if settings.repack else '--no-repack'} --no-ui"
    )
    command = [str(program), "--model", settings.path, "--host", str(directory / "llama.sock"), *options.split()]
    if settings.mmproj:
        command += ["--mmproj", settings.mmproj]
    if settings.chat_template:
        template = directory / "template.jinja"
        template.write_text(settings.chat_template)
        command += ["--jinja", "--chat-template-file", str(template)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if b"listening on" in line:
            break
    else:
        raise BenchError(f"cannot start {program}: {b''.join(lines[-5:]).decode()}")
    threading.Thread(target=process.stderr.read, daemon=True).start()
    try:
        yield process.pid
    finally:
        stop_process(process)
