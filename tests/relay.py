"""How does a pytest outside run tests under a systemd that is PID 1? By one pytest inside, whose reports it repeats.

The receiver boots a sandbox when a session begins, starts pytest inside with every selected system test, and gives
each report out as its own when that test is due here: progress and failures look as if the test had run here. All other
tests run here meanwhile, and the system tests are due after them.
Reports travel through an inherited pipe, since a sandbox shares neither /tmp nor the environment with its caller.
A pytest inside that ends early fails the tests that it owed.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import IO, Any

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
SANDBOX = str(CHECKOUT / "scripts" / "sandbox")
FETCH = str(CHECKOUT / "scripts" / "fetch-models")


def is_sandbox() -> bool:
    """Whether this process runs in one of scripts/sandbox's: PID 1 carries its mark. Not ours to read means no."""
    try:
        return b"container=llamactl-sandbox" in Path("/proc/1/environ").read_bytes().split(b"\0")
    except OSError:
        return False


class Sender:
    """Inside: writes each report as one JSON line."""

    def __init__(self, config: pytest.Config, fd: int) -> None:
        self._config = config
        os.set_inheritable(fd, False)  # a service that a test leaves behind must not keep the pipe open
        self._pipe = os.fdopen(fd, "w")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._pipe.write(json.dumps(data) + "\n")
        self._pipe.flush()


class Receiver:
    """Outside: runs the system tests of a session in a sandbox of the session's own."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._name = f"test-{os.getpid()}"
        self._nodes: list[str] = []
        self._needs_smollm2 = False
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._reports: queue.SimpleQueue[pytest.TestReport | None] = queue.SimpleQueue()
        """As they come; None: there are no more."""
        self._arrived: dict[str, list[pytest.TestReport]] = defaultdict(list)
        self._obstacle = ""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        items = [item for item in session.items if item.get_closest_marker("system")]
        self._nodes = [item.nodeid for item in items]
        self._needs_smollm2 = any("smollm2_file" in getattr(item, "fixturenames", ()) for item in items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        if self._nodes and not session.testsfailed and not self._config.option.collectonly:
            self._start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if not item.get_closest_marker("system"):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._acquire_reports(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self) -> None:
        if self._process is not None:
            subprocess.run([SANDBOX, "stop", "--name", self._name], stdout=subprocess.DEVNULL, check=True)
            self._process.wait(timeout=60)

    def _start(self) -> None:
        smollm2 = self._config.getoption("smollm2")
        if self._needs_smollm2 and not smollm2:  # a sandbox has no network to fetch it from
            fetch = subprocess.run([sys.executable, FETCH, "smollm2"], capture_output=True, text=True)
            if fetch.returncode != 0:
                self._obstacle = f"no SmolLM2: {fetch.stderr.strip()}"
                return
            smollm2 = fetch.stdout.strip()
        boot = subprocess.run([SANDBOX, "start", "--name", self._name], capture_output=True, text=True)
        if boot.returncode != 0:
            self._obstacle = f"no sandbox: {boot.stderr.strip()}"
            return
        read_fd, write_fd = os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the session)
        inner = [
            sys.executable,
            "-m",
            "pytest",
            f"--report-fd={write_fd}",
            f"--rootdir={CHECKOUT}",
            f"--smollm2={smollm2}",
            "-p",
            "no:cacheprovider",
        ]
        self._process = subprocess.Popen(
            [SANDBOX, "run", "--name", self._name, "--", "env", f"--chdir={CHECKOUT}", *inner, *self._nodes],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=[write_fd],
        )
        os.close(write_fd)
        threading.Thread(target=self._read_reports, args=(read_fd,), daemon=True).start()

    def _read_reports(self, fd: int) -> None:
        """A pipe that nobody reads would hold the pytest inside up."""
        try:
            with os.fdopen(fd) as pipe:
                for line in pipe:
                    data: dict[str, Any] = json.loads(line)
                    report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
                    self._reports.put(report)
        finally:
            self._reports.put(None)

    def _acquire_reports(self, item: pytest.Item) -> list[pytest.TestReport]:
        """All reports of one test; a failed one of our own when the pytest inside has not got that far."""
        while not any(report.when == "teardown" for report in self._arrived[item.nodeid]):
            report = None if self._obstacle else self._reports.get()
            if report is None:
                self._reports.put(None)
                return [*self._arrived.pop(item.nodeid), self._make_failure(item)]
            self._arrived[report.nodeid].append(report)
        return self._arrived.pop(item.nodeid)

    def _make_failure(self, item: pytest.Item) -> pytest.TestReport:
        if not self._obstacle and self._process is not None and self._output is not None:
            status = self._process.wait()
            self._output.seek(0)
            said = self._output.read().decode(errors="replace")[-4000:]
            self._obstacle = (
                f"the pytest inside the sandbox ended with status {status} before this test; it said:\n{said}"
            )
        return pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=self._obstacle,
            when="setup",
        )
