"""Does the journal tell the story of a model, in fields that machines can read?"""

from pathlib import Path

import pytest

from tests.system import journal
from tests.system.harness import Llamactl

STORY = ["model_measured", "load_decided", "instance_spawned", "instance_ready", "model_unloaded"]


@pytest.fixture
def told(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    """A model that was measured, loaded for a request, and evicted for another."""
    llamactl.write_settings(max_loaded=1, host_budget="8 GiB")
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": 1024}, b={"path": str(tiny["b"]), "ctx": 1024})
    llamactl.start()
    assert llamactl.chat("a").status == 200
    assert llamactl.chat("b").status == 200
    llamactl.cli("unload", "b")
    return llamactl


def test_supervisor_tells_the_story_in_order(told: Llamactl) -> None:
    entries = told.read_events(LLAMACTL_MODEL="a", _SYSTEMD_UNIT="llamactl.service")
    events = [entry["LLAMACTL_EVENT"] for entry in entries]
    positions = [events.index(event) for event in STORY]
    assert positions == sorted(positions), f"out of order: {events}"
    assert "victim_chosen" in events


def test_model_field_shows_supervisor_and_instance_together(told: Llamactl) -> None:
    units = {entry.get("_SYSTEMD_UNIT") for entry in journal.read_entries(told.cursor, LLAMACTL_MODEL="a")}
    assert {"llamactl.service", "llamactl-model@a.service"} <= units


def test_bytes_are_integers_and_devices_are_named(told: Llamactl) -> None:
    entries = told.read_events(LLAMACTL_MODEL="a")
    sized = {name: value for entry in entries for name, value in entry.items() if name.endswith("_BYTES")}
    assert sized, "no field holds bytes"
    for name, value in sized.items():
        assert value.isdecimal(), f"{name}={value} is no integer"
    assert "Host" in {entry.get("LLAMACTL_DEVICE") for entry in entries}


def test_victim_is_named_with_the_reason(told: Llamactl) -> None:
    victim = told.read_events("victim_chosen")[0]
    assert victim["LLAMACTL_MODEL"] == "a"
    assert "b" in {value for name, value in victim.items() if name.startswith("LLAMACTL_")}, "for whom is not said"


def test_no_line_is_lost_to_another_model(told: Llamactl) -> None:
    for name in "ab":
        for entry in journal.read_entries(told.cursor, _SYSTEMD_UNIT=f"llamactl-model@{name}.service"):
            assert entry["LLAMACTL_MODEL"] == name
