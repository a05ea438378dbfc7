"""Several models at once: all are asked for together, each gets its own word, the worst counts; and `restart`."""

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from llamactl.cli.switch import choose_exit_status
from llamactl.errors import ErrorCode
from llamactl.paths import Paths
from llamactl.protocol.control_socket import Done, Failure, ListRequest, LoadRequest, ModelList, Progress, UnloadRequest
from llamactl.protocol.descriptions import Ending, ModelStatus
from llamactl.protocol.values import Stage, State
from tests.socket.cli.scripted import (
    TIMEOUT_S,
    Peer,
    Script,
    Supervisor,
    add_systemctl,
    ask,
    make_command,
    make_environment,
    read_until,
    run,
)


def answer_all(count: int, *messages: object) -> Script:
    """Greet, take so many requests, and only then send these."""

    def script(peer: Peer) -> None:
        peer.greet()
        for _ in range(count):
            peer.receive()
        peer.send(*messages)

    return script


def answer_loads(count: int, *messages: object, models: tuple[ModelStatus, ...] = ()) -> Script:
    """Likewise, and tell what is loaded at the end."""

    def script(peer: Peer) -> None:
        answer_all(count, *messages)(peer)
        assert peer.receive() == ListRequest(id=count + 1)
        peer.send(ModelList(id=count + 1, now_s=1.0, models=models))

    return script


def fail(number: int, code: ErrorCode, message: str) -> Failure:
    return Failure(id=number, code=code, message=message)


def test_several_loads_are_asked_for_at_once_and_told_apart() -> None:
    script = answer_loads(
        2,
        Progress(id=2, stage=Stage.QUEUED, waiting_for=("a",)),
        Progress(id=1, stage=Stage.LOADING, fraction=0.1),
        Done(id=1, model="a", seconds=1.0),
        Progress(id=2, stage=Stage.LOADING),
        Done(id=2, model="b", seconds=2.0),
    )
    result, requests = ask(script, "load", "a", "b", "a")
    assert requests == [LoadRequest(id=1, model="a"), LoadRequest(id=2, model="b"), ListRequest(id=3)]
    assert (result.status, result.out) == (0, "")
    assert result.err.splitlines() == [
        "b: queued behind a",
        "a: loading",
        "a: ready in 1.0 s",
        "b: loading",
        "b: ready in 2.0 s",
    ]


def test_failure_of_one_does_not_end_the_others() -> None:
    script = answer_loads(
        3,
        fail(2, ErrorCode.UNKNOWN_MODEL, "cannot find model 'b'"),
        fail(3, ErrorCode.ALREADY_LOADED, "cannot load 'c': it is loaded"),
        Progress(id=1, stage=Stage.LOADING),
        Done(id=1, model="m", seconds=1.0),
    )
    result, _ = ask(script, "start", "a", "b", "c", "--json")
    assert result.status == 4
    assert result.err.splitlines() == [
        "llamactl: cannot find model 'b'",
        "c: already loaded",
        "a: loading",
        "a: ready in 1.0 s",
    ]
    loaded, unknown, known = json.loads(result.out)
    assert loaded == {"model": "m", "result": "ready", "seconds": 1.0}
    assert (unknown["model"], unknown["error"]["code"]) == ("b", "unknown_model")
    assert (known["model"], known["result"]) == ("c", "already loaded")


READY = ModelStatus(name="b", state=State.READY)
EVICTED = Ending(event="model unloaded", time_s=1.0, reason="room", for_model="b")


@pytest.mark.parametrize(
    ("model", "status", "why"),
    [
        (ModelStatus(name="m", state=State.UNLOADED, ended=EVICTED), 5, "it was unloaded to make room for 'b'"),
        (ModelStatus(name="m", state=State.STOPPING), 5, "it was unloaded"),
        (ModelStatus(name="m", state=State.FAILED), 1, "it has failed"),
    ],
)
def test_model_that_is_gone_again_when_the_others_are_loaded_is_said(model: ModelStatus, status: int, why: str) -> None:
    done = (Done(id=1, model="m", seconds=1.0), Done(id=2, model="b", seconds=2.0))
    result, _ = ask(answer_loads(2, *done, models=(model, READY)), "start", "a", "b", "--json")
    assert result.status == status
    assert result.err.splitlines()[2:] == [
        f"llamactl: 'm' is gone again: {why}; `llamactl status m` says more",
    ]
    lost, kept = json.loads(result.out)
    assert (lost["model"], lost["error"]["message"]) == ("a", f"'m' is gone again: {why}")
    assert kept["result"] == "ready"


def test_models_that_were_not_asked_for_may_have_gone() -> None:
    done = (Done(id=1, model="a", seconds=1.0), Done(id=2, model="b", seconds=2.0))
    gone = ModelStatus(name="c", state=State.UNLOADED, ended=EVICTED)
    awake = ModelStatus(name="a", state=State.SLEEPING)
    result, _ = ask(answer_loads(2, *done, models=(awake, READY, gone)), "load", "a", "b")
    assert (result.status, len(result.err.splitlines())) == (0, 2)


def test_nothing_is_asked_at_the_end_of_loads_that_nobody_waits_for_or_that_all_failed() -> None:
    done = (Done(id=1, model="a"), Done(id=2, model="b"))
    result, requests = ask(answer_all(2, *done), "load", "a", "b", "--no-wait")
    assert (result.status, len(requests)) == (0, 2)
    failed = [fail(number, ErrorCode.LOAD_FAILED, "cannot start it") for number in (1, 2)]
    result, requests = ask(answer_all(2, *failed), "load", "a", "b")
    assert (result.status, len(requests)) == (1, 2)


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [((), 0), ((0, 0), 0), ((0, 3), 3), ((3, 1), 1), ((4, 5), 5), ((5, 1, 3), 1), ((6, 1), 6)],
)
def test_exit_status_of_several_is_the_worst(statuses: tuple[int, ...], worst: int) -> None:
    assert choose_exit_status(statuses) == worst


def test_lost_supervisor_is_said_once_and_counts_for_all_that_are_left() -> None:
    result, _ = ask(answer_all(3, Done(id=2, model="b", seconds=1.0)), "load", "a", "b", "c", "--json")
    assert result.status == 6
    assert result.err.count("lost the supervisor") == 1
    assert [("error" in one) for one in json.loads(result.out)] == [True, False, True]


def test_without_supervisor_each_of_several_has_failed(tmp_path: Path) -> None:
    paths = Paths(runtime_dir=tmp_path / "run")
    environment = {"PATH": add_systemctl(tmp_path, "inactive")}
    result = run(paths, "restart", "a", "b", "--json", environment=environment)
    assert (result.status, result.err.count("nobody listens")) == (6, 1)
    assert [one["error"]["code"] for one in json.loads(result.out)] == ["no_supervisor"] * 2
    result = run(paths, "unload", "--all", "--json", environment=environment)
    assert (result.status, json.loads(result.out)["error"]["code"]) == (6, "no_supervisor")


def test_several_loads_share_one_line_on_a_terminal() -> None:
    script = answer_loads(
        2,
        Progress(id=1, stage=Stage.LOADING, fraction=0.1),
        Progress(id=2, stage=Stage.QUEUED),
        fail(1, ErrorCode.LOAD_FAILED, "cannot start 'a': x"),
        Progress(id=2, stage=Stage.LOADING, fraction=0.5),
        Done(id=2, model="b", seconds=2.0),
    )
    terminal, end = pty.openpty()
    with Supervisor(script) as supervisor:
        environment = make_environment(supervisor.paths) | {"COLUMNS": "24"}
        process = subprocess.Popen(make_command("load", "a", "b"), env=environment, stderr=end)
        os.close(end)
        shown = read_until(terminal, b"b: ready in 2.0 s\r\n")
        os.close(terminal)
        assert process.wait(TIMEOUT_S) == 1
    clear = b"\r\x1b[2K"
    assert shown.replace(b"\r\n", b"\n") == (
        clear
        + b"a: loading 10 %"
        + clear
        + "a: loading 10 %; b: qu…".encode()
        + clear
        + b"llamactl: cannot start 'a': x\n"
        + clear
        + b"b: queued"
        + clear
        + b"b: loading 50 %"
        + clear
        + b"b: ready in 2.0 s\n"
    )


def make_list(*models: ModelStatus) -> ModelList:
    return ModelList(id=1, now_s=1.0, models=models)


ALL = make_list(
    ModelStatus(name="ready", state=State.READY),
    ModelStatus(name="asleep", state=State.SLEEPING),
    ModelStatus(name="off", state=State.UNLOADED),
    ModelStatus(name="queued", state=State.LOADING, stage=Stage.WAITING),
    ModelStatus(name="going", state=State.STOPPING),
    ModelStatus(name="bad", state=State.FAILED),
)


@pytest.mark.parametrize(
    ("options", "names"),
    [([], ["ready", "asleep", "queued", "going"]), (["--no-wait", "--now"], ["ready", "asleep", "queued"])],
)
def test_unload_all_asks_for_everything_that_is_loaded_or_will_be(options: list[str], names: list[str]) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        peer.send(ALL)
        for _ in names:
            request = peer.receive()
            gone = fail(request.id, ErrorCode.NOT_LOADED, "cannot unload")  # it has ended in between
            peer.send(gone if request.model == "asleep" else Done(id=request.id, model=request.model))

    result, requests = ask(script, "unload", "--all", "--json", *options)
    assert [request.model for request in requests[1:]] == names
    assert {(request.now, request.wait) for request in requests[1:]} == {(bool(options), not options)}
    assert result.status == 0
    assert [one["model"] for one in json.loads(result.out)] == names


def test_unload_all_of_nothing_is_done() -> None:
    result, requests = ask(answer_all(1, make_list()), "stop", "--all", "--json")
    assert requests == [ListRequest(id=1)]
    assert (result.status, result.out, result.err) == (0, "[]\n", "llamactl: nothing is loaded\n")


# --- restart ----------------------------------------------------------------------------------------------------------


def restart(*messages: object, model: ModelStatus | None = None, wait: bool = True) -> Script:
    """A supervisor that tells of the model first, then takes both halves and sends these."""

    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        peer.send(make_list(model or ModelStatus(name="m", state=State.READY)))
        first, second = peer.receive(), peer.receive()
        assert first == UnloadRequest(id=2, model="m", wait=wait)
        assert second == LoadRequest(id=3, model="m", wait=wait)
        peer.send(*messages)

    return script


def test_restart_asks_for_both_halves_at_once_and_tells_of_one_after_the_other() -> None:
    script = restart(
        Progress(id=2, stage=Stage.WAITING, waiting_for=("m",), busy=("m",)),
        Progress(id=3, stage=Stage.QUEUED),
        Done(id=2, model="m", seconds=0.2),
        Progress(id=3, stage=Stage.STARTING),
        Done(id=3, model="m", seconds=1.5),
    )
    result, _ = ask(script, "restart", "m", "--json")
    assert result.err.splitlines() == ["m: waiting for its requests to end", "m: starting", "m: ready in 1.5 s"]
    assert json.loads(result.out) == {"model": "m", "result": "ready", "seconds": 1.5}
    assert result.status == 0


def test_restart_of_what_is_not_loaded_loads_it() -> None:
    script = restart(
        fail(2, ErrorCode.NOT_LOADED, "cannot unload 'm': it is not loaded"),
        Progress(id=3, stage=Stage.STARTING),
        Done(id=3, model="m", seconds=1.5),
    )
    result, _ = ask(script, "restart", "m")
    assert (result.status, result.err.splitlines()[-1]) == (0, "m: ready in 1.5 s")


def test_restart_without_waiting_leaves_both_halves_to_the_supervisor() -> None:
    script = restart(Done(id=2, model="m"), Done(id=3, model="m"), wait=False)
    result, _ = ask(script, "restart", "m", "--no-wait")
    assert result.status == 0
    assert result.err == "m: will be unloaded when its requests have ended, and then loaded\n"


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (
            make_list(ModelStatus(name="m", state=State.READY, invalid="unknown key 'x'")),
            1,
            "llamactl: cannot restart 'm': its configuration is invalid: unknown key 'x'; it was left as it is; ",
        ),
        (fail(1, ErrorCode.UNKNOWN_MODEL, "cannot find model 'm'"), 4, "llamactl: cannot find model 'm'\n"),
    ],
)
def test_restart_leaves_alone_what_could_not_be_loaded(answer: object, status: int, text: str) -> None:
    result, requests = ask(answer_all(1, answer), "restart", "m")
    assert requests == [ListRequest(id=1, model="m")]
    assert (result.status, result.err.startswith(text)) == (status, True)


def test_interrupt_names_what_goes_on() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        for _ in range(3):
            peer.receive()
        peer.send(Done(id=2, model="b", seconds=1.0), Progress(id=1, stage=Stage.STARTING))
        assert peer.receive() is None

    with Supervisor(script) as supervisor:
        command = make_command("load", "a", "b", "c")
        process = subprocess.Popen(command, env=make_environment(supervisor.paths), stderr=subprocess.PIPE)
        assert process.stderr is not None
        read_until(process.stderr.fileno(), b"a: starting\n")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert err.decode() == "llamactl: still loading a, c in the background: llamactl ps\n"


def test_interrupt_before_anything_was_asked_promises_nothing(tmp_path: Path) -> None:
    fifo = tmp_path / "asked"
    os.mkfifo(fifo)
    environment = {"PATH": add_systemctl(tmp_path, "activating", told=fifo)}
    paths = Paths(runtime_dir=tmp_path / "run")
    paths.control_socket.parent.mkdir(parents=True)
    process = subprocess.Popen(
        make_command("load", "a"), env=make_environment(paths) | environment, stderr=subprocess.PIPE
    )
    assert fifo.read_text() == "asked\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, b"background" in err) == (130, False)
