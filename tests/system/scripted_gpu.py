"""How does a test get a GPU whose memory other programs use, on a machine without one?

Drop-ins replace the programs of models, measure children and listings by this file. It speaks the report protocol from
inside the real units, about one device, GPU0, of which each instance takes SIZE. Other programs' share stands in a file
that the test writes. What instances hold is counted by their cgroups, so that `free` is right at any moment, as on a
real device. A model called `hangs` measures for ever, `fails` says that it cannot, `dies` is killed by a signal,
and `grows` takes GROWTH more than was measured.
It is copied out of the checkout before (`Llamactl.use_script`), so it imports nothing of the tests.
"""

import json
import os
import signal
import socket
import sys
from importlib import metadata
from pathlib import Path

import sdnotify

from llamactl.protocol.lines import VERSION, LineReader, encode_message
from llamactl.protocol.report_socket import (
    Ack,
    Answer,
    AnswerResult,
    ChildHello,
    ChildRole,
    ChildState,
    Order,
    OrderMessage,
    Report,
)
from llamactl.protocol.values import Breakdown, DeviceList, Row, RowKind

MIB = 1 << 20
TOTAL, SIZE, GROWTH = 1000 * MIB, 300 * MIB, 100 * MIB
EXTERNAL = Path("/srv/gpu.json")
MODELS = "llamactl.slice/llamactl-models.slice/llamactl-model@*.service"


def make_row(size: int) -> Row:
    held = SIZE * len(list(Path("/sys/fs/cgroup").glob(f"**/{MODELS}")))
    free = max(0, TOTAL - held - json.loads(EXTERNAL.read_text()))
    return Row(kind=RowKind.DEVICE, name="GPU0", description="scripted", model=size, total=TOTAL, free=free)


def make_report(role: ChildRole) -> Report:
    if os.environ.get("LLAMACTL_DEVICES_ONLY") == "1":
        return Report(seq=1, state=ChildState.MEASURED, listing=DeviceList(rows=(make_row(0),)))
    size = Breakdown(n_ctx=512, devices=(make_row(SIZE), Row(kind=RowKind.HOST, name="Host")))
    if role is ChildRole.SERVE:
        grows = os.environ["LLAMACTL_MODEL"] == "grows"
        taken = (make_row(SIZE + GROWTH * grows), *size.devices[1:])
        return Report(seq=1, state=ChildState.READY, effective=Breakdown(n_ctx=512, devices=taken))
    match os.environ["LLAMACTL_MODEL"]:
        case "hangs":
            signal.pause()
        case "fails":
            return Report(seq=1, state=ChildState.FAILED, error="a reason of its own")
        case "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
    return Report(seq=1, state=ChildState.MEASURED, min=size, max=size, listing=DeviceList(rows=(make_row(0),)))


def main(role: ChildRole) -> int:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(os.environ["LLAMACTL_REPORT"])
    hello = ChildHello(
        version=VERSION,
        role=role,
        model=os.environ["LLAMACTL_MODEL"],
        generation=os.environ["LLAMACTL_GENERATION"],
        pid=os.getpid(),
        llama_cpp=metadata.version("llama-cpp-python"),
    )
    report = make_report(role)
    link.sendall(encode_message(hello) + encode_message(report))
    if role is ChildRole.SERVE:
        sdnotify.SystemdNotifier().notify("READY=1")
    reader = LineReader(OrderMessage)
    while data := link.recv(1 << 16):
        for message in reader.feed(data):
            if isinstance(message, Ack) and role is ChildRole.MEASURE:
                return report.state is ChildState.FAILED
            if isinstance(message, Order):
                link.sendall(encode_message(Answer(id=message.id, result=AnswerResult.OK)))
                if message.order == "stop":
                    return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(ChildRole(sys.argv[1])))
