"""Who has to go when a model needs room, and who may stay?

Budgets are computed from what the models measure, so that the figures hold on any machine. A model is made busy by a
stream that nobody reads (tests/system/client.py).
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.system.client import Stream, count_tokens
from tests.system.harness import Llamactl

CTX = 4096
LONG = 2000
"""Tokens whose events fill every buffer between an instance and a client that does not read."""


@pytest.fixture
def three(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    """A running llamactl with the models `a`, `b` and `c`, any number of which may run."""
    llamactl.write_models(**{name: {"path": str(path), "ctx": CTX, "parallel": 1} for name, path in tiny.items()})
    llamactl.write_settings()
    llamactl.start()
    return llamactl


def limit_memory(llamactl: Llamactl, models: float) -> None:
    """Set `host_budget` to what so many models need."""
    needed = max(llamactl.measure_bytes(name) for name in "abc")
    llamactl.write_settings(host_budget=int(needed * models))
    llamactl.cli("reload")


def limit_count(llamactl: Llamactl, models: int) -> None:
    llamactl.write_settings(max_loaded=models)
    llamactl.cli("reload")


def hold(llamactl: Llamactl, model: str) -> tuple[Stream, list[str]]:
    """A stream in flight that stays so until it is read, and what was read of it."""
    stream = llamactl.stream(model, max_tokens=LONG)
    assert stream.status == 200
    return stream, [stream.read_event()]


def test_memory_evicts_the_idle_model(three: Llamactl) -> None:
    limit_memory(three, 1.5)
    three.cli("load", "a")
    assert three.chat("b").status == 200
    assert list(three.list_loaded()) == ["b"]
    victim = three.read_events("victim_chosen")[0]
    assert victim["LLAMACTL_MODEL"] == "a"


@pytest.mark.parametrize("comes_back", [True, False])
def test_automatic_context_leaves_room_for_what_is_loaded_on_start(
    llamactl: Llamactl, tiny: dict[str, Path], comes_back: bool
) -> None:
    auto = {"path": str(tiny["a"]), "parallel": 1, "fit_ctx": 256}
    other = {"path": str(tiny["b"]), "ctx": CTX, "parallel": 1, "load_on_start": comes_back}
    llamactl.write_models(a=auto, b=other)
    llamactl.start()
    needs = llamactl.measure_bytes("a") + llamactl.measure_bytes("b")
    llamactl.write_settings(host_budget=needs + (1 << 20))
    llamactl.cli("reload")
    if comes_back:
        llamactl.cli("load", "b")
        llamactl.cli("unload", "b")
    llamactl.cli("load", "a")
    llamactl.cli("load", "b")
    assert list(llamactl.list_loaded()) == (["a", "b"] if comes_back else ["b"])


def test_memory_keeps_what_fits(three: Llamactl) -> None:
    limit_memory(three, 3.5)
    for name in "abc":
        three.cli("load", name)
    assert sorted(three.list_loaded()) == ["a", "b", "c"]


def test_least_recently_used_goes_first(three: Llamactl) -> None:
    limit_memory(three, 2.5)
    three.cli("load", "a")
    three.cli("load", "b")
    assert three.chat("a").status == 200
    assert three.chat("c").status == 200
    assert sorted(three.list_loaded()) == ["a", "c"]


def test_count_evicts_the_idle_model(three: Llamactl) -> None:
    limit_count(three, 1)
    three.cli("load", "a")
    assert three.chat("b").status == 200
    assert list(three.list_loaded()) == ["b"]


def test_pinned_model_is_never_evicted(three: Llamactl, tiny: dict[str, Path]) -> None:
    pinned = {"path": str(tiny["a"]), "ctx": CTX, "parallel": 1, "pin": True}
    others = {name: {"path": str(tiny[name]), "ctx": CTX, "parallel": 1} for name in "bc"}
    three.write_models(a=pinned, **others)
    limit_count(three, 1)
    three.cli("load", "a")
    answer = three.chat("b")
    assert answer.status == 409
    assert "a" in answer.error["message"]
    assert list(three.list_loaded()) == ["a"]


@pytest.mark.parametrize("limit", ["memory", "count"])
def test_busy_model_stays_and_the_second_waits(three: Llamactl, limit: str) -> None:
    limit_memory(three, 1.5) if limit == "memory" else limit_count(three, 1)
    stream, events = hold(three, "a")
    with stream, ThreadPoolExecutor() as pool:
        second = pool.submit(three.chat, "b", max_tokens=12, ignore_eos=True)
        three.wait_event("load_waits", LLAMACTL_MODEL="b")
        waiting = three.list_models()["b"]
        assert (waiting["stage"], waiting["waiting_for"], waiting["pid"]) == ("waiting", ["a"], 0)
        assert not second.done()
        events += stream.read_rest()
        answer = second.result(60)
    assert count_tokens(events) == LONG
    assert answer.status == 200
    assert answer.json()["usage"]["completion_tokens"] == 12
    assert list(three.list_loaded()) == ["b"]


def test_idle_model_goes_where_the_older_one_is_busy(three: Llamactl) -> None:
    limit_count(three, 2)
    stream, _ = hold(three, "a")
    with stream:
        three.cli("load", "b")
        assert three.chat("c").status == 200
        assert sorted(three.list_loaded()) == ["a", "c"]


def test_requests_for_one_model_share_one_load(three: Llamactl) -> None:
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: three.chat("a"), range(6)))
    assert [answer.status for answer in answers] == [200] * 6
    assert len(three.read_events("instance_spawned", LLAMACTL_MODEL="a")) == 1


def test_client_that_leaves_leaves_the_queue(three: Llamactl) -> None:
    limit_count(three, 1)
    stream, events = hold(three, "a")
    with stream:
        waiting = three.connect()
        waiting.request("POST", "/v1/completions", body=b'{"model": "b", "prompt": "x"}')
        three.wait_event("load_waits", LLAMACTL_MODEL="b")
        waiting.close()
        three.wait_event("load_cancelled", LLAMACTL_MODEL="b")
        count_tokens([*events, *stream.read_rest()])
    assert list(three.list_loaded()) == ["a"]


def test_cli_says_whom_a_load_waits_for(three: Llamactl) -> None:
    limit_count(three, 1)
    stream, events = hold(three, "a")
    with stream, three.open_cli("load", "b") as load:
        assert load.stderr is not None
        said = next(line for line in load.stderr if "waiting" in line)
        assert "a" in said.split()
        count_tokens([*events, *stream.read_rest()])
        assert load.wait(60) == 0
    assert list(three.list_loaded()) == ["b"]


def test_strict_refuses_what_never_fits(three: Llamactl) -> None:
    needed = three.measure_bytes("a")
    three.write_settings(host_budget=needed // 2, strict=True)
    three.cli("reload")
    refused = three.cli("load", "a", status=5)
    assert "MiB" in refused.stderr or "KiB" in refused.stderr, "a refusal has figures"
    assert three.chat("a").status == 503
    assert three.list_loaded() == {}


def test_without_strict_it_tries_and_warns(three: Llamactl) -> None:
    needed = three.measure_bytes("a")
    three.write_settings(host_budget=needed // 2)
    three.cli("reload")
    three.cli("load", "a")
    warnings = [entry for entry in three.read_events(LLAMACTL_MODEL="a") if entry["PRIORITY"] == "4"]
    assert warnings
