"""Does an instance end, refuse and let go as it should while clients come and leave?"""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llamactl.protocol.report_socket import AnswerResult, OrderKind
from llamactl.settings import ModelSettings
from tests.models import write_model
from tests.socket.instance.harness import Child, UnixConnection, join_text, parse_events, run_child

ENDLESS = {"prompt": "hello", "max_tokens": 30_000, "ignore_eos": True, "stream": True, "temperature": 0}


@pytest.fixture(scope="module")
def long_model(model_dir: Path) -> Path:
    return write_model(model_dir / "long.gguf", n_ctx_train=32_768)


@pytest.fixture
def single(long_model: Path, tmp_path: Path) -> Iterator[Child]:
    """One sequence and a context that takes seconds to fill."""
    model = ModelSettings(name="long", path=str(long_model), ctx=32_768, parallel=1, threads=1)
    with run_child(tmp_path, "serve", model) as child:
        child.supervisor.wait_for("ready")
        yield child


@contextlib.contextmanager
def open_stream(child: Child) -> Iterator[tuple[UnixConnection, Any]]:
    """A stream of which the first event has arrived."""
    with contextlib.closing(child.connect()) as connection:
        connection.request("POST", "/v1/completions", json.dumps(ENDLESS))
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        yield connection, response


def order_until_ok(child: Child) -> None:
    """The count falls a moment after the client has read its last byte."""
    for _ in range(100):
        if child.supervisor.order(OrderKind.STOP).result is AnswerResult.OK:
            return
    raise AssertionError("still busy")


def test_busy_instance_refuses_to_stop_and_finishes_its_answer(single: Child) -> None:
    with open_stream(single):
        answer = single.supervisor.order(OrderKind.STOP)
        assert answer.result is AnswerResult.BUSY
        assert single.request("GET", "/health")[0] == 200


def test_waiting_request_counts_as_busy(single: Child) -> None:
    results: list[tuple[int, Any]] = []
    with open_stream(single) as (connection, _):
        body = {"prompt": "x", "max_tokens": 1}
        waiting = threading.Thread(target=lambda: results.append(single.request("POST", "/v1/completions", body)))
        waiting.start()
        assert single.supervisor.order(OrderKind.STOP).result is AnswerResult.BUSY
        connection.close()
    waiting.join()
    assert results[0][0] == 200


def test_client_that_leaves_frees_its_sequence(single: Child) -> None:
    for _ in range(3):
        with open_stream(single):
            pass
    status, answer = single.request("POST", "/v1/completions", {"prompt": "hello", "max_tokens": 3})
    assert status == 200
    assert answer["usage"]["completion_tokens"] <= 3
    order_until_ok(single)
    assert single.wait() == 0, single.errors


def test_unconditional_stop_cuts_the_stream_with_an_error_and_no_done(single: Child) -> None:
    with open_stream(single) as (_, response):
        assert single.supervisor.order(OrderKind.STOP, if_idle=False).result is AnswerResult.OK
        events = parse_events(response.read().decode())
    assert events[-1].startswith("error: ")
    assert json.loads(events[-1].removeprefix("error: "))["error"]["type"] == "unavailable_error"
    assert "[DONE]" not in events
    assert single.wait() == 0, single.errors


def test_termination_cuts_the_stream_with_an_error_and_exits_zero(single: Child) -> None:
    with open_stream(single) as (_, response):
        single.terminate()
        events = parse_events(response.read().decode())
    assert events[-1].startswith("error: ")
    assert single.wait() == 0, single.errors
    assert not single.http_socket.exists()


def test_many_clients_at_once_all_get_their_own_answer(instance: Child) -> None:
    prompts = [f"prompt number {index}" for index in range(12)]
    body = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}
    alone = {
        prompt: instance.request("POST", "/v1/completions", {**body, "prompt": prompt})[1]["choices"][0]["text"]
        for prompt in prompts
    }
    together: dict[str, str] = {}

    def ask(prompt: str) -> None:
        together[prompt] = join_text(instance.stream("/v1/completions", {**body, "prompt": prompt}))

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_predecessors_socket_is_replaced_and_only_the_group_may_use_it(long_model: Path, tmp_path: Path) -> None:
    (tmp_path / "http.sock").write_text("left behind")
    model = ModelSettings(name="long", path=str(long_model), ctx=256, threads=1)
    with run_child(tmp_path, "serve", model) as child:
        child.supervisor.wait_for("ready")
        assert child.request("GET", "/health")[0] == 200
        assert child.http_socket.stat().st_mode & 0o777 == 0o660


def test_watchdog_is_fed_while_the_instance_idles_and_while_it_works(long_model: Path, tmp_path: Path) -> None:
    model = ModelSettings(name="long", path=str(long_model), ctx=32_768, parallel=1, threads=1)
    with run_child(tmp_path, "serve", model, WATCHDOG_USEC="200000") as child:
        child.supervisor.wait_for("ready")
        child.wait_for_notification("WATCHDOG=1")
        with open_stream(child):
            child.wait_for_notification("WATCHDOG=1")
            child.wait_for_notification("WATCHDOG=1")
