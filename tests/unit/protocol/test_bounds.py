"""Has everything that the supervisor reads from others bounds, so that nobody can make it compute with what nothing
holds?
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from llamactl.protocol.control_socket import ClientMessage
from llamactl.protocol.lines import LineReader, ProtocolError
from llamactl.protocol.report_socket import ChildMessage


def list_unbounded(kind: Any, path: str) -> Iterator[str]:
    """Paths of the fields that may be as large as anybody likes."""
    match kind:
        case inspect.UnionType():
            for member in kind.types:
                yield from list_unbounded(member, path)
        case inspect.StructType():
            for field in kind.fields:
                yield from list_unbounded(field.type, f"{path}.{field.name}")
        case inspect.IntType() | inspect.FloatType():
            if kind.ge is None or kind.le is None:
                yield path
        case inspect.StrType():
            if kind.max_length is None:
                yield path
        case inspect.VarTupleType() | inspect.ListType():
            if kind.max_length is None:
                yield path
            yield from list_unbounded(kind.item_type, path + "[]")
        case inspect.DictType():
            if kind.max_length is None:
                yield path
            yield from list_unbounded(kind.key_type, path + " keys")
            yield from list_unbounded(kind.value_type, path + "{}")
        case inspect.BoolType() | inspect.NoneType() | inspect.EnumType():
            pass
        case _:
            yield f"{path}: {type(kind).__name__}"


@pytest.mark.parametrize("messages", [ChildMessage, ClientMessage], ids=["report.sock", "control.sock"])
def test_everything_in_a_message_has_bounds(messages: Any) -> None:
    found: list[str] = []
    for kind in messages.__args__:
        found += list_unbounded(inspect.type_info(kind), kind.__name__)
    assert not found


@pytest.mark.parametrize(
    ("messages", "line", "what"),
    [
        (ChildMessage, b'{"type":"report","seq":1,"state":"ready","busy":1' + b"0" * 400 + b"}", "busy"),
        (ChildMessage, b'{"type":"report","seq":-1,"state":"ready"}', "seq"),
        (ChildMessage, b'{"type":"report","seq":1,"state":"loading","progress":1e300}', "progress"),
        (
            ChildMessage,
            b'{"type":"report","seq":1,"state":"ready","effective":{"n_ctx":1,"devices":['
            b'{"kind":"device","name":"CUDA0","model":1' + b"0" * 400 + b"}]}}",
            "model",
        ),
        (
            ChildMessage,
            b'{"type":"report","seq":1,"state":"ready","effective":{"n_ctx":1,"devices":['
            + b",".join(b'{"kind":"device","name":"X%d"}' % number for number in range(8000))
            + b"]}}",
            "devices",
        ),
        (ClientMessage, b'{"type":"load","id":1' + b"0" * 400 + b',"model":"a"}', "id"),
        (ClientMessage, b'{"type":"idle","model":"a","generation":"g","last_used_s":1e200}', "last_used_s"),
    ],
    ids=["400 digits", "negative", "more than all", "400 digits within", "8000 rows", "id", "the end of time"],
)
def test_message_beyond_the_bounds_is_no_message_and_what_is_wrong_is_named(
    messages: Any, line: bytes, what: str
) -> None:
    with pytest.raises(ProtocolError, match=what):
        LineReader(messages).feed(line + b"\n")


def test_largest_figures_are_taken() -> None:
    line = b'{"type":"report","seq":9223372036854775807,"state":"ready","busy":9223372036854775807}'
    (report,) = LineReader(ChildMessage).feed(line + b"\n")
    assert report.busy == (1 << 63) - 1
    assert msgspec.json.decode(msgspec.json.encode(report))["type"] == "report"
