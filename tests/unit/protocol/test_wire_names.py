"""Do fields go over the wire under the names that docs/protocol.md promises, whatever the code calls them?"""

from typing import get_args

import msgspec
import pytest

from llamactl.protocol import control_socket, report_socket
from llamactl.protocol.control_socket import ClientMessage, LeaseRequest

UNIONS = [
    control_socket.ClientMessage,
    control_socket.ServerMessage,
    report_socket.ChildMessage,
    report_socket.OrderMessage,
]


@pytest.mark.parametrize("passive", [True, False])
def test_passive_request_goes_over_the_wire_as_a_look(passive: bool) -> None:
    lease = LeaseRequest(id=1, model="a", passive=passive)
    told = msgspec.json.decode(msgspec.json.encode(lease))
    assert told.get("look", False) is passive
    assert "passive" not in told
    assert msgspec.json.decode(msgspec.json.encode(lease), type=ClientMessage) == lease


def test_every_other_field_has_one_name() -> None:
    messages = [message for union in UNIONS for message in get_args(union)]
    renamed = {
        (message.__struct_config__.tag, name, wire)
        for message in messages
        for name, wire in zip(message.__struct_fields__, message.__struct_encode_fields__, strict=True)
        if name != wire
    }
    assert renamed == {("lease", "passive", "look")}
