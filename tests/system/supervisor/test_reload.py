"""What happens to running models when the configuration changes under them?"""

import os
from pathlib import Path

import pytest

from tests.system.harness import PATHS, Llamactl, run, show


@pytest.fixture
def loaded(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    """A running llamactl with `a` loaded."""
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": 1024})
    llamactl.start()
    llamactl.cli("load", "a")
    return llamactl


def test_added_model_can_be_used(loaded: Llamactl, tiny: dict[str, Path]) -> None:
    assert loaded.chat("b").status == 404
    loaded.write_models("more.toml", b={"path": str(tiny["b"]), "ctx": 1024})
    loaded.cli("reload")
    assert loaded.chat("b").status == 200
    assert "a" in loaded.list_loaded()


def test_systemctl_reload_reads_the_configuration(loaded: Llamactl, tiny: dict[str, Path]) -> None:
    loaded.write_models("more.toml", b={"path": str(tiny["b"]), "ctx": 1024})
    run("systemctl", "reload", "llamactl.service")
    assert "b" in loaded.list_models()


def test_removed_model_leaves(loaded: Llamactl, tiny: dict[str, Path]) -> None:
    loaded.write_models(b={"path": str(tiny["b"]), "ctx": 1024})
    loaded.cli("reload")
    loaded.wait_event("model_unloaded", LLAMACTL_MODEL="a")
    assert list(loaded.list_models()) == ["b"]
    assert loaded.chat("a").status == 404


def test_loaded_model_that_becomes_invalid_goes_on_and_is_neither_removed_nor_added(
    loaded: Llamactl, tiny: dict[str, Path]
) -> None:
    pid = loaded.list_loaded()["a"]["pid"]
    loaded.write_models(a={"path": str(tiny["a"]), "ctxx": 1024})
    worse = loaded.cli("reload", status=1).stdout.splitlines()
    assert worse == ["invalid, but loaded: these go on as before until they are unloaded: a"]
    assert loaded.chat("a").status == 200
    loaded.write_models(a={"path": str(tiny["a"]), "ctx": 1024})
    assert loaded.cli("reload").stdout.splitlines() == ["no longer invalid: a"]
    assert loaded.chat("a").status == 200
    assert loaded.list_loaded()["a"]["pid"] == pid


def test_changed_settings_wait_for_the_next_load(loaded: Llamactl, tiny: dict[str, Path]) -> None:
    pid = loaded.list_loaded()["a"]["pid"]
    loaded.write_models(a={"path": str(tiny["a"]), "ctx": 2048})
    loaded.cli("reload")
    assert loaded.list_loaded()["a"]["pid"] == pid
    assert loaded.list_loaded()["a"]["memory"]["effective"]["n_ctx"] == 1024
    loaded.cli("unload", "a")
    loaded.cli("load", "a")
    assert loaded.list_loaded()["a"]["memory"]["effective"]["n_ctx"] == 2048


def test_broken_file_costs_only_its_own_models(loaded: Llamactl, tiny: dict[str, Path]) -> None:
    loaded.write_models("more.toml", b={"path": str(tiny["b"]), "ctx": 1024})
    broken = PATHS.models_config_dir / "broken.toml"
    broken.write_text("[models.c]\npath = \n")
    reloaded = loaded.cli("reload", status=1)
    assert "broken.toml" in reloaded.stdout + reloaded.stderr
    assert "line 2" in reloaded.stdout + reloaded.stderr
    assert loaded.chat("a").status == 200
    assert loaded.chat("b").status == 200


def test_reload_finds_the_file_that_is_no_model_as_check_does(loaded: Llamactl) -> None:
    loaded.write_models("hosts.toml", hosts={"path": "/etc/hosts"})
    reloaded = loaded.cli("reload", status=1)
    assert reloaded.stdout == "invalid: hosts\n"
    checked = loaded.cli("check", status=1)
    assert reloaded.stderr == f"llamactl: {checked.stdout}"
    assert "it is no GGUF file: it starts with" in loaded.cli("plan", "hosts", status=1).stdout
    assert "it is no GGUF file" in loaded.chat("hosts").error["message"]
    assert loaded.chat("a").status == 200


def test_restart_with_a_broken_file_keeps_its_models_that_run(loaded: Llamactl, tiny: dict[str, Path]) -> None:
    loaded.write_models("more.toml", b={"path": str(tiny["b"]), "ctx": 1024, "aliases": ["second"]})
    loaded.cli("reload")
    loaded.cli("load", "b")
    (PATHS.models_config_dir / "more.toml").write_text("[models.b]\npath = \n")
    run("systemctl", "restart", "llamactl.service")
    loaded.wait_event("instances_recovered")
    assert loaded.chat("second").status == 200
    assert loaded.chat("a").status == 200
    refused = loaded.chat("c")
    assert refused.status == 500
    assert "more.toml, which cannot be read" in refused.error["message"]
    assert "more.toml" in loaded.cli("status", "c", status=4).stderr
    loaded.cli("reload", status=1)
    assert loaded.chat("b").status == 200
    loaded.write_models("more.toml")
    loaded.cli("reload")
    loaded.wait_event("model_unloaded", LLAMACTL_MODEL="b")
    assert loaded.chat("c").status == 404


def test_typo_in_a_limit_keeps_the_limit_until_a_restart_and_is_then_told(loaded: Llamactl) -> None:
    loaded.write_settings(host_budget="500 MiB")
    loaded.cli("reload")
    loaded.write_settings(host_budget="lots")
    reloaded = loaded.cli("reload", status=1)
    assert "it keeps 500 MiB" in reloaded.stderr
    assert "host_budget:" not in reloaded.stdout
    run("systemctl", "restart", "llamactl.service")
    loaded.wait_event("setting_not_in_force", LLAMACTL_KEY="host_budget")
    assert "host_budget is NOT IN FORCE" in loaded.cli("status").stdout


def test_renamed_model_serves_under_its_new_name(loaded: Llamactl, tiny: dict[str, Path]) -> None:
    loaded.write_models(z={"path": str(tiny["a"]), "ctx": 1024})
    loaded.cli("reload")
    assert loaded.chat("z").status == 200
    assert loaded.chat("a").status == 404


def test_failed_unit_of_a_removed_model_goes_with_it(loaded: Llamactl, tiny: dict[str, Path]) -> None:
    broken = tiny["a"].with_name("broken.gguf")
    broken.write_bytes(b"GGUF" + b"\xff" * 100)
    loaded.write_models("more.toml", broken={"path": str(broken), "ctx": 1024})
    loaded.cli("reload")
    loaded.cli("load", "broken", status=1)
    assert show("llamactl-model@broken.service", "ActiveState") == "failed"
    (PATHS.models_config_dir / "more.toml").unlink()
    loaded.cli("reload")
    loaded.wait_event("failed_unit_reset")
    assert show("llamactl-model@broken.service", "LoadState") == "not-found"


def test_file_name_that_is_no_unicode_costs_only_its_own_model(loaded: Llamactl, tiny: dict[str, Path]) -> None:
    directory = tiny["a"].parent / "odd"
    directory.mkdir()
    (directory / os.fsdecode(b"caf\xe9.gguf")).write_bytes(tiny["a"].read_bytes())
    (PATHS.models_config_dir / "odd.toml").write_text(f'[directories.odd]\npath = "{directory}"\n')
    assert "caf" in loaded.cli("reload", status=1).stderr
    assert {"a"} <= set(loaded.list_models())
    assert loaded.get("/v1/models").status == 200
    assert loaded.cli("load", os.fsdecode(b"\xff"), status=4).stderr.startswith("llamactl: cannot find model")
