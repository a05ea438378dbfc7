"""How long from a request for a model that is not loaded to its first token, here and through llama-server's router?

The real thing in a sandbox: the front, the supervisor, a unit; beside it llama-server with the same files, and both
asked in turn. Files are in the page cache, models are measured, and each start is followed by an unload that is waited
for. Both choose the context themselves (`fitted`) or are told it (`ctx 4096`); four sequences.

Outside, `measure` boots the sandbox and runs this module there. llama-server is copied to where the sandbox sees it,
with the libraries beside it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchlib.cold import CHECKOUT, SANDBOX, run_checked
from benchlib.pairs import compare_pairs
from benchlib.processes import stop_process
from benchlib.report import BenchError, Result
from benchlib.streams import Stream, run_streams

CHAT = "/v1/chat/completions"
BODY = {
    "messages": [{"role": "user", "content": "Say hello"}],
    "max_tokens": 8,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}
CONTEXTS = {"fitted": 0, "ctx 4096": 4096}
PARALLEL = 4


def measure(llama_server: Path, models: Sequence[Path], rounds: int) -> list[Result]:
    """Raises BenchError."""
    sandbox = f"bench-{os.getpid()}"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        for file in (llama_server, *llama_server.parent.glob("*.so*")):
            shutil.copy2(file, directory, follow_symlinks=True)
        run_checked([SANDBOX, "start", "--name", sandbox])
        try:
            arguments = [str(directory / llama_server.name), str(rounds), *map(str, models)]
            inside = ["env", f"--chdir={CHECKOUT / 'scripts'}", sys.executable, "-m", "benchlib.router", *arguments]
            samples = json.loads(run_checked([SANDBOX, "run", "--name", sandbox, "--", *inside]))
        finally:
            run_checked([SANDBOX, "stop", "--name", sandbox])
    results = []
    for label, pairs in samples.items():
        compared = compare_pairs(*zip(*pairs, strict=True))
        name, against = f"cold start, {label}", "llama-server's router"
        results.append(Result("engine", name, 1e3 * compared.ours, "ms", compared.ratio, against, compared.high))
        results.append(Result("engine", f"{name}, {against}", 1e3 * compared.theirs, "ms"))
    return results


# --- inside the sandbox ---


class Router:
    """llama-server without a model of its own, one model at a time."""

    SOCKET = Path("/run/bench-router.sock")

    def __init__(self, program: str, preset: Path) -> None:
        self._process = subprocess.Popen(
            [program, "--models-preset", str(preset), "--models-max", "1", "--host", str(self.SOCKET), "--no-ui"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "LD_LIBRARY_PATH": str(Path(program).parent)},
        )
        self._wait(b"listening on")

    def _wait(self, words: bytes) -> None:
        """Its log tells what happened; nothing else does without being asked again and again."""
        assert self._process.stderr is not None
        lines = []
        for line in self._process.stderr:
            lines.append(line)
            if words in line:
                return
        raise BenchError(f"cannot measure: the router has ended: {b''.join(lines[-5:]).decode()}")

    def unload(self, name: str) -> None:
        stream = Stream(self.SOCKET, {"model": name}, "/models/unload")
        self._wait(b"exited with status")
        while stream.is_open:
            stream.read()

    def stop(self) -> None:
        assert self._process.stderr is not None
        threading.Thread(target=self._process.stderr.read, daemon=True).start()
        stop_process(self._process)


def main(program: str, rounds: int, models: Sequence[str]) -> None:
    from tests.system.harness import LLAMACTL, PATHS, Llamactl, run

    entries: dict[str, tuple[str, dict[str, Any]]] = {}
    for number, path in enumerate(models):
        for context, n_ctx in CONTEXTS.items():
            settings = {"path": path, "parallel": PARALLEL, **({"ctx": n_ctx} if n_ctx else {})}
            entries[f"model{number}-{n_ctx}"] = (f"{Path(path).stem}, {context}", settings)
    run(LLAMACTL, "install")
    machine = Llamactl()
    machine.write_models(**{name: settings for name, (_, settings) in entries.items()})
    preset = Path(tempfile.mkdtemp()) / "preset.ini"
    preset.write_text("version = 1\n" + "".join(format_section(name, entries[name][1]) for name in entries))
    router = Router(program, preset)
    samples: dict[str, list[tuple[float, float]]] = {label: [] for label, _ in entries.values()}
    try:
        machine.start()
        for name in entries:
            machine.cli("measure", name)

        def ask_ours(name: str) -> float:
            first_s = ask(PATHS.http_socket, name)
            machine.cli("unload", name)
            return first_s

        def ask_router(name: str) -> float:
            first_s = ask(Router.SOCKET, name)
            router.unload(name)
            return first_s

        for number in range(rounds + 1):
            for name, (label, _) in entries.items():
                if number % 2:
                    ours, theirs = ask_ours(name), ask_router(name)
                else:
                    theirs, ours = ask_router(name), ask_ours(name)
                if number:  # the first fills the page cache
                    samples[label].append((ours, theirs))
    finally:
        router.stop()
        machine.stop()
    print(json.dumps(samples))


def ask(server: Path, name: str) -> float:
    (stream,) = run_streams(server, [{**BODY, "model": name}], path=CHAT)
    stream.read_usage()
    return stream.first_s


def format_section(name: str, settings: dict[str, Any]) -> str:
    context = f"ctx-size = {settings['ctx']}\n" if "ctx" in settings else ""
    return f"\n[{name}]\nmodel = {settings['path']}\nparallel = {PARALLEL}\nkv-unified = true\n{context}"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
