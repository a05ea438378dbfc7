"""A script that lacks something ends in a line that says what, not in a traceback: before `scripts/setup`, and after it
without what only tests need.
"""

import os
import re
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
SCRIPTS = CHECKOUT / "scripts"
PROJECT = "llamactl-systemd"
NEEDY = (
    ("bench", "cold"),
    ("bench", "engine", "--llama-server", sys.executable),
    ("bench", "memory"),
    ("bench", "proxy"),
    ("bench", "sched"),
    ("fetch-models",),
    ("simulate",),
)
"""Scripts that need more than the standard library."""
ALONE = ("sandbox", "source-map")
TEST_BENCHES = [command for command in NEEDY if command[1:2] in (("cold",), ("engine",), ("memory",))]


def make_venv(directory: Path, packages: set[str]) -> Path:
    """One with these of this interpreter's packages."""
    venv.EnvBuilder(symlinks=True).create(directory)
    (site,) = directory.glob("lib/python*/site-packages")
    for package in packages:
        distribution = metadata.distribution(package)
        names = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
        for name in names - {"__pycache__"}:
            (site / name).symlink_to(Path(str(distribution.locate_file(name))))
    return directory


def list_needed(package: str, found: set[str]) -> set[str]:
    """What `package` needs without extras, itself included."""
    package = package.lower().replace("_", "-")
    if package not in found:
        found.add(package)
        for requirement in metadata.requires(package) or []:
            name = re.split(r"[\s;<>=!~\[(]", requirement, maxsplit=1)[0]
            if "extra" not in requirement and any(metadata.distributions(name=name)):
                list_needed(name, found)
    return found


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("venv") / "empty", set())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `scripts/setup` leaves it."""
    return make_venv(tmp_path_factory.mktemp("venv") / "plain", list_needed(PROJECT, set()))


def call(command: tuple[str, ...], python: Path, venv_: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [python / "bin" / "python", SCRIPTS / command[0], *command[1:]],
        env={**os.environ, "LLAMACTL_VENV": str(venv_), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_python_script_is_tried_here() -> None:
    scripts = {path.name for path in SCRIPTS.iterdir() if path.is_file() and b"python3" in path.read_bytes()[:40]}
    assert scripts == {command[0] for command in NEEDY} | set(ALONE)


@pytest.mark.parametrize("command", NEEDY, ids=" ".join)
def test_before_setup_it_says_to_run_setup(command: tuple[str, ...], empty: Path, tmp_path: Path) -> None:
    done = call(command, empty, tmp_path / "none")
    extra = " --test" if command in TEST_BENCHES else ""
    assert done.stderr.endswith(f": there is no {tmp_path / 'none'}/bin/python; run scripts/setup{extra}\n")
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == 1


@pytest.mark.parametrize("command", NEEDY, ids=" ".join)
def test_after_a_setup_that_was_interrupted_it_says_to_run_setup(command: tuple[str, ...], empty: Path) -> None:
    done = call(command, empty, empty)
    assert f": {PROJECT} missing in {empty}; run scripts/setup" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == 1


@pytest.mark.parametrize("command", TEST_BENCHES, ids=" ".join)
def test_after_plain_setup_it_says_what_the_tests_need(command: tuple[str, ...], empty: Path, plain: Path) -> None:
    done = call(command, empty, plain)
    assert re.fullmatch(
        rf"cannot measure: .*gguf, .*pytest, .* missing in {plain}; run scripts/setup --test\n", done.stderr
    )
    assert done.returncode == 1


def test_after_plain_setup_it_does_what_needs_no_tests(empty: Path, plain: Path) -> None:
    done = call(("simulate", "--hours", "0.1", "--trace", "office"), empty, plain)
    assert (done.returncode, done.stderr) == (0, "")


def test_bench_names_the_packages_of_programs_it_lacks(plain: Path) -> None:
    done = call(("bench", "proxy"), plain, plain, PATH="/nonexistent")
    assert done.stderr == "cannot measure: nginx, strace, wrk missing; try: apt-get install nginx-light strace wrk\n"
    assert done.returncode == 1


def test_script_without_needs_says_how_it_is_used(empty: Path, tmp_path: Path) -> None:
    for name in ALONE:
        done = call((name,), empty, tmp_path / "none")
        assert done.stderr.startswith("usage: ")
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("engine", "--llama-server", "no/such"), "argument --llama-server: there is no file 'no/such'"),
        (("engine", "--llama-server", __file__), f"argument --llama-server: '{__file__}' cannot be executed"),
        (("engine", "--model", "no/such"), "argument --model: there is no file 'no/such'"),
        (("proxy", "--llama-swap", "no/such"), "argument --llama-swap: there is no file 'no/such'"),
        (("proxy", "--router", sys.executable), "--router needs --model FILE"),
        (("engine",), "engine needs --llama-server PATH"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_bench_refuses_what_it_cannot_use_at_once(arguments: tuple[str, ...], message: str, plain: Path) -> None:
    done = call(("bench", *arguments), plain, plain)
    assert done.stderr.endswith(f"bench: error: {message}\n")
    assert done.returncode == 2


def test_reader_that_leaves_is_no_error(plain: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [plain / "bin" / "python", SCRIPTS / "simulate", "--hours", "0.1", "--trace", "office"]
    environment = {**os.environ, "LLAMACTL_VENV": str(plain)}
    done = subprocess.run(command, env=environment, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.stderr == b""
