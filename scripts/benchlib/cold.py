"""How long from a request for a model that is not loaded to its first word, and where does the time go?

The real thing in a sandbox: SmolLM2, the supervisor, the front, a unit. The file is in the page cache, so the disk is
not measured. Moments come from the clock that all of them share (CLOCK_MONOTONIC): the request and the first token from
the client, the decision and the end of the load from the journal, the process from systemd, its first report from a
load by command that waits beside the request.

Outside this module boots the sandbox and runs itself there; inside (`python -m benchlib.cold MODEL`) it measures.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchlib.report import BenchError, Result

CHECKOUT = Path(__file__).resolve().parents[2]
SANDBOX = str(CHECKOUT / "scripts" / "sandbox")
ROUNDS = 5
NAME = "smollm2"
UNIT = f"llamactl-model@{NAME}.service"

PARTS = (
    ("asked", "decided", "request to decision (front, supervisor)"),
    ("decided", "executed", "decision to process (systemd, the unit's sandbox)"),
    ("executed", "reported", "process to first report (Python)"),
    ("reported", "ready", "first report to ready (llama.cpp loads, decodes once)"),
    ("ready", "answered", "ready to first token (lease, prompt, decode)"),
)


def measure() -> list[Result]:
    """Medians over some starts, in milliseconds. Raises BenchError."""
    sandbox = f"bench-{os.getpid()}"
    model = run_checked([sys.executable, str(CHECKOUT / "scripts" / "fetch-models"), NAME]).strip()
    run_checked([SANDBOX, "start", "--name", sandbox])
    try:
        inside = ["env", f"--chdir={CHECKOUT / 'scripts'}", sys.executable, "-m", "benchlib.cold", model]
        samples = json.loads(run_checked([SANDBOX, "run", "--name", sandbox, "--", *inside]))
    finally:
        run_checked([SANDBOX, "stop", "--name", sandbox])
    return summarize(samples)


def run_checked(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"cannot measure: '{' '.join(command)}' ended with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


def summarize(samples: list[dict[str, float]]) -> list[Result]:
    """One figure for each part, and the whole; each as a share of the whole."""
    whole_ms = statistics.median(1000 * (sample["answered"] - sample["asked"]) for sample in samples)
    results = []
    for begin, end, name in PARTS:
        part_ms = statistics.median(1000 * (sample[end] - sample[begin]) for sample in samples)
        results.append(Result("cold", name, part_ms, "ms", part_ms / whole_ms, "the whole"))
    return [*results, Result("cold", "request to first token", whole_ms, "ms")]


# --- inside the sandbox ---


def main(model: str) -> None:
    from tests.system.harness import LLAMACTL, Llamactl, run

    run(LLAMACTL, "install")
    machine = Llamactl()
    machine.write_models(**{NAME: {"path": model, "ctx": 4096, "parallel": 1}})
    try:
        machine.start()
        machine.cli("measure", NAME)
        samples = []
        for number in range(ROUNDS + 1):
            sample = measure_start()
            machine.cli("unload", NAME)
            if number:  # the first fills the page cache
                samples.append(sample)
    finally:
        machine.stop()
    print(json.dumps(samples))


def measure_start() -> dict[str, float]:
    """The moments of one start, in seconds. A load by command runs along, for its progress: both share one start."""
    from tests.system import journal
    from tests.system.harness import Llamactl, show

    machine = Llamactl()
    asked_s = time.monotonic()
    with ThreadPoolExecutor() as pool:
        reported = pool.submit(follow_load)
        with machine.stream(NAME, "Say hello", max_tokens=8, temperature=0) as stream:
            for event in stream:
                if any(choice["delta"].get("content") for choice in json.loads(event)["choices"]):
                    break
            answered_s = time.monotonic()
            stream.read_rest()
    entries = {
        entry["LLAMACTL_EVENT"]: int(entry["__MONOTONIC_TIMESTAMP"]) / 1e6
        for entry in journal.read_entries(machine.cursor, LLAMACTL_MODEL=NAME, _SYSTEMD_UNIT="llamactl.service")
    }
    return {
        "asked": asked_s,
        "decided": entries["load_decided"],
        "executed": int(show(UNIT, "ExecMainStartTimestampMonotonic")) / 1e6,
        "reported": reported.result(),
        "ready": entries["instance_ready"],
        "answered": answered_s,
    }


def follow_load() -> float:
    """Load by command; the moment of the instance's first report."""
    from llamactl.cli.client import Client
    from llamactl.paths import Paths
    from llamactl.protocol.control_socket import LoadRequest, Progress
    from llamactl.protocol.values import Stage

    moments: dict[Stage, float] = {}

    def note(progress: Progress) -> None:
        moments.setdefault(progress.stage, time.monotonic())

    with Client(Paths().control_socket) as client:
        client.ask(LoadRequest(id=1, model=NAME), note)
    return moments[Stage.LOADING]


if __name__ == "__main__":
    main(sys.argv[1])
