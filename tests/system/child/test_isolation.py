"""What can an instance see and reach? Its model, its sockets, nothing else."""

import os
from pathlib import Path

import pytest

from tests.system.harness import PATHS, Llamactl, show


@pytest.fixture
def instance(llamactl: Llamactl, tiny: dict[str, Path]) -> int:
    """The PID of `a`, with `b` loaded beside it."""
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": 1024}, b={"path": str(tiny["b"]), "ctx": 1024})
    llamactl.start()
    llamactl.cli("load", "b")
    llamactl.cli("load", "a")
    pid: int = llamactl.list_loaded()["a"]["pid"]
    return pid


def test_instance_has_no_network(instance: int) -> None:
    interfaces = Path(f"/proc/{instance}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
    assert os.readlink(f"/proc/{instance}/ns/net") != os.readlink("/proc/1/ns/net")


def test_instance_is_an_unprivileged_dynamic_user(instance: int) -> None:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{instance}/status").read_text().splitlines())
    assert int(status["Uid"].split()[0]) >= 61184, "below systemd's range of dynamic users"
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"


def test_instance_sees_only_its_own_sockets(instance: int) -> None:
    view = Path(f"/proc/{instance}/root") / PATHS.runtime_dir.relative_to("/")
    found = {str(path.relative_to(view)) for path in view.rglob("*") if path.is_socket()}
    assert found == {"models/a/http.sock", "report/report.sock"}


def test_instance_cannot_write_to_the_system(instance: int) -> None:
    mounts = Path(f"/proc/{instance}/mountinfo").read_text().splitlines()
    options = {fields[4]: fields[5].split(",") for fields in map(str.split, mounts)}
    assert "ro" in options["/"]


def test_models_live_in_their_own_slice(instance: int) -> None:
    assert show("llamactl-model@a.service", "Slice") == "llamactl-models.slice"
    assert show("llamactl-model@a.service", "NRestarts") == "0"
    for relation in ("PartOf", "BindsTo", "Requires"):
        assert "llamactl.service" not in show("llamactl-model@a.service", relation)


def test_sockets_belong_to_their_groups(instance: int) -> None:
    for path, group in ((PATHS.http_socket, "llamactl"), (PATHS.control_socket, "llamactl-admin")):
        assert path.group() == group
        assert path.stat().st_mode & 0o007 == 0, f"{path} is open to everyone"


def test_extra_properties_and_environment_reach_the_unit(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.write_models(
        a={"path": str(tiny["a"]), "ctx": 512, "env": {"TEST_WORD": "$HOME 100%"}, "extra": {"MemoryMax": "2G"}}
    )
    llamactl.start()
    llamactl.cli("load", "a")
    pid = llamactl.list_loaded()["a"]["pid"]
    assert b"TEST_WORD=$HOME 100%" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert show("llamactl-model@a.service", "MemoryMax") == str(2 << 30)
