"""The front is replaced under a real systemd: nobody is refused, and nobody waits behind the longest stream."""

import contextlib
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system import journal
from tests.system.client import count_tokens
from tests.system.harness import TIMEOUT_S, Llamactl, kill_hard, run, show

FRONT = "llamactl-front.service"
TOKENS = 3000


@pytest.fixture
def loaded(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    """`a` is loaded, and nothing is logged for each request."""
    llamactl.write_settings(access_log="off")
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": 4096, "parallel": 4})
    llamactl.start()
    llamactl.cli("load", "a")
    assert llamactl.chat("a").status == 200
    return llamactl


def reload_front(llamactl: Llamactl) -> tuple[int, int]:
    """`systemctl reload`, until the new process has taken over. The old process and the new one."""
    old = llamactl.show_pid(FRONT)
    cursor = journal.acquire_cursor()
    run("systemctl", "reload", FRONT)
    entry = journal.wait_entry(cursor, LLAMACTL_EVENT="front_replaced")
    new = int(entry["LLAMACTL_SUCCESSOR"]) if "LLAMACTL_SUCCESSOR" in entry else 0
    return old, new


def wait_gone(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            assert select.select([pidfd], [], [], TIMEOUT_S)[0], f"process {pid} is still there"
        finally:
            os.close(pidfd)


@contextlib.contextmanager
def asking(llamactl: Llamactl, clients: int = 3) -> Iterator[list[int]]:
    """Clients that ask again and again, each on a new connection; the statuses they got."""
    statuses: list[int] = []
    done = threading.Event()
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            while not done.is_set():
                statuses.append(llamactl.chat("a", max_tokens=1).status)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        done.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
    assert errors == []
    assert statuses
    assert set(statuses) == {200}


def test_streams_go_on_beside_the_new_process_and_nobody_is_refused(loaded: Llamactl) -> None:
    with loaded.stream("a", max_tokens=TOKENS) as stream, asking(loaded) as statuses:
        assert stream.status == 200
        stream.read_event()
        old, new = reload_front(loaded)
        assert new
        assert loaded.show_pid(FRONT) == new != old
        count = len(statuses)
        assert loaded.chat("a").status == 200  # while the stream goes on
        old, newer = new, 0
        old, newer = reload_front(loaded)
        assert newer not in (0, new, old)
        assert loaded.chat("a").status == 200
        assert show(FRONT, "ActiveState") == "active"
        assert count_tokens(stream.read_rest()) == TOKENS
        assert len(statuses) >= count
    wait_gone(new)
    assert loaded.list_loaded()["a"]["busy"] == 0
    assert show(FRONT, "NRestarts") == "0"


def test_both_fronts_hold_a_lease_and_a_drain_waits_for_the_old_ones_stream(loaded: Llamactl) -> None:
    with loaded.stream("a", max_tokens=TOKENS) as stream:
        stream.read_event()
        reload_front(loaded)
        assert loaded.chat("a").status == 200  # the new front has a lease of its own
        unload = loaded.open_cli("unload", "a")
        assert count_tokens(stream.read_rest()) == TOKENS
        assert unload.wait(TIMEOUT_S) == 0
        unload.communicate()
    assert loaded.list_models()["a"]["state"] == "unloaded"


def test_front_that_is_killed_after_a_reload_is_started_again_at_once(loaded: Llamactl) -> None:
    with loaded.stream("a", max_tokens=TOKENS) as stream:
        stream.read_event()
        old, new = reload_front(loaded)
        cursor = journal.acquire_cursor()
        kill_hard(new)
        journal.wait_entry(cursor, LLAMACTL_EVENT="front_ready", timeout_s=10.0)
        assert loaded.chat("a").status == 200
        wait_gone(old)
        assert "[DONE]" not in stream.read_rest()


def test_stop_lets_the_streams_of_a_replaced_front_end(loaded: Llamactl) -> None:
    with loaded.stream("a", max_tokens=500) as stream:
        stream.read_event()
        reload_front(loaded)
        stop: Any = run(
            "systemctl", "stop", "--no-block", *["llamactl-front.socket", "llamactl-front-tcp.socket"], FRONT
        )
        assert stop.returncode == 0
        assert count_tokens(stream.read_rest()) == 500
