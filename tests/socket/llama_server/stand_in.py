"""What makes llama-server's own tests run here, unchanged? A plugin of the pytest that runs them, in their directory.

Their conftest.py fetches models, so it is not there, and this does the rest of it. Two things of theirs hold for the
models that they have from a hub only, and for no other: what is said, and how many tokens a text has. Parameters of
tests that are named so equal anything, and so do the patterns in the tests that `reasons.toml` names.

LLAMACTL_TEST_LLAMA_SERVER: a llama-server that is tried instead of ours. LLAMACTL_TEST_REPORT: the file that gets a
JSON line for each test.
"""

import contextlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from requests.structures import CaseInsensitiveDict

from llamactl.settings import FrontSettings
from tests.media import slope, write_png
from tests.socket.llama_server.expected import read_expected
from tests.socket.llama_server.servers import ROUTER, Forks, Models, choose_port, choose_settings, find_kind, run_front

REPORT, LLAMA_SERVER = "LLAMACTL_TEST_REPORT", "LLAMACTL_TEST_LLAMA_SERVER"
OF_THEIR_MODELS = ("re_content", "n_prompt", "n_tokens")
START_S = 15.0


class Anything:
    """Equals whatever it is compared with."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


class Servers:
    """Starts and stops in the place of their utils.ServerProcess."""

    def __init__(self, utils: Any, directory: Path) -> None:
        self._models = Models(directory)
        self._program = os.environ.get(LLAMA_SERVER, "")
        self._forks = None if self._program else Forks()
        self._start_theirs = utils.ServerProcess.start
        self._stop_theirs = utils.ServerProcess.stop
        self._running: dict[int, contextlib.ExitStack] = {}
        self._request = utils.ServerProcess.make_request
        utils.ServerProcess.make_request = lambda server, *args, **more: self.request(server, *args, **more)
        utils.ServerProcess.start = lambda server, timeout_seconds=START_S: self.start(server)
        utils.ServerProcess.stop = lambda server: self.stop(server)

    def start(self, server: Any) -> None:
        kind = find_kind(server)
        if self._forks is None:
            self._start_program(server, kind)
        else:
            running = self._running[id(server)] = contextlib.ExitStack()
            if kind != ROUTER:
                server.server_port = running.enter_context(self._forks.run(choose_settings(server, self._models)))
            if kind == "sees":
                server.media_marker = self._request(server, "GET", "/props").body["media_marker"]

    def request(self, server: Any, method: str, path: str, data: Any = None, *args: Any, **more: Any) -> Any:
        """As they ask it, with what options of llama-server do that are fields of requests here."""
        if self._forks is not None:
            if method == "OPTIONS":
                return self._ask_front(server, method, path, data, *args, **more)
            if server.debug and path.endswith("completions"):
                data = {**data, "verbose": True}
            if data is not None and getattr(server, "media_marker", None):
                data = json.loads(json.dumps(data).replace("<__media__>", server.media_marker))
        response = self._request(server, method, path, data, *args, **more)
        response.headers = CaseInsensitiveDict(response.headers)
        return response

    def _ask_front(self, server: Any, *args: Any, **more: Any) -> Any:
        """What browsers may do is the front's affair."""
        origins = (server.cors_origins or ("localhost" if server.server_tools else "*")).split(",")
        with run_front(FrontSettings(cors_origins=tuple(origins))) as port:
            server.server_port = port
            return self._request(server, *args, **more)

    def _start_program(self, server: Any, kind: str) -> None:
        server.server_port, server.server_path = choose_port(), self._program
        if kind != ROUTER:
            server.model_file = str(self._models.acquire(kind))
            server.n_threads = server.n_threads or 1
            if kind == "sees":
                os.environ["LLAMA_ARG_MMPROJ"] = str(self._models.acquire_projector())
        server.model_hf_repo = server.model_hf_file = None
        self._start_theirs(server, START_S)

    def stop(self, server: Any) -> None:
        if self._forks is None:
            self._stop_theirs(server)
            os.environ.pop("LLAMA_ARG_MMPROJ", None)
        elif id(server) in self._running:
            self._running.pop(id(server)).close()

    def stop_all(self, utils: Any) -> None:
        for server in list(utils.server_instances):
            self._stop_theirs(server)
        while self._running:
            self._running.popitem()[1].close()

    def close(self) -> None:
        if self._forks is not None:
            self._forks.close()


class Plugin:
    def __init__(self, utils: Any, directory: Path) -> None:
        self._utils = utils
        self._expected = read_expected()
        self._servers = Servers(utils, directory)
        self._is_any_text = False
        self._match, utils.match_regex = utils.match_regex, self.match_regex
        self._report = open(os.environ[REPORT], "w", buffering=1)  # noqa: SIM115 (open as long as the session)

    def match_regex(self, regex: Any, text: str) -> bool:
        return (self._is_any_text and bool(text)) or isinstance(regex, Anything) or bool(self._match(regex, text))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        wanted = []
        for item in items:
            reason = self._expected.find_reason(item.nodeid)
            if item.get_closest_marker("slow"):
                reason = "a model of gigabytes"
            if reason:
                self._tell(item.nodeid, "left out", reason)
                continue
            wanted.append(item)
            self._loosen(item)
        items[:] = wanted

    def _loosen(self, item: pytest.Item) -> None:
        callspec = getattr(item, "callspec", None)
        if callspec is None or self._is_strict(item):
            return
        for name in OF_THEIR_MODELS:
            if name in callspec.params:
                callspec.params[name] = Anything()

    def _is_strict(self, item: pytest.Item) -> bool:
        return any(word in item.nodeid for word in ("grammar", "schema", "response_format"))

    @pytest.fixture(autouse=True)
    def stop_servers(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self._is_any_text = self._expected.takes_any_text(request.node.nodeid)
        monkeypatch.setattr(self._utils.requests, "get", self._get)
        yield
        self._servers.stop_all(self._utils)

    def _get(self, url: str, *args: Any, **options: Any) -> Any:
        """Pictures are made here."""
        if url.endswith(".png"):
            size = 40 + len(url) % 8  # another one for each name
            return SimpleNamespace(content=write_png(size, size, slope), raise_for_status=lambda: None)
        return self._utils.requests.api.get(url, *args, **options)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed or (report.when == "setup" and report.skipped):
            self._tell(report.nodeid, report.outcome, report.longreprtext)

    def _tell(self, test: str, outcome: str, why: str) -> None:
        print(json.dumps({"test": test, "outcome": outcome, "why": why}), file=self._report)

    def pytest_sessionfinish(self) -> None:
        self._servers.close()


def pytest_configure(config: pytest.Config) -> None:
    sys.modules["wget"] = ModuleType("wget")
    sys.path.insert(0, os.getcwd())
    utils = importlib.import_module("utils")  # theirs
    directory = tempfile.TemporaryDirectory()
    config.add_cleanup(directory.cleanup)
    config.pluginmanager.register(Plugin(utils, Path(directory.name)))
