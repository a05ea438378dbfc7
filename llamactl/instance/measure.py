"""What would this model need? The short-lived `measure` role: two breakdowns, one report, an acknowledgement, the
end.

It runs as a process of its own because llama.cpp may abort on a bad file, and takes no memory worth naming. A failure
is reported with its reason. Told to, it measures no model and lists the devices.
"""

import asyncio
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from llamactl.child.orders import ChildEnvironment
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.llama.devices import acquire_device_list, list_devices
from llamactl.instance.report import ReportLink, make_hello
from llamactl.journal_events import JournalEvent
from llamactl.protocol.report_socket import AnswerResult, ChildState, Order
from llamactl.protocol.values import Breakdown, DeviceList, Facts
from llamactl.systemd.journal import get_logger
from llamactl.tasks import raise_in_loop

if TYPE_CHECKING:
    from llamactl.instance.llama.model import LoadedModel

log = get_logger()

EXIT_DONE, EXIT_FAILED = 0, 1
ACK_TIMEOUT_S = 60.0
"""How long a result waits for a supervisor that restarts."""


@dataclass(frozen=True)
class Measurement:
    min: Breakdown
    max: Breakdown
    facts: Facts
    listing: DeviceList


def measure_model(environment: ChildEnvironment) -> Measurement:
    """`min` at the smallest context that fitting may pick, `max` at what fits the memory that is free now. Raises
    LlamactlError.
    """
    from llamactl.instance.llama.bindings import register_rpc_servers
    from llamactl.instance.llama.fit import Measurer, choose_smallest_ctx
    from llamactl.instance.llama.library import llama
    from llamactl.instance.llama.log import LlamaLog
    from llamactl.instance.llama.projector import read_modalities

    log = LlamaLog(environment.llama_debug)
    log.install()
    register_rpc_servers(environment.settings.rpc)
    llama.llama_backend_init()
    measurer = Measurer(environment, log)
    try:
        smallest = measurer.measure(choose_smallest_ctx(environment.settings, measurer.traits.n_ctx_train))
        plan = measurer.choose_plan()
        largest = measurer.measure_plan(plan)
        modalities = read_modalities(environment.settings.mmproj)
        facts = measurer.model.read_facts(largest.n_ctx, environment.extra_bufts, modalities)
        facts = _complete_facts(environment, measurer.model, facts)
        return Measurement(smallest, largest, facts, acquire_device_list())
    finally:
        measurer.close()


def _complete_facts(environment: ChildEnvironment, model: "LoadedModel", facts: Facts) -> Facts:
    """With what the model can be asked for. Raises LlamactlError where its template would end an instance."""
    from llamactl.instance.chat.trial import Tried, find_excess
    from llamactl.instance.llama.chat import list_builtin_templates
    from llamactl.instance.llama.params import POOLING_NAMES, makes_embeddings
    from llamactl.instance.readers import Planning, complete_facts, make_planning

    settings, vocabulary = environment.settings, model.vocabulary
    traits = model.read_traits(settings.swa_full)
    pooling = ""
    if makes_embeddings(settings, traits):
        pooling = settings.pooling or (POOLING_NAMES[traits.pooling] if traits.pooling is not None else "none")
    source = settings.chat_template or model.read_meta("tokenizer.chat_template") or ""
    planning = Planning()
    if not pooling and source not in list_builtin_templates():
        tool_use = "" if settings.chat_template else model.read_meta("tokenizer.chat_template.tool_use") or ""
        bos, eos = vocabulary.text_of(vocabulary.bos), vocabulary.text_of(vocabulary.eos)
        fault = find_excess(Tried(source=source, tool_use_source=tool_use, bos=bos, eos=eos)) if source else ""
        if fault:
            raise LlamactlError(
                ErrorCode.INVALID_MODEL,
                f"cannot use the chat template: {fault}",
                hint="set chat_template or chat_template_file in its configuration",
            )
        planning = make_planning(settings, model)
    return complete_facts(facts, model, planning, pooling)


async def run_measure(environment: ChildEnvironment) -> int:
    """The exit status."""
    link = ReportLink(environment.report, make_hello(environment), _refuse_order, lambda: 0, raise_in_loop)
    link.start()
    link.send(ChildState.LOADING, stage="starting")
    try:
        report = await asyncio.to_thread(_make_report, environment)
    except (LlamactlError, OSError, RuntimeError) as error:
        log.error(JournalEvent.MEASUREMENT_FAILED, reason=str(error))
        await link.deliver(ChildState.FAILED, error=str(error), timeout_s=ACK_TIMEOUT_S)
        status = EXIT_FAILED
    else:
        taken = await link.deliver(ChildState.MEASURED, timeout_s=ACK_TIMEOUT_S, **report)
        status = EXIT_DONE if taken else EXIT_FAILED
    await link.close()
    return status


def _make_report(environment: ChildEnvironment) -> dict[str, Any]:
    if environment.devices_only:
        return {"listing": list_devices(environment)}
    measurement = measure_model(environment)
    return {field.name: getattr(measurement, field.name) for field in fields(measurement)}


def _refuse_order(_order: Order) -> tuple[AnswerResult, str]:
    return AnswerResult.UNSUPPORTED, "a measure child takes no orders"
