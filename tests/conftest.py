"""Where does each test run? Unit tests here; everything below `system/` as root under a real systemd.

Outside of a sandbox, the system tests of a run are handed to one pytest inside a sandbox (tests/relay.py). Inside of
one they are ordinary tests, so `scripts/sandbox enter` and `pytest tests/system -k ...` is the way to work on one.
"""

import signal
import sys
from pathlib import Path

import pytest

from tests import relay

SYSTEM = Path(__file__).parent / "system"
INNER_TIMEOUT_S = 120


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report-fd", type=int, default=None, help="internal: descriptor that takes serialised reports")
    parser.addoption("--smollm2", default="", help="path of SmolLM2-135M-Instruct; default: scripts/fetch-models' own")


def pytest_configure(config: pytest.Config) -> None:
    report_fd = config.getoption("report_fd")
    if report_fd is not None:
        config.pluginmanager.register(relay.Sender(config, report_fd), "relay-sender")
    elif not relay.is_sandbox():
        # Ended by SIGTERM, the run still takes its sandbox down.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        config.pluginmanager.register(relay.Receiver(config), "relay-receiver")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    inside = relay.is_sandbox()
    for item in items:
        if item.path.is_relative_to(SYSTEM):
            item.add_marker(pytest.mark.system)
            # Outside, the clock of a test that only waits for the sandbox's verdict would run out before the verdict.
            item.add_marker(pytest.mark.timeout(INNER_TIMEOUT_S if inside else 0))
    # Outside, the others run while those of the sandbox do.
    items.sort(key=lambda item: item.path.is_relative_to(SYSTEM))
