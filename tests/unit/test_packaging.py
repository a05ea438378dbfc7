"""Does a wheel carry what an installation needs, and does `llamactl install` write exactly that and take it back?"""

import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from llamactl.chatlib.place import OUR_FILES
from llamactl.cli.install import (
    InstallError,
    describe_closed,
    find_closed_directory,
    install,
    quote_unit_value,
    render_unit,
    uninstall,
)
from llamactl.config.load import load_config
from llamactl.paths import Paths
from llamactl.settings import GlobalSettings
from llamactl.share import choose_hidden, find_share_dir

CHECKOUT = Path(__file__).resolve().parents[2]
SHARED = sorted(
    path.relative_to(CHECKOUT) for kind in ("units", "etc") for path in (CHECKOUT / kind).rglob("*") if path.is_file()
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by hatchling itself: no network, no isolated environment."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
    (found,) = directory.glob("*.whl")
    return found


def test_wheel_carries_units_and_configuration(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert len(SHARED) >= 10
    assert {f"llamactl/share_data/{path}" for path in SHARED} <= names
    assert {f"llamactl/chatlib/{name}" for name in OUR_FILES} <= names, "from which setup-chat builds the chat layer"
    assert not [name for name in names if name.startswith(("tests/", "scripts/")) or "__pycache__" in name]


def test_installed_wheel_finds_its_units(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # `etc` of somebody else beside the package must not be taken for ours.
    (site / "etc").mkdir()
    code = "from llamactl.share import find_share_dir as f; print(f('units')); print(f('etc'))"
    done = subprocess.run(
        [tmp_path / "env/bin/python", "-c", code], cwd="/", env={}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [str(site / "llamactl/share_data" / kind) for kind in ("units", "etc")]


def test_checkout_uses_its_own_units() -> None:
    assert find_share_dir("units") == CHECKOUT / "units"


def test_install_without_data_says_what_is_broken(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot find llamactl's units"):
        find_share_dir("units", tmp_path)


def list_files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or path.is_symlink()}


def test_install_fills_in_every_placeholder(tmp_path: Path) -> None:
    install(tmp_path, python=Path("/opt/my env/bin/python"))
    texts = [path.read_text() for path in (tmp_path / "usr/local/lib/systemd/system").iterdir()]
    assert len(texts) == 6
    assert not [text for text in texts if "@PYTHON" in text or "@BIND" in text]
    assert any('ExecStart="/opt/my env/bin/python" -P -m llamactl.supervisor' in text for text in texts)


def test_second_install_changes_nothing_and_keeps_the_configuration(tmp_path: Path) -> None:
    install(tmp_path)
    config = tmp_path / "etc/llamactl/llamactl.toml"
    config.write_text("# edited\n")
    lines = install(tmp_path)
    assert not [line for line in lines if line.startswith("wrote")]
    assert config.read_text() == "# edited\n"


def test_uninstall_removes_all_that_install_wrote(tmp_path: Path) -> None:
    install(tmp_path)
    install(tmp_path)
    assert list_files(tmp_path)
    uninstall(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_uninstall_leaves_directories_that_were_there(tmp_path: Path) -> None:
    (tmp_path / "usr/local/lib/systemd").mkdir(parents=True)
    install(tmp_path)
    uninstall(tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "usr",
        "usr/local",
        "usr/local/lib",
        "usr/local/lib/systemd",
    ]


def test_prefix_where_systemd_does_not_look_is_refused() -> None:
    with pytest.raises(InstallError, match="systemd looks for units below /usr/local and /usr only"):
        install(prefix=Path("/opt/x"))


def test_install_says_when_only_root_can_run_the_command(tmp_path: Path) -> None:
    closed = tmp_path / "home"
    (closed / "env/bin").mkdir(parents=True)
    closed.chmod(0o700)
    assert find_closed_directory(Path("/usr/bin/python3")) is None
    found = find_closed_directory(closed / "env/bin/python")
    assert found is not None
    assert not found.stat().st_mode & 0o001
    lines = install(tmp_path / "root", python=closed / "env/bin/python")
    assert lines[-1].startswith(f"note      {found} is closed to other users")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that everyone may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_install_says_when_the_interpreter_lies_in_a_private_home(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pyenv and uv make environments: everyone may enter the environment, and not what its Python links to."""
    interpreter = open_path / "home/.local/share/uv/python/bin/python3.12"
    interpreter.parent.mkdir(parents=True)
    interpreter.touch()
    python = open_path / "opt/llamactl/.venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(interpreter)
    assert describe_closed(python) == []
    (open_path / "home").chmod(0o700)
    [note] = describe_closed(python)
    assert note.startswith(f"note      {open_path}/home is closed to other users")
    assert f"(the virtual environment's Python is {interpreter})" in note
    assert note.endswith("make the virtual environment with a Python that everyone can run, as /usr/bin/python3")
    monkeypatch.setattr("llamactl.cli.install.HIDDEN", ())
    assert "no model can run" in describe_closed(python)[0]


def test_uninstall_keeps_what_was_edited_and_what_is_not_ours(tmp_path: Path) -> None:
    mine = tmp_path / "usr/local/bin/llamactl"
    mine.parent.mkdir(parents=True)
    mine.write_text("somebody's own\n")
    lines = install(tmp_path, python=Path("/opt/env/bin/python"))
    assert any(line.startswith("left      /usr/local/bin/llamactl") for line in lines)
    (tmp_path / "etc/llamactl/llamactl.toml").write_text("# edited\n")
    (tmp_path / "etc/llamactl/models.d/mine.toml").write_text("[models.a]\n")
    lines = uninstall(tmp_path)
    assert "kept      /etc/llamactl/llamactl.toml: edited since it was installed" in lines
    assert "left      /etc/llamactl/models.d/mine.toml: not written by install" in lines
    mine = {"etc/llamactl/llamactl.toml", "etc/llamactl/models.d/mine.toml", "usr/local/bin/llamactl"}
    assert list_files(tmp_path) == mine


def test_uninstall_without_install_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="nothing was installed"):
        uninstall(tmp_path)


def test_installed_files_are_readable_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        install(tmp_path)
    finally:
        os.umask(before)
    etc = tmp_path / "etc"
    assert [
        path for path in (etc, etc / "llamactl", etc / "llamactl/llamactl.toml") if path.stat().st_mode & 0o004
    ] == [
        etc,
        etc / "llamactl",
        etc / "llamactl/llamactl.toml",
    ]


def test_only_hidden_paths_are_bound() -> None:
    paths = ["/usr", "/opt/env", "/root/env/lib", "/root/env", "/home/ann/py", "/rooted/env", "/root/env2", "/tmp/env"]
    hidden = ["/home/ann/py", "/root/env", "/root/env2", "/tmp/env"]
    assert choose_hidden(map(Path, paths)) == [Path(path) for path in hidden]


def test_unit_shows_only_the_python_in_a_home() -> None:
    template = "ExecStart=@PYTHON@ -P\n@BIND_PYTHON@\n"
    text = render_unit(template, Path("/root/a b/$x"), [Path("/root/a b"), Path("/home/py")])
    assert text == 'ExecStart="/root/a b/$$x" -P\nBindReadOnlyPaths="/root/a b" /home/py\n'
    assert "BindReadOnlyPaths" not in render_unit(template, Path("/usr/bin/python3"), [])


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("/usr/bin/python3", "/usr/bin/python3"),
        ("/a b", '"/a b"'),
        ("/50%", '"/50%%"'),
        ('/say "x"', '"/say \\"x\\""'),
        ("/back\\slash", '"/back\\\\slash"'),
    ],
)
def test_words_survive_systemds_unquoting(value: str, quoted: str) -> None:
    assert quote_unit_value(value) == quoted


def uncomment(path: Path) -> str:
    return re.sub(r"^#(?=[a-z_\[])", "", path.read_text(), flags=re.MULTILINE)


def test_shipped_configuration_shows_the_real_defaults(tmp_path: Path) -> None:
    (tmp_path / "llamactl.toml").write_text(uncomment(CHECKOUT / "etc/llamactl.toml"))
    (tmp_path / "models.d").mkdir()
    config = load_config(Paths(config_dir=tmp_path))
    assert config.problems == ()
    examples = {"margins_bytes", "host_margin_bytes", "host_budget_bytes", "allowed_hosts", "cors_origins"}
    shown, default = msgspec.structs.asdict(config.settings), msgspec.structs.asdict(GlobalSettings())
    assert {key for key in shown if shown[key] != default[key]} == examples


def test_shipped_example_model_is_right_but_for_its_missing_files(tmp_path: Path) -> None:
    (tmp_path / "models.d").mkdir()
    example = uncomment(CHECKOUT / "etc/models.d/example.toml.disabled").replace("/srv/models", str(tmp_path / "m"))
    (tmp_path / "models.d/example.toml").write_text(example)
    (tmp_path / "m").mkdir()
    (tmp_path / "m/Qwen3-8B-Q4_K_M.gguf").write_bytes(b"GGUF")
    config = load_config(Paths(config_dir=tmp_path))
    assert config.problems == ()
    assert set(config.models) == {"qwen"}
