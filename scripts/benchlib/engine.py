"""Is an instance as fast as llama-server on the same llama.cpp?

    scripts/bench engine --llama-server PATH [--model FILE ...] [--rounds N]

PATH is a llama-server built from the sources inside llama-cpp-python's sdist, with the flags of the installed library.
Both serve the same file with the same settings on a Unix socket of their own, and each round asks one after the other,
in turning order; for every other round both are restarted. llama-server's cache of prompts in main memory, which it
would fill while it is measured, is off, but for the one scenario that it is there for. Prompts are token numbers, so
that both get the same, and new in each round, so that nothing is reused that should not be; what should be has
scenarios of its own. `bound` is the 95 % bound of the ratio on the side that would be bad. Rounds in which other
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchlib import router
from benchlib.cold import CHECKOUT, run_checked
from benchlib.pairs import MIN_ROUNDS, compare_pairs
from benchlib.processes import stop_process
from benchlib.quiet import QUIET_SHARE, OthersWatch
from benchlib.report import BenchError, Result
from benchlib.streams import Stream, run_streams
from llamactl.settings import ModelSettings
from tests.models import write_model
from tests.socket.instance.harness import Child, run_child

THREADS = 2
PARALLEL = 4
CTX = 8192
N_STREAM = 128
N_SHORT_PROMPT = 24
N_LONG_PROMPT = 2000
N_SHARED = 1500
N_OWN = 100
N_CONVERSATIONS = 4
N_CONVERSATION = 1200
N_SIDE = 300
N_TURN = 60
LOOP, RESIDENT, COLD = "loop with 4 sequences", "resident memory", "cold start"
FETCH_MODELS = CHECKOUT / "scripts" / "fetch-models"
OURS, YARDSTICK = "llamactl", "llama-server"
ROUNDS_A_START = 2
ATTEMPTS = 4
"""At a round that is not quiet."""

WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father"
)


@dataclass(frozen=True)
class Prompts:
    """Token numbers that are new each time, the same for the same seed."""

    pool: list[int]
    random: random.Random

    def make(self, length: int) -> list[int]:
        return self.random.choices(self.pool, k=length)


@dataclass(frozen=True)
class Server:
    """One of the two that are compared."""

    socket: Path
    pid: int


Figures = dict[str, float]
Scenario = Callable[[Path, Prompts], Figures]
RATES = ("tokens",)
"""Figures of which more is better begin so; all others are times."""
CACHED = "tokens cached"
TURNS = "4 conversations in turn"
TURNS_MEMORY = f"{TURNS}, {YARDSTICK} with its cache in main memory"
NO_MEMORY_CACHE = "--cache-ram 0"


def measure(llama_server: Path, models: Sequence[Path], rounds: int, only: str, repack: bool = True) -> list[Result]:
    """Raises BenchError."""
    if rounds < MIN_ROUNDS:
        raise BenchError(f"cannot measure: {rounds} rounds are too few for a bound, {MIN_ROUNDS} are not")
    models = models or [Path(name) for name in run_checked([sys.executable, str(FETCH_MODELS)]).split()]
    results = []
    for model in models:
        for options, scenarios in group_scenarios(only).items():
            results += compare_streams(llama_server, model, rounds, scenarios, options, repack)
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


def group_scenarios(only: str) -> dict[str, dict[str, Scenario]]:
    """Those with `only` in their name, by the options that llama-server is to have."""
    groups: dict[str, dict[str, Scenario]] = {}
    for title, scenario in SCENARIOS.items():
        if only in title:
            groups.setdefault(OPTIONS.get(title, NO_MEMORY_CACHE), {})[title] = scenario
    return groups


def compare_streams(
    llama_server: Path, model: Path, rounds: int, wanted: dict[str, Scenario], options: str, repack: bool
) -> list[Result]:
    """Both servers are restarted for every few rounds: from process to process the same model differs by some
    percent in speed, and that is no difference between the two.
    """
    samples: dict[str, list[dict[str, Figures]]] = {title: [] for title in wanted}
    for first in range(0, rounds, ROUNDS_A_START):
        numbers = range(first, min(first + ROUNDS_A_START, rounds))
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
            directory = Path(name)
            child = running.enter_context(run_instance(directory, model, CTX, repack))
            yardstick = running.enter_context(run_yardstick(directory, llama_server, model, options, repack))
            servers = {
                OURS: Server(child.http_socket, child.process.pid),
                YARDSTICK: Server(directory / "llama.sock", yardstick),
            }
            pool = child.request("POST", "/tokenize", {"content": WORDS})[1]["tokens"]
            for title, scenario in wanted.items():
                announce(f"{model.stem}: {title}, rounds {numbers.start + 1} to {numbers.stop} of {rounds}")
                samples[title] += run_rounds(title, scenario, servers, pool, numbers)
    return [result for title in wanted for result in summarize(f"{model.stem}, {title}", samples[title])]


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
        with run_instance(directory, write_model(directory / "tiny.gguf"), 256) as child:
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


# --- scenarios ---


def format_body(prompt: list[int], n_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "max_tokens": n_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "seed": 1,
        **more,
    }


def run_alone(server: Path, prompt: list[int], n_tokens: int) -> Stream:
    (stream,) = run_streams(server, [format_body(prompt, n_tokens)])
    return stream


def stream_together(count: int) -> Scenario:
    def scenario(server: Path, prompts: Prompts) -> Figures:
        bodies = [format_body(prompts.make(N_SHORT_PROMPT), N_STREAM) for _ in range(count)]
        streams = run_streams(server, bodies)
        n_tokens = sum(stream.read_usage()["completion_tokens"] for stream in streams)
        if n_tokens != count * N_STREAM:
            raise BenchError(f"cannot measure: {n_tokens} tokens came instead of {count * N_STREAM}")
        elapsed_s = max(stream.end_s for stream in streams) - min(stream.sent_s for stream in streams)
        # The middle one of those that need not wait for a free sequence.
        firsts = sorted(stream.first_s for stream in streams)[: min(count, PARALLEL)]
        return {"tokens": n_tokens / elapsed_s, "first token": firsts[len(firsts) // 2]}

    return scenario


def read_long_prompt(server: Path, prompts: Prompts) -> Figures:
    stream = run_alone(server, prompts.make(N_LONG_PROMPT), 1)
    stream.read_usage()
    return {"tokens": N_LONG_PROMPT / stream.first_s}


def share_prefix(server: Path, prompts: Prompts) -> Figures:
    shared = prompts.make(N_SHARED)
    run_alone(server, shared + prompts.make(N_OWN), 8).read_usage()
    second = run_alone(server, shared + prompts.make(N_OWN), 8)
    second.read_usage()
    return {"first token": second.first_s}


def talk_in_turns(server: Path, prompts: Prompts) -> Figures:
    """Each conversation's second turn, after the others' first ones and a side request for each, such as for a title.
    All begin alike, as a template's head lets them.
    """
    head = prompts.make(8)
    turns = [head + prompts.make(N_CONVERSATION) for _ in range(N_CONVERSATIONS)]
    seconds: list[Stream] = []
    for is_second in (False, True):
        for turn in turns:
            stream = run_alone(server, turn, 8)
            stream.read_usage()
            if is_second:
                seconds.append(stream)
            run_alone(server, head + prompts.make(N_SIDE), 8).read_usage()
            turn += prompts.make(N_TURN)
    cached = [stream.read_usage()["prompt_tokens_details"]["cached_tokens"] for stream in seconds]
    first_s = sum(stream.first_s for stream in seconds)
    return {CACHED: sum(cached) / N_CONVERSATIONS, "first token": first_s / N_CONVERSATIONS}


def interrupt_with_long_prompt(server: Path, prompts: Prompts) -> Figures:
    """Three streams; when each has some tokens, a long prompt comes."""
    bodies = [format_body(prompts.make(N_SHORT_PROMPT), 160) for _ in range(PARALLEL - 1)]
    long = format_body(prompts.make(N_LONG_PROMPT), 1)

    def arrive(streams: list[Stream]) -> dict[str, Any] | None:
        return long if all(len(stream.pieces) > 30 for stream in streams) else None

    *running, late = run_streams(server, bodies, arrive)
    for stream in (*running, late):
        stream.read_usage()
    pause_s = max(max(stream.list_gaps(late.sent_s)) for stream in running)
    return {"longest pause": pause_s, "first token": late.first_s}


SCENARIOS: dict[str, Scenario] = {
    "1 stream": stream_together(1),
    "4 streams": stream_together(4),
    "8 streams": stream_together(8),
    "prompt of 2,000": read_long_prompt,
    "1,500 of 1,600 shared": share_prefix,
    "2,000 among 3 streams": interrupt_with_long_prompt,
    TURNS: talk_in_turns,
    TURNS_MEMORY: talk_in_turns,
}
OPTIONS = {TURNS_MEMORY: "--cache-ram 8192"}
"""What llama-server is started with for a scenario, instead of without its cache in main memory."""

# --- servers ---


@contextlib.contextmanager
def run_instance(directory: Path, model: Path, ctx: int, repack: bool = True) -> Iterator[Child]:
    settings = ModelSettings(
        name="bench",
        path=str(model),
        ctx=ctx,
        parallel=PARALLEL,
        threads=THREADS,
        batch=2048,
        ubatch=512,
        repack=repack,
    )
    with run_child(directory, "serve", settings) as child:
        child.supervisor.wait_for("ready")
        yield child


@contextlib.contextmanager
def run_yardstick(directory: Path, program: Path, model: Path, more: str, repack: bool) -> Iterator[int]:
    """Its process ID, when it listens."""
    options = (
        f"--ctx-size {CTX} --parallel {PARALLEL} --kv-unified --threads {THREADS} --batch-size 2048 --ubatch-size 512 "
        f"{more} {'' if repack else '--no-repack'} --no-ui"
    )
    command = [str(program), "--model", str(model), "--host", str(directory / "llama.sock"), *options.split()]
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
