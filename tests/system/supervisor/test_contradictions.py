"""What if systemd or D-Bus does what the supervisor has not asked for?"""

import os
import signal
from pathlib import Path

from tests.system.harness import Llamactl, kill_hard, run, show


def test_loads_go_on_when_dbus_dies_beside_them(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.write_models(**{name: {"path": str(tiny[name]), "ctx": 512} for name in "abc"})
    llamactl.start()
    for name in "abc":
        load = llamactl.open_cli("load", name)
        llamactl.wait_event("instance_spawned", LLAMACTL_MODEL=name)
        kill_hard(int(show("dbus.service", "MainPID")))
        assert load.wait(60) == 0, load.communicate()
        run("systemctl", "reset-failed", "dbus.service", "dbus.socket", check=False)
    assert llamactl.read_events("load_failed") == []
    assert {name: model["state"] for name, model in llamactl.list_models().items()} == dict.fromkeys("abc", "ready")


def test_unit_that_is_started_by_hand_is_used(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.use_script("headers")
    llamactl.write_models(headers={"path": str(tiny["a"])})
    llamactl.start()
    llamactl.cli("load", "headers")
    os.kill(llamactl.list_loaded()["headers"]["pid"], signal.SIGKILL)
    llamactl.wait_event("instance_crashed", LLAMACTL_MODEL="headers")
    run("systemctl", "start", "llamactl-model@headers.service")
    llamactl.wait_event("instance_adopted", LLAMACTL_MODEL="headers")
    assert llamactl.list_models()["headers"]["state"] == "ready"
    assert llamactl.chat("headers").status == 200
    llamactl.cli("unload", "headers")
    assert show("llamactl-model@headers.service", "ActiveState") == "inactive"


def test_load_waits_for_the_end_of_a_stop_of_all_models(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.use_script("lingers")
    llamactl.write_models(lingers={"path": str(tiny["a"])}, b={"path": str(tiny["b"]), "ctx": 512})
    llamactl.start()
    llamactl.cli("measure", "b")
    llamactl.cli("load", "lingers")
    lingering = llamactl.show_pid("llamactl-model@lingers.service")
    run("systemctl", "stop", "--no-block", "llamactl-models.slice")
    load = llamactl.open_cli("load", "b")
    llamactl.wait_event("instance_spawned", LLAMACTL_MODEL="b")
    kill_hard(lingering)
    assert load.wait(60) == 0, load.communicate()
    assert llamactl.read_events("load_failed") == []
