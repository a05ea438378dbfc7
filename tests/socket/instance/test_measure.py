"""Does a measurement say what a load will take, and does a bad file end in a report and not in a riddle?"""

from pathlib import Path

import msgspec
import pytest

from llamactl.protocol.values import Breakdown, Facts, RowKind
from llamactl.settings import ModelSettings
from tests.models import write_model
from tests.socket.instance.harness import run_child


def measure(directory: Path, settings: ModelSettings, **variables: str) -> tuple[Breakdown, Breakdown, Facts]:
    with run_child(directory, "measure", settings, **variables) as child:
        report = child.supervisor.wait_for("measured")
        assert child.wait() == 0, child.errors
    assert report.min is not None
    assert report.max is not None
    assert report.facts is not None
    return report.min, report.max, report.facts


def read_effective(directory: Path, settings: ModelSettings, **variables: str) -> Breakdown:
    with run_child(directory, "serve", settings, **variables) as child:
        effective = child.supervisor.wait_for("ready").effective
    assert effective is not None
    return effective


def make_directory(path: Path, name: str) -> Path:
    (path / name).mkdir()
    return path / name


@pytest.mark.parametrize(
    ("ctx", "n_ctx", "parallel", "mmap"), [(512, 512, 2, True), (512, 512, 2, False), (100, 256, 200, True)]
)
def test_effective_is_the_measured_minimum_to_the_byte_when_the_context_is_pinned(
    tiny: Path, tmp_path: Path, ctx: int, n_ctx: int, parallel: int, mmap: bool
) -> None:
    settings = ModelSettings(name="tiny", path=str(tiny), ctx=ctx, parallel=parallel, mmap=mmap, threads=1)
    smallest, largest, _ = measure(make_directory(tmp_path, "measure"), settings)
    effective = read_effective(make_directory(tmp_path, "serve"), settings)
    assert smallest.n_ctx == n_ctx
    assert effective == smallest == largest


def test_fitted_load_takes_what_the_measured_maximum_says(tiny: Path, tmp_path: Path) -> None:
    settings = ModelSettings(name="tiny", path=str(tiny), parallel=2, fit_ctx=256, threads=1)
    smallest, largest, facts = measure(make_directory(tmp_path, "measure"), settings)
    effective = read_effective(make_directory(tmp_path, "serve"), settings)
    assert (smallest.n_ctx, largest.n_ctx) == (512, 2048)
    assert facts.n_ctx_train == 2048
    assert effective == largest


def test_fitted_context_stays_below_its_bound(tiny: Path, tmp_path: Path) -> None:
    settings = ModelSettings(name="tiny", path=str(tiny), parallel=2, fit_ctx=256, ctx_max=1000, threads=1)
    smallest, largest, _ = measure(make_directory(tmp_path, "measure"), settings)
    assert (smallest.n_ctx, largest.n_ctx) == (512, 1024)
    assert read_effective(make_directory(tmp_path, "serve"), settings) == largest


def test_what_the_supervisor_has_measured_is_taken_for_the_fitted_context(tiny: Path, tmp_path: Path) -> None:
    settings = ModelSettings(name="tiny", path=str(tiny), parallel=2, fit_ctx=256, threads=1)
    _, largest, _ = measure(make_directory(tmp_path, "measure"), settings)
    known = {"LLAMACTL_MEASURED": msgspec.json.encode(largest).decode()}
    assert read_effective(make_directory(tmp_path, "known"), settings, **known) == largest
    # It does not fit any more: the load looks for itself.
    room = str(sum(row.used for row in largest.devices) - 1)
    fitted = read_effective(make_directory(tmp_path, "less"), settings, LLAMACTL_HOST_ROOM=room, **known)
    assert fitted.n_ctx < largest.n_ctx


def test_smallest_context_is_never_more_than_the_model_was_trained_for(tiny: Path, tmp_path: Path) -> None:
    smallest, largest, _ = measure(tmp_path, ModelSettings(name="tiny", path=str(tiny), parallel=4, threads=1))
    assert smallest.n_ctx == largest.n_ctx == 2048


def test_without_fitting_the_trained_context_is_taken(tiny: Path, tmp_path: Path) -> None:
    smallest, largest, _ = measure(tmp_path, ModelSettings(name="tiny", path=str(tiny), fit=False, threads=1))
    assert smallest.n_ctx == largest.n_ctx == 2048


def test_room_in_main_memory_bounds_the_fitted_context(tiny: Path, tmp_path: Path) -> None:
    settings = ModelSettings(name="tiny", path=str(tiny), parallel=1, fit_ctx=256, threads=1)
    smallest, largest, _ = measure(make_directory(tmp_path, "all"), settings)
    used = [sum(row.used for row in breakdown.devices) for breakdown in (smallest, largest)]
    room = sum(used) // 2
    _, fitted, _ = measure(make_directory(tmp_path, "room"), settings, LLAMACTL_HOST_ROOM=str(room))
    assert smallest.n_ctx < fitted.n_ctx < largest.n_ctx
    assert used[0] < sum(row.used for row in fitted.devices) <= room


def test_all_memory_of_a_machine_without_devices_is_in_the_host_row(tiny: Path, tmp_path: Path) -> None:
    smallest, _, facts = measure(tmp_path, ModelSettings(name="tiny", path=str(tiny), ctx=256, repack=False))
    (row,) = smallest.devices
    assert row.kind is RowKind.HOST
    assert row.model == facts.size_bytes
    assert row.context > 0
    assert row.compute > 0


def test_embedding_model_is_measured_too(tiny_embed: Path, tmp_path: Path) -> None:
    _, largest, facts = measure(tmp_path, ModelSettings(name="embed", path=str(tiny_embed), threads=1))
    assert facts.architecture == "bert"
    assert largest.n_ctx == 512


def corrupt(path: Path, kind: str) -> None:
    data = path.read_bytes()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "magic":
        path.write_bytes(b"XXXX" + data[4:])
    elif kind == "header":
        path.write_bytes(data[:2000])
    elif kind == "weights":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "missing":
        path.unlink()


REASONS = {
    "empty": "",
    "magic": "invalid magic",
    "header": "",
    "weights": "not within the file bounds",
    "missing": "No such file",
}


@pytest.mark.parametrize("kind", REASONS)
@pytest.mark.parametrize("role", ["measure", "serve"])
def test_bad_file_is_reported_with_its_reason(tmp_path: Path, role: str, kind: str) -> None:
    path = write_model(tmp_path / "bad.gguf")
    corrupt(path, kind)
    with run_child(tmp_path, role, ModelSettings(name="bad", path=str(path), threads=1)) as child:
        report = child.supervisor.wait_for("failed")
        assert child.wait() == 1
        assert "Traceback" not in child.errors
    assert str(path) in report.error
    assert REASONS[kind] in report.error
    assert "no reason" not in report.error


def test_unknown_device_is_reported_by_name(tiny: Path, tmp_path: Path) -> None:
    settings = ModelSettings(name="tiny", path=str(tiny), devices=("CUDA7",))
    with run_child(tmp_path, "measure", settings) as child:
        report = child.supervisor.wait_for("failed")
        assert child.wait() == 1
    assert "'CUDA7'" in report.error


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LLAMACTL_SPEC", "{}"),
        ("LLAMACTL_SPEC", ""),
        ("LLAMACTL_MARGINS", "[1]"),
        ("LLAMACTL_EXTRA_BUFTS", "yes"),
        ("LLAMACTL_HOST_ROOM", "1G"),
        ("LLAMACTL_MEASURED", "[]"),
    ],
)
def test_senseless_environment_is_refused_by_name(tiny: Path, tmp_path: Path, variable: str, value: str) -> None:
    settings = ModelSettings(name="tiny", path=str(tiny))
    with run_child(tmp_path, "measure", settings, **{variable: value}) as child:
        assert child.wait() == 2
        assert variable in child.errors
        assert "Traceback" not in child.errors


RECURSION = "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(messages) }}"
LOOP = "{% for a in range(30000) %}{% for b in range(30000) %}{% endfor %}{% endfor %}{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (RECURSION, "it recurses without end"),
        (LOOP, "it takes over"),
        ("{% if tools %}" + LOOP + "{% endif %}", "over"),
    ],
)
def test_template_that_does_not_end_fails_the_measurement_and_costs_the_instance_its_chats_alone(
    tmp_path: Path, template: str, reason: str
) -> None:
    path = write_model(tmp_path / "model.gguf", chat_template=template)
    settings = ModelSettings(name="tiny", path=str(path), ctx=256, threads=1)
    with run_child(make_directory(tmp_path, "measure"), "measure", settings) as child:
        report = child.supervisor.wait_for("failed")
        assert "cannot use the chat template: " in report.error
        assert reason in report.error
        assert child.wait() == 1
    with run_child(make_directory(tmp_path, "serve"), "serve", settings) as child:
        child.supervisor.wait_for("ready")
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
        status, answer = child.request("POST", "/v1/chat/completions", body)
        assert (status, "its chat template cannot be used" in answer["error"]["message"]) == (400, True)
        assert child.request("POST", "/v1/completions", {"prompt": "hello", "max_tokens": 1})[0] == 200


def test_template_that_refuses_is_no_worse_for_that(tmp_path: Path) -> None:
    template = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}{{ messages[0].content }}"
    path = write_model(tmp_path / "model.gguf", chat_template=template)
    measure(tmp_path, ModelSettings(name="tiny", path=str(path), ctx=256, threads=1))
