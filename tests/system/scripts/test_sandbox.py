"""Is a sandbox a machine of its own that leaves nothing behind? Tried where PID 1 is systemd: inside another one."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SANDBOX = Path(__file__).resolve().parents[3] / "scripts/sandbox"
NAME = "inner"


def call(verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SANDBOX), verb, "--name", NAME, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def list_traces() -> list[str]:
    """Whatever on this machine bears the sandbox's name."""
    mounts = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"llamactl-sandbox/{NAME}" in line
    ]
    cgroups = [str(path) for path in Path("/sys/fs/cgroup").rglob(f"*llamactl-sandbox-{NAME}*")]
    state = [str(path) for path in Path("/run/llamactl-sandbox").glob(NAME)]
    return mounts + cgroups + state


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[Path]:
    """A running sandbox with a directory of ours bound into it."""
    done = call("start", "--bind", str(tmp_path))
    assert done.returncode == 0, done.stderr
    try:
        yield tmp_path
    finally:
        call("stop")


def test_booted_sandbox_runs_and_nothing_in_it_failed(inner: Path) -> None:
    assert call("run", "--", "systemctl", "is-system-running").stdout == "running\n"
    assert call("run", "--", "cat", "/proc/1/comm").stdout == "systemd\n"


def test_bound_directory_is_shared_and_all_else_is_thrown_away(inner: Path) -> None:
    call("run", "--", "sh", "-c", f"echo out > {inner}/written; echo lost > /etc/llamactl-lost; echo lost > /tmp/lost")
    assert (inner / "written").read_text() == "out\n"
    assert not Path("/etc/llamactl-lost").exists()
    assert not Path("/tmp/lost").exists()


def test_network_is_loopback_alone(inner: Path) -> None:
    devices = call("run", "--", "sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1").stdout.split()
    assert devices == ["lo"]
    assert call("run", "--", "cat", "/sys/class/net/lo/flags").stdout == "0x9\n"


def test_units_get_users_and_credentials_of_their_own(inner: Path) -> None:
    options = ["--pipe", "--wait", "--quiet", "--property=DynamicUser=yes", "--property=PrivateNetwork=yes"]
    script = 'id -u; cat "$CREDENTIALS_DIRECTORY/word"'
    done = call("run", "--", "systemd-run", *options, "--property=SetCredential=word:hush", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    uid, secret = done.stdout.split()
    assert 61184 <= int(uid) <= 65519  # systemd's range for dynamic users
    assert secret == "hush"


def test_exit_status_and_input_pass_through(inner: Path) -> None:
    assert call("run", "--", "sh", "-c", "exit 7").returncode == 7
    command = [sys.executable, str(SANDBOX), "run", "--name", NAME, "--", "cat"]
    assert subprocess.run(command, input="hello", capture_output=True, text=True, check=True).stdout == "hello"


def test_second_start_is_refused(inner: Path) -> None:
    done = call("start")
    assert (done.returncode, done.stdout) == (1, "")
    assert "it is running" in done.stderr


def test_stop_leaves_no_trace(inner: Path) -> None:
    assert list_traces()
    call("run", "--", "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &")
    assert call("stop").returncode == 0
    assert list_traces() == []
    assert call("status").returncode == 3


def test_run_without_a_sandbox_says_how_to_start_one() -> None:
    done = call("run", "--", "true")
    assert done.returncode == 125
    assert "scripts/sandbox start --name inner" in done.stderr
