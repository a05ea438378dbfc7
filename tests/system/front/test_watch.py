"""Do `GET /models/sse`, `GET /metrics` and the access log tell what really happens?"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.system.client import Stream, open_request
from tests.system.harness import Llamactl


@pytest.fixture
def front(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    llamactl.write_settings(max_loaded=1)
    llamactl.write_models(
        a={"path": str(tiny["a"]), "ctx": 1024, "aliases": ["first"]}, b={"path": str(tiny["b"]), "ctx": 1024}
    )
    llamactl.start()
    return llamactl


def watch(front: Llamactl) -> Iterator[tuple[str, str, Any]]:
    connection = front.connect()
    open_request(connection, "GET", "/models/sse")
    with Stream(connection) as stream:
        for line in stream:
            event = json.loads(line)
            yield event["model"], event["event"], event["data"]


def scrape(front: Llamactl, query: str = "") -> dict[str, dict[tuple[str, ...], float]]:
    """Values by name and, in the order of the labels' names, their values."""
    answer = front.get("/metrics" + query)
    assert answer.status == 200
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_life_of_a_model_is_told_as_it_happens(front: Llamactl) -> None:
    events = watch(front)
    model, event, data = next(events)
    assert (model, event, [listed["id"] for listed in data["models"]]) == ("*", "snapshot", ["a", "b"])
    front.cli("load", "a")
    told = []
    while ("model_memory", "a") not in told or "loaded" not in told:
        model, event, data = next(events)
        if event == "model_memory" and data["memory"]["effective"]:
            told.append((event, model))
        elif event == "status_change" and model == "a":
            told.append(data["status"])
            if data["status"] == "loading":
                assert data["progress"]["current"] in data["progress"]["stages"]
            else:
                assert data["info"]["meta"]["n_ctx_train"] == 8192
    statuses = [status for status in told if isinstance(status, str)]
    assert statuses[0] == "loading"
    assert statuses[-1] == "loaded"
    front.cli("unload", "a")
    while True:
        model, event, data = next(events)
        if (model, event, data.get("status")) == ("a", "model_status", "unloaded"):
            break
    front.write_models(b={"path": front.list_models()["b"]["path"]})
    front.cli("reload")
    rest = [next(events)[:2]]
    while ("a", "model_remove") not in rest:
        rest.append(next(events)[:2])
    assert ("*", "models_reload") in rest


def test_model_that_is_unloaded_at_once_is_told_of_in_each_state(front: Llamactl) -> None:
    events = watch(front)
    next(events)
    for _ in range(2):
        body = {"model": "a", "prompt": "x", "max_tokens": 1, "keep_alive": 0}
        assert front.post("/v1/completions", body).status == 200
        told = []
        while "unloaded" not in told:
            model, event, data = next(events)
            if (model, event) == ("a", "model_status") and told[-1:] != [data["status"]]:
                told.append(data["status"])
        assert told == ["loading", "loaded", "unloaded"]
        assert data["exit_code"] == 0


def test_metrics_tell_requests_tokens_loads_and_evictions_and_scraping_loads_nothing(front: Llamactl) -> None:
    before = scrape(front, "?instances=1")
    assert before["llamactl_model_state"][("a", "unloaded")] == 1
    assert front.list_loaded() == {}
    assert front.chat("first", max_tokens=5, ignore_eos=True).status == 200
    assert front.chat("b", max_tokens=5, ignore_eos=True).status == 200  # there is room for one: "a" goes
    assert front.chat("nobody").status == 404
    values = scrape(front, "?instances=1")
    assert values["llamactl_requests_total"][("a", "200")] == 1
    assert values["llamactl_requests_total"][("b", "200")] == 1
    assert values["llamactl_requests_total"][("", "404")] == 1
    assert values["llamactl_completion_tokens_total"][("a",)] == 5
    assert values["llamactl_prompt_tokens_total"][("a",)] > 0
    assert values["llamactl_queue_wait_seconds_count"][("a",)] == 1
    assert values["llamactl_loads_total"] == {("a",): 1, ("b",): 1}
    assert values["llamactl_unloads_total"][("a", "evicted")] == 1
    assert values["llamactl_model_state"][("b", "ready")] == 1
    assert values["llamactl_device_held_bytes"][("Host",)] > 0
    assert values["llamactl_instance_scraped"] == {("b",): 1}
    assert [name for name, found in values.items() if name.startswith("llamacpp:") and ("b",) in found]


def test_each_request_is_a_line_in_the_fronts_journal(front: Llamactl) -> None:
    answer = front.chat("first", max_tokens=5, ignore_eos=True)
    entry = front.wait_event("request_answered", LLAMACTL_MODEL="a")
    assert entry["LLAMACTL_REQUEST_ID"] == answer.headers["x-request-id"]
    assert entry["_SYSTEMD_UNIT"] == "llamactl-front.service"
    assert (entry["LLAMACTL_STATUS"], entry["LLAMACTL_COMPLETION_TOKENS"]) == ("200", "5")
    assert float(entry["LLAMACTL_WAITED_S"]) > 0
    front.write_settings(access_log="off")
    front.cli("reload")
    quiet = front.chat("first", max_tokens=5, ignore_eos=True)
    front.write_settings(access_log="info")
    front.cli("reload")
    loud = front.chat("first", max_tokens=5, ignore_eos=True)
    front.wait_event("request_answered", LLAMACTL_REQUEST_ID=loud.headers["x-request-id"])
    ids = [entry["LLAMACTL_REQUEST_ID"] for entry in front.read_events("request_answered")]
    assert loud.headers["x-request-id"] in ids
    assert quiet.headers["x-request-id"] not in ids


def test_lines_of_requests_that_come_together_are_entries_of_their_own_in_order(front: Llamactl) -> None:
    connection = front.connect()
    for number in range(250):
        connection.request("GET", f"/nothing/{number}", headers={"X-Request-Id": f"id-{number}"})
        connection.getresponse().read()
    connection.close()
    front.wait_event("request_answered", LLAMACTL_REQUEST_ID="id-249")
    entries = front.read_events("request_answered")
    assert [entry["LLAMACTL_PATH"] for entry in entries] == [f"/nothing/{number}" for number in range(250)]
    assert {(entry["LLAMACTL_STATUS"], entry["PRIORITY"], entry["_SYSTEMD_UNIT"]) for entry in entries} == {
        ("404", "6", "llamactl-front.service")
    }
    assert {entry["MESSAGE"].partition(" path=")[0] for entry in entries} == {"request answered: method=GET"}
