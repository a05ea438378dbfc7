"""`load`, `unload`, `measure`, `reload` of one model, as processes: what they ask, what they say, how they end."""

import json
import os
import pty
import signal
import subprocess

import pytest

from llamactl.errors import ERROR_TABLE, ErrorCode
from llamactl.protocol.control_socket import (
    Done,
    Failure,
    LoadRequest,
    MeasureRequest,
    MeasureResult,
    ModelsChanged,
    Progress,
    ReloadRequest,
    ReloadResult,
    UnloadRequest,
)
from llamactl.protocol.values import Breakdown, MemoryStatus, ModelMemory, Row, RowKind, Stage
from tests.socket.cli.scripted import (
    TIMEOUT_S,
    Peer,
    Supervisor,
    answer,
    ask,
    make_command,
    make_environment,
    read_until,
)

LOADING = (
    Progress(id=1, stage=Stage.QUEUED),
    Progress(id=1, stage=Stage.MEASURING),
    Progress(id=1, stage=Stage.WAITING, waiting_for=("smollm2", "qwen"), busy=("smollm2", "qwen")),
    Progress(id=1, stage=Stage.STARTING),
    Progress(id=1, stage=Stage.LOADING, fraction=0.1),
    Progress(id=1, stage=Stage.LOADING, fraction=0.45),
    Progress(id=1, stage=Stage.READY),
)
DONE = Done(id=1, model="m", seconds=0.8)


def test_load_tells_each_stage_once_in_a_pipe() -> None:
    result, requests = ask(answer(*LOADING, DONE), "load", "m")
    assert requests == [LoadRequest(id=1, model="m")]
    assert (result.status, result.out) == (0, "")
    assert result.err.splitlines() == [
        "m: queued",
        "m: measuring",
        "m: waiting for smollm2, qwen (busy)",
        "m: starting",
        "m: loading",
        "m: ready in 0.8 s",
    ]


def test_load_tells_a_warning_and_goes_on() -> None:
    warning = Progress(id=1, stage=Stage.STARTING, warning="needs 2 GiB on Host, 1 GiB there")
    result, _ = ask(answer(warning, Progress(id=1, stage=Stage.LOADING), DONE), "load", "m")
    assert result.status == 0
    assert result.err.splitlines() == [
        "m: warning: needs 2 GiB on Host, 1 GiB there",
        "m: starting",
        "m: loading",
        "m: ready in 0.8 s",
    ]


def test_load_shows_one_line_that_changes_on_a_terminal() -> None:
    terminal, end = pty.openpty()
    with Supervisor(answer(*LOADING, DONE)) as supervisor:
        process = subprocess.Popen(make_command("load", "m"), env=make_environment(supervisor.paths), stderr=end)
        os.close(end)
        shown = read_until(terminal, b"ready in 0.8 s\r\n")
        os.close(terminal)
        assert process.wait(TIMEOUT_S) == 0
    assert shown.count(b"\n") == 1
    assert b"\r\x1b[2Km: loading 10 %\r\x1b[2Km: loading 45 %\r\x1b[2Km: ready in 0.8 s\r\n" in shown


def test_notices_between_answers_are_passed_over() -> None:
    result, _ = ask(answer(ModelsChanged(), Progress(id=9, stage=Stage.STARTING), DONE), "load", "m")
    assert result.status == 0
    assert "starting" not in result.err


@pytest.mark.parametrize(
    "last",
    [
        Done(id=1, model="m"),
        Failure(id=1, code=ErrorCode.ALREADY_LOADED, message="cannot load 'm': it is loaded", model="m"),
    ],
)
def test_loaded_model_is_said_to_be_loaded(last: object) -> None:
    result, _ = ask(answer(last), "load", "alias")
    assert (result.status, result.err) == (0, "alias: already loaded\n")


@pytest.mark.parametrize(
    ("words", "last", "result_word"),
    [
        (["load", "m"], Done(id=1, model="m"), "already loaded"),
        (["load", "m", "--no-wait"], Done(id=1, model="m"), "queued"),
        (["unload", "m"], Done(id=1, model="m", seconds=0.1), "unloaded"),
        (["unload", "m", "--no-wait"], Done(id=1, model="m"), "queued"),
    ],
)
def test_result_is_one_word_for_scripts(words: list[str], last: Done, result_word: str) -> None:
    result, _ = ask(answer(last), *words, "--json")
    assert (json.loads(result.out)["result"], result.status) == (result_word, 0)


def test_load_without_waiting() -> None:
    result, requests = ask(answer(Done(id=1, model="m")), "load", "m", "--no-wait")
    assert requests == [LoadRequest(id=1, model="m", wait=False)]
    assert (result.status, result.err) == (0, "m: will be loaded: llamactl status m\n")


def test_load_as_json_keeps_progress_apart() -> None:
    result, _ = ask(answer(*LOADING, DONE), "load", "alias", "--json")
    assert json.loads(result.out) == {"model": "m", "result": "ready", "seconds": 0.8}
    assert "measuring" in result.err


def test_measuring_is_only_told_of_what_is_measured() -> None:
    failure = Failure(id=1, code=ErrorCode.INVALID_MODEL, message="cannot measure 'bad': its configuration is invalid")
    result, _ = ask(answer(failure), "measure", "bad")
    assert result.err == "llamactl: cannot measure 'bad': its configuration is invalid\n"


@pytest.mark.parametrize("code", sorted(ErrorCode))
def test_every_error_has_its_exit_status_and_one_line(code: ErrorCode) -> None:
    failure = Failure(id=1, code=code, message="cannot measure 'm': why", hint="do this", details={"bytes": 3})
    result, _ = ask(answer(failure), "measure", "m", "--json")
    assert result.status == ERROR_TABLE[code].exit_status
    assert result.err.splitlines()[-1] == "llamactl: cannot measure 'm': why; do this"
    assert json.loads(result.out) == {
        "error": {
            "code": code,
            "message": "cannot measure 'm': why",
            "hint": "do this",
            "model": "",
            "details": {"bytes": 3},
        }
    }


def test_exit_statuses_that_scripts_know() -> None:
    known = {
        ErrorCode.NOT_LOADED: 3,
        ErrorCode.UNKNOWN_MODEL: 4,
        ErrorCode.DOES_NOT_FIT: 5,
        ErrorCode.NO_SUPERVISOR: 6,
        ErrorCode.LOAD_FAILED: 1,
    }
    for code, status in known.items():
        result, _ = ask(answer(Failure(id=1, code=code, message="x")), "load", "m")
        assert (result.status, result.err, result.out) == (status, "llamactl: x\n", "")


def test_code_of_a_newer_supervisor_counts_as_any_failure() -> None:
    result, _ = ask(answer(Failure(id=1, code="melted", message="cannot load 'm': melted")), "load", "m")
    assert (result.status, result.err) == (1, "llamactl: cannot load 'm': melted\n")


def test_escape_sequences_of_others_do_not_reach_the_terminal() -> None:
    result, _ = ask(answer(Failure(id=1, code="load_failed", message="x\x1b[2Jy")), "load", "m")
    assert "\x1b" not in result.err


@pytest.mark.parametrize(("command", "doing"), [("load", "loading"), ("unload", "unloading")])
def test_interrupt_ends_the_waiting_and_nothing_else(command: str, doing: str) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        peer.send(Progress(id=1, stage=Stage.STARTING))
        assert peer.receive() is None, "the command must not cancel anything"

    with Supervisor(script) as supervisor:
        process = subprocess.Popen(
            make_command(command, "m"), env=make_environment(supervisor.paths), stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        assert process.stderr.readline() == b"m: starting\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert supervisor.served.wait(TIMEOUT_S)
        assert len(supervisor.requests) == 1
    assert process.returncode == 130
    assert err.decode() == f"llamactl: still {doing} in the background: llamactl status m\n"


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        (["m"], UnloadRequest(id=1, model="m")),
        (["m", "--now"], UnloadRequest(id=1, model="m", now=True)),
        (["m", "--no-wait"], UnloadRequest(id=1, model="m", wait=False)),
    ],
)
def test_unload_asks_for_what_was_said(words: list[str], request_: UnloadRequest) -> None:
    result, requests = ask(answer(Done(id=1, model="m", seconds=1)), "unload", *words)
    assert requests == [request_]
    assert (result.status, result.err.startswith("m: ")) == (0, True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--no-wait"], "m: will be unloaded when its requests have ended\n"),
        (["--no-wait", "--now"], "m: is being unloaded now, running requests are cut\n"),
    ],
)
def test_unload_without_waiting_says_what_becomes_of_requests(options: list[str], text: str) -> None:
    result, _ = ask(answer(Done(id=1, model="m")), "unload", "m", *options)
    assert (result.status, result.err) == (0, text)


def test_unload_of_what_is_not_loaded_is_3() -> None:
    failure = Failure(id=1, code=ErrorCode.NOT_LOADED, message="cannot unload 'm': it is not loaded", model="m")
    result, _ = ask(answer(failure), "unload", "m")
    assert (result.status, result.err) == (3, "llamactl: cannot unload 'm': it is not loaded\n")


def make_memory() -> ModelMemory:
    gpu = Row(kind=RowKind.DEVICE, name="CUDA0", model=4 << 30, context=1 << 30, compute=512 << 20, total=8 << 30)
    host = Row(kind=RowKind.HOST, name="Host", model=100 << 20)
    return ModelMemory(
        status=MemoryStatus.MEASURED,
        min=Breakdown(n_ctx=4096, devices=(gpu, host)),
        max=Breakdown(n_ctx=32768, devices=(gpu,)),
    )


def test_measure_shows_every_row() -> None:
    result, requests = ask(answer(MeasureResult(id=1, model="m", memory=make_memory())), "measure", "m")
    assert requests == [MeasureRequest(id=1, model="m")]
    assert result.status == 0
    assert [line.split() for line in result.out.splitlines()] == [
        ["MEMORY", "MIN", "MAX", "OF", "IT", "MODEL", "CONTEXT", "COMPUTE"],
        ["CUDA0", "5.50", "GiB", "5.50", "GiB", "4.00", "GiB", "1.00", "GiB", "512", "MiB"],
        ["Host", "100", "MiB", "-", "100", "MiB", "0", "B", "0", "B"],
        ["context", "4096", "tokens", "32768", "tokens"],
    ]


def test_measure_as_json_has_bytes() -> None:
    result, _ = ask(answer(MeasureResult(id=1, model="m", memory=make_memory())), "measure", "m", "--json")
    memory = json.loads(result.out)["memory"]
    assert memory["min"]["devices"][0]["model"] == 4 << 30
    assert memory["effective"] is None


def test_reload_tells_what_changed_and_what_is_wrong() -> None:
    last = ReloadResult(
        id=1,
        added=("a", "b"),
        changed=("c",),
        settings=("strict: false -> true",),
        invalid=("d",),
        problems=("x.toml: line 3: not TOML",),
        fatal=1,
    )
    result, requests = ask(answer(last), "reload")
    assert requests == [ReloadRequest(id=1)]
    assert result.out == "strict: false -> true\nadded: a, b\nchanged: c\ninvalid: d\n"
    assert result.err == "llamactl: x.toml: line 3: not TOML\n"
    assert result.status == 1


def test_reload_tells_invalid_models_that_run_apart_and_those_that_are_mended() -> None:
    last = ReloadResult(id=1, invalid=("a", "b"), kept=("b",), mended=("c",))
    result, _ = ask(answer(last), "reload")
    assert result.out.splitlines() == [
        "invalid: a",
        "invalid, but loaded: these go on as before until they are unloaded: b",
        "no longer invalid: c",
    ]


def test_reload_with_remarks_only_is_0() -> None:
    result, _ = ask(answer(ReloadResult(id=1, problems=("m.toml: there are no GGUF files",))), "reload")
    assert (result.status, result.err) == (0, "llamactl: m.toml: there are no GGUF files\n")


def test_reload_without_changes_says_so() -> None:
    result, _ = ask(answer(ReloadResult(id=1)), "reload")
    assert (result.status, result.out) == (0, "nothing has changed\n")


def test_reload_tells_whose_files_were_replaced() -> None:
    result, _ = ask(answer(ReloadResult(id=1, replaced=("a", "b"))), "reload")
    assert (result.status, result.out) == (0, "files replaced, measured again: a, b\n")


def test_reload_as_json() -> None:
    found = {"/srv/models": {"": ("b",)}}
    result, _ = ask(answer(ReloadResult(id=1, removed=("a",), found=found)), "reload", "--json")
    lists: dict[str, list[str]] = {
        word: [] for word in ("added", "changed", "invalid", "kept", "mended", "replaced", "settings", "problems")
    }
    assert json.loads(result.out) == {**lists, "removed": ["a"], "found": {"/srv/models": {"": ["b"]}}}


def test_reload_says_what_was_found_where() -> None:
    places = {"": ("top",), "unsloth/Qwen3-GGUF": ("Qwen3-4B-Q4_K_M", "Qwen3-4B-Q8_0")}
    result, _ = ask(answer(ReloadResult(id=1, added=("top",), found={"/srv/models": places, "/srv/no": {}})), "reload")
    assert result.out.splitlines() == [
        "added: top",
        "found in /srv/models:",
        "  top",
        "  unsloth/Qwen3-GGUF: Qwen3-4B-Q4_K_M, Qwen3-4B-Q8_0",
        "found in /srv/no: no models",
    ]


def test_reload_names_the_first_of_many_directories() -> None:
    places = {f"d{number:02}": (f"m{number}",) for number in range(30)}
    lines = ask(answer(ReloadResult(id=1, found={"/srv": places})), "reload")[0].out.splitlines()
    assert lines[20:] == ["  d19: m19", "  and in 10 more directories: `llamactl check` shows all"]
