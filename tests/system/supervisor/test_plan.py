"""`llamactl plan`, pins, keep-alive and the limits of the queue, with real models."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.system.harness import Llamactl, run
from tests.system.supervisor.test_room import CTX, hold, limit_count, limit_memory


@pytest.fixture
def three(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    """A running llamactl with the models `a`, `b` and `c`, any number of which may run."""
    llamactl.write_models(**{name: {"path": str(path), "ctx": CTX, "parallel": 1} for name, path in tiny.items()})
    llamactl.write_settings()
    llamactl.start()
    return llamactl


def test_plan_foretells_the_eviction_and_does_nothing(three: Llamactl) -> None:
    limit_memory(three, 1.5)
    three.cli("load", "a")
    plan = three.cli_json("plan", "b")
    assert (plan["outcome"], plan["victims"]) == ("evict", ["a"])
    text = three.cli("plan", "b").stdout
    assert text.startswith("b: it would be loaded after 'a' would have been unloaded\n")
    assert "least recently used" in text
    assert list(three.list_loaded()) == ["a"]
    assert three.chat("b").status == 200
    assert list(three.list_loaded()) == ["b"]
    real = three.read_events("load_planned", LLAMACTL_MODEL="b")[0]
    assert real["LLAMACTL_OUTCOME"] == "evict"
    assert int(real["LLAMACTL_NEEDS_HOST_BYTES"]) == plan["devices"][0]["needs"]
    three.cli("plan", "nothing", status=4)


def test_plan_says_whom_a_load_would_wait_for(three: Llamactl) -> None:
    limit_count(three, 1)
    stream, _ = hold(three, "a")
    with stream:
        plan = three.cli_json("plan", "b")
        assert (plan["outcome"], plan["waiting_for"]) == ("wait", ["a"])
        assert {one["model"]: one["why"] for one in plan["instances"]} == {"a": "serves a request"}


def test_pin_by_command_refuses_others_and_survives_the_supervisor(three: Llamactl) -> None:
    limit_count(three, 1)
    three.cli("load", "a")
    three.cli("pin", "a")
    answer = three.chat("b")
    assert (answer.status, "'a'" in answer.error["message"]) == (409, True)
    assert "it would be refused" in three.cli("plan", "b", status=5).stdout
    pid = three.show_pid("llamactl-model@a.service")
    run("systemctl", "restart", "llamactl.service")
    three.wait_event("instances_recovered")
    assert three.show_pid("llamactl-model@a.service") == pid
    assert three.list_models()["a"]["pinned"]
    assert three.chat("b").status == 409
    three.cli("unpin", "a")
    assert three.chat("b").status == 200
    three.cli("pin", "a", status=3)


def test_keep_alive_of_a_request_unloads_its_model(three: Llamactl) -> None:
    assert three.chat("a", keep_alive=-1).status == 200
    assert three.chat("b", keep_alive="10m").status == 200
    assert three.chat("c", keep_alive=0).status == 200
    unloaded = three.wait_event("model_unloaded", LLAMACTL_MODEL="c")
    assert unloaded["LLAMACTL_REASON"] == "idle timeout"
    kept = {name: model["keep_alive_s"] for name, model in three.list_loaded().items()}
    assert kept == {"a": -1.0, "b": 600.0}
    assert three.chat("a", keep_alive="soon").status == 400


def test_a_request_that_has_waited_too_long_gets_504(three: Llamactl) -> None:
    three.cli("load", "a")
    three.write_settings(max_loaded=1, queue_timeout="1s")
    three.cli("reload")
    stream, _ = hold(three, "a")
    with stream:
        answer = three.chat("b")
        assert answer.status == 504
        assert "queue_timeout" in answer.error["message"]


def test_more_than_may_wait_get_429_with_a_time(three: Llamactl) -> None:
    three.write_settings(max_loaded=1, max_queue=1)
    three.cli("reload")
    stream, _ = hold(three, "a")
    with ThreadPoolExecutor() as pool:
        with stream:
            first = pool.submit(three.chat, "b")
            three.wait_event("load_waits", LLAMACTL_MODEL="b")
            second = three.chat("b")
            assert second.status == 429
            assert int(second.headers["retry-after"]) > 0
        assert first.result(60).status == 200
