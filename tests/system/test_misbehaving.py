"""What if an instance does what real ones do rarely? Scripted instances (tests/system/scripted.py) in real units."""

from pathlib import Path

from tests.system.harness import Llamactl


def test_death_before_the_answer_is_a_bad_gateway(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.use_script("dies-on-request")
    llamactl.write_models(**{"dies-on-request": {"path": str(tiny["a"])}})
    llamactl.start()
    llamactl.cli("load", "dies-on-request")
    answer = llamactl.chat("dies-on-request")
    assert answer.status == 502
    assert answer.error["code"] == 502


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
