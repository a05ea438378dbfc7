"""Does a model's unit hold the instance in, and let through what it needs?"""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llamactl.child.orders import ChildEnvironment
from llamactl.child.properties import MODEL_GROUP, Surroundings, choose_measure_properties, choose_model_properties
from llamactl.names import Role, format_slug, format_unit
from llamactl.paths import Paths
from llamactl.protocol.report_socket import ChildRole
from llamactl.settings import ModelSettings, decode_spec
from llamactl.share import find_share_dir, python_paths
from llamactl.systemd.host import acquire_gpu_groups
from llamactl.systemd.journal import JournalSink
from llamactl.systemd.manager import UnitEnded, UnitStarted
from llamactl.systemd.peer import acquire_peer
from tests.system import journal
from tests.system.harness import show
from tests.system.systemd_follow import TIMEOUT_S, Follower, follow, run

PATHS = Paths()
PROBE = Path(__file__).with_name("probe.py")
NAME = "org/Probe-1:q4_k_m"
SLUG = format_slug(NAME)
UNIT = format_unit(Role.MODEL, SLUG)
ODD_NAME = 'Probe "1" $HOME %n ä'


@pytest.fixture(scope="module", autouse=True)
def directories() -> None:
    """Users, groups and directories, as the package installs them."""
    share = find_share_dir("units")
    subprocess.run(["systemd-sysusers", *map(str, share.glob("sysusers.d/*"))], check=True)
    subprocess.run(["systemd-tmpfiles", "--create", *map(str, share.glob("tmpfiles.d/*"))], check=True)


@pytest.fixture
def model_file() -> Iterator[Path]:
    """A model below root's home, which no other user may enter."""
    with tempfile.TemporaryDirectory(dir="/root") as name:
        path = Path(name, "models", "m.gguf")
        path.parent.mkdir()
        Path(name).chmod(0o755)
        path.write_text("model")
        yield path


@pytest.fixture
def probe_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/srv") as name:
        Path(name).chmod(0o755)
        yield Path(shutil.copy(PROBE, name))


@pytest.fixture
def properties(model_file: Path, probe_file: Path) -> dict[str, Any]:
    """What a model's unit gets, with the probe in place of the instance."""
    return choose_properties(NAME, model_file, probe_file)


def choose_properties(name: str, model_file: Path, probe_file: Path) -> dict[str, Any]:
    settings = ModelSettings(
        name=name,
        path=str(model_file),
        env={"PROBE_MODEL": str(model_file), "WORD": "$HOME 100% \\ \"'"},
        extra={"Nice": 5, "MemoryMax": "2G", "LimitNOFILE": 4096},
    )
    orders = make_orders(ChildRole.SERVE, settings, margins_bytes={"": 1 << 30}, load_stall_s=30)
    chosen = choose_model_properties(orders, look_around(), stop_timeout_s=10)
    return replace_program(chosen, probe_file)


def look_around() -> Surroundings:
    return Surroundings(PATHS, sys.executable, [str(path) for path in python_paths()], acquire_gpu_groups())


def make_orders(role: ChildRole, settings: ModelSettings, **orders: Any) -> ChildEnvironment:
    return ChildEnvironment(
        role=role,
        model=settings.name,
        settings=settings,
        generation="g-1",
        socket=PATHS.instance_socket(format_slug(settings.name)),
        report=PATHS.report_socket,
        **orders,
    )


def replace_program(chosen: dict[str, Any], program: Path, *arguments: str) -> dict[str, Any]:
    """The same unit with another program; its own arguments stay out of the way of $ as the real ones do."""
    ((python, _, ignored),) = chosen["ExecStart"]
    command = [python, "-P", str(program), *(argument.replace("$", "$$") for argument in arguments)]
    return chosen | {"ExecStart": [[python, command, ignored]]}


async def start(follower: Follower, properties: dict[str, Any], slug: str = SLUG) -> dict[str, Any]:
    """Start the probe and read what it found."""
    unit = format_unit(Role.MODEL, slug)
    await follower.manager.start_transient(unit, properties)
    ends = asyncio.create_task(follower.wait(UnitEnded, unit))
    starts = asyncio.create_task(follower.wait(UnitStarted, unit))
    await asyncio.wait([ends, starts], return_when=asyncio.FIRST_COMPLETED)
    assert starts.done(), ends.result()
    ends.cancel()
    facts: dict[str, Any] = json.loads(PATHS.instance_dir(slug).joinpath("facts.json").read_text())
    return facts


def ask(path: Path, command: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect(str(path))
        sock.sendall(command)
        return sock.recv(100)


def listen(path: Path) -> socket.socket:
    """The report socket as the supervisor binds it: for the models' group."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(TIMEOUT_S)
    sock.bind(str(path))
    shutil.chown(path, group=MODEL_GROUP)
    path.chmod(0o660)
    sock.listen()
    return sock


def test_unit_sees_its_model_and_its_sockets_and_nothing_else(properties: dict[str, Any], model_file: Path) -> None:
    PATHS.instance_dir("other").mkdir(exist_ok=True)

    async def test() -> None:
        async with follow(UNIT) as follower:
            facts = await start(follower, properties)
            assert facts["model"] == "ok"
            assert "30" in facts["write_model"], "EROFS"
            assert "30" in facts["write_etc"]
            assert facts["write_runtime"] != "ok"
            assert facts["write_report_dir"] != "ok"
            assert facts["runtime"] == ["models", "report"]
            assert facts["models"] == [SLUG]
            assert facts["home"] == []
            hidden = [Path(path) for path in python_paths()] + [model_file.parent]
            shown = {path.relative_to("/root").parts[0] for path in hidden if path.is_relative_to("/root")}
            assert set(facts["root"]) == shown
            assert facts["bus"] != "ok"
            assert facts["transient"] != "ok"
            assert not facts["pid_1"], "sees processes of other users"
            assert facts["write_tmp"] == "ok"
            assert not Path("/tmp/probe").exists()
            assert facts["modules"] == ["llama_cpp", "llamactl", "msgspec"]

    run(test)
    PATHS.instance_dir("other").rmdir()


def test_unit_has_no_network_and_no_privileges(properties: dict[str, Any]) -> None:
    async def test() -> None:
        async with follow(UNIT) as follower:
            facts = await start(follower, properties)
            assert facts["interfaces"] == ["lo"]
            assert facts["tcp"] != "ok"
            assert 61184 <= facts["uid"] <= 65519, "no dynamic user"
            assert facts["capabilities"] == 0
            assert facts["no_new_privileges"] == "1"
            assert facts["unshare"] != "ok"
            assert facts["null"] == "ok"
            assert facts["fuse"] != "ok"
            assert facts["oom_score_adjust"] == 500

    run(test)


def test_arguments_reach_the_unit_unchanged(properties: dict[str, Any], probe_file: Path) -> None:
    async def test() -> None:
        async with follow(UNIT) as follower:
            facts = await start(follower, replace_program(properties, probe_file, "$HOME", "${PATH}", "%n", ""))
            assert facts["argv"] == ["$HOME", "${PATH}", "%n", ""]

    run(test)


@pytest.mark.parametrize("name", [NAME, ODD_NAME])
def test_settings_reach_the_unit_unchanged_and_survive_a_daemon_reload(
    name: str, model_file: Path, probe_file: Path, cursor: str
) -> None:
    properties = choose_properties(name, model_file, probe_file)
    slug = format_slug(name)
    unit = format_unit(Role.MODEL, slug)

    async def test() -> None:
        async with follow(unit) as follower:
            facts = await start(follower, properties, slug)
            assert facts["environ"]["WORD"] == "$HOME 100% \\ \"'"
            assert facts["environ"]["LLAMACTL_MODEL"] == name
            before = len(follower.events)
            subprocess.run(["systemctl", "daemon-reload"], check=True)
            (found,) = [found for found in await follower.manager.list_units() if found.unit == unit]
            assert follower.events[before:] == []
            assert found.load_state == "loaded"
            assert decode_spec(found.environment["LLAMACTL_SPEC"]).name == name
            assert found.environment["WORD"] == "$HOME 100% \\ \"'"
            assert show(unit, "MemoryMax") == str(2 << 30)
            assert show(unit, "MemorySwapMax") == "0"
            assert show(unit, "Nice") == "5"
            assert show(unit, "PrivateNetwork") == "yes"
            complaints = [
                entry["MESSAGE"]
                for entry in journal.read_entries(cursor)
                if entry["_PID"] == "1" and int(entry["PRIORITY"]) <= 4 and f"{unit}:" in str(entry["MESSAGE"])
            ]
            assert complaints == []

    run(test)


def test_socket_is_reached_by_the_models_group_and_by_nobody_else(properties: dict[str, Any]) -> None:
    script = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(PATHS.instance_socket(SLUG))!r})"
    command = ["systemd-run", "--wait", "--quiet", "--collect", "--property=DynamicUser=yes"]

    async def test() -> None:
        async with follow(UNIT) as follower:
            facts = await start(follower, properties)
            socket_status = PATHS.instance_socket(SLUG).stat()
            assert (socket_status.st_uid, socket_status.st_mode & 0o777) == (facts["uid"], 0o770)
            assert PATHS.instance_socket(SLUG).group() == MODEL_GROUP
            member = [*command, f"--property=SupplementaryGroups={MODEL_GROUP}", "/usr/bin/python3", "-c", script]
            assert (await asyncio.to_thread(subprocess.run, member, timeout=TIMEOUT_S)).returncode == 0
            stranger = [*command, "/usr/bin/python3", "-c", script]
            assert (await asyncio.to_thread(subprocess.run, stranger, timeout=TIMEOUT_S)).returncode == 1
            await follower.manager.stop_unit(UNIT)
            await follower.wait(UnitEnded, UNIT)
            assert not PATHS.instance_dir(SLUG).exists()

    run(test)


def test_report_socket_bound_anew_is_reached_and_tells_the_unit(properties: dict[str, Any]) -> None:
    async def test() -> None:
        async with follow(UNIT) as follower:
            facts = await start(follower, properties)
            for reply in (b"one", b"two"):
                with listen(PATHS.report_socket) as listener:
                    asked = asyncio.create_task(asyncio.to_thread(ask, PATHS.instance_socket(SLUG), b"report"))
                    connection, _ = await asyncio.to_thread(listener.accept)
                    with connection:
                        peer = acquire_peer(connection)
                        assert (peer.unit, peer.uid, peer.gid) == (UNIT, facts["uid"], facts["gid"])
                        connection.sendall(reply)
                        assert await asked == reply

    run(test)
    PATHS.report_socket.unlink()


def test_directory_that_the_supervisor_made_before_serves_as_well(properties: dict[str, Any]) -> None:
    directory = PATHS.instance_dir(SLUG)

    async def test() -> None:
        async with follow(UNIT) as follower:
            directory.mkdir(mode=0o770)
            directory.joinpath("http.sock.stale").touch()
            facts = await start(follower, properties)
            assert directory.stat().st_uid == facts["uid"]
            assert (await asyncio.to_thread(ask, PATHS.instance_socket(SLUG), b"hi")) == b"hello"

    run(test)


def test_lines_of_the_unit_bear_the_model_in_the_journal(properties: dict[str, Any], cursor: str) -> None:
    async def test() -> None:
        async with follow(UNIT) as follower:
            await start(follower, properties)
            entries = [entry for entry in journal.read_entries(cursor) if entry.get("_SYSTEMD_UNIT") == UNIT]
            assert [entry["MESSAGE"] for entry in entries] == ["probe is ready"]
            assert entries[0]["LLAMACTL_MODEL"] == NAME
            assert entries[0]["LLAMACTL_ROLE"] == "model"
            assert entries[0]["SYSLOG_IDENTIFIER"] == f"llamactl-{SLUG}"

    run(test)


def test_drop_in_of_the_template_applies(properties: dict[str, Any]) -> None:
    directory = Path("/run/systemd/system/llamactl-model@.service.d")

    async def test() -> None:
        async with follow(UNIT) as follower:
            directory.mkdir(parents=True)
            directory.joinpath("test.conf").write_text("[Service]\nOOMScoreAdjust=600\n")
            try:
                subprocess.run(["systemctl", "daemon-reload"], check=True)
                facts = await start(follower, properties)
                assert facts["oom_score_adjust"] == 600
            finally:
                shutil.rmtree(directory)
                subprocess.run(["systemctl", "daemon-reload"], check=True)

    run(test)


def test_missing_model_directory_is_left_to_the_instance_to_report(
    properties: dict[str, Any], model_file: Path
) -> None:
    async def test() -> None:
        async with follow(UNIT) as follower:
            shutil.rmtree(model_file.parent)
            facts = await start(follower, properties)
            assert facts["model"] == "FileNotFoundError 2"

    run(test)


def test_measure_unit_is_ended_in_time_and_has_the_same_sandbox(model_file: Path, probe_file: Path) -> None:
    unit = format_unit(Role.MEASURE, SLUG)
    probe_file.write_text("import os, time\nopen(os.environ['PROBE_MODEL']).close()\nos.pause = time.sleep(1000)\n")
    settings = ModelSettings(
        name=NAME, path=str(model_file), env={"PROBE_MODEL": str(model_file)}, extra={"WatchdogSec": 1}
    )
    chosen = choose_measure_properties(make_orders(ChildRole.MEASURE, settings), look_around(), timeout_s=2)

    async def test() -> None:
        async with follow(unit) as follower:
            await follower.manager.start_transient(unit, replace_program(chosen, probe_file))
            ended = await follower.wait(UnitEnded, unit)
            assert (ended.result, ended.started) == ("timeout", True)

    run(test)


def test_long_message_reaches_the_journal(cursor: str) -> None:
    long = "x" * (20 << 20)
    JournalSink().write(
        {"MESSAGE": "long message", "PRIORITY": "6", "LLAMACTL_EVENT": "long_message", "LLAMACTL_DATA": long}
    )
    JournalSink().write({"MESSAGE": "two\nlines", "PRIORITY": "6", "LLAMACTL_EVENT": "two_lines"})
    entries = {entry.get("LLAMACTL_EVENT"): entry for entry in journal.read_entries(cursor)}
    assert entries["long_message"]["LLAMACTL_DATA"] == long
    assert entries["two_lines"]["MESSAGE"] == "two\nlines"


def read_properties(unit: str) -> dict[str, list[str]]:
    """All that systemd says of a unit, but what counts on while it runs. Lists come in any order."""
    shown = subprocess.run(["systemctl", "show", unit], check=True, capture_output=True, text=True).stdout
    found: dict[str, list[str]] = {}
    for name, value in (line.split("=", 1) for line in shown.splitlines()):
        found.setdefault(name, []).extend(value.split())
    return {name: sorted(words) for name, words in found.items() if not COUNTS.search(name)}


COUNTS = re.compile(
    r"Current|Peak|NSec$|Available|^IO(Read|Write)|^IP(In|E)gress|Timestamp|Tasks|InvocationID|^Job|^Exec"
)


def test_no_property_of_a_unit_is_lost_in_a_daemon_reload(properties: dict[str, Any]) -> None:
    async def test() -> None:
        async with follow(UNIT) as follower:
            await start(follower, properties)
            before = read_properties(UNIT)
            subprocess.run(["systemctl", "daemon-reload"], check=True)
            after = read_properties(UNIT)
            assert {name: (value, after.get(name)) for name, value in before.items() if after.get(name) != value} == {}

    run(test)
