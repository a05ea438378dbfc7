"""Are devices measured, fitted and used as llama.cpp sees them? An RPC server on loopback is the device."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from llamactl.protocol.values import Breakdown, DeviceList, Row, RowKind
from llamactl.settings import ModelSettings
from tests.media import as_uri, write_png
from tests.models import write_eye, write_large_model
from tests.socket.instance.harness import TIMEOUT_S, run_child

MIB = 1 << 20


@pytest.fixture(scope="module")
def rpc() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    process = subprocess.Popen(
        [sys.executable, "-u", str(Path(__file__).with_name("rpc_server.py")), endpoint],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        # It says where it listens right before it does.
        for line in process.stdout:
            if endpoint in line:
                break
        host, port = endpoint.split(":")
        for _ in range(100):
            try:
                socket.create_connection((host, int(port)), TIMEOUT_S).close()
                break
            except ConnectionRefusedError:
                continue
        yield endpoint
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def large(model_dir: Path) -> Path:
    return write_large_model(model_dir / "large.gguf", 48 * MIB)


def get_row(breakdown: Breakdown | None, kind: RowKind) -> Row:
    assert breakdown is not None
    return next(row for row in breakdown.devices if row.kind is kind)


def run_measure(directory: Path, settings: ModelSettings, margin: int) -> tuple[Breakdown, Breakdown]:
    directory.mkdir()
    margins = json.dumps({"": margin})
    with run_child(directory, "measure", settings, LLAMACTL_MARGINS=margins) as child:
        report = child.supervisor.wait_for("measured")
        assert child.wait() == 0, child.errors
    assert report.min is not None
    assert report.max is not None
    return report.min, report.max


def test_device_row_has_its_memory_and_takes_the_layers(large: Path, tmp_path: Path, rpc: str) -> None:
    settings = ModelSettings(name="large", path=str(large), rpc=(rpc,), ctx=512, parallel=1, threads=1)
    smallest, largest = run_measure(tmp_path / "m", settings, 0)
    device = get_row(smallest, RowKind.DEVICE)
    assert device.name == f"RPC0[{rpc}]"
    assert device.total is not None
    assert device.free is not None
    assert device.total >= device.free > 0
    assert device.model > 40 * MIB
    assert device.context > 0
    assert get_row(largest, RowKind.DEVICE).model == device.model


def test_effective_on_a_device_is_what_was_measured(large: Path, tmp_path: Path, rpc: str) -> None:
    settings = ModelSettings(name="large", path=str(large), rpc=(rpc,), ctx=512, parallel=1, threads=1)
    smallest, _ = run_measure(tmp_path / "m", settings, 0)
    with run_child(tmp_path, "serve", settings) as child:
        effective = child.supervisor.wait_for("ready").effective
        assert child.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 3})[0] == 200
    for kind in (RowKind.DEVICE, RowKind.HOST):
        measured, real = get_row(smallest, kind), get_row(effective, kind)
        assert (real.model, real.context, real.compute) == (measured.model, measured.context, measured.compute)


def test_margin_takes_context_and_layers_off_the_device(large: Path, tmp_path: Path, rpc: str) -> None:
    settings = ModelSettings(name="large", path=str(large), rpc=(rpc,), parallel=1, fit_ctx=256, threads=1)
    _, roomy = run_measure(tmp_path / "roomy", settings, 0)
    device = get_row(roomy, RowKind.DEVICE)
    assert device.free is not None
    assert roomy.n_ctx == 2048
    # What remains is too little for the whole model.
    _, tight = run_measure(tmp_path / "tight", settings, device.free - 30 * MIB)
    assert tight.n_ctx < roomy.n_ctx
    assert 0 < get_row(tight, RowKind.DEVICE).used <= 30 * MIB
    assert get_row(tight, RowKind.HOST).model > get_row(roomy, RowKind.HOST).model


def test_device_none_keeps_the_model_in_main_memory(large: Path, tmp_path: Path, rpc: str) -> None:
    settings = ModelSettings(
        name="large", path=str(large), rpc=(rpc,), ctx=512, parallel=1, devices=("none",), threads=1
    )
    smallest, _ = run_measure(tmp_path / "m", settings, 0)
    assert [row.kind for row in smallest.devices] == [RowKind.HOST]
    assert get_row(smallest, RowKind.HOST).model > 40 * MIB


def test_rpc_server_that_does_not_answer_is_reported(large: Path, tmp_path: Path) -> None:
    settings = ModelSettings(name="large", path=str(large), rpc=("127.0.0.1:1",), ctx=512)
    with run_child(tmp_path, "measure", settings) as child:
        report = child.supervisor.wait_for("failed")
        assert child.wait() == 1
    assert "127.0.0.1:1" in report.error


@pytest.fixture
def other_client(rpc: str) -> Iterator[None]:
    """Keeps the server, which serves one client at a time."""
    host, port = rpc.split(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S):
        yield


def test_rpc_server_that_has_another_client_is_reported_in_time(
    large: Path, tmp_path: Path, rpc: str, other_client: None
) -> None:
    settings = ModelSettings(name="large", path=str(large), rpc=(rpc,), ctx=512)
    with run_child(tmp_path, "measure", settings) as child:
        report = child.supervisor.wait_for("failed")
        assert child.wait() == 1
    assert "one client at a time" in report.error


def list_devices(directory: Path, *servers: str) -> DeviceList:
    settings = ModelSettings(name="devices", path="", rpc=servers)
    with run_child(directory, "measure", settings, LLAMACTL_DEVICES_ONLY="1") as child:
        report = child.supervisor.wait_for("measured")
        assert child.wait() == 0, child.errors
    assert report.min is None
    assert report.listing is not None
    return report.listing


def test_listing_names_devices_and_leaves_out_servers_that_are_down(tmp_path: Path, rpc: str) -> None:
    listing = list_devices(tmp_path, "127.0.0.1:1", rpc)
    (row,) = listing.rows
    assert row.name == f"RPC0[{rpc}]"
    assert row.total
    assert row.free
    assert row.used == 0
    assert (listing.busy, listing.ids, listing.cheap) == ((), {}, False)


def test_listing_tells_a_server_with_another_client_from_one_that_is_down(
    tmp_path: Path, rpc: str, other_client: None
) -> None:
    listing = list_devices(tmp_path, rpc)
    assert (listing.rows, listing.busy) == ((), (rpc,))


def test_measurement_lists_all_devices_whatever_the_model_uses(large: Path, tmp_path: Path, rpc: str) -> None:
    settings = ModelSettings(
        name="large", path=str(large), rpc=(rpc,), ctx=512, parallel=1, devices=("none",), threads=1
    )
    with run_child(tmp_path, "measure", settings) as child:
        listing = child.supervisor.wait_for("measured").listing
    assert listing is not None
    assert [row.name for row in listing.rows] == [f"RPC0[{rpc}]"]


def test_projector_lies_on_the_first_device_and_is_charged_there(large: Path, tmp_path: Path, rpc: str) -> None:
    eye = write_eye(tmp_path / "eye.gguf", width=256, n_embd=256)
    plain = ModelSettings(name="large", path=str(large), rpc=(rpc,), ctx=512, parallel=1, threads=1, repack=False)
    seeing = msgspec.structs.replace(plain, mmproj=str(eye))
    (without, _), (measured, _) = (run_measure(tmp_path / name, s, 0) for name, s in (("a", plain), ("b", seeing)))
    device, alone = get_row(measured, RowKind.DEVICE), get_row(without, RowKind.DEVICE)
    assert 0.9 * eye.stat().st_size < device.model - alone.model < eye.stat().st_size
    assert device.compute > alone.compute
    assert get_row(measured, RowKind.HOST).used == get_row(without, RowKind.HOST).used
    parts = [{"type": "image_url", "image_url": {"url": as_uri(write_png())}}, {"type": "text", "text": "what?"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0}
    said = set()
    for name, settings in (("on", seeing), ("off", msgspec.structs.replace(seeing, devices=("none",), rpc=()))):
        (tmp_path / name).mkdir()
        with run_child(tmp_path / name, "serve", settings) as child:
            effective = child.supervisor.wait_for("ready").effective
            status, answered = child.request("POST", "/v1/chat/completions", body)
            assert status == 200, answered
            said.add(answered["choices"][0]["message"]["content"])
            if name == "on":
                real = get_row(effective, RowKind.DEVICE)
                assert (real.model, real.compute) == (device.model, device.compute)
    assert len(said) == 1, "the device sees what the processor sees"


def test_fitting_leaves_room_for_the_projector(large: Path, tmp_path: Path, rpc: str) -> None:
    eye = write_eye(tmp_path / "eye.gguf", width=256, n_embd=512)
    plain = ModelSettings(name="large", path=str(large), rpc=(rpc,), parallel=1, fit_ctx=256, threads=1)
    _, roomy = run_measure(tmp_path / "roomy", plain, 0)
    free = get_row(roomy, RowKind.DEVICE).free
    assert free is not None
    limit = 30 * MIB
    _, fitted = run_measure(tmp_path / "a", msgspec.structs.replace(plain, mmproj=str(eye)), free - limit)
    _, without = run_measure(tmp_path / "b", plain, free - limit)
    assert 0 < get_row(fitted, RowKind.DEVICE).used <= limit
    assert get_row(fitted, RowKind.HOST).model > get_row(without, RowKind.HOST).model
