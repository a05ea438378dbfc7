"""What does a client that does not read its answer cost the others? Its own time-out, with a real model."""

from pathlib import Path

import pytest

from tests.system.harness import Llamactl


@pytest.fixture
def narrow(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    """A model that answers one request at a time, and clients that have a second to go on reading."""
    llamactl.write_settings(send_timeout="1s")
    llamactl.write_models(a={"path": str(tiny["a"]), "parallel": 1})
    llamactl.start()
    llamactl.cli("load", "a")
    return llamactl


def test_client_that_does_not_read_gives_its_sequence_to_the_next(narrow: Llamactl) -> None:
    with narrow.stream("a") as stream:
        assert stream.status == 200
        assert narrow.chat("a").status == 200
        cut = narrow.wait_event("client_cut", LLAMACTL_MODEL="a")
        assert cut["LLAMACTL_WHY"] == "it took nothing for 1 s"
        assert "[DONE]" not in stream.read_rest()
    broken = narrow.wait_event("request_broken_off", LLAMACTL_MODEL="a")
    assert broken["LLAMACTL_REQUEST_ID"] == cut["LLAMACTL_REQUEST_ID"]


def test_client_that_does_not_read_holds_up_no_unload(narrow: Llamactl) -> None:
    with narrow.stream("a"):
        narrow.cli("unload", "a")
        assert narrow.read_events("client_cut", LLAMACTL_MODEL="a")
    assert narrow.list_loaded() == {}


def test_mistaken_path_loads_no_model_and_a_running_one_is_asked(narrow: Llamactl) -> None:
    running = narrow.post("/v1/response", {"model": "a", "input": "x"})
    narrow.cli("unload", "a")
    stopped = narrow.post("/v1/response", {"model": "a", "input": "x"})
    for refused in (running, stopped):
        assert refused.status == 404
        assert refused.error["message"] == "cannot find '/v1/response': no such route; there is /v1/responses"
    assert narrow.post("/v1/chat/completions/", {"model": "a"}).status == 404
    assert narrow.list_loaded() == {}
