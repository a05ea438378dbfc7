"""Models that sleep: what they hold meanwhile, what wakes them and what does not, with real models."""

from pathlib import Path

import pytest

from tests.system.harness import Llamactl, run
from tests.system.supervisor.test_room import CTX, hold


@pytest.fixture
def sleepy(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    """A running llamactl whose model `a` sleeps after a second; `b` and `c` do not."""
    models = {name: {"path": str(path), "ctx": CTX, "parallel": 1} for name, path in tiny.items()}
    models["a"]["sleep_after"] = "1s"
    llamactl.write_models(**models)
    llamactl.write_settings()
    llamactl.start()
    return llamactl


def put_to_sleep(llamactl: Llamactl) -> int:
    """The process of `a`, which sleeps."""
    assert llamactl.chat("a").status == 200
    llamactl.wait_event("instance_asleep", LLAMACTL_MODEL="a")
    assert llamactl.list_models()["a"]["state"] == "sleeping"
    return llamactl.show_pid("llamactl-model@a.service")


def find_held(llamactl: Llamactl) -> dict[str, int]:
    accounts = {account["name"]: account["holders"] for account in llamactl.cli_json("status")["devices"]}
    return accounts.get("Host", {})


def test_an_idle_model_sleeps_holds_nothing_and_wakes_in_the_same_process(sleepy: Llamactl) -> None:
    pid = put_to_sleep(sleepy)
    assert find_held(sleepy).get("a", 0) == 0
    assert sleepy.cli_json("plan", "a")["outcome"] == "fits"
    assert sleepy.chat("a").status == 200
    assert sleepy.show_pid("llamactl-model@a.service") == pid
    assert len(sleepy.read_events("instance_woken", LLAMACTL_MODEL="a")) == 1
    assert find_held(sleepy)["a"] > 0


def test_looking_wakes_nobody(sleepy: Llamactl) -> None:
    put_to_sleep(sleepy)
    before = sleepy.list_models()["a"]["idle_s"]
    for path in ("/metrics?instances=1", "/health", "/v1/models", "/props?model=a", "/metrics?model=a"):
        sleepy.get(path)
    assert sleepy.list_models()["a"]["state"] == "sleeping"
    assert sleepy.list_models()["a"]["idle_s"] > before
    assert not sleepy.read_events("instance_woken")


def test_a_sleeping_model_says_how_it_was(sleepy: Llamactl) -> None:
    put_to_sleep(sleepy)
    props, metrics = sleepy.get("/props?model=a"), sleepy.get("/metrics?model=a")
    assert (props.status, props.json()["is_sleeping"]) == (200, True)
    assert metrics.status == 200
    assert b"llamacpp:tokens_predicted_total" in metrics.body
    assert sleepy.get("/props?model=b").status == 503
    assert sleepy.list_models()["a"]["state"] == "sleeping"
    assert sleepy.chat("a").status == 200
    assert sleepy.get("/props?model=a").json()["is_sleeping"] is False
    assert sleepy.get("/props").json()["build_info"] == props.json()["build_info"]


def test_waking_waits_for_room_like_a_load(sleepy: Llamactl) -> None:
    needed = max(sleepy.measure_bytes(name) for name in "abc")
    sleepy.write_settings(host_budget=int(needed * 1.5))
    sleepy.cli("reload")
    put_to_sleep(sleepy)
    assert sleepy.chat("b").status == 200
    assert sorted(sleepy.list_loaded()) == ["a", "b"]
    assert sleepy.chat("a").status == 200
    assert list(sleepy.list_loaded()) == ["a"]
    assert sleepy.read_events("victim_chosen")[-1]["LLAMACTL_MODEL"] == "b"


def test_a_sleeping_model_counts_towards_max_loaded(sleepy: Llamactl) -> None:
    sleepy.write_settings(max_loaded=1)
    sleepy.cli("reload")
    put_to_sleep(sleepy)
    assert sleepy.chat("b").status == 200
    assert list(sleepy.list_loaded()) == ["b"]


def test_a_new_supervisor_finds_it_asleep_and_can_wake_it(sleepy: Llamactl) -> None:
    pid = put_to_sleep(sleepy)
    run("systemctl", "kill", "--signal=KILL", "llamactl.service")
    sleepy.wait_event("instances_recovered")
    assert sleepy.list_models()["a"]["state"] == "sleeping"
    assert sleepy.chat("a").status == 200
    assert sleepy.show_pid("llamactl-model@a.service") == pid


def test_a_busy_model_stays_awake(sleepy: Llamactl) -> None:
    stream, events = hold(sleepy, "a")
    with stream:
        sleepy.cli("load", "b")
        events += stream.read_rest()
    assert len(events) > 1
    assert not [entry for entry in sleepy.read_events("instance_asleep") if entry["LLAMACTL_MODEL"] == "b"]
