"""The races in which other routers evict the wrong model, load one twice, or lose a request."""

import http.client
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.system import client, journal
from tests.system.client import UnixConnection, count_tokens
from tests.system.harness import PATHS, Llamactl
from tests.system.supervisor.test_room import CTX, LONG, hold, limit_count

STOPPING = "de5b426a63be47a7b6ac3eaac82e2f6f"
"""systemd's message ID for "a stop job has begun"."""


@pytest.fixture
def three(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    llamactl.write_models(**{name: {"path": str(path), "ctx": CTX} for name, path in tiny.items()})
    llamactl.write_settings()
    llamactl.start()
    return llamactl


def send_chat(llamactl: Llamactl, model: str, **options: Any) -> http.client.HTTPConnection:
    """A request whose answer is not waited for. When this returns it has reached the supervisor: a later question of
    the same front has been answered.
    """
    connection = llamactl.connect()
    client.open_request(connection, "POST", "/v1/chat/completions", client.format_chat(model, **options))
    assert llamactl.get("/v1/models").status == 200
    return connection


def test_model_that_has_just_loaded_is_not_evicted_before_its_request(three: Llamactl) -> None:
    limit_count(three, 1)
    rounds = 5

    def ask(model: str) -> list[int]:
        return [three.chat(model, max_tokens=1).status for _ in range(rounds)]

    with ThreadPoolExecutor(3) as pool:  # each wants the one place for itself, again and again
        assert list(pool.map(ask, "abc")) == [[200] * rounds] * 3
    for model in "abc":
        # One that was evicted before its request would be loaded once more for it.
        assert 1 <= len(three.read_events("instance_ready", LLAMACTL_MODEL=model)) <= rounds


def test_ten_requests_for_a_cold_model_cause_one_load(three: Llamactl) -> None:
    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(lambda _: three.chat("a", max_tokens=1).status, range(10))) == [200] * 10
    assert len(three.read_events("instance_spawned", LLAMACTL_MODEL="a")) == 1


def test_queued_client_that_leaves_evicts_nobody(three: Llamactl) -> None:
    limit_count(three, 1)
    stream, events = hold(three, "a")
    with stream:
        queued = send_chat(three, "b")
        assert three.list_models()["b"]["queued"] == 1
        queued.close()
        assert three.get("/v1/models").status == 200
        assert three.list_models()["b"]["queued"] == 0
        assert count_tokens(events + stream.read_rest()) == LONG
    assert three.chat("a", max_tokens=1).status == 200
    assert list(three.list_loaded()) == ["a"]
    assert three.read_events("victim_chosen") == []
    assert three.read_events("instance_spawned", LLAMACTL_MODEL="b") == []


def test_request_that_arrives_while_its_model_is_stopping_is_served_by_the_next_instance(
    llamactl: Llamactl, tiny: dict[str, Path]
) -> None:
    llamactl.use_script("lingers")
    llamactl.write_models(lingers={"path": str(tiny["a"])})
    llamactl.start()
    assert llamactl.chat("lingers").status == 200
    first = llamactl.list_loaded()["lingers"]["generation"]
    cursor = journal.acquire_cursor()
    unload = llamactl.open_cli("unload", "lingers")
    journal.wait_entry(cursor, MESSAGE_ID=STOPPING, UNIT="llamactl-model@lingers.service")
    waiting = send_chat(llamactl, "lingers")
    status = llamactl.list_models()["lingers"]
    assert (status["state"], status["queued"]) == ("stopping", 1)
    release = UnixConnection(str(PATHS.instance_socket("lingers")))
    client.open_request(release, "POST", "/release")
    response = waiting.getresponse()
    assert response.status == 200
    assert b"scripted" in response.read()
    waiting.close()
    release.close()
    assert unload.wait(client.TIMEOUT_S) == 0
    unload.communicate()
    assert llamactl.list_loaded()["lingers"]["generation"] != first
    # it agrees to stop, and would hold the end of the test up
    last = UnixConnection(str(PATHS.instance_socket("lingers")))
    client.open_request(last, "POST", "/release")
    last.close()


def test_request_that_arrives_while_its_model_drains_is_served_by_the_next_instance(three: Llamactl) -> None:
    stream, events = hold(three, "a")
    with stream:
        first = three.list_loaded()["a"]["generation"]
        assert three.post("/models/unload", {"model": "a"}).status == 200  # it drains: its stream goes on
        with ThreadPoolExecutor(4) as pool:
            late = [pool.submit(three.chat, "a", max_tokens=1) for _ in range(4)]
            assert count_tokens(events + stream.read_rest()) == LONG
            assert [answer.result().status for answer in late] == [200] * 4
    assert three.list_loaded()["a"]["generation"] != first
