"""Does a child keep its supervisor informed, whatever the supervisor does, and does it never die of it?"""

import contextlib
import http.client
import json
from pathlib import Path

import msgspec
import pytest

from llamactl.protocol.lines import VERSION, ErrorNotice, encode_message
from llamactl.protocol.report_socket import (
    Ack,
    Answer,
    AnswerResult,
    ChildHello,
    ChildRole,
    ChildState,
    ChildWelcome,
    Order,
    OrderKind,
    Report,
)
from llamactl.protocol.values import Note
from llamactl.settings import ModelSettings
from tests.socket.instance.harness import Child, Peer, Supervisor, run_child


def make_settings(path: Path) -> ModelSettings:
    return ModelSettings(name="tiny", path=str(path), ctx=256, parallel=2, threads=1)


def greet(supervisor: Supervisor) -> tuple[Peer, ChildHello]:
    peer = supervisor.accept()
    hello = peer.receive()
    assert isinstance(hello, ChildHello)
    peer.send(ChildWelcome(version=VERSION))
    return peer, hello


def receive_state(peer: Peer, state: ChildState, *, ack: bool = True) -> Report:
    while True:
        message = peer.receive()
        assert message is not None
        if not isinstance(message, Report):
            continue
        if ack:
            peer.send(Ack(seq=message.seq))
        if message.state is state:
            return message


def order(peer: Peer, kind: OrderKind, number: int, note: Note | None = None) -> Answer:
    peer.send(Order(id=number, order=kind, note=note))
    while not isinstance(message := peer.receive(), Answer):
        assert message is not None
    return message


def test_load_goes_through_its_stages_in_order(tiny: Path, tmp_path: Path) -> None:
    with run_child(tmp_path, "serve", make_settings(tiny), attend=False) as child:
        peer, hello = greet(child.supervisor)
        stages = []
        while (report := peer.receive()).state is ChildState.LOADING:
            peer.send(Ack(seq=report.seq))
            stages.append(report.stage)
    assert (hello.role, hello.model, hello.generation, hello.pid) == (
        ChildRole.SERVE,
        "tiny",
        "1",
        child.process.pid,
    )
    assert hello.llama_cpp
    # The load begins before the connection does: what was over by then is not told.
    seen = list(dict.fromkeys(stages))
    assert seen == [stage for stage in ("starting", "model", "context", "warmup") if stage in seen]
    assert seen[-1] == "warmup"
    assert report.state is ChildState.READY
    assert report.facts is not None
    assert report.facts.n_ctx == 256


def test_systemd_hears_of_readiness_after_the_warm_up_and_only_once(tiny: Path, tmp_path: Path) -> None:
    with run_child(tmp_path, "serve", make_settings(tiny), LLAMACTL_LOAD_STALL="7.5") as child:
        assert child.wait_for_notification("EXTEND_TIMEOUT_USEC=") == "EXTEND_TIMEOUT_USEC=7500000"
        assert child.wait_for_notification("READY=1") == "READY=1"
        child.supervisor.wait_for("ready")
        child.terminate()
        assert child.wait_for_notification("STOPPING=1")
        assert child.wait() == 0


def test_warm_up_waits_until_the_supervisor_knows_of_it(tiny: Path, tmp_path: Path) -> None:
    with run_child(tmp_path, "serve", make_settings(tiny), attend=False) as child:
        peer, _ = greet(child.supervisor)
        while (report := peer.receive()).stage != "warmup":
            pass
        assert child.request("GET", "/health")[0] == 503
        peer.send(Ack(seq=report.seq))
        receive_state(peer, ChildState.READY)


def test_last_report_and_note_are_repeated_to_a_restarted_supervisor(tiny: Path, tmp_path: Path) -> None:
    with run_child(tmp_path, "serve", make_settings(tiny), attend=False) as child:
        peer, _ = greet(child.supervisor)
        first = receive_state(peer, ChildState.READY)
        note = Note(last_used_s=5.0, pinned=True, keep_alive_s=60.0)
        assert order(peer, OrderKind.NOTE, 1, note).result is AnswerResult.OK
        peer.close()
        peer, hello = greet(child.supervisor)
        second = receive_state(peer, ChildState.READY)
    assert hello.pid == child.process.pid
    assert second.effective == first.effective
    assert second.note == note
    assert second.seq > first.seq


@pytest.mark.parametrize(
    "junk",
    [
        b"\n",
        b"{\n",
        b'{"type":"report"}\n',
        b"\xff\xfe\n",
        b"[]\n",
        b"x" * (2 << 20),
        b'{"type":"welcome","version":99}\n',
    ],
)
def test_junk_from_the_supervisor_ends_the_connection_not_the_child(tiny: Path, tmp_path: Path, junk: bytes) -> None:
    with run_child(tmp_path, "serve", make_settings(tiny), attend=False) as child:
        peer, _ = greet(child.supervisor)
        receive_state(peer, ChildState.READY)
        # The child may hang up while it is still being talked to.
        with contextlib.suppress(OSError):
            peer.send_bytes(junk)
        with contextlib.suppress(ConnectionError):
            while peer.receive() is not None:
                pass
        peer, _ = greet(child.supervisor)
        receive_state(peer, ChildState.READY)
        assert child.request("GET", "/health")[0] == 200


def test_refused_greeting_is_tried_again(tiny: Path, tmp_path: Path) -> None:
    with run_child(tmp_path, "serve", make_settings(tiny), attend=False) as child:
        peer = child.supervisor.accept()
        peer.send(ErrorNotice(message="no such unit"))
        peer.close()
        peer, _ = greet(child.supervisor)
        receive_state(peer, ChildState.READY)


def test_supervisor_that_was_told_of_a_request_is_told_of_its_end(tiny: Path, tmp_path: Path) -> None:
    settings = msgspec.structs.replace(make_settings(tiny), ctx=4096, parallel=1)
    with run_child(tmp_path, "serve", settings, attend=False) as child, contextlib.closing(child.connect()) as client:
        peer, _ = greet(child.supervisor)
        assert receive_state(peer, ChildState.READY).busy == 0
        body = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True, "timings_per_token": True}
        client.request("POST", "/completion", json.dumps(body))
        answer = client.getresponse()
        peer.close()
        peer, _ = greet(child.supervisor)
        assert receive_state(peer, ChildState.READY).busy == 1
        answer.read()
        assert receive_state(peer, ChildState.READY).busy == 0


def test_instance_serves_without_any_supervisor(tiny: Path, tmp_path: Path) -> None:
    with run_child(tmp_path, "serve", make_settings(tiny), attend=False) as child:
        child.supervisor.close()
        (tmp_path / "report.sock").unlink()
        child.wait_for_notification("READY=1")
        assert child.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200


def test_idle_instance_stops_on_order_and_exits_zero(tiny: Path, tmp_path: Path) -> None:
    with run_child(tmp_path, "serve", make_settings(tiny)) as child:
        child.supervisor.wait_for("ready")
        assert child.supervisor.order(OrderKind.STOP).result is AnswerResult.OK
        child.supervisor.wait_for("stopping")
        assert child.wait() == 0, child.errors


def test_sleep_frees_everything_and_waking_loads_it_again_in_the_same_process(tiny: Path, tmp_path: Path) -> None:
    with run_child(tmp_path, "serve", make_settings(tiny)) as child:
        awake = child.supervisor.wait_for("ready")
        assert child.supervisor.order(OrderKind.SLEEP).result is AnswerResult.OK
        asleep = child.supervisor.wait_for("sleeping")
        assert asleep.effective is not None
        assert [row.used for row in asleep.effective.devices] == [0] * len(asleep.effective.devices)
        assert [row.name for row in asleep.effective.devices] == [row.name for row in awake.effective.devices]
        maps = Path(f"/proc/{child.process.pid}/maps").read_text()
        assert str(tiny) not in maps, "the file is still mapped"
        assert child.supervisor.order(OrderKind.SLEEP).result is AnswerResult.OK, "it sleeps already"
        status, body = child.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert status == 503
        assert "asleep" in body["error"]["message"]
        assert child.supervisor.order(OrderKind.WAKE, margins_bytes={"": 1 << 20}).result is AnswerResult.OK
        child.supervisor.wait_for("loading")
        again = child.supervisor.wait_for("ready")
        assert again.effective == awake.effective
        status, body = child.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert status == 200


def test_model_that_sleeps_says_how_it_was_and_goes_on_counting_when_it_wakes(tiny: Path, tmp_path: Path) -> None:
    def read(path: str) -> tuple[int, bytes, str | None]:
        with contextlib.closing(child.connect()) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read(), response.headers["Process-Start-Time-Unix"]

    with run_child(tmp_path, "serve", make_settings(tiny)) as child:
        child.supervisor.wait_for("ready")
        body = {"prompt": "hello", "max_tokens": 3, "ignore_eos": True}
        assert child.request("POST", "/v1/completions", body)[0] == 200
        props, metrics, models = child.request("GET", "/props")[1], read("/metrics"), read("/v1/models")
        assert props["is_sleeping"] is False
        assert b"llamacpp:tokens_predicted_total 3.0" in metrics[1]
        child.supervisor.order(OrderKind.SLEEP)
        child.supervisor.wait_for("sleeping")
        assert child.request("GET", "/props") == (200, {**props, "is_sleeping": True})
        status, slots = child.request("GET", "/slots")
        assert (status, slots["error"]["message"]) == (503, "the instance is asleep")
        assert read("/metrics") == metrics
        assert read("/v1/models") == models
        child.supervisor.order(OrderKind.WAKE, margins_bytes={"": 1 << 20})
        child.supervisor.wait_for("ready")
        assert child.request("GET", "/props") == (200, props)
        assert child.request("POST", "/v1/completions", body)[0] == 200
        assert b"llamacpp:tokens_predicted_total 6.0" in read("/metrics")[1]


def test_waking_ordered_before_sleep_has_begun_ends_with_an_instance_that_serves(tiny: Path, tmp_path: Path) -> None:
    with run_child(tmp_path, "serve", make_settings(tiny), attend=False) as child:
        peer, _ = greet(child.supervisor)
        receive_state(peer, ChildState.READY)
        orders = (Order(id=1, order=OrderKind.SLEEP), Order(id=2, order=OrderKind.WAKE))
        peer.send_bytes(b"".join(encode_message(order) for order in orders))
        receive_state(peer, ChildState.SLEEPING)
        receive_state(peer, ChildState.READY)
        status, _ = child.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert status == 200


def test_an_instance_that_sleeps_stops_on_order(tiny: Path, tmp_path: Path) -> None:
    with run_child(tmp_path, "serve", make_settings(tiny)) as child:
        child.supervisor.wait_for("ready")
        child.supervisor.order(OrderKind.SLEEP)
        child.supervisor.wait_for("sleeping")
        assert child.supervisor.order(OrderKind.STOP).result is AnswerResult.OK
        child.supervisor.wait_for("stopping")
        assert child.wait() == 0, child.errors


def test_an_awake_instance_is_awake_after_an_order_to_wake(instance: Child) -> None:
    assert instance.supervisor.order(OrderKind.WAKE).result is AnswerResult.OK
    status, _ = instance.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert status == 200


def test_a_waking_that_fails_ends_the_process_with_its_reason(tiny: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(tiny.read_bytes())
    with run_child(tmp_path, "serve", make_settings(moved)) as child:
        child.supervisor.wait_for("ready")
        child.supervisor.order(OrderKind.SLEEP)
        child.supervisor.wait_for("sleeping")
        moved.unlink()
        child.supervisor.order(OrderKind.WAKE)
        assert child.supervisor.wait_for("failed").error
        assert child.wait() == 1


def test_measurement_is_repeated_until_it_is_taken(tiny: Path, tmp_path: Path) -> None:
    with run_child(tmp_path, "measure", make_settings(tiny), attend=False) as child:
        peer, _ = greet(child.supervisor)
        first = receive_state(peer, ChildState.MEASURED, ack=False)
        peer.close()
        peer, _ = greet(child.supervisor)
        second = receive_state(peer, ChildState.MEASURED)
        assert child.wait() == 0
    assert (second.min, second.max) == (first.min, first.max)


def test_failure_is_repeated_until_it_is_taken(tmp_path: Path) -> None:
    with run_child(tmp_path, "measure", make_settings(tmp_path / "missing.gguf"), attend=False) as child:
        peer, _ = greet(child.supervisor)
        first = receive_state(peer, ChildState.FAILED, ack=False)
        peer.close()
        peer, _ = greet(child.supervisor)
        assert receive_state(peer, ChildState.FAILED).error == first.error
        assert child.wait() == 1


def test_termination_while_loading_ends_the_load(tiny: Path, tmp_path: Path) -> None:
    with run_child(tmp_path, "serve", make_settings(tiny), attend=False) as child:
        peer, _ = greet(child.supervisor)
        while peer.receive().stage != "warmup":
            pass
        child.terminate()
        receive_state(peer, ChildState.STOPPING)
        assert child.wait() == 0, child.errors


def test_stream_that_nobody_reads_neither_holds_the_end_up_nor_leaves_a_traceback(tiny: Path, tmp_path: Path) -> None:
    settings = ModelSettings(name="m", path=str(tiny), ctx=4096, parallel=1, threads=1)
    with run_child(tmp_path, "serve", settings) as child, contextlib.closing(child.connect()) as connection:
        child.supervisor.wait_for("ready")
        body = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True, "timings_per_token": True}
        connection.request("POST", "/completion", json.dumps(body))
        response = connection.getresponse()
        # The one sequence is free when the whole answer is there, a megabyte, which no buffer holds.
        assert child.request("POST", "/completion", {"prompt": "b", "max_tokens": 1})[0] == 200
        child.terminate()
        assert child.wait() == 0
        assert "CancelledError" not in child.errors
        with pytest.raises(http.client.IncompleteRead):
            response.read()
