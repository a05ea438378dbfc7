"""What does a user lose when a process is killed?

The instance: the answers that it was giving. The front: the connections that are open. The supervisor: nothing.
"""

import json
import os
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.http_errors import check_error
from tests.system import journal
from tests.system.client import count_tokens
from tests.system.harness import PATHS, STARTED, STARTING, Llamactl, kill_hard, run, show

LONG = 2000
SPEC = {"ctx": 4096, "parallel": 1}


@pytest.fixture
def two(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    """A running llamactl with `a` loaded and `b` not, one at a time."""
    llamactl.write_models(a={"path": str(tiny["a"]), **SPEC}, b={"path": str(tiny["b"]), **SPEC})
    llamactl.write_settings(max_loaded=1)
    llamactl.start()
    llamactl.cli("load", "a")
    return llamactl


def kill_service(llamactl: Llamactl, unit: str) -> None:
    """Kill a service's main process, and wait until systemd has started it again."""
    cursor = journal.acquire_cursor()
    kill_hard(llamactl.show_pid(unit))
    journal.wait_entry(cursor, MESSAGE_ID=STARTED, UNIT=unit)


# --- the instance ---


def test_killed_instance_ends_its_stream_with_an_error_event(two: Llamactl) -> None:
    with two.stream("a", max_tokens=LONG) as stream:
        stream.read_event()
        kill_hard(two.list_loaded()["a"]["pid"])
        events = stream.read_rest()
    assert "[DONE]" not in events
    error = json.loads(events[-1])["error"]
    check_error(error, "/v1/chat/completions", 502)
    assert "a" in error["message"]


def test_request_after_a_killed_instance_gets_a_new_one(two: Llamactl) -> None:
    before = two.list_loaded()["a"]["pid"]
    kill_hard(before)
    assert two.chat("a").status == 200
    assert two.list_loaded()["a"]["pid"] != before


def test_killed_instance_is_listed_with_its_signal(two: Llamactl) -> None:
    kill_hard(two.list_loaded()["a"]["pid"])
    two.wait_event("instance_crashed", LLAMACTL_MODEL="a")
    failure = two.list_models()["a"]["failure"]
    assert failure["result"] == "signal"
    assert failure["exit_code"] == 9
    assert failure["message"].startswith("was killed with SIGKILL")
    assert two.list_loaded() == {}


def test_reason_of_a_crash_is_what_this_run_said_without_frames(two: Llamactl) -> None:
    two.write_drop_in("llamactl-model@b.service", "[Service]\nExecStartPre=/bin/echo run-${INVOCATION_ID}\n")
    runs = []
    for _ in range(2):
        two.cli("load", "b")
        cursor = journal.acquire_cursor()
        runs.append(show("llamactl-model@b.service", "InvocationID"))
        os.kill(two.list_loaded()["b"]["pid"], signal.SIGBUS)
        journal.wait_entry(cursor, LLAMACTL_EVENT="instance_crashed", LLAMACTL_MODEL="b")
    message = two.list_models()["b"]["failure"]["message"]
    assert message.startswith("crashed with SIGBUS: its model file was shortened or could not be read")
    assert f"run-{runs[1]}" in message
    assert runs[0] not in message
    for word in ("File ", "Thread", "Extension modules"):
        assert word not in message


# --- the front ---


def test_killed_front_is_back_for_the_next_connection(two: Llamactl) -> None:
    before = two.show_pid("llamactl-front.service")
    instance = two.list_loaded()["a"]["pid"]
    kill_hard(before)
    assert two.chat("a").status == 200, "the listening socket is systemd's and queues"
    assert two.show_pid("llamactl-front.service") != before
    assert two.list_loaded()["a"]["pid"] == instance, "a front's death costs no model"


def test_killed_front_leaves_no_model_busy(two: Llamactl) -> None:
    with two.stream("a", max_tokens=LONG) as stream:
        stream.read_event()
        kill_hard(two.show_pid("llamactl-front.service"))
        assert "[DONE]" not in stream.read_rest()
    assert two.chat("b").status == 200, "leases of a dead front are returned"
    assert list(two.list_loaded()) == ["b"]


# --- the supervisor ---


def test_killed_supervisor_cuts_no_stream_and_finds_its_models(two: Llamactl) -> None:
    instance = two.list_loaded()["a"]["pid"]
    with two.stream("a", max_tokens=LONG) as stream:
        first = stream.read_event()
        kill_service(two, "llamactl.service")
        two.wait_event("instance_adopted", LLAMACTL_MODEL="a")
        found = two.list_loaded()["a"]
        events = [first, *stream.read_rest()]
    assert count_tokens(events) == LONG
    assert found["pid"] == instance
    assert found["state"] == "ready"
    assert show("llamactl-model@a.service", "MainPID") == str(instance)


def test_command_right_after_the_supervisor_was_killed_has_its_answer(two: Llamactl) -> None:
    before = two.list_loaded()["a"]
    kill_hard(two.show_pid("llamactl.service"))
    after = two.list_loaded()["a"]
    assert (after["state"], after["pid"]) == ("ready", before["pid"])
    assert after["uptime_s"] >= before["uptime_s"]
    assert after["idle_s"] is not None


def test_loaded_model_serves_while_the_supervisor_is_down(two: Llamactl) -> None:
    assert two.chat("a").status == 200, "the front holds the lease from here on"
    two.write_drop_in("llamactl.service", "[Service]\nRestart=no\n")
    kill_hard(two.show_pid("llamactl.service"))
    assert two.chat("a").status == 200
    assert two.get("/health").status == 200
    two.cli("ps", status=6)
    two.start()
    two.wait_event("instance_adopted", LLAMACTL_MODEL="a")
    assert two.list_loaded()["a"]["state"] == "ready"


def test_model_that_is_busy_during_a_restart_stays_busy(two: Llamactl) -> None:
    with two.stream("a", max_tokens=LONG) as stream, ThreadPoolExecutor() as pool:
        first = stream.read_event()
        kill_service(two, "llamactl.service")
        second = pool.submit(two.chat, "b")
        two.wait_event("load_waits", LLAMACTL_MODEL="b")
        assert two.list_models()["b"]["pid"] == 0
        assert count_tokens([first, *stream.read_rest()]) == LONG
        assert second.result(60).status == 200
    assert list(two.list_loaded()) == ["b"]


def test_restarted_supervisor_goes_on_with_a_load_that_a_request_waits_for(two: Llamactl) -> None:
    with two.hold_load("b") as go_on, ThreadPoolExecutor() as pool:
        answer = pool.submit(two.chat, "b")
        journal.wait_entry(two.cursor, MESSAGE_ID=STARTING, UNIT="llamactl-model@b.service")
        invocation = show("llamactl-model@b.service", "InvocationID")
        run("systemctl", "restart", "llamactl.service")
        go_on()
        assert answer.result(60).status == 200
    assert show("llamactl-model@b.service", "InvocationID") == invocation
    assert two.read_events("load_cancelled") == []
    assert two.read_events("stop_failed") == []


def test_new_supervisor_measures_nothing_again(two: Llamactl) -> None:
    two.cli("measure", "b")
    cursor = journal.acquire_cursor()
    kill_service(two, "llamactl.service")
    cached = journal.wait_entry(cursor, LLAMACTL_EVENT="model_measured", LLAMACTL_MODEL="b")
    assert cached["LLAMACTL_CACHED"] == "true"
    assert journal.read_entries(cursor, UNIT="llamactl-measure@b.service", MESSAGE_ID=STARTING) == []


def test_request_without_supervisor_is_refused_in_time(two: Llamactl) -> None:
    two.write_drop_in("llamactl.service", "[Service]\nRestart=no\n")
    kill_hard(two.show_pid("llamactl.service"))
    answer = two.chat("b")
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) > 0


def test_junk_on_the_sockets_harms_nobody(two: Llamactl) -> None:
    for path in (PATHS.control_socket, PATHS.report_socket):
        for junk in (b"\x00\xff\n", b'{"type": "nonsense"}\n', b"[" * 100_000 + b"\n", b"x" * (2 << 20)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(20)
                peer.connect(str(path))
                try:
                    peer.sendall(junk)
                    while peer.recv(65536):
                        pass
                except (BrokenPipeError, ConnectionResetError):
                    pass
    assert two.list_loaded()["a"]["state"] == "ready"
    assert two.chat("a").status == 200


def test_supervisor_comes_back_when_what_kept_it_from_starting_is_gone(llamactl: Llamactl) -> None:
    in_the_way = PATHS.control_socket.parent
    shutil.rmtree(in_the_way, ignore_errors=True)
    in_the_way.write_text("no directory")
    try:
        assert run("systemctl", "start", "llamactl.service", check=False).returncode != 0
        for _ in range(3):
            llamactl.wait_event("supervisor_not_started")
            llamactl.cursor = journal.acquire_cursor()
    finally:
        in_the_way.unlink()
    llamactl.wait_event("supervisor_started")
    assert show("llamactl.service", "StartLimitIntervalUSec") == "0"
