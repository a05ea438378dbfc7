"""What does the command line print, and with which status does it end?"""

import signal
import subprocess
from pathlib import Path

import pytest

from llamactl.share import python_paths
from tests.system.harness import LLAMACTL, Llamactl, run


@pytest.fixture
def two(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    llamactl.write_models(
        a={"path": str(tiny["a"]), "ctx": 1024, "aliases": ["first"]}, b={"path": str(tiny["b"]), "ctx": 1024}
    )
    llamactl.start()
    return llamactl


def test_load_shows_its_progress_on_standard_error(two: Llamactl) -> None:
    load = two.cli("load", "a")
    assert "starting" in load.stderr
    assert "ready in " in load.stderr


def test_ps_lists_what_is_loaded(two: Llamactl) -> None:
    two.cli("load", "a")
    shown = two.cli("ps").stdout
    assert "a" in shown.split()
    assert "b" not in shown.split()


def test_list_shows_every_model(two: Llamactl) -> None:
    words = two.cli("list").stdout.split()
    assert {"a", "b"} <= set(words)


def test_status_shows_the_accounts(two: Llamactl) -> None:
    two.cli("load", "a")
    assert two.cli("status").stdout
    status = two.cli_json("status")
    assert status["loaded"] == 1


def test_status_of_a_model_says_whether_it_is_loaded(two: Llamactl) -> None:
    assert "a" in two.cli("status", "a", status=3).stdout
    two.cli("load", "a")
    assert "ready" in two.cli("status", "first").stdout


def test_logs_are_those_of_the_unit(two: Llamactl) -> None:
    two.cli("load", "a")
    two.cli("load", "b")
    shown = two.cli("logs", "a").stdout
    assert shown.strip()
    units = run("journalctl", "-o", "json", "--output-fields=_SYSTEMD_UNIT", "_SYSTEMD_UNIT=llamactl-model@a.service")
    assert units.stdout


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["load", "nobody"], 4),
        (["unload", "nobody"], 4),
        (["status", "nobody"], 4),
        (["measure", "nobody"], 4),
        (["unload", "a"], 3),
        (["list"], 0),
        (["ps"], 0),
        (["check"], 0),
    ],
)
def test_exit_status_says_what_happened(two: Llamactl, arguments: list[str], status: int) -> None:
    ended = two.cli(*arguments, status=status)
    assert status == 0 or (ended.stderr and not ended.stdout), "messages go to standard error"


@pytest.mark.parametrize(
    "arguments", [["ps"], ["list"], ["status"], ["load", "a"], ["unload", "a"], ["measure", "a"], ["reload"]]
)
def test_without_supervisor_every_command_says_so(llamactl: Llamactl, arguments: list[str]) -> None:
    ended = llamactl.cli(*arguments, status=6)
    assert "llamactl" in ended.stderr


def test_loading_twice_is_done_at_once(two: Llamactl) -> None:
    two.cli("load", "a")
    pid = two.list_loaded()["a"]["pid"]
    two.cli("load", "a")
    assert two.list_loaded()["a"]["pid"] == pid


def test_restarted_model_has_a_new_process_and_what_follows_names_both(two: Llamactl) -> None:
    two.cli("start", "a", "b")
    before = two.list_loaded()
    restarted = two.cli("restart", "first", "b")
    assert restarted.stderr.count("ready in ") == 2
    after = two.list_loaded()
    assert all(after[name]["pid"] not in (0, before[name]["pid"]) for name in "ab")
    two.cli("restart", "--no-wait", "a")
    two.cli("load", "a")  # waits for the second half
    assert two.list_loaded()["a"]["pid"] not in (0, after["a"]["pid"])
    two.cli("unload", "--all")
    assert two.list_loaded() == {}


def test_interrupted_load_goes_on(two: Llamactl) -> None:
    with two.hold_load("a") as go_on:
        load = two.open_cli("load", "a")
        assert load.stderr is not None
        load.stderr.readline()
        load.send_signal(signal.SIGINT)
        assert load.wait(30) != 0
        load.stderr.close()
        go_on()
        two.wait_event("instance_ready", LLAMACTL_MODEL="a")


def run_as_nobody(*arguments: str, groups: str = "") -> subprocess.CompletedProcess[str]:
    """As a unit, because Python may lie below a home that a stranger may not enter."""
    python = [f"--property=BindReadOnlyPaths={path}" for path in python_paths()]
    stranger = ("systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--property=User=nobody")
    member = f"--property=SupplementaryGroups={groups}"
    return run(*stranger, member, "--property=ProtectHome=tmpfs", *python, LLAMACTL, *arguments, check=False)


def test_stranger_may_not_reach_the_control_socket(two: Llamactl) -> None:
    refused = run_as_nobody("ps")
    assert refused.returncode == 1
    assert "sudo usermod -aG llamactl-admin nobody" in refused.stderr


def test_administrator_of_models_needs_another_group_for_their_logs(two: Llamactl) -> None:
    two.cli("load", "a")
    assert run_as_nobody("ps", groups="llamactl-admin").returncode == 0
    refused = run_as_nobody("logs", "a", groups="llamactl-admin")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "cannot read the journal: permission denied at " in refused.stderr
    assert "sudo usermod -aG systemd-journal nobody" in refused.stderr
    assert "instance ready" in run_as_nobody("logs", "a", groups="systemd-journal").stdout
