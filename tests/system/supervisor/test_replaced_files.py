"""A model's file is replaced by another: who notices, and when?"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models import write_eye, write_large_model, write_model
from tests.system import journal
from tests.system.harness import Llamactl, run, show, sum_bytes

BIG = 150 << 20
BUDGET = 80 << 20
PLACE = Path("/srv/replaced")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small model, and one larger than the budget."""
    place = tmp_path_factory.mktemp("files")
    return {
        "small": write_model(place / "small.gguf", name="small", n_ctx_train=2048),
        "big": write_large_model(place / "big.gguf", BIG),
        "projector": write_eye(place / "projector.gguf"),
    }


@pytest.fixture
def place(files: dict[str, Path]) -> Iterator[Path]:
    """A directory with the small model as rf.gguf."""
    PLACE.mkdir(mode=0o755)
    put(files["small"], PLACE / "rf.gguf")
    yield PLACE
    shutil.rmtree(PLACE)


def put(source: Path, target: Path) -> None:
    """By another name first, then renamed, as downloads end."""
    new = target.with_suffix(".new")
    shutil.copyfile(source, new)
    new.chmod(0o644)
    new.rename(target)


def list_minima(llamactl: Llamactl, model: str) -> int:
    """Bytes that the model is known to need."""
    return sum_bytes(llamactl.list_models()[model]["memory"]["min"])


@pytest.fixture
def measured(llamactl: Llamactl, place: Path) -> Llamactl:
    """The small model is measured, under a budget that the large one breaks."""
    llamactl.write_settings(host_budget=BUDGET, strict=True)
    llamactl.write_models(rf={"path": str(place / "rf.gguf"), "ctx": 512})
    llamactl.start()
    llamactl.wait_event("model_measured", LLAMACTL_MODEL="rf")
    assert list_minima(llamactl, "rf") < 4 << 20
    return llamactl


def test_reload_says_whose_files_were_replaced_and_measures_them_anew(
    measured: Llamactl, place: Path, files: dict[str, Path]
) -> None:
    assert measured.cli("reload").stdout == "nothing has changed\n"
    cursor = journal.acquire_cursor()
    put(files["big"], place / "rf.gguf")
    assert measured.cli("reload").stdout == "files replaced, measured again: rf\n"
    journal.wait_entry(cursor, LLAMACTL_EVENT="model_measured", LLAMACTL_MODEL="rf")
    assert list_minima(measured, "rf") > BIG
    refused = measured.cli("load", "rf", status=5)
    assert "there with everything unloaded" in refused.stderr
    assert measured.list_loaded() == {}


@pytest.mark.parametrize("how", ["renamed over it", "written in place"])
def test_replaced_file_is_measured_before_it_is_loaded_without_a_reload(
    measured: Llamactl, place: Path, files: dict[str, Path], how: str
) -> None:
    measured.cli("load", "rf")
    measured.cli("unload", "rf")
    if how == "renamed over it":
        put(files["big"], place / "rf.gguf")
    else:
        (place / "rf.gguf").write_bytes(files["big"].read_bytes())
    measured.cli("load", "rf", status=5)
    assert measured.chat("rf").status == 503
    assert (measured.list_loaded(), list_minima(measured, "rf") > BIG) == ({}, True)
    put(files["small"], place / "rf.gguf")
    assert measured.chat("rf").status == 200
    assert show("llamactl-model@rf.service", "ActiveState") == "active"


def test_plan_knows_of_the_replaced_file(measured: Llamactl, place: Path, files: dict[str, Path]) -> None:
    before = measured.cli_json("plan", "rf")
    assert (before["outcome"], before["devices"][0]["needs"] < 4 << 20) == ("fits", True)
    cursor = journal.acquire_cursor()
    put(files["big"], place / "rf.gguf")
    assert measured.cli_json("plan", "rf")["outcome"] == "measure"
    journal.wait_entry(cursor, LLAMACTL_EVENT="model_measured", LLAMACTL_MODEL="rf")
    after = measured.cli_json("plan", "rf", status=5)
    assert (after["outcome"], after["devices"][0]["needs"] > BIG) == ("refused", True)


def test_file_in_a_directory_and_the_projector_beside_it_are_noticed(
    llamactl: Llamactl, place: Path, files: dict[str, Path]
) -> None:
    (place / "sub").mkdir()
    put(place / "rf.gguf", place / "sub" / "rf.gguf")
    (place / "rf.gguf").unlink()
    put(files["projector"], place / "sub" / "mmproj-rf.gguf")
    llamactl.write_settings()
    config = Path("/etc/llamactl/models.d/place.toml")
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f'[directories.place]\npath = "{place}"\nctx = 512\n')
    llamactl.start()
    (name,) = llamactl.list_models()
    llamactl.wait_event("model_measured", LLAMACTL_MODEL=name)
    for file, source in (("mmproj-rf.gguf", "projector"), ("rf.gguf", "small")):
        put(files[source], place / "sub" / file)
        assert llamactl.cli_json("reload")["replaced"] == [name], file
    assert llamactl.cli_json("reload")["replaced"] == []


def test_running_instance_goes_on_and_status_says_that_its_files_are_others(
    measured: Llamactl, place: Path, files: dict[str, Path]
) -> None:
    measured.cli("load", "rf")
    put(files["big"], place / "rf.gguf")
    cursor = journal.acquire_cursor()
    measured.cli("reload")
    assert measured.chat("rf").status == 200
    assert "files: what is new counts from the next load on" in measured.cli("status", "rf").stdout
    journal.wait_entry(cursor, LLAMACTL_EVENT="model_measured", LLAMACTL_MODEL="rf")
    run("systemctl", "restart", "llamactl.service")
    assert measured.list_models()["rf"]["waiting_settings"] in ([], ["files"])  # its file is looked at by and by
    measured.cli("reload")
    assert measured.list_models()["rf"]["waiting_settings"] == ["files"], "a new supervisor has lost what was loaded"
    measured.cli("unload", "rf")
    measured.cli("load", "rf", status=5)
