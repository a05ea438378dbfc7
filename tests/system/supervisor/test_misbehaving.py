"""What if an instance does what real ones do rarely? Scripted instances (tests/system/scripted.py) in real units."""

import os
import signal
from pathlib import Path

from tests.http_errors import check_error
from tests.system.harness import Llamactl


def test_death_before_the_answer_is_a_bad_gateway(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.use_script("dies-on-request")
    llamactl.write_models(**{"dies-on-request": {"path": str(tiny["a"])}})
    llamactl.start()
    llamactl.cli("load", "dies-on-request")
    answer = llamactl.chat("dies-on-request")
    assert answer.status == 502
    check_error(answer.error, "/v1/chat/completions", 502)


def test_warmup_that_dies_by_signal_is_tried_once_without_extra_buffers(
    llamactl: Llamactl, tiny: dict[str, Path]
) -> None:
    llamactl.use_script("warmup-dies")
    llamactl.write_models(**{"warmup-dies": {"path": str(tiny["a"])}})
    llamactl.start()
    llamactl.cli("load", "warmup-dies")
    assert len(llamactl.read_events("instance_spawned", LLAMACTL_MODEL="warmup-dies")) == 2
    assert llamactl.read_events("warm_up_died", LLAMACTL_MODEL="warmup-dies")
    llamactl.cli("unload", "warmup-dies")
    llamactl.cli("load", "warmup-dies")
    assert len(llamactl.read_events("instance_spawned", LLAMACTL_MODEL="warmup-dies")) == 3, "it is remembered"


def test_instance_that_hangs_is_unloaded_by_command_and_has_not_crashed(
    llamactl: Llamactl, tiny: dict[str, Path]
) -> None:
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": 1024})
    llamactl.start()
    assert llamactl.chat("a").status == 200, "the front holds a lease from here on"
    os.kill(llamactl.list_loaded()["a"]["pid"], signal.SIGSTOP)
    unloaded = llamactl.cli("unload", "a")
    assert "does not answer the order to stop" in unloaded.stderr
    assert llamactl.wait_event("model_unloaded", LLAMACTL_MODEL="a")["LLAMACTL_REASON"] == "by command"
    assert llamactl.read_events("instance_crashed") == []
    assert llamactl.list_models()["a"]["state"] == "unloaded"
