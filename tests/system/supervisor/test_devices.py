"""Do models share devices by bytes? Two RPC devices of llama.cpp's own on loopback, and real models on them.

Such a device says that all of the machine's memory is its own, and free, whatever it holds. So a test first measures,
then sets the margins so that only so much is left as it wants to give.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.models import write_model
from tests.system.conftest import MODELS_DIR
from tests.system.harness import Llamactl, show

SERVERS = {"A": "127.77.0.1:50052", "B": "127.77.0.2:50052"}
DEVICES = {key: f"RPC0[{server}]" for key, server in SERVERS.items()}
CTX, UBATCH, N_EMBD = 1024, 512, 128
PINNED: dict[str, Any] = {
    "ctx": CTX,
    "parallel": 1,
    "n_gpu_layers": "all",
    "fit": False,
    "threads": 1,
    "ubatch": UBATCH,
}


@contextmanager
def listen(*servers: str) -> Iterator[None]:
    """Listeners, each a device for any number of models."""
    listener = str(Path(__file__).with_name("rpc_listener.py"))
    processes = [
        subprocess.Popen([sys.executable, listener, server], stdout=subprocess.PIPE, text=True, process_group=0)
        for server in servers
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
        yield
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture(scope="module")
def devices() -> Iterator[None]:
    with listen(*SERVERS.values()):
        yield


@pytest.fixture(scope="module")
def file() -> Path:
    MODELS_DIR.mkdir(parents=True, exist_ok=True)
    return write_model(MODELS_DIR / "four-layers.gguf", n_layer=4, n_embd=N_EMBD, n_ctx_train=8192)


def on(*keys: str, **more: Any) -> dict[str, Any]:
    """Where a model lies: on device A, on B, on both."""
    return {"rpc": [SERVERS[key] for key in keys], **more}


SPLIT = on("A", "B", tensor_split=[1, 1])
"""Half on each. Without a split, or `devices`, a model that may use both goes where it fits."""
ALONE: dict[str, Any] = {"margin": 0, "min_resident": 0}
"""Settings: no margin but that of a test, and no model stays for having been loaded just now."""


def start(llamactl: Llamactl, file: Path, **models: dict[str, Any]) -> None:
    llamactl.write_models(**{name: {"path": str(file), **PINNED, **more} for name, more in models.items()})
    llamactl.write_settings(**ALONE)
    llamactl.start()


def list_rows(breakdown: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    """Bytes for model, context and compute, by name of the row."""
    return {row["name"]: (row["model"], row["context"], row["compute"]) for row in breakdown["devices"]}


def measure(llamactl: Llamactl, *names: str) -> dict[str, dict[str, int]]:
    """What each model needs on A and on B."""
    needs = {}
    for name in names:
        rows = list_rows(llamactl.cli_json("measure", name)["memory"]["min"])
        needs[name] = {key: sum(rows.get(device, (0,))) for key, device in DEVICES.items()}
    return needs


def leave(llamactl: Llamactl, **room: int) -> None:
    """Set the margins so that our models may hold so many bytes on A and on B."""
    accounts = {account["name"]: account for account in llamactl.cli_json("status")["devices"]}
    margins = {DEVICES[key]: accounts[DEVICES[key]]["total"] - size for key, size in room.items()}
    llamactl.write_settings(**ALONE, margins=margins)
    llamactl.cli("reload")


def list_victims(llamactl: Llamactl) -> list[str]:
    return [entry["LLAMACTL_MODEL"] for entry in llamactl.read_events("victim_chosen")]


def get_accounts(llamactl: Llamactl) -> dict[str, dict[str, Any]]:
    return {account["name"]: account for account in llamactl.cli_json("status")["devices"]}


@pytest.mark.parametrize(
    "more",
    [on("A"), on("B"), SPLIT, on("A", "B", tensor_split=[1, 5]), on("A", cache_type_k="q8_0", flash_attn="on")],
    ids=["A", "B", "both", "split 1:5", "quantised cache"],
)
def test_prediction_is_what_is_allocated(llamactl: Llamactl, devices: None, file: Path, more: dict[str, Any]) -> None:
    """To the byte, with one exception: where a model lies on several devices, llama.cpp's dry run counts up to four
    activations of a batch more for the last of them than it allocates. The host's part of a mapped model is what a
    measurement counts, since llama.cpp says the whole range of the file.
    """
    start(llamactl, file, m=more)
    predicted = list_rows(llamactl.cli_json("measure", "m")["memory"]["min"])
    llamactl.cli("load", "m")
    memory = llamactl.list_loaded()["m"]["memory"]
    effective = list_rows(memory["effective"])
    assert memory["effective"]["n_ctx"] == memory["min"]["n_ctx"] == CTX
    used = [DEVICES[key] for key in DEVICES if SERVERS[key] in more["rpc"]]
    if len(used) > 1:
        (*others, predicted_compute), (*_, compute) = predicted[used[-1]], effective[used[-1]]
        assert 0 <= predicted_compute - compute <= 4 * N_EMBD * UBATCH * 4
        predicted[used[-1]] = (*others, compute)
    assert effective == predicted
    assert all(size > 0 for name in used for size in effective[name])
    assert {name: get_accounts(llamactl)[name]["held"] for name in used} == {
        name: sum(effective[name]) for name in used
    }
    if more.get("tensor_split") == [1, 5]:
        # Of four layers and the output, A has the first.
        assert effective[DEVICES["B"]][1] == 3 * effective[DEVICES["A"]][1]


def test_models_on_devices_answer(llamactl: Llamactl, devices: None, file: Path) -> None:
    start(llamactl, file, a=on("A"), both=SPLIT)
    assert llamactl.chat("a").status == 200
    assert llamactl.chat("both").status == 200
    unit = "llamactl-model@both.service"
    assert show(unit, "PrivateNetwork") == "no"
    assert set(show(unit, "IPAddressAllow").split()) == {"127.77.0.1/32", "127.77.0.2/32"}
    assert set(show(unit, "IPAddressDeny").split()) == {"0.0.0.0/0", "::/0"}


def test_one_fits_and_the_other_device_is_left_alone(llamactl: Llamactl, devices: None, file: Path) -> None:
    start(llamactl, file, a1=on("A"), a2=on("A"), b=on("B"))
    needs = measure(llamactl, "a1", "b")
    leave(llamactl, A=needs["a1"]["A"], B=needs["b"]["B"])
    # `b` is least recently used, but holds nothing on A.
    for name in ("b", "a1", "a2"):
        llamactl.cli("load", name)
    assert list_victims(llamactl) == ["a1"]
    assert sorted(llamactl.list_loaded()) == ["a2", "b"]
    victim = llamactl.read_events("victim_chosen")[0]
    assert victim["LLAMACTL_DEVICE"] == DEVICES["A"]
    assert int(victim["LLAMACTL_FREES_BYTES"]) == needs["a1"]["A"]


def test_two_fit_and_the_least_recently_used_goes(llamactl: Llamactl, devices: None, file: Path) -> None:
    start(llamactl, file, a1=on("A"), a2=on("A"), a3=on("A"))
    needs = measure(llamactl, "a1")
    leave(llamactl, A=2 * needs["a1"]["A"])
    llamactl.cli("load", "a1")
    llamactl.cli("load", "a2")
    assert llamactl.chat("a1").status == 200
    llamactl.cli("load", "a3")
    assert list_victims(llamactl) == ["a2"]
    assert sorted(llamactl.list_loaded()) == ["a1", "a3"]


def test_three_fit_and_a_byte_less_does_not(llamactl: Llamactl, devices: None, file: Path) -> None:
    start(llamactl, file, a1=on("A"), a2=on("A"), a3=on("A"))
    need = measure(llamactl, "a1")["a1"]["A"]
    leave(llamactl, A=3 * need)
    for name in ("a1", "a2", "a3"):
        llamactl.cli("load", name)
    assert list_victims(llamactl) == []
    assert get_accounts(llamactl)[DEVICES["A"]]["held"] == 3 * need
    llamactl.cli("unload", "a3")
    leave(llamactl, A=3 * need - 1)
    llamactl.cli("load", "a3")
    assert list_victims(llamactl) == ["a1"]


def test_model_on_both_devices_takes_from_each_only_what_is_short(
    llamactl: Llamactl, devices: None, file: Path
) -> None:
    start(llamactl, file, a=on("A"), b=on("B"), both=SPLIT)
    needs = measure(llamactl, "a", "b", "both")
    # On A there is room for `a` and the half of `both`, on B for one of the two.
    leave(llamactl, A=needs["a"]["A"] + needs["both"]["A"], B=max(needs["b"]["B"], needs["both"]["B"]))
    for name in ("a", "b", "both"):
        llamactl.cli("load", name)
    assert list_victims(llamactl) == ["b"]
    assert sorted(llamactl.list_loaded()) == ["a", "both"]
    held = {key: get_accounts(llamactl)[DEVICES[key]]["holders"] for key in DEVICES}
    assert {key: sorted(holders) for key, holders in held.items()} == {"A": ["a", "both"], "B": ["both"]}


def test_model_that_may_use_both_goes_where_nobody_must_go(llamactl: Llamactl, devices: None, file: Path) -> None:
    start(llamactl, file, a=on("A"), m=on("A", "B"))
    needs = measure(llamactl, "a", "m")
    whole = sum(needs["m"].values())  # what it is taken to need on one device: never too little
    leave(llamactl, A=whole, B=whole)
    llamactl.cli("load", "a")
    llamactl.cli("load", "m")
    assert list_victims(llamactl) == []
    accounts = get_accounts(llamactl)
    assert {key: list(accounts[device]["holders"]) for key, device in DEVICES.items()} == {"A": ["a"], "B": ["m"]}


def test_victim_that_turns_out_not_to_be_needed_is_spared(llamactl: Llamactl, devices: None, file: Path) -> None:
    start(llamactl, file, small=on("A", ctx=256), large=on("A", ctx=4096), other=on("A", ctx=4096))
    needs = measure(llamactl, "small", "large")
    assert needs["small"]["A"] < needs["large"]["A"]
    leave(llamactl, A=needs["small"]["A"] + needs["large"]["A"])
    # `small` is least recently used, but gives too little; with `large` gone it is not needed.
    for name in ("small", "large", "other"):
        llamactl.cli("load", name)
    assert list_victims(llamactl) == ["large"]
    assert sorted(llamactl.list_loaded()) == ["other", "small"]


def test_concurrent_loads_never_hold_more_than_there_is(llamactl: Llamactl, devices: None, file: Path) -> None:
    names = ("a1", "a2", "a3", "a4")
    start(llamactl, file, **{name: on("A") for name in names}, b=on("B"))
    needs = measure(llamactl, "a1", "b")
    leave(llamactl, A=2 * needs["a1"]["A"], B=needs["b"]["B"])
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(llamactl.chat, (*names, "b")))
    assert [answer.status for answer in answers] == [200] * 5
    assert "b" in llamactl.list_loaded()
    assert len(list_victims(llamactl)) == 2
    # What was held at each decision is what the journal's records add up to.
    for decided in llamactl.read_events("load_decided"):
        if "LLAMACTL_NEEDS_BYTES" in decided and decided["LLAMACTL_DEVICE"] == DEVICES["A"]:
            assert int(decided["LLAMACTL_NEEDS_BYTES"]) <= room_of(decided)
    assert get_accounts(llamactl)[DEVICES["A"]]["held"] == 2 * needs["a1"]["A"]


def room_of(decided: dict[str, Any]) -> int:
    return int(decided["LLAMACTL_AVAILABLE_BYTES"]) - int(decided["LLAMACTL_MARGIN_BYTES"])


def test_fitting_stays_within_what_the_margin_leaves(llamactl: Llamactl, devices: None, file: Path) -> None:
    free = {"ctx": "auto", "fit": True, "n_gpu_layers": "auto", "fit_ctx": 256}
    start(llamactl, file, m=on("A", **free))
    memory = llamactl.cli_json("measure", "m")["memory"]
    smallest, largest = (sum(list_rows(memory[key])[DEVICES["A"]]) for key in ("min", "max"))
    assert smallest < largest
    room = (smallest + largest) // 2
    leave(llamactl, A=room)
    llamactl.cli("load", "m")
    effective = llamactl.list_loaded()["m"]["memory"]["effective"]
    assert smallest <= sum(list_rows(effective)[DEVICES["A"]]) <= room
    assert memory["min"]["n_ctx"] <= effective["n_ctx"] < memory["max"]["n_ctx"]


def test_server_that_is_down_fails_the_measurement_and_says_which(llamactl: Llamactl, file: Path) -> None:
    start(llamactl, file, m={"rpc": ["127.77.0.9:50052"]})
    refused = llamactl.cli("measure", "m", status=1)
    assert "127.77.0.9:50052" in refused.stderr


def test_device_that_goes_away_and_comes_back_is_noticed(llamactl: Llamactl, devices: None, file: Path) -> None:
    server = "127.77.0.3:50052"
    with listen(server):
        start(llamactl, file, a=on("A"), c={"rpc": [server]})
        measure(llamactl, "a", "c")
    llamactl.write_settings(**ALONE, refresh="1ms")
    llamactl.cli("reload")
    # Before the decision the devices are listed again, and what is gone is said.
    refused = llamactl.cli("load", "c", status=1)
    assert server in refused.stderr
    gone = llamactl.read_events("device_gone")
    assert [entry["LLAMACTL_DEVICE"] for entry in gone] == [f"RPC0[{server}]"]
    assert list(get_accounts(llamactl)) == [DEVICES["A"]]
    llamactl.cli("load", "a")
    with listen(server):
        llamactl.cli("load", "c")
        assert sorted(llamactl.list_loaded()) == ["a", "c"]
        assert f"RPC0[{server}]" in get_accounts(llamactl)


def test_json_of_a_breakdown_is_as_documented(llamactl: Llamactl, devices: None, file: Path) -> None:
    start(llamactl, file, m=on("A"))
    measured = llamactl.cli_json("measure", "m")
    (listed,) = (model for model in llamactl.get("/models").json()["data"] if model["id"] == "m")
    assert listed["memory"] == measured["memory"]
    memory = measured["memory"]
    assert list(memory) == ["status", "min", "max", "effective"]
    assert (memory["status"], memory["effective"]) == ("measured", None)
    for breakdown in (memory["min"], memory["max"]):
        assert list(breakdown) == ["n_ctx", "devices"]
        kinds = {row["kind"]: row for row in breakdown["devices"]}
        sizes = ["model", "context", "compute"]
        assert sorted(kinds["device"]) == sorted(["kind", "name", "description", "total", "free", *sizes])
        assert sorted(kinds["host"]) == sorted(["kind", "name", "description", *sizes])
        json.dumps(breakdown)


def test_a_sleeping_model_leaves_its_device_and_wakes_there_when_there_is_room(
    llamactl: Llamactl, devices: None, file: Path
) -> None:
    start(llamactl, file, one=on("A", sleep_after="1s"), two=on("A"))
    need = measure(llamactl, "one")["one"]["A"]
    leave(llamactl, A=int(need * 1.5))
    assert llamactl.chat("one").status == 200
    pid = llamactl.show_pid("llamactl-model@one.service")
    assert get_accounts(llamactl)[DEVICES["A"]]["holders"] == {"one": need}
    llamactl.wait_event("instance_asleep", LLAMACTL_MODEL="one")
    assert llamactl.chat("two").status == 200
    assert list_victims(llamactl) == []
    assert get_accounts(llamactl)[DEVICES["A"]]["holders"] == {"two": need}
    # Waking takes what a load takes: `two` is in the way, and idle.
    assert llamactl.chat("one").status == 200
    assert list_victims(llamactl) == ["two"]
    assert llamactl.show_pid("llamactl-model@one.service") == pid
    assert get_accounts(llamactl)[DEVICES["A"]]["holders"] == {"one": need}
