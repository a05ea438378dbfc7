"""`check` and `logs`, which work without a supervisor."""

import json
import os
import struct
from pathlib import Path

import pytest

from llamactl.paths import Paths
from tests.socket.cli.scripted import TAKEN, add_systemctl, run


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    paths = Paths(config_dir=tmp_path / "etc", runtime_dir=tmp_path / "run")
    paths.models_config_dir.mkdir(parents=True)
    return paths


def add_model(paths: Paths, keys: str = "") -> Path:
    """A model below /tmp: what lies above its own directory does not matter to a unit there."""
    directory = paths.config_dir.parent / "models"
    directory.mkdir(mode=0o755, exist_ok=True)
    path = directory / "m.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + bytes(16))
    path.chmod(0o644)
    (paths.models_config_dir / "m.toml").write_text(f'[models.m]\npath = "{path}"\n{keys}\n')
    return path


def test_all_well_is_0(paths: Paths) -> None:
    add_model(paths)
    result = run(paths, "check")
    assert (result.status, result.out) == (0, "")
    assert result.err == f"{paths.config_dir}: 1 model, no problems\n"


def test_endpoint_that_is_not_in_force_is_a_problem(paths: Paths, tmp_path: Path) -> None:
    add_model(paths)
    result = run(paths, "check", environment={"PATH": add_systemctl(tmp_path, sockets=TAKEN)})
    assert result.status == 1
    assert result.out.startswith("llamactl-front-tcp.socket: 127.0.0.1:8080: NOT IN FORCE: ")
    assert result.err.startswith(f"{paths.config_dir}: 1 model, 1 problem")


def test_directory_that_is_missing_is_told(tmp_path: Path) -> None:
    result = run(Paths(config_dir=tmp_path / "nowhere"), "check")
    assert result.status == 1
    assert f"{tmp_path}/nowhere: there is no such directory" in result.out


def test_every_finding_is_a_line_with_file_and_key(paths: Paths) -> None:
    path = add_model(paths, "ctxx = 1\nparallel = 0")
    path.unlink()
    paths.config_file.write_text("max_loaded = -1")
    result = run(paths, "check")
    assert result.status == 1
    assert [line.replace(f"{paths.config_dir}/", "") for line in result.out.splitlines()] == [
        "llamactl.toml: max_loaded: cannot use max_loaded = -1: must be an integer of 0 or more",
        "models.d/m.toml: models.m.ctxx: unknown key 'ctxx'; did you mean 'ctx'?",
        "models.d/m.toml: models.m.parallel: cannot use parallel = 0: must be an integer from 1 to 256",
        f"models.d/m.toml: models.m.path: cannot use '{path}': no such file",
    ]
    assert result.err.splitlines()[0] == f"{paths.config_dir}: 1 model, 1 of them invalid, 4 problems"


def test_file_that_models_cannot_read_is_found_even_by_root(paths: Paths) -> None:
    path = add_model(paths)
    path.chmod(0o600)
    result = run(paths, "check")
    assert result.status == 1
    assert f"chmod o+r {path}" in result.out


def test_file_that_is_no_model_makes_its_model_invalid(paths: Paths) -> None:
    add_model(paths).write_bytes(b"root:x:0:0")
    result = run(paths, "check")
    assert result.status == 1
    assert result.err == f"{paths.config_dir}: 1 model, 1 of them invalid, 1 problem\n"
    assert json.loads(run(paths, "check", "--json").out)["invalid"] == ["m"]


def write_template(path: Path, template: str) -> None:
    """A file with a head that has one text."""
    key = b"tokenizer.chat_template"
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(template)) + template.encode()
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)


GO = "{{ range .Messages }}{{ .Content }}{{ end }}"


def test_file_whose_template_is_no_jinja_is_worth_a_note(paths: Paths) -> None:
    path = add_model(paths)
    write_template(path, GO)
    result = run(paths, "check")
    assert result.status == 0
    assert result.out.startswith(f"note: {paths.models_config_dir}/m.toml: models.m.path: chats will be refused: ")
    assert f"the chat template in '{path}' cannot be used: it is no Jinja template: line 1: " in result.out
    assert "chat_template_file" in result.out
    write_template(path, "{{ bos_token }}")
    assert "it uses no message" in run(paths, "check").out
    write_template(path, "{{ messages }}")
    assert run(paths, "check").out == ""


@pytest.mark.parametrize("keys", ['chat_template = "chatml"', 'pooling = "mean"'])
def test_template_of_a_file_that_is_not_used_does_not_matter(paths: Paths, keys: str) -> None:
    write_template(add_model(paths, keys), GO)
    assert run(paths, "check").out == ""


def test_configured_template_that_is_no_jinja_is_a_mistake(paths: Paths) -> None:
    add_model(paths, 'chat_template = "{% if %}{{ messages }}"')
    result = run(paths, "check")
    assert result.status == 1
    assert "models.m.chat_template: cannot use the chat template: it is no Jinja template: line 1: " in result.out


def test_notes_alone_are_0(paths: Paths) -> None:
    add_model(paths, 'env = { API_KEY = "x" }')
    result = run(paths, "check")
    assert result.status == 0
    assert result.out.startswith("note: ")


def test_what_was_found_in_directories_is_shown(paths: Paths) -> None:
    models = paths.config_dir.parent / "models"
    (models / "publisher" / "repository").mkdir(parents=True)
    for path in (add_model(paths), models / "publisher" / "repository" / "x-Q4.gguf"):
        path.write_bytes(b"GGUF\3\0\0\0" + bytes(16))
        path.chmod(0o644)
    (paths.models_config_dir / "m.toml").write_text(f'[directories.d]\npath = "{models}"\nprefix = "d/"\n')
    result = run(paths, "check")
    assert result.out == f"found in {models}:\n  d/m\n  publisher/repository: d/x-Q4\n"
    found = json.loads(run(paths, "check", "--json").out)["found"]
    assert found == {str(models): {"": ["d/m"], "publisher/repository": ["d/x-Q4"]}}


def test_as_json(paths: Paths) -> None:
    add_model(paths, "ctxx = 1")
    result = run(paths, "check", "--json")
    assert result.status == 1
    found = json.loads(result.out)
    assert (found["ok"], found["models"], found["invalid"]) == (False, [], ["m"])
    assert found["problems"][0]["where"] == "models.m.ctxx"


@pytest.fixture
def journal(tmp_path: Path) -> dict[str, str]:
    """An environment with a journalctl that shows its arguments."""
    program = tmp_path / "bin" / "journalctl"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def test_logs_become_journalctl_with_its_own_options(paths: Paths, journal: dict[str, str]) -> None:
    add_model(paths, 'aliases = ["alias"]')
    result = run(paths, "logs", "alias", "-f", "-n", "5", "--since", "today", environment=journal)
    assert result.status == 0
    assert result.out.splitlines() == [
        "--follow",
        "--lines=5",
        "--since",
        "today",
        "LLAMACTL_MODEL=m",
        "+",
        "_SYSTEMD_UNIT=llamactl-model@m.service",
        "+",
        "_PID=1",
        "UNIT=llamactl-model@m.service",
        "+",
        "_SYSTEMD_UNIT=llamactl-measure@m.service",
        "+",
        "_PID=1",
        "UNIT=llamactl-measure@m.service",
    ]
    assert result.err == ""


def test_logs_of_a_model_that_was_removed(paths: Paths, journal: dict[str, str]) -> None:
    result = run(paths, "logs", "gone", environment=journal)
    assert "LLAMACTL_MODEL=gone" in result.out
    assert result.err == "llamactl: no model 'gone' is configured; showing what the journal has\n"


def test_logs_of_a_model_that_never_was_are_4(paths: Paths, journal: dict[str, str]) -> None:
    Path(journal["PATH"].split(":")[0], "journalctl").write_text("#!/bin/sh\n")
    result = run(paths, "logs", "nope", environment=journal)
    assert (result.status, result.out) == (4, "")
    assert "cannot find model 'nope': it is not configured, and the journal has nothing of it" in result.err


def test_missing_journalctl_is_told(paths: Paths, tmp_path: Path) -> None:
    result = run(paths, "logs", "m", environment={"PATH": str(tmp_path)})
    assert result.status == 1
    assert result.err.splitlines()[-1] == "llamactl: cannot run journalctl: No such file or directory"
