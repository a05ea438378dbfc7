"""What if llamactl is installed again while models are loaded?"""

import asyncio
from pathlib import Path

import pytest

from llamactl.protocol.control_socket import Done, Failure, LoadRequest
from llamactl.protocol.report_socket import ChildState
from llamactl.supervisor import units
from llamactl.supervisor.installation import MODULES, Installation
from tests.socket.supervisor.stage import Stage

UNIT = "llamactl-model@a.service"


def install(directory: Path, version: str = "1") -> Path:
    """A package as pip writes it; its folder."""
    package = directory / "llamactl"
    for name in MODULES:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(version)
    record = directory / f"llamactl_systemd-{version}.dist-info" / "RECORD"
    record.parent.mkdir()
    record.touch()
    return package


def uninstall(directory: Path) -> None:
    for path in [*directory.glob("llamactl/**/*.py"), *directory.glob("*/RECORD")]:
        path.unlink()


def test_files_are_whole_when_their_list_is_there_again(tmp_path: Path) -> None:
    installation = Installation(install(tmp_path))
    assert (installation.is_whole(), installation.is_replaced()) == (True, False)
    uninstall(tmp_path)
    assert not installation.is_whole()
    install(tmp_path, "2")
    assert (installation.is_whole(), installation.is_replaced()) == (True, True)
    (tmp_path / "llamactl_systemd-2.dist-info" / "RECORD").unlink()
    assert not installation.is_whole(), "it may be half written"


def test_a_load_in_the_moment_without_files_waits_and_is_no_failure(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        package = install(tmp_path)
        monkeypatch.setattr(units, "Installation", lambda: Installation(package))
        stage.write_models("a")
        supervisor = await stage.start()
        client = await stage.connect_client()
        client.send(LoadRequest(id=1, model="a"))
        while await stage.systemd.started.get() != UNIT:
            pass
        uninstall(tmp_path)
        stage.systemd.die_unheard(UNIT)
        await stage.wait_state("a", "loading")
        assert UNIT not in stage.systemd.units, "it is not started while nothing is there"
        install(tmp_path, "2")
        child = await stage.wait_start("a")
        child.send(stage.make_report(ChildState.READY))
        message = await client.receive_kind((Done, Failure))
        assert isinstance(message, Done)
        assert any("replaced since" in problem for problem in supervisor.machine_status().problems)
        await supervisor.stop()

    asyncio.run(play())
