"""No supervisor, no permission, another version, junk: one line on standard error, never a traceback."""

import grp
import os
import pwd
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest

from llamactl import __version__
from llamactl.cli.client import Client
from llamactl.cli.user import find_user, suggest_group
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.paths import Paths
from llamactl.protocol.control_socket import ModelList, Progress
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.lines import VERSION, ErrorNotice
from llamactl.protocol.values import Stage, State
from tests.socket.cli.scripted import (
    TIMEOUT_S,
    WELCOME,
    Peer,
    Result,
    Script,
    Supervisor,
    add_systemctl,
    answer,
    ask,
    make_command,
    make_environment,
    run,
)


def one_line(result: Result) -> str:
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert result.err.startswith("llamactl: ")
    return result.err


def test_no_supervisor_is_6_with_how_to_start_it(tmp_path: Path) -> None:
    result = run(Paths(runtime_dir=tmp_path / "run"), "ps", environment={"PATH": add_systemctl(tmp_path, "inactive")})
    assert result.status == 6
    assert one_line(result).endswith("control/control.sock; start it: systemctl start llamactl\n")


def test_socket_that_nobody_listens_at_is_6(tmp_path: Path) -> None:
    paths = Paths(runtime_dir=tmp_path)
    paths.control_socket.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(paths.control_socket))
    result = run(paths, "load", "m", environment={"PATH": add_systemctl(tmp_path, "inactive")})
    assert (result.status, "systemctl start llamactl" in one_line(result)) == (6, True)


def test_path_that_is_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    result = run(Paths(runtime_dir=tmp_path / ("x" * 120)), "ps")
    assert (result.status, "too long" in one_line(result)) == (6, True)


def test_permission_denied_names_the_group() -> None:
    command = make_command("ps")
    with Supervisor(answer()) as supervisor:
        directory = supervisor.paths.control_socket.parent
        directory.chmod(0)
        if os.geteuid() == 0:
            # Another user may not find the interpreter. Root without the capabilities that open everything is enough.
            os.chown(directory, 65534, 65534)
            command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
        done = subprocess.run(
            command,
            env=make_environment(supervisor.paths) | {"SUDO_USER": "alice"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        directory.chmod(0o700)
    assert done.returncode == 1
    assert done.stderr.startswith("llamactl: cannot reach the supervisor: permission denied at ")
    name = "alice" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    assert done.stderr.endswith(
        f"; join the group: sudo usermod -aG llamactl-admin {name}, then log in again; or use sudo\n"
    )


def test_user_is_the_effective_one_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "SUDO_USER"):
        monkeypatch.setenv(name, "root")
    monkeypatch.setattr(os, "geteuid", lambda: pwd.getpwnam("nobody").pw_uid)
    assert find_user() == "nobody"
    monkeypatch.setattr(os, "geteuid", lambda: 2**31)
    assert find_user() == "USER"


def test_member_since_after_the_login_has_to_log_in_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: pwd.getpwnam("nobody").pw_uid)
    members: list[str] = []
    monkeypatch.setattr(grp, "getgrnam", lambda name: grp.struct_group((name, "x", 4711, members)))
    assert suggest_group("llamactl-admin") == (
        "join the group: sudo usermod -aG llamactl-admin nobody, then log in again"
    )
    members.append("nobody")
    assert suggest_group("llamactl-admin").startswith("log in again: nobody is a member of llamactl-admin")


@pytest.mark.parametrize(("sudo_user", "login", "name"), [("alice", "bob", "alice"), ("", "bob", "bob")])
def test_root_stands_for_whoever_became_root(
    monkeypatch: pytest.MonkeyPatch, sudo_user: str, login: str, name: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getlogin", lambda: login)
    monkeypatch.setenv("SUDO_USER", sudo_user)
    assert find_user() == name


def greet_with(version: int, name: str) -> Script:
    return lambda peer: peer.greet(msgspec.structs.replace(WELCOME, version=version, llamactl=name))


def test_another_version_is_named_with_the_cure() -> None:
    result, _ = ask(greet_with(VERSION + 1, "9.9"), "ps")
    assert result.status == 1
    text = one_line(result)
    assert f"it speaks version {VERSION + 1} (llamactl 9.9), this command {VERSION} (llamactl {__version__})" in text
    assert "systemctl restart llamactl" in text


def say(*lines: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.receive()
        for line in lines:
            peer.send_bytes(line)

    return script


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (
            lambda peer: peer.greet(ErrorNotice(message="protocol version 1, I speak 7")),
            "protocol version 1, I speak 7",
        ),
        (say(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "not a message"),
        (say(b'{"type":"unheard-of"}\n'), "not a message"),
        (say(b"\xff\xfe\n"), "not a message"),
        (say(b"[" * 100_000 + b"\n"), "not a message"),
        (lambda peer: peer.greet(Progress(id=1, stage=Stage.READY)), "it does not greet"),
    ],
)
def test_what_is_no_greeting_is_told(script: Script, text: str) -> None:
    result, _ = ask(script, "ps")
    assert result.status == 1
    assert "cannot talk to the supervisor: " in one_line(result)
    assert text in result.err


def test_junk_after_the_greeting_is_told() -> None:
    result, _ = ask(answer(b"junk\n"), "ps")
    assert (result.status, "not a message" in one_line(result)) == (1, True)


@pytest.mark.parametrize("script", [lambda peer: None, lambda peer: peer.greet(), answer()])
def test_supervisor_that_goes_away_is_6(script: Script) -> None:
    result, _ = ask(script, "load", "m")
    assert result.status == 6
    assert "lost the supervisor" in one_line(result)


def test_silence_before_the_greeting_has_a_limit() -> None:
    def script(peer: Peer) -> None:
        assert peer.receive() is not None
        assert peer.receive() is None

    with Supervisor(script) as supervisor:
        with pytest.raises(LlamactlError) as caught:
            Client(supervisor.paths.control_socket, timeout_s=0.05)
        assert supervisor.served.wait(TIMEOUT_S)
    assert caught.value.code is ErrorCode.NO_SUPERVISOR
    assert "no answer" in caught.value.message


def test_reader_that_has_seen_enough_is_no_error() -> None:
    """The list is longer than any pipe holds, and than a message of a client may be."""
    many = ModelList(
        id=1, now_s=1.0, models=tuple(ModelStatus(name=f"model-{n}", state=State.UNLOADED) for n in range(5000))
    )
    with Supervisor(answer(many)) as supervisor:
        process = subprocess.Popen(
            make_command("list"), env=make_environment(supervisor.paths), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(TIMEOUT_S) == 141
        process.stderr.close()
    assert err == b""


@pytest.mark.parametrize("words", [["ps"], ["--help"], ["check"]])
def test_output_that_cannot_be_written_is_told(words: list[str]) -> None:
    with Supervisor(answer(ModelList(id=1, now_s=1.0, models=()))) as supervisor, open("/dev/full", "wb") as full:
        supervisor.paths.config_dir.mkdir()
        supervisor.paths.config_file.write_text("garbage = 1")
        done = subprocess.run(
            make_command(*words),
            env=make_environment(supervisor.paths),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "llamactl: cannot write: No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing_else(closed: str) -> None:
    with Supervisor(answer(ModelList(id=1, now_s=1.0, models=()))) as supervisor:
        done = subprocess.run(
            ["sh", "-c", f'"$@" {closed}', "sh", *make_command("ps")],
            env=make_environment(supervisor.paths),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
