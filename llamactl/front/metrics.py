"""What does `GET /metrics` say, in Prometheus' text form?

Made at the scrape from plain counters of this front (`tally`), from its leases, and from what the supervisor says at
that moment; nothing here runs between scrapes. Without a supervisor its part is missing and `llamactl_supervisor_up`
is 0: a scrape neither waits for it nor fails. Instances' own metrics get a `model` label and are merged family by
family, because a family may stand only once in the text.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from llamactl import __version__
from llamactl.front.tally import Histogram, Tally
from llamactl.protocol.control_socket import MachineStatus
from llamactl.protocol.descriptions import DeviceStatus, ModelCounters, ModelStatus
from llamactl.protocol.values import State

MODEL = ["model"]
DEVICE = ["device"]

_DEVICE_GAUGES = (
    ("total", "Memory of the device; 0 while it is not known."),
    ("held", "Memory that our models are charged."),
    ("external", "Memory that other programs use."),
    ("available", "Memory that is neither held nor used by others."),
    ("margin", "Memory that is kept free."),
)


@dataclass(frozen=True)
class Snapshot:
    """One moment. `machine` None: no supervisor."""

    tally: Tally
    connections: int = 0
    in_flight: Mapping[str, int] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)
    """Requests that wait for a lease, by the name that they asked for."""
    machine: MachineStatus | None = None
    models: tuple[ModelStatus, ...] = ()
    instances: Mapping[str, bytes | None] = field(default_factory=dict)
    """What instances say of themselves, by model; None: nothing."""


class _Collector:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        yield _gauge("llamactl_front_info", "The front.", ["version"], [((__version__,), 1)])
        yield _gauge(
            "llamactl_supervisor_up", "Whether the supervisor answers.", [], [((), snapshot.machine is not None)]
        )
        yield _gauge("llamactl_connections", "Connections of clients.", [], [((), snapshot.connections)])
        yield from collect_requests(snapshot.tally)
        yield from collect_load(snapshot)
        if snapshot.machine is not None:
            yield from collect_models(snapshot.models)
            yield from collect_counters(snapshot.machine.counters)
            corrections = "Times that the supervisor knew something else of a unit than systemd."
            yield CounterMetricFamily("llamactl_state_corrections", corrections, value=snapshot.machine.corrections)
            yield from collect_devices(snapshot.machine.devices)
        yield from merge_instances(snapshot.instances)


def render(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    """The text and its content type; OpenMetrics for clients that accept it."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Collector(snapshot))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def collect_requests(tally: Tally) -> Iterator[Metric]:
    """What has been counted here. The model is empty for requests that the front answers itself."""
    models = tally.models.items()
    requests = CounterMetricFamily(
        "llamactl_requests",
        "Requests that have ended, by HTTP status (499: the client left).",
        labels=["model", "status"],
    )
    for name, counts in models:
        for status, number in counts.statuses.items():
            requests.add_metric([name, str(status)], number)
    yield requests
    for metric, attribute, text in (
        ("llamactl_requests_broken_off", "cut", "Answers that ended too soon."),
        ("llamactl_request_bytes", "received_bytes", "Bytes of request bodies."),
        ("llamactl_response_bytes", "sent_bytes", "Bytes of answers."),
        ("llamactl_prompt_tokens", "prompt_tokens", "Tokens of prompts, as answers tell them."),
        ("llamactl_completion_tokens", "completion_tokens", "Tokens generated, as answers tell them."),
    ):
        counter = CounterMetricFamily(metric, text, labels=MODEL)
        for name, counts in models:
            counter.add_metric([name], getattr(counts, attribute))
        yield counter
    for metric, attribute, text in (
        ("llamactl_queue_wait_seconds", "waited", "Waiting for the model, of requests that waited."),
        ("llamactl_time_to_first_byte_seconds", "first_byte", "From a request's head to the first byte of its answer."),
        ("llamactl_request_seconds", "duration", "From a request's head to the end of its answer."),
    ):
        histogram = HistogramMetricFamily(metric, text, labels=MODEL)
        for name, counts in models:
            values: Histogram = getattr(counts, attribute)
            histogram.add_metric([name], _list_buckets(values), values.total)
        yield histogram


def collect_load(snapshot: Snapshot) -> Iterator[Metric]:
    """What happens at this moment. Names that no model has are counted together, under the empty name."""
    own_names = {alias: model.name for model in snapshot.models for alias in (model.name, *model.aliases)}
    queued: dict[str, int] = dict.fromkeys((model.name for model in snapshot.models), 0)
    for asked, number in snapshot.queued.items():
        name = own_names.get(asked, "")
        queued[name] = queued.get(name, 0) + number
    yield _gauge("llamactl_queue_length", "Requests that wait for the model.", MODEL, _label(queued))
    in_flight = dict.fromkeys(queued, 0) | dict(snapshot.in_flight)
    yield _gauge("llamactl_requests_in_flight", "Requests that the model is answering.", MODEL, _label(in_flight))


def collect_models(models: tuple[ModelStatus, ...]) -> Iterator[Metric]:
    """Yield what the supervisor says of models: states, crashes, memory, loads."""
    yield _gauge(
        "llamactl_model_state",
        "1 for the state in which the model is.",
        ["model", "state"],
        [((model.name, str(state)), model.state is state) for model in models for state in State],
    )


def collect_counters(counters: Mapping[str, ModelCounters]) -> Iterator[Metric]:
    """What the supervisor has counted since its start."""
    for metric, attribute, text in (
        ("llamactl_loads", "loads", "Loads that succeeded."),
        ("llamactl_load_failures", "load_failures", "Loads that failed."),
        ("llamactl_load_seconds", "load_seconds", "Time that loads took, together."),
        ("llamactl_crashes", "crashes", "Instances that died."),
    ):
        counter = CounterMetricFamily(metric, text, labels=MODEL)
        for name, counts in counters.items():
            counter.add_metric([name], getattr(counts, attribute))
        yield counter
    unloads = CounterMetricFamily("llamactl_unloads", "Models unloaded, by reason.", labels=["model", "reason"])
    for name, counts in counters.items():
        for reason, number in counts.unloads.items():
            unloads.add_metric([name, reason], number)
    yield unloads


def collect_devices(devices: tuple[DeviceStatus, ...]) -> Iterator[Metric]:
    """Yield the accounts of devices, in bytes."""
    for attribute, text in _DEVICE_GAUGES:
        values = [((device.name,), getattr(device, attribute)) for device in devices]
        yield _gauge(f"llamactl_device_{attribute}_bytes", text, DEVICE, values)


def merge_instances(instances: Mapping[str, bytes | None]) -> Iterator[Metric]:
    """Instances' own families, each sample with its model; one that says nothing readable counts as not scraped."""
    families: dict[str, Metric] = {}
    scraped: dict[str, int] = {}
    for model, text in instances.items():
        try:
            read = list(text_string_to_metric_families(text.decode())) if text is not None else None
        except ValueError:
            read = None
        scraped[model] = read is not None
        for family in read or []:
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            merged.samples += [
                Sample(sample.name, {**sample.labels, "model": model}, sample.value) for sample in family.samples
            ]
    if instances:
        yield _gauge("llamactl_instance_scraped", "Whether the instance told its metrics.", MODEL, _label(scraped))
    yield from families.values()


def _gauge(name: str, text: str, labels: list[str], values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(list(label_values), value)
    return family


def _label(values: Mapping[str, float]) -> list[tuple[tuple[str, ...], float]]:
    return [((name,), value) for name, value in values.items()]


def _list_buckets(histogram: Histogram) -> list[tuple[str, float]]:
    buckets = []
    number = 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        number += count
        buckets.append((bound, float(number)))
    return buckets
