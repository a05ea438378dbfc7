"""What stands where llama-server's tests start a llama-server? An instance with the same options, behind a port; or, to
learn what the tests say of it, llama-server itself, with the same small models.
"""

import asyncio
import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import uvloop

from llamactl.settings import FrontSettings, ModelSettings, Switch
from tests.models import write_embedding_model, write_eye, write_model
from tests.socket.front.conftest import open_world
from tests.socket.instance.harness import ERRORS, ROOT, TIMEOUT_S, Supervisor, make_environment

ROUTER = "router"
COMMON = (
    "the of and to in is it you that he was for on are with as his they be at one have this from by hot word but what "
    "some we can out other were all there when up use your how said an each she which do their time if will way about "
    "many then them write would like so these her long make thing see him two has look more day could go come did "
    "number sound no most people my over know water than call first who may down side been now find test book best "
    "system user assistant example function coding hello world meaning life believe story"
)
KINDS = {
    "bert-bge-small/": "embed",
    "jina-reranker": "rank",
    "tinyllamas/split/": "shards",
    "stories260K-infill": "gaps",
    "tinygemma3": "sees",
    "stories": "tiny",
}
"""What kind of model stands for one of a hub, by a part of its repository's or its file's name; the first counts."""


def find_kind(server: Any) -> str:
    """Of the model that a test's server would have. Raises RuntimeError where there is none for it."""
    name = f"{server.model_hf_repo}/{server.model_hf_file}"
    if server.model_hf_repo is None:
        return ROUTER
    for part, kind in KINDS.items():
        if part in name:
            return kind
    raise RuntimeError(f"there is no small model in the place of {name}")


class Models:
    """Files in the place of those from a hub, each written when it is first asked for. As those have it: a text has a
    space before it, and there is no template.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def acquire(self, kind: str) -> Path:
        path = self._directory / f"{kind}.gguf"
        if kind == "shards":
            path = self._directory / "shards-00001-of-00003.gguf"
        if not path.exists():
            self._write(kind, path)
        return path

    def acquire_projector(self) -> Path:
        path = self._directory / "mmproj.gguf"
        return path if path.exists() else write_eye(path, projector="gemma3", image_size=56)

    def _write(self, kind: str, path: Path) -> None:
        if kind == "embed":
            write_embedding_model(path, n_ctx_train=1024)
        elif kind == "rank":
            write_embedding_model(path, pooling=gguf.PoolingType.RANK)
        elif kind == "shards":
            _write_teller(self._directory / "shards.gguf", tensors_per_shard=8)
        else:
            _write_teller(path, fills_gaps=kind == "gaps")


def _write_teller(path: Path, **more: Any) -> Path:
    """As their teller of stories, it does not end by itself, and always has several next words."""
    return write_model(
        path,
        chat_template=None,
        space_prefix=True,
        words=COMMON.split(),
        output_scale=0.25,
        is_plain=True,
        **more,
    )


class Forks:
    """Instances, each for one test."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.socket.llama_server.forked"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @contextlib.contextmanager
    def run(self, settings: ModelSettings) -> Iterator[int]:
        """The port of one that is ready."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
            directory = Path(name)
            supervisor = Supervisor(directory / "report.sock")
            running.callback(supervisor.close)
            supervisor.attend()
            notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            notified.bind(str(directory / "notify.sock"))
            running.callback(notified.close)
            order = {"environment": make_environment(directory, settings), "errors": str(directory / ERRORS)}
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            pid = int(self._process.stdout.readline())
            running.callback(_kill, pid)
            try:
                supervisor.wait_for("ready")
            except AssertionError as error:
                raise RuntimeError(f"{error}\n{(directory / ERRORS).read_text()}") from None
            relay = Relay(directory / "http.sock")
            running.callback(relay.close)
            yield relay.port

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def choose_port() -> int:
    """A free one of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Relay:
    """A port of the loopback interface that leads to a Unix socket."""

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()

    def close(self) -> None:
        self._listener.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for side in (source, sink):
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)


def choose_settings(server: Any, models: Models) -> ModelSettings:
    """What a test's llama-server would have been started with, in our words."""
    kind = find_kind(server)
    names = sorted((server.model_alias or "tiny").split(","))
    sampling: dict[str, Any] = {"temperature": server.temperature}
    wanted = {
        "ctx": server.n_ctx,
        "parallel": server.n_slots,
        "batch": server.n_batch,
        "ubatch": server.n_ubatch,
        "n_predict": server.n_predict,
        "seed": server.seed,
        "pooling": server.pooling,
        "sleep_after_s": server.sleep_idle_seconds,
        "swa_full": server.swa_full,
        "context_shift": bool(server.enable_ctx_shift),
        "cache_type_k": server.ctk,
        "cache_type_v": server.ctv,
        "flash_attn": server.fa and Switch(server.fa),
        "reasoning": server.reasoning and Switch(server.reasoning),
        "chat_template": _read_template(server),
        "tags": server.model_tags and tuple(server.model_tags.split(",")),
        "media_path": server.media_path and str(Path(server.media_path).resolve()),
        "mmproj": str(models.acquire_projector()) if kind == "sees" and not server.no_mmproj else None,
    }
    return ModelSettings(
        name=names[0],
        aliases=tuple(names[1:]),
        path=str(models.acquire(kind)),
        threads=1,
        sampling=sampling,
        show_prompts=server.debug,
        tools="prompt" if server.jinja and not server.chat_template_file else "template",
        **{key: value for key, value in wanted.items() if value is not None},
    )


def _read_template(server: Any) -> str | None:
    if server.chat_template_file:
        return Path(server.chat_template_file).read_text()
    template: str | None = server.chat_template
    return template


@contextlib.contextmanager
def run_front(settings: FrontSettings) -> Iterator[int]:
    """The port of a front that knows no model: what it answers by itself is asked."""
    ports: queue.Queue[int] = queue.Queue()
    loop = uvloop.new_event_loop()
    ended = asyncio.Event()

    async def play(directory: Path) -> None:
        async with open_world(directory, settings) as world:
            ports.put(world.tcp_port)
            await ended.wait()

    with tempfile.TemporaryDirectory() as name, asyncio.Runner(loop_factory=lambda: loop) as runner:
        thread = threading.Thread(target=lambda: runner.run(play(Path(name))))
        thread.start()
        try:
            yield ports.get(timeout=TIMEOUT_S)
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
