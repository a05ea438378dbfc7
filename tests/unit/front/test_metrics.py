"""What a scrape says, read back by Prometheus' own parser."""

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from llamactl.front.http.access import RequestRecord
from llamactl.front.metrics import Snapshot, render
from llamactl.front.tally import Tally
from llamactl.protocol.control_socket import MachineStatus
from llamactl.protocol.descriptions import DeviceStatus, ModelCounters, ModelStatus
from llamactl.protocol.values import State

MACHINE = MachineStatus(
    corrections=4,
    id=1,
    llamactl="1",
    pid=1,
    since_s=0,
    now_s=1,
    loaded=1,
    max_loaded=0,
    devices=(
        DeviceStatus(
            name="CUDA0", description="d", total=100, external=20, held=30, available=50, margin=10, holders={"a": 30}
        ),
    ),
    counters={"a": ModelCounters(loads=2, load_seconds=3.5, crashes=1, unloads={"evicted": 4, "idle timeout": 1})},
)
MODELS = (ModelStatus(name="a", state=State.READY, aliases=("gpt",)), ModelStatus(name="b", state=State.UNLOADED))


def read(snapshot: Snapshot) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, content_type = render(snapshot, "")
    assert content_type.startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def key(name: str, **labels: str) -> Any:
    return (name, tuple(sorted(labels.items())))


def count_requests() -> Tally:
    tally = Tally()
    for status, first_byte_s in ((200, 0.3), (200, 0.02), (500, 0.0)):
        record = RequestRecord(b"POST", b"/", b"i", b"", 0.0)
        record.model, record.status, record.first_byte_s = "a", status, first_byte_s
        record.prompt_tokens, record.completion_tokens, record.sent_bytes = 5, 7, 11
        record.ended_s = 1.0
        tally.count(record)
    return tally


def test_requests_are_told() -> None:
    values = read(Snapshot(tally=count_requests(), connections=3))
    assert values[key("llamactl_requests_total", model="a", status="200")] == 2
    assert values[key("llamactl_requests_total", model="a", status="500")] == 1
    assert values[key("llamactl_prompt_tokens_total", model="a")] == 15
    assert values[key("llamactl_completion_tokens_total", model="a")] == 21
    assert values[key("llamactl_response_bytes_total", model="a")] == 33
    assert values[key("llamactl_time_to_first_byte_seconds_count", model="a")] == 2
    assert values[key("llamactl_time_to_first_byte_seconds_sum", model="a")] == pytest.approx(0.32)
    assert values[key("llamactl_time_to_first_byte_seconds_bucket", model="a", le="0.05")] == 1
    assert values[key("llamactl_time_to_first_byte_seconds_bucket", model="a", le="0.5")] == 2
    assert values[key("llamactl_request_seconds_count", model="a")] == 3
    assert values[key("llamactl_connections")] == 3


def test_supervisor_tells_models_and_devices() -> None:
    values = read(Snapshot(tally=Tally(), machine=MACHINE, models=MODELS))
    assert values[key("llamactl_supervisor_up")] == 1
    assert values[key("llamactl_model_state", model="a", state="ready")] == 1
    assert values[key("llamactl_model_state", model="a", state="unloaded")] == 0
    assert sum(value for (name, _), value in values.items() if name == "llamactl_model_state") == 2
    assert values[key("llamactl_loads_total", model="a")] == 2
    assert values[key("llamactl_load_seconds_total", model="a")] == 3.5
    assert values[key("llamactl_crashes_total", model="a")] == 1
    assert values[key("llamactl_state_corrections_total")] == MACHINE.corrections == 4
    assert values[key("llamactl_unloads_total", model="a", reason="evicted")] == 4
    found = {what: values[key(f"llamactl_device_{what}_bytes", device="CUDA0")] for what in ("total", "held", "margin")}
    assert found == {"total": 100, "held": 30, "margin": 10}
    assert values[key("llamactl_device_external_bytes", device="CUDA0")] == 20
    assert values[key("llamactl_device_available_bytes", device="CUDA0")] == 50


def test_without_a_supervisor_the_fronts_own_is_told() -> None:
    values = read(Snapshot(tally=count_requests(), in_flight={"a": 2}))
    assert values[key("llamactl_supervisor_up")] == 0
    assert values[key("llamactl_requests_in_flight", model="a")] == 2
    assert not [name for name, _ in values if name.startswith(("llamactl_model_state", "llamactl_device"))]


def test_queue_counts_aliases_as_their_model_and_nonsense_as_nobody() -> None:
    queued = {"a": 1, "gpt": 2, "x" * 50: 3, "y": 4}
    values = read(Snapshot(tally=Tally(), machine=MACHINE, models=MODELS, queued=queued, in_flight={"a": 1}))
    assert values[key("llamactl_queue_length", model="a")] == 3
    assert values[key("llamactl_queue_length", model="b")] == 0
    assert values[key("llamactl_queue_length", model="")] == 7
    assert values[key("llamactl_requests_in_flight", model="b")] == 0


INSTANCE = b"""# HELP llamacpp:tokens_total Tokens.
# TYPE llamacpp:tokens_total counter
llamacpp:tokens_total %d
# TYPE slots gauge
slots{state="busy"} 1
"""


def test_instances_are_merged_family_by_family() -> None:
    instances = {"a": INSTANCE % 5, "b": INSTANCE % 6, "c": None, "d": b"{nonsense", "e": b"\xff"}
    snapshot = Snapshot(tally=Tally(), machine=MACHINE, models=MODELS, instances=instances)
    values = read(snapshot)
    assert values[key("llamacpp:tokens_total", model="a")] == 5
    assert values[key("llamacpp:tokens_total", model="b")] == 6
    assert values[key("slots", model="b", state="busy")] == 1
    scraped = {name: values[key("llamactl_instance_scraped", model=name)] for name in instances}
    assert scraped == {"a": 1, "b": 1, "c": 0, "d": 0, "e": 0}
    body = render(snapshot, "")[0]
    assert body.count(b"# TYPE llamacpp:tokens_total counter") == 1


def test_openmetrics_is_spoken_to_those_who_ask_for_it() -> None:
    body, content_type = render(Snapshot(tally=count_requests()), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(body.decode())} >= {"llamactl_requests", "llamactl_connections"}
