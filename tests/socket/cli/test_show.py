"""`list`, `ps`, `status`: tables for people, JSON for scripts."""

import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llamactl.errors import ErrorCode
from llamactl.protocol.control_socket import Failure, ListRequest, MachineStatus, ModelList, StatusRequest
from llamactl.protocol.descriptions import Decision, DeviceStatus, Ending, ModelStatus
from llamactl.protocol.values import (
    Breakdown,
    Facts,
    LoadFailure,
    MemoryStatus,
    ModelMemory,
    Row,
    RowKind,
    Stage,
    State,
)
from tests.socket.cli.scripted import TAKEN, add_systemctl, answer, ask

GPU = Row(kind=RowKind.DEVICE, name="CUDA0", model=5 << 30)
HOST = Row(kind=RowKind.HOST, name="Host", model=200 << 20)
REPACKED = Row(kind=RowKind.BUFFER_TYPE, name="CPU_REPACK", model=100 << 20)
READY = ModelStatus(
    name="smollm2",
    state=State.READY,
    aliases=("tiny", "s"),
    unit="llamactl-model@smollm2.service",
    path="/srv/models/smollm2.gguf",
    pid=4242,
    generation="1f-1",
    last_used_s=988.0,
    ready_since_s=877.0,
    pinned=True,
    memory=ModelMemory(
        status=MemoryStatus.MEASURED,
        min=Breakdown(n_ctx=4096, devices=(GPU,)),
        effective=Breakdown(n_ctx=8192, devices=(GPU, HOST, REPACKED)),
    ),
    facts=Facts(
        description="llama 135M Q8_0", n_ctx_train=8192, size_bytes=145 << 20, input_modalities=("text", "image")
    ),
    parallel=4,
)
LOADING = ModelStatus(
    name="qwen", state=State.LOADING, unit="u", pid=7, stage=Stage.LOADING, progress=0.45, queued=2, busy=0
)
INVALID = ModelStatus(name="broken", state=State.UNLOADED, invalid="unknown key 'ctxx'; did you mean 'ctx'?")
FAILED = ModelStatus(
    name="bad",
    state=State.FAILED,
    failure=LoadFailure(result="exit-code", exit_code=1, message="error loading model\nout of \x1b[1mluck"),
)
MODELS = ModelList(id=1, now_s=1000.0, models=(READY, LOADING, INVALID, FAILED))


def list_cells(text: str) -> list[list[str]]:
    return [[cell for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def test_list_shows_all_models_and_why_one_cannot_be_used() -> None:
    result, requests = ask(answer(MODELS), "list")
    assert requests == [ListRequest(id=1)]
    assert result.status == 0
    lines = result.out.splitlines()
    assert lines[0].split() == ["MODEL", "STATE", "SIZE", "MEMORY", "MIN", "CONTEXT", "ALIASES"]
    assert lines[1].split() == [
        "smollm2",
        "ready,",
        "pinned",
        "145",
        "MiB",
        "CUDA0",
        "5.00",
        "GiB",
        "8192",
        "tiny,",
        "s",
    ]
    assert lines[2].split() == ["qwen", "loading", "45", "%", "-", "to", "be", "measured", "-", "-"]
    assert lines[3].split() == ["broken", "invalid", "-", "-", "-", "-"]
    assert lines[-2:] == ["Cannot be used:", "  broken: unknown key 'ctxx'; did you mean 'ctx'?"]


@pytest.mark.parametrize(
    ("status", "words"), [(MemoryStatus.MEASURING, "measuring"), (MemoryStatus.FAILED, "measuring failed")]
)
def test_list_says_why_no_memory_is_known(status: MemoryStatus, words: str) -> None:
    model = ModelStatus(name="m", state=State.UNLOADED, memory=ModelMemory(status=status))
    result, _ = ask(answer(ModelList(id=1, now_s=1.0, models=(model,))), "list")
    assert result.out.splitlines()[1].split()[3:-2] == words.split()


def test_columns_are_aligned() -> None:
    result, _ = ask(answer(MODELS), "list")
    lines = result.out.splitlines()[:5]
    start = lines[0].index("STATE")
    assert all(line[start - 2 : start] == "  " and line[start] != " " for line in lines)
    end = lines[0].index("CONTEXT") + len("CONTEXT")
    assert lines[1][end - 4 : end] == "8192"


def test_ps_shows_what_runs_with_ages() -> None:
    result, _ = ask(answer(MODELS), "ps")
    assert [line.split() for line in result.out.splitlines()] == [
        ["MODEL", "STATE", "PID", "MEMORY", "BUSY", "IDLE", "UP", "UNIT"],
        [
            "smollm2",
            "ready,",
            "pinned",
            "4242",
            "CUDA0",
            "5.00",
            "GiB,",
            "Host",
            "300",
            "MiB",
            "0",
            "12s",
            "2min",
            "3s",
            "llamactl-model@smollm2.service",
        ],
        ["qwen", "loading", "45", "%", "7", "-", "0", "-", "-", "u"],
    ]


def test_ps_shows_no_memory_of_a_model_that_only_waits() -> None:
    measured = ModelMemory(status=MemoryStatus.MEASURED, min=Breakdown(n_ctx=4096, devices=(GPU,)))
    waiting = ModelStatus(name="w", state=State.LOADING, unit="u", stage=Stage.WAITING, memory=measured)
    loading = ModelStatus(name="l", state=State.LOADING, unit="u", generation="1-1", memory=measured)
    result, _ = ask(answer(ModelList(id=1, now_s=1.0, models=(waiting, loading))), "ps")
    _, first, second = [line.split() for line in result.out.splitlines()]
    assert first == ["w", "waiting", "-", "-", "0", "-", "-", "u"]
    assert second == ["l", "loading", "-", "CUDA0", "5.00", "GiB", "0", "-", "-", "u"]


@pytest.mark.parametrize("known", [True, False])
def test_status_says_why_a_measurement_failed(known: bool) -> None:
    figures = Breakdown(n_ctx=1, devices=(GPU,)) if known else None
    memory = ModelMemory(status=MemoryStatus.FAILED, error="bad magic (exit-code 1)", min=figures)
    _, out = show(ModelStatus(name="m", state=State.UNLOADED, memory=memory))
    expected = "The last measurement has failed: " if known else "memory: not known, measuring has failed: "
    assert out.splitlines()[-1] == expected + "bad magic (exit-code 1)"


def test_status_says_which_settings_wait() -> None:
    _, out = show(msgspec.structs.replace(READY, waiting_settings=("ctx", "parallel")))
    assert "    Changed: ctx, parallel: what is new counts from the next load on" in out.splitlines()


def test_context_is_what_a_load_would_give() -> None:
    unloaded = ModelStatus(name="m", state=State.UNLOADED, ctx=2048)
    measured = ModelMemory(max=Breakdown(n_ctx=6000))
    for memory, shown in ((ModelMemory(), "2048"), (measured, "6000")):
        model = msgspec.structs.replace(unloaded, memory=memory)
        result, _ = ask(answer(ModelList(id=1, now_s=1.0, models=(model,))), "list")
        assert shown in result.out.splitlines()[1].split()


def test_ps_of_nothing_is_a_header() -> None:
    result, _ = ask(answer(ModelList(id=1, now_s=1.0, models=())), "ps")
    assert (result.status, len(result.out.splitlines())) == (0, 1)


def test_ps_as_json_has_ages_and_no_moments() -> None:
    result, _ = ask(answer(MODELS), "ps", "--json")
    [ready, loading] = json.loads(result.out)
    assert (ready["name"], ready["idle_s"], ready["uptime_s"]) == ("smollm2", 12.0, 123.0)
    assert ready["memory"]["effective"]["devices"][0]["model"] == 5 << 30
    assert (loading["idle_s"], loading["uptime_s"]) == (None, None)
    assert not {"last_used_s", "ready_since_s"} & set(ready)


def test_list_as_json_has_all_models() -> None:
    result, _ = ask(answer(MODELS), "list", "--json")
    assert [model["name"] for model in json.loads(result.out)] == ["smollm2", "qwen", "broken", "bad"]
    assert result.out.count("\n") == 1


def show(model: ModelStatus) -> tuple[int, str]:
    result, requests = ask(answer(ModelList(id=1, now_s=1000.0, models=(model,))), "status", "m")
    assert requests == [ListRequest(id=1, model="m")]
    return result.status, result.out


def test_status_of_a_loaded_model() -> None:
    status, out = show(READY)
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "● smollm2 - llama 135M Q8_0"
    assert "      State: ready, pinned for 2min 3s" in lines
    assert "   Requests: none for 12s" in lines
    assert "    Aliases: tiny, s" in lines
    assert "   Main PID: 4242" in lines
    assert "    Context: 8192 tokens in 4 sequences (trained for 8192)" in lines
    assert "      Takes: text, image" in lines
    assert lines[-2].split() == ["Host", "in", "all", "-", "300", "MiB"]
    assert [line.split()[0] for line in lines[-5:]] == ["CUDA0", "Host", "CPU_REPACK", "Host", "context"]


@pytest.mark.parametrize(
    ("model", "texts"),
    [
        (LOADING, ["State: loading 45 %", "Requests: 2 waiting", "memory: not measured yet"]),
        (INVALID, ["State: invalid", "Reason: unknown key 'ctxx'; did you mean 'ctx'?"]),
        (
            FAILED,
            [
                "State: failed",
                "Failure: exit-code, exit status 1",
                "             error loading model",
                "llamactl logs bad",
            ],
        ),
        (ModelStatus(name="m", state=State.UNLOADED), ["State: unloaded"]),
    ],
)
def test_status_of_a_model_that_is_not_loaded_is_3(model: ModelStatus, texts: list[str]) -> None:
    status, out = show(model)
    assert status == 3
    assert all(text in out for text in texts), out
    assert "\x1b" not in out


def test_status_of_an_unknown_model_is_4() -> None:
    failure = Failure(id=1, code=ErrorCode.UNKNOWN_MODEL, message="cannot find model 'm'")
    result, _ = ask(answer(failure), "status", "m")
    assert (result.status, result.err) == (4, "llamactl: cannot find model 'm'\n")


MACHINE = MachineStatus(
    id=1,
    llamactl="0.1.0",
    pid=99,
    since_s=0.0,
    now_s=7380.0,
    devices=(
        DeviceStatus(
            name="CUDA0",
            description="NVIDIA H200",
            total=139 << 30,
            external=1 << 30,
            held=5 << 30,
            available=133 << 30,
            margin=1 << 30,
            holders={"smollm2": 5 << 30},
        ),
        DeviceStatus(name="Host", description="", total=0, external=0, held=0, available=0, margin=0),
    ),
    loaded=1,
    max_loaded=2,
    queue=("qwen",),
    controllers=("cpu", "pids"),
    problems=("x.toml: line 3: not TOML",),
)


def test_status_of_the_machine() -> None:
    result, requests = ask(answer(MACHINE), "status")
    assert requests == [StatusRequest(id=1)]
    assert result.status == 0
    lines = [line.strip() for line in result.out.splitlines()]
    assert lines[0] == "● llamactl 0.1.0: up 2h 3min, PID 99"
    assert "Loaded: 1 of at most 2" in lines
    assert "Queue: qwen" in lines
    (missing,) = [line for line in lines if line.startswith("Cgroups: ")]
    assert missing.startswith("Cgroups: no memory, cpuset, io controller here; MemoryMax, AllowedCPUs, IOWeight and")
    rows = [line.split() for line in lines]
    assert [
        "CUDA0",
        "139",
        "GiB",
        "1.00",
        "GiB",
        "5.00",
        "GiB",
        "1.00",
        "GiB",
        "133",
        "GiB",
        "smollm2",
        "5.00",
        "GiB",
    ] in rows
    assert ["Host", "-", "-", "0", "B", "0", "B", "-", "-"] in rows
    assert lines[-2:] == ["Problems:", "x.toml: line 3: not TOML"]


def test_status_of_the_machine_as_json() -> None:
    result, _ = ask(answer(MACHINE), "status", "--json")
    fields: dict[str, Any] = json.loads(result.out)
    assert fields["uptime_s"] == 7380.0
    assert fields["devices"][0]["holders"] == {"smollm2": 5 << 30}
    assert not {"since_s", "now_s", "id", "type"} & set(fields)


def test_model_that_was_just_loaded_has_not_been_idle_for_longer_than_it_is_up() -> None:
    model = msgspec.structs.replace(READY, last_used_s=870.0, ready_since_s=990.0, parallel=1)
    result, _ = ask(answer(ModelList(id=1, now_s=1000.0, models=(model,))), "status", "smollm2")
    assert "none for 10s" in result.out
    assert "8192 tokens in 1 sequence (" in result.out
    result, _ = ask(answer(ModelList(id=1, now_s=1000.0, models=(model,))), "ps", "--json")
    (shown,) = json.loads(result.out)
    assert (shown["idle_s"], shown["uptime_s"]) == (10.0, 10.0)


# --- what has been ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "failure", "line"),
    [
        (
            Ending(event="model unloaded", time_s=0, reason="evicted", for_model="gemma3"),
            None,
            r"   Unloaded: \w{3} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+; 5min( \d+s)? ago: evicted for gemma3",
        ),
        (Ending(event="model unloaded", time_s=0, reason="by command"), None, r"   Unloaded: .* ago: by command"),
        (Ending(event="instance crashed", time_s=0, reason="SIGSEGV"), None, r"    Crashed: .*; 5min.* ago: SIGSEGV"),
        (Ending(event="load failed", time_s=0, reason="bad magic"), FAILED.failure, r"     Failed: .*; 5min.* ago"),
    ],
)
def test_status_says_when_why_and_for_whom_a_model_ended_last(
    ended: Ending, failure: LoadFailure | None, line: str
) -> None:
    ended = msgspec.structs.replace(ended, time_s=time.time() - 300)
    _, out = show(ModelStatus(name="m", state=State.UNLOADED, ended=ended, failure=failure))
    assert any(re.fullmatch(line, shown) for shown in out.splitlines()), out


def test_end_of_a_model_for_scripts() -> None:
    ended = Ending(event="model unloaded", time_s=time.time() - 300, reason="evicted", for_model="b")
    listing = ModelList(id=1, now_s=1.0, models=(ModelStatus(name="m", state=State.UNLOADED, ended=ended),))
    result, _ = ask(answer(listing), "status", "m", "--json")
    shown = json.loads(result.out)["ended"]
    assert 300 <= shown.pop("ago_s") < 400
    assert datetime.fromisoformat(shown.pop("time")).timestamp() == pytest.approx(ended.time_s, abs=0.001)
    assert shown == {"event": "model unloaded", "reason": "evicted", "for_model": "b"}


def make_decided() -> MachineStatus:
    """With two decisions, the second one two hours old now."""
    now_s = time.time()
    return msgspec.structs.replace(
        MACHINE,
        decisions=(
            Decision(event="victim chosen", model="a", for_model="b", why="idle for 4 s", time_s=now_s - 300),
            Decision(event="load refused", model="c", why="needs 2 GiB", time_s=now_s - 7200),
        ),
    )


def test_status_of_the_machine_shows_its_last_decisions() -> None:
    result, _ = ask(answer(make_decided()), "status")
    lines = [re.split(r" {2,}", line.strip()) for line in result.out.splitlines()]
    at = lines.index(["WHEN", "MODEL", "DECISION", "WHY"])
    assert lines[at + 1][1:] == ["a", "victim chosen for b", "idle for 4 s"]
    assert lines[at + 2] == ["2h ago", "c", "load refused", "needs 2 GiB"]


def test_status_of_the_machine_shows_its_endpoints(tmp_path: Path) -> None:
    environment = {"PATH": add_systemctl(tmp_path, sockets=TAKEN)}
    result, _ = ask(answer(MACHINE), "status", environment=environment)
    lines = result.out.splitlines()
    assert lines[1] == "  Endpoints: /dev/null: in force"
    assert lines[2].startswith("             127.0.0.1:8080: NOT IN FORCE: ")
    result, _ = ask(answer(make_decided()), "status", "--json", environment=environment)
    shown = json.loads(result.out)
    assert [(one["address"], one["in_force"]) for one in shown["endpoints"]] == [
        ("/dev/null", True),
        ("127.0.0.1:8080", False),
    ]
    assert [one["event"] for one in shown["decisions"]] == ["victim chosen", "load refused"]
    assert set(shown["decisions"][0]) == {"event", "model", "for_model", "why", "time", "ago_s"}


def test_status_without_systemd_says_nothing_of_endpoints(tmp_path: Path) -> None:
    result, _ = ask(answer(MACHINE), "status", environment={"PATH": str(tmp_path)})
    assert "Endpoints" not in result.out
    result, _ = ask(answer(MACHINE), "status", "--json", environment={"PATH": str(tmp_path)})
    assert json.loads(result.out)["endpoints"] == []
