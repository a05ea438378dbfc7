"""What is a fresh llamactl, and what can a test do with it?

Each test writes a configuration, starts the real units, and talks to them as users do: the command line, HTTP on the
Unix socket, systemctl, the journal. Commands that wait (`llamactl load`, `systemctl start`) are the synchronisation.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from llamactl.paths import Paths
from tests.system import client, journal
from tests.system.client import Response, Stream, UnixConnection

PATHS = Paths()
LLAMACTL = str(Path(sys.executable).with_name("llamactl"))
SOCKETS = ["llamactl-front.socket", "llamactl-front-tcp.socket"]
UNITS = [*SOCKETS, "llamactl-front.service", "llamactl.service", "llamactl-models.slice"]
TIMEOUT_S = 90.0
STREAM: dict[str, Any] = {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
"""Random weights end an answer anywhere; with these options it has `max_tokens` tokens, and says so at its end."""

STARTING = "7d4958e842da4a758f6c1cdc7b36dcc5"
"""systemd's message ID for "a start job begins"."""
STARTED = "39f53479d3a045ac8e11786248231fbf"
"""systemd's message ID for "a start job is done"."""


def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert not check or done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}"
    return done


def show(unit: str, prop: str) -> str:
    """One property of a unit, as `systemctl show` prints it."""
    return run("systemctl", "show", "--property", prop, "--value", unit).stdout.strip()


def kill_hard(pid: int) -> None:
    """SIGKILL, and wait until the process is gone."""
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        assert select.select([pidfd], [], [], TIMEOUT_S)[0], f"process {pid} outlived SIGKILL"
    finally:
        os.close(pidfd)


def sum_bytes(breakdown: dict[str, Any]) -> int:
    """All bytes of a breakdown on a machine without devices: the host's, and those of other buffer types."""
    return sum(row["model"] + row["context"] + row["compute"] for row in breakdown["devices"])


class Llamactl:
    """One llamactl with a configuration of its own, from now on."""

    def __init__(self) -> None:
        self.cursor = journal.acquire_cursor()
        self.drop_ins: list[Path] = []

    # --- configuration ---

    def write_settings(self, **settings: Any) -> None:
        PATHS.config_dir.mkdir(parents=True, exist_ok=True)
        settings.setdefault("min_resident", 0)  # tests that are not about it need not wait for it
        settings.setdefault("send_timeout", 0)  # a stream that is not read keeps a model busy
        PATHS.config_file.write_text(tomli_w.dumps(settings))

    def write_models(self, file: str = "test.toml", **models: dict[str, Any]) -> None:
        PATHS.models_config_dir.mkdir(parents=True, exist_ok=True)
        (PATHS.models_config_dir / file).write_text(tomli_w.dumps({"models": models}))

    @contextlib.contextmanager
    def hold_load(self, name: str) -> Iterator[Callable[[], object]]:
        """The model's next load waits until what this gives is called."""
        gate = Path("/srv/gate")
        os.mkfifo(gate, 0o644)
        try:
            self.write_drop_in(f"llamactl-model@{name}.service", f"[Service]\nExecStartPre=/bin/cat {gate}\n")
            yield lambda: gate.write_bytes(b"")
        finally:
            gate.unlink()

    def write_drop_in(self, unit: str, text: str) -> None:
        """An administrator's drop-in for a unit, removed at the end."""
        directory = Path("/etc/systemd/system") / f"{unit}.d"
        directory.mkdir(parents=True)
        self.drop_ins.append(directory)
        (directory / "test.conf").write_text(text)
        run("systemctl", "daemon-reload")

    def use_script(self, model: str) -> None:
        """Have the unit of `model` run tests/system/scripted.py, copied to where every user can read it."""
        copy = Path("/srv/scripted.py")
        shutil.copyfile(Path(__file__).with_name("scripted.py"), copy)
        copy.chmod(0o644)
        text = f"[Service]\nExecStart=\nExecStart={sys.executable} -P {copy}\n"
        self.write_drop_in(f"llamactl-model@{model}.service", text)

    def use_gpu_script(self) -> None:
        """Have all models' and measure units run tests/system/scripted_gpu.py."""
        copy = Path("/srv/scripted_gpu.py")
        shutil.copyfile(Path(__file__).with_name("scripted_gpu.py"), copy)
        copy.chmod(0o644)
        for unit, role in (("model", "serve"), ("measure", "measure")):
            text = f"[Service]\nExecStart=\nExecStart={sys.executable} -P {copy} {role}\n"
            self.write_drop_in(f"llamactl-{unit}@.service", text)

    # --- units ---

    def start(self) -> None:
        """Start the units, and wait until the front has found the supervisor."""
        cursor = journal.acquire_cursor()
        run("systemctl", "start", *SOCKETS, "llamactl.service")
        journal.wait_entry(cursor, LLAMACTL_EVENT="supervisor_connected", _SYSTEMD_UNIT="llamactl-front.service")

    def stop(self) -> None:
        run("systemctl", "stop", *UNITS)
        run("systemctl", "reset-failed", check=False)
        for directory in (PATHS.models_config_dir, PATHS.cache_dir):
            shutil.rmtree(directory, ignore_errors=True)
        PATHS.config_file.unlink(missing_ok=True)
        for directory in self.drop_ins:
            shutil.rmtree(directory)
        if self.drop_ins:
            run("systemctl", "daemon-reload")

    def show_pid(self, unit: str) -> int:
        pid = int(show(unit, "MainPID"))
        assert pid, f"{unit} has no process"
        return pid

    # --- the command line ---

    def cli(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run `llamactl`, which must end with `status`."""
        done = run(LLAMACTL, *arguments, check=False)
        assert done.returncode == status, (
            f"llamactl {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
        return done

    def cli_json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self.cli(*arguments, "--json", status=status).stdout)

    def list_models(self) -> dict[str, dict[str, Any]]:
        """Status of every configured model, by name."""
        return {model["name"]: model for model in self.cli_json("list")}

    def list_loaded(self) -> dict[str, dict[str, Any]]:
        """Status of every model that has an instance, by name."""
        return {model["name"]: model for model in self.cli_json("ps")}

    def measure_bytes(self, model: str) -> int:
        """Host memory that a model needs at least."""
        return sum_bytes(self.cli_json("measure", model)["memory"]["min"])

    def open_cli(self, *arguments: str) -> subprocess.Popen[str]:
        """`llamactl` in the background, its standard error readable line by line."""
        return subprocess.Popen(
            [LLAMACTL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )

    # --- the endpoint ---

    def connect(self) -> UnixConnection:
        return UnixConnection(str(PATHS.http_socket))

    def get(self, path: str) -> Response:
        return client.request(self.connect(), "GET", path)

    def post(self, path: str, body: Any) -> Response:
        return client.request(self.connect(), "POST", path, body)

    def chat(self, model: str, text: str = "hello", **options: Any) -> Response:
        options.setdefault("max_tokens", 8)
        return self.post("/v1/chat/completions", client.format_chat(model, text, **options))

    def stream(self, model: str, text: str = "hello", **options: Any) -> Stream:
        """A streamed chat answer of exactly `max_tokens` tokens, its head already read."""
        connection = self.connect()
        body = client.format_chat(model, text, **{**STREAM, **options})
        client.open_request(connection, "POST", "/v1/chat/completions", body)
        return Stream(connection)

    # --- the journal ---

    def read_events(self, event: str = "", **fields: str) -> list[journal.Entry]:
        """What happened so far: entries with LLAMACTL_EVENT."""
        if event:
            fields["LLAMACTL_EVENT"] = event
        return [entry for entry in journal.read_entries(self.cursor, **fields) if "LLAMACTL_EVENT" in entry]

    def wait_event(self, event: str, **fields: str) -> journal.Entry:
        return journal.wait_entry(self.cursor, LLAMACTL_EVENT=event, **fields)
