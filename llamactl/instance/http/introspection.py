"""What does an instance say of itself? /props, /slots and /metrics, in llama-server's words.

The engine's thread goes on while this is read: each number is right for some moment of the last step. The client
library of Prometheus is imported when /metrics is asked for, not before: starting is faster without it.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from llamactl.instance.chat.media import MARKER
from llamactl.instance.engine.generate import Generator
from llamactl.instance.engine.jobs import GenerationRequest, Job
from llamactl.instance.engine.places import keep_text
from llamactl.instance.engine.sampling import SamplingParams
from llamactl.instance.engine.sequence import Sequence
from llamactl.instance.engine.stats import Load, Stats
from llamactl.instance.http.formats import format_params
from llamactl.instance.http.service import Service
from llamactl.protocol.values import format_meta

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Figures = tuple[Stats, Load]
"""What /metrics is made of: sums, and the moment."""


def format_props(service: Service) -> dict[str, Any]:
    """Format the answer to `GET /props`, as llama-server does."""
    vocabulary, settings = service.vocabulary, service.settings
    return {
        "default_generation_settings": {"n_ctx": service.n_ctx, "params": _format_defaults(service)},
        "total_slots": settings.parallel,
        "model_alias": settings.name,
        "model_path": settings.path,
        "model_ftype": service.facts.ftype,
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        **_describe_template(service),
        "chat_layer": {
            "available": service.planner is not None,
            "reason": str(service.no_planner) if service.no_planner is not None else "",
        },
        "bos_token": vocabulary.text_of(vocabulary.bos),
        "eos_token": vocabulary.text_of(vocabulary.eos),
        "modalities": {"vision": service.media.sources.sees, "video": False, "audio": service.media.sources.hears},
        "media_marker": MARKER,
        "build_info": service.facts.build,
        "is_sleeping": False,
    }


def _describe_template(service: Service) -> dict[str, Any]:
    """As llama.cpp says, or as rendering shows where its chat layer is not there."""
    if service.planner is None:
        return {
            "chat_template": service.template.source,
            "chat_template_caps": asdict(service.template.capabilities),
        }
    info = service.planner.template.info
    more = {"chat_template_tool_use": info.tool_use_source} if info.tool_use_source else {}
    return {"chat_template": info.source, "chat_template_caps": dict(info.capabilities), **more}


def format_listing(service: Service) -> dict[str, Any]:
    """The instance's own /v1/models."""
    settings, facts = service.settings, service.facts
    model = {
        "id": settings.name,
        "object": "model",
        "created": service.created,
        "owned_by": "llamactl",
        "aliases": list(settings.aliases),
        "tags": list(settings.tags),
        "capabilities": list(facts.capabilities),
        "meta": format_meta(facts, facts.n_ctx),
    }
    return {"object": "list", "data": [model]}


def _choose_defaults(service: Service) -> SamplingParams:
    """For requests that say nothing."""
    sampling = {name: getattr(service.sampling, name) for name in service.sampling.__struct_fields__}
    seed = service.settings.seed
    return SamplingParams(**sampling, seed=None if seed < 0 else seed)


def _format_defaults(service: Service) -> dict[str, Any]:
    limit = service.settings.n_predict
    return format_params(GenerationRequest([], _choose_defaults(service), None if limit < 0 else limit))


def format_slots(service: Service) -> list[dict[str, Any]]:
    """One entry for each sequence. Prompts and answers only where the configuration says so."""
    worker = service.worker
    if not isinstance(worker, Generator):
        return []
    running = {sequence.slot: sequence for sequence in worker.list_running()}
    return [
        _format_slot(
            service,
            number,
            0 if prefix is None else len(prefix.tokens),
            running.get(number),
            worker.last_jobs.get(number),
        )
        for number, prefix in enumerate(worker.cache.slots)
    ]


def _format_slot(
    service: Service, number: int, n_tokens: int, sequence: Sequence | None, job: Job | None
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": number,
        "n_ctx": service.n_ctx,
        "speculative": False,
        "is_processing": sequence is not None,
        "n_tokens": n_tokens,
    }
    if sequence is None:
        return entry | _format_idle(service, job, n_tokens)
    request, n_prompt = sequence.request, len(sequence.request.prompt)
    n_predict = -1 if request.max_tokens is None else request.max_tokens
    entry |= {
        "id_task": sequence.job.number,
        "n_prompt_tokens": n_prompt,
        "n_prompt_tokens_processed": max(0, min(sequence.n_past, n_prompt) - sequence.n_cached),
        "n_prompt_tokens_cache": sequence.n_cached,
        "params": format_params(request),
        "next_token": [
            {
                "has_next_token": True,
                "n_remain": -1 if n_predict < 0 else n_predict - sequence.n_generated,
                "n_decoded": sequence.n_generated,
            }
        ],
    }
    if service.settings.show_prompts:
        entry["prompt"] = service.vocabulary.detokenize(keep_text(request.prompt))
        entry["generated"] = service.vocabulary.detokenize(list(sequence.generated))
    else:
        _hide_texts(entry["params"])
    return entry


def _format_idle(service: Service, job: Job | None, n_tokens: int) -> dict[str, Any]:
    """Of the request that the slot served last; of none, what a request that says nothing would get."""
    entry: dict[str, Any] = {"params": _format_defaults(service)}
    if job is not None and isinstance(job.request, GenerationRequest):
        entry = {
            "id_task": job.number,
            "n_prompt_tokens": n_tokens,
            "n_prompt_tokens_processed": 0,
            "n_prompt_tokens_cache": 0,
            "params": format_params(job.request),
        }
        if not service.settings.show_prompts:
            _hide_texts(entry["params"])
    next_token = {"has_next_token": False, "has_new_line": False, "n_remain": -1, "n_decoded": 0}
    return {**entry, "next_token": [next_token]}


def _hide_texts(params: dict[str, Any]) -> None:
    params["grammar"] = ""  # may quote what the request says


@dataclass(frozen=True)
class LastWords:
    """What a model that sleeps goes on to say of itself: as it was when it fell asleep."""

    props: dict[str, Any]
    listing: dict[str, Any]
    figures: Figures


def keep_last_words(service: Service) -> LastWords:
    """Keep what a model that falls asleep is to say of itself until it wakes."""
    return LastWords(
        props={**format_props(service), "is_sleeping": True},
        listing=format_listing(service),
        figures=read_figures(service),
    )


def read_figures(service: Service) -> Figures:
    """Read the counters of this moment, with how many requests run and how many wait."""
    load = service.worker.read_load()
    return replace(service.worker.stats), Load(load.n_running, load.n_waiting + service.engine.count_inbox())


def format_metrics(figures: Figures) -> bytes:
    """Prometheus' text."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    stats, load = figures
    counters = (
        ("prompt_tokens", "Prompt tokens processed, without those reused from the cache.", stats.n_prompt),
        ("prompt_tokens_cached", "Prompt tokens reused from the cache.", stats.n_prompt_cached),
        ("prompt_seconds", "Time spent on prompts, over all requests.", stats.prompt_s),
        ("tokens_predicted", "Tokens generated.", stats.n_predicted),
        ("tokens_predicted_seconds", "Time spent generating, over all requests.", stats.predicted_s),
        ("n_decode", "Calls of llama_decode.", stats.n_decodes),
    )
    gauges = (
        ("prompt_tokens_seconds", "Prompt tokens per second of a request, on average.", stats.prompt_rate),
        ("predicted_tokens_seconds", "Tokens generated per second of a request, on average.", stats.predicted_rate),
        ("requests_processing", "Requests that are decoded.", load.n_running),
        ("requests_deferred", "Requests that wait for a sequence.", load.n_waiting),
        ("n_busy_slots_per_decode", "Sequences per call of llama_decode, on average.", stats.busy_per_decode),
        ("n_tokens_max", "The longest sequence so far, in tokens.", stats.n_tokens_max),
    )

    class Numbers(Collector):
        def collect(self) -> Iterator[Metric]:
            for name, words, value in counters:
                yield CounterMetricFamily(f"llamacpp:{name}", words, value=value)
            for name, words, value in gauges:
                yield GaugeMetricFamily(f"llamacpp:{name}", words, value=value)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Numbers())
    return bytes(generate_latest(registry))
