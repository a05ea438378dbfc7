"""`ps`, `list`, `status` on a terminal: nothing is wider, what is cut can be had whole, colours can be off."""

import re
from pathlib import Path

import msgspec
import pytest

from llamactl.cli.terminal import measure_width
from llamactl.protocol.control_socket import MachineStatus, ModelList
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
from tests.socket.cli.scripted import TAKEN, add_systemctl, answer, ask, show_on_terminal

NAME = "Qwen2.5-Coder-32B-Instruct-abliterated-Q4_K_M"
ROWS = tuple(
    Row(kind=RowKind.DEVICE, name=name, model=21 << 30, context=1023 << 20, compute=512 << 20)
    for name in ("CUDA0", "RPC0[192.168.178.100:50052]")
)
LOADED = ModelStatus(
    name=NAME,
    state=State.READY,
    aliases=("gpt-4o-mini-2024-07-18", "gpt-4o-2024-08-06", "text-davinci-003", "another-alias"),
    slug="qwen2.5-coder-32b-instruct-abliterated-q4_k_m-0123abcd",
    unit="llamactl-model@qwen2.5-coder-32b-instruct-abliterated-q4_k_m-0123abcd.service",
    path=f"/srv/models/huggingface/hub/models--bartowski--Qwen2.5-Coder/snapshots/0123456789abcdef/{NAME}.gguf",
    pid=4194304,
    generation="x",
    pinned=True,
    queued=3,
    busy=12,
    last_used_s=10.0,
    ready_since_s=1.0,
    parallel=4,
    memory=ModelMemory(
        status=MemoryStatus.MEASURED,
        min=Breakdown(n_ctx=4096, devices=ROWS),
        max=Breakdown(n_ctx=131072, devices=ROWS),
        effective=Breakdown(n_ctx=131072, devices=ROWS),
    ),
    facts=Facts(description="qwen2 32B Q4_K - Medium, with quite some words more than one needs here", n_ctx_train=1),
    ended=Ending(event="model unloaded", time_s=1_790_000_000.0, reason="evicted", for_model=NAME),
)
FAILED = msgspec.structs.replace(
    LOADED,
    state=State.FAILED,
    retry_at_s=2000.0,
    failures=3,
    failure=LoadFailure(result="exit-code", exit_code=1, message="cannot load it: " + "very " * 30 + "sorry"),
    ended=Ending(event="load failed", time_s=1_790_000_000.0, reason="x"),
)
WAITING = ModelStatus(name="w" * 128, state=State.LOADING, stage=Stage.WAITING, waiting_for=(NAME, "b" * 60))
INVALID = ModelStatus(name="broken", state=State.UNLOADED, invalid="unknown key 'ctxx'; " + "and so on " * 12)
MODELS = (LOADED, FAILED, WAITING, INVALID)
MACHINE = MachineStatus(
    id=1,
    llamactl="0.1.0",
    pid=4194304,
    since_s=0.0,
    now_s=7380.0,
    devices=tuple(
        DeviceStatus(
            name=row.name,
            description="NVIDIA H200 " * 8,
            total=139 << 30,
            external=1023 << 20,
            held=120 << 30,
            available=1023 << 20,
            margin=1 << 30,
            holders={NAME: 60 << 30, "other": 60 << 30},
        )
        for row in ROWS
    ),
    loaded=2,
    max_loaded=2,
    queue=(NAME, "w" * 60),
    decisions=(
        Decision(event="victim chosen", model=NAME, for_model="other", why="idle for 4 s " * 9, time_s=1_790_000_000.0),
        Decision(event="load refused", model="b", why="needs 2 GiB", time_s=1_790_000_000.0),
    ),
    problems=("/etc/llamactl/llamactl.toml: host_budget is NOT IN FORCE: " + "because " * 20,),
)


def strip_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def show(*words: str, **environment: str) -> str:
    machine = words == ("status",) or words == ("status", "--full")
    models = MODELS if len(words) == 1 or words[1].startswith("-") else (LOADED,)
    answers = MACHINE if machine else ModelList(id=1, now_s=1000.0, models=models)
    return show_on_terminal(answer(answers), *words, environment=environment)


@pytest.mark.parametrize("words", [["ps"], ["list"], ["status"], ["status", "m"]])
def test_nothing_is_wider_than_the_terminal(words: list[str]) -> None:
    for columns in (80, 100, 60):
        shown = strip_colours(show(*words, COLUMNS=str(columns)))
        assert len(shown.splitlines()) > 2
        assert max(map(measure_width, shown.splitlines())) <= columns
    assert "…" in shown


@pytest.mark.parametrize("model", MODELS, ids=["loaded", "failed", "waiting", "invalid"])
def test_status_of_any_model_holds_in_the_terminal(model: ModelStatus) -> None:
    script = answer(ModelList(id=1, now_s=1000.0, models=(model,)))
    shown = strip_colours(show_on_terminal(script, "status", "m"))
    assert max(map(measure_width, shown.splitlines())) <= 80
    whole, _ = ask(answer(ModelList(id=1, now_s=1000.0, models=(model,))), "status", "m")
    if model.failure is not None:
        reason = model.failure.message
        assert reason in whole.out
        assert reason in re.sub(r"\s+", " ", shown), "what was written is wrapped, not cut"


@pytest.mark.parametrize("words", [["ps"], ["list"], ["status"], ["status", "m"]])
def test_in_a_pipe_and_when_asked_for_everything_is_whole(words: list[str]) -> None:
    models = MODELS if len(words) == 1 else (LOADED,)
    answers = MACHINE if words == ["status"] else ModelList(id=1, now_s=1000.0, models=models)
    piped, _ = ask(answer(answers), *words, environment={"COLUMNS": "80", "LANG": "C.UTF-8"})
    assert "…" not in piped.out
    assert NAME in piped.out
    assert "\x1b" not in piped.out
    shown = strip_colours(show(*words, "--full"))
    assert "…" not in shown
    assert NAME in shown
    assert max(map(len, shown.splitlines())) > 80


def test_ps_keeps_what_one_looks_for() -> None:
    header, row, *_ = strip_colours(show("ps")).splitlines()
    assert header.split() == ["MODEL", "STATE", "PID", "MEMORY", "BUSY", "IDLE", "UP"]
    assert row.split()[0].startswith("Qwen2")
    assert row.split()[0].endswith("M")
    assert {"4194304", "12", "16min"} <= set(row.split())
    small = ModelStatus(name="m", state=State.READY, pid=1, unit="llamactl-model@m.service", generation="x")
    shown = strip_colours(show_on_terminal(answer(ModelList(id=1, now_s=1.0, models=(small,))), "ps"))
    assert "llamactl-model@m.service" in shown


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_off(environment: dict[str, str]) -> None:
    for words in (["ps"], ["list"], ["status"], ["status", "m"]):
        assert "\x1b" in show(*words)
        assert "\x1b" not in show(*words, **environment)


def test_state_has_a_colour_and_a_mark() -> None:
    shown = show("list")
    assert "\x1b[0;1;32mready, pinned\x1b[0m" in shown
    assert "\x1b[0;1;31mfailed" in shown
    assert "\x1b[0;1;31minvalid\x1b[0m" in shown
    for model, mark in ((LOADED, "●"), (FAILED, "\N{MULTIPLICATION SIGN}"), (INVALID, "\N{MULTIPLICATION SIGN}")):
        script = answer(ModelList(id=1, now_s=1000.0, models=(model,)))
        assert strip_colours(show_on_terminal(script, "status", "m")).startswith(f"{mark} ")


def test_endpoint_that_is_not_in_force_is_loud(tmp_path: Path) -> None:
    path = add_systemctl(tmp_path, sockets=TAKEN)
    shown = show("status", PATH=path)
    assert "\x1b[0;1;31m127.0.0.1:8080: NOT IN FORCE" in shown
    assert max(map(measure_width, strip_colours(shown).splitlines())) <= 80
