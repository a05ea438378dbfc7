"""Does a child read what it was told, whatever that is?"""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from llamactl.child import variables
from llamactl.child.orders import ChildEnvironment, format_environment, parse_environment
from llamactl.protocol.report_socket import ChildRole
from llamactl.protocol.values import Breakdown, Row, RowKind
from llamactl.settings import ModelSettings

FEW = ChildEnvironment(
    role=ChildRole.SERVE,
    model="lab/a b",
    settings=ModelSettings(name="lab/a b", path="/srv/a.gguf"),
    generation="",
    socket=Path("/run/a/http.sock"),
    report=Path("/run/report.sock"),
)
ALL = replace(
    FEW,
    settings=ModelSettings(name="lab/a b", path="/srv/a.gguf", rpc=("127.0.0.1:1", "127.0.0.1:2"), ctx=512),
    generation="7-1",
    margins_bytes={"": 1, "CUDA0": 2},
    host_room_bytes=0,
    measured=Breakdown(n_ctx=512, devices=(Row(kind=RowKind.HOST, name="Host", model=1, context=2, compute=3),)),
    load_stall_s=0.25,
    extra_bufts=False,
    devices_only=True,
    device_ids={"CUDA0": "0000:01:00.0"},
    log_level="debug",
    llama_debug=True,
)


@pytest.mark.parametrize("orders", [FEW, ALL], ids=["few", "all"])
def test_child_reads_what_it_was_told(orders: ChildEnvironment) -> None:
    assert parse_environment(ChildRole.SERVE, format_environment(orders)) == orders


def test_measure_child_is_told_no_socket() -> None:
    orders = replace(ALL, role=ChildRole.MEASURE, socket=None)
    assert parse_environment(ChildRole.MEASURE, format_environment(orders)) == orders


def test_example_of_all_orders_leaves_none_at_its_default() -> None:
    same = {field.name for field in fields(ALL) if getattr(ALL, field.name) == getattr(FEW, field.name)}
    assert same == {"role", "model", "socket", "report"}


def test_nothing_is_told_by_a_variable_that_a_model_could_set_for_itself() -> None:
    told = set(format_environment(ALL)) - {variables.LOG_LEVEL, variables.LLAMA_LOG}
    assert told == variables.ORDERS
