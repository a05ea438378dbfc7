"""What if memory is used by others, devices go, measurements fail, or are known from before?"""

import mmap
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.system import journal
from tests.system.harness import PATHS, STARTED, Llamactl, run, show
from tests.system.scripted_gpu import EXTERNAL, GROWTH, MIB, SIZE

CACHE = PATHS.cache_dir / "measurements.json"
STOPPED = "9d1aaa27d60140bd96365438aad20286"
"""systemd's message ID for "a stop job is done"."""
SPEC: dict[str, Any] = {"ctx": 256, "parallel": 1, "threads": 1}


def list_measurements(cursor: str) -> list[str]:
    """Which measure units have started since, in order."""
    units = [entry.get("UNIT", "") for entry in journal.read_entries(cursor, MESSAGE_ID=STARTED)]
    prefix, suffix = "llamactl-measure@", ".service"
    return [unit.removeprefix(prefix).removesuffix(suffix) for unit in units if unit.startswith(prefix)]


# --- known from before ---


def restart(llamactl: Llamactl, last: str) -> tuple[str, list[str]]:
    """A new supervisor, until it has figures of the `last` model. The cursor of its start, and what it measured."""
    run("systemctl", "stop", "llamactl.service")
    cursor = journal.acquire_cursor()
    run("systemctl", "start", "llamactl.service")
    journal.wait_entry(cursor, LLAMACTL_EVENT="model_measured", LLAMACTL_MODEL=last)
    return cursor, list_measurements(cursor)


@pytest.fixture
def fifty(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    """Fifty models of three files in four forms, all of them measured."""
    models = {
        f"m{number:02}": {**SPEC, "path": str(tiny["abc"[number % 3]]), "ctx": 256 * (1 + number % 4)}
        for number in range(50)
    }
    llamactl.write_models(**models)
    llamactl.start()
    llamactl.wait_event("model_measured", LLAMACTL_MODEL="m49")
    assert len(list_measurements(llamactl.cursor)) == 12, "models of one file and the same settings share a measurement"
    return llamactl


def test_start_with_unchanged_models_starts_one_child_that_lists_devices(fifty: Llamactl) -> None:
    before = {name: model["memory"] for name, model in fifty.list_models().items()}
    _, measured = restart(fifty, "m49")
    assert measured == ["_devices"]
    assert {name: model["memory"] for name, model in fifty.list_models().items()} == before
    assert CACHE.stat().st_mode & 0o777 == 0o600


def test_file_that_has_changed_is_measured_anew(fifty: Llamactl, tiny: dict[str, Path]) -> None:
    tiny["a"].touch()
    _, measured = restart(fifty, "m49")
    assert measured == ["m00", "m03", "m06", "m09"], "one of each form; its child lists the devices too"


def test_corrupt_cache_is_dropped_with_one_warning(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.write_models(a={**SPEC, "path": str(tiny["a"])})
    llamactl.start()
    llamactl.wait_event("model_measured")
    CACHE.write_bytes(CACHE.read_bytes()[:100])
    cursor, measured = restart(llamactl, "a")
    assert measured == ["a"]
    assert len(journal.read_entries(cursor, LLAMACTL_EVENT="measurement_cache_dropped", PRIORITY="4")) == 1
    assert restart(llamactl, "a")[1] == ["_devices"]


def test_measurement_by_command_is_a_new_one(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.write_models(a={**SPEC, "path": str(tiny["a"])})
    llamactl.start()
    llamactl.wait_event("model_measured")
    llamactl.cli("measure", "a")
    assert list_measurements(llamactl.cursor) == ["a", "a"]


# --- memory of others ---


@contextmanager
def use_memory(size: int) -> Iterator[None]:
    """A process that llamactl knows nothing of holds so many bytes."""
    code = (
        f"import mmap, sys; held = mmap.mmap(-1, {size}, {mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE});"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
        process.communicate()


def read_meminfo() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) << 10 for line in lines}


def test_host_memory_that_another_process_takes_is_not_promised(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    taken = min(read_meminfo()["MemTotal"] // 8, 2 << 30)
    with use_memory(taken):
        # A little more than is free now. Of what a process gives back the kernel shows only a part at once.
        llamactl.write_settings(strict=True, host_margin=read_meminfo()["MemAvailable"] + taken // 8)
        llamactl.write_models(a={**SPEC, "path": str(tiny["a"])})
        llamactl.start()
        refused = llamactl.cli("load", "a", status=5)
        assert "Host" in refused.stderr
        accounts = {account["name"]: account for account in llamactl.cli_json("status")["devices"]}
        assert accounts["Host"]["external"] > taken
    llamactl.cli("load", "a")
    assert list(llamactl.list_loaded()) == ["a"]


@pytest.fixture
def gpu(llamactl: Llamactl, tiny: dict[str, Path]) -> Iterator[Llamactl]:
    """Models that take SIZE each on a scripted device of TOTAL, which is read again before each load."""
    EXTERNAL.write_text("0")
    llamactl.use_gpu_script()
    llamactl.write_settings(margin=0, min_resident=0, refresh="1ms", measure_timeout="2s")
    llamactl.write_models(**{name: {**SPEC, "path": str(tiny["a"])} for name in ("x", "y", "z")})
    yield llamactl
    EXTERNAL.unlink()


def list_victims(llamactl: Llamactl) -> list[str]:
    return [entry["LLAMACTL_MODEL"] for entry in llamactl.read_events("victim_chosen")]


def test_device_memory_that_others_take_makes_victims(gpu: Llamactl) -> None:
    gpu.start()
    for name in ("x", "y"):
        gpu.cli("load", name)
    # 1000 in all, 600 held, 300 taken by others: 100 are free, `z` needs 300, and one of the two is enough.
    EXTERNAL.write_text(str(300 * MIB))
    gpu.cli("load", "z")
    assert list_victims(gpu) == ["x"]
    assert sorted(gpu.list_loaded()) == ["y", "z"]
    (account,) = (account for account in gpu.cli_json("status")["devices"] if account["name"] == "GPU0")
    assert (account["external"], account["held"], account["available"]) == (300 * MIB, 2 * SIZE, 100 * MIB)


def test_device_memory_that_others_give_back_can_be_used_again(gpu: Llamactl) -> None:
    EXTERNAL.write_text(str(600 * MIB))
    gpu.start()
    gpu.cli("load", "x")
    EXTERNAL.write_text("0")
    gpu.cli("load", "y")
    assert list_victims(gpu) == []
    assert sorted(gpu.list_loaded()) == ["x", "y"]


def test_cached_figures_say_nothing_of_what_is_free_now(gpu: Llamactl) -> None:
    gpu.start()
    gpu.wait_event("model_measured", LLAMACTL_MODEL="z")
    EXTERNAL.write_text(str(800 * MIB))
    _, measured = restart(gpu, "z")
    assert measured == ["_devices"]
    (account,) = (account for account in gpu.cli_json("status")["devices"] if account["name"] == "GPU0")
    assert account["external"] == 800 * MIB, "the listing calibrates, the cache does not"


def test_model_that_takes_more_than_measured_is_decided_by_that_from_then_on(
    gpu: Llamactl, tiny: dict[str, Path]
) -> None:
    gpu.write_models(grows={**SPEC, "path": str(tiny["a"])})
    gpu.start()
    gpu.cli("load", "grows")
    gpu.cli("unload", "grows")
    (exceeded,) = gpu.read_events("measurement_exceeded", LLAMACTL_MODEL="grows", PRIORITY="4")
    assert exceeded["LLAMACTL_MEASURED_GPU0_BYTES"] == str(SIZE)
    assert exceeded["LLAMACTL_EFFECTIVE_GPU0_BYTES"] == str(SIZE + GROWTH)
    (device,) = (device for device in gpu.cli_json("plan", "grows")["devices"] if device["name"] == "GPU0")
    assert device["needs"] == SIZE + GROWTH
    tiny["a"].touch()
    gpu.cli("reload")
    gpu.cli("measure", "grows")
    (device,) = (device for device in gpu.cli_json("plan", "grows")["devices"] if device["name"] == "GPU0")
    assert device["needs"] == SIZE, "what the old file took says nothing of the new one"


# --- measurements that fail ---


@pytest.mark.parametrize(
    ("name", "reason"),
    [("hangs", "took too long and was killed"), ("fails", "a reason of its own"), ("dies", "(signal 11)")],
)
def test_failed_measurement_says_how_it_ended_and_the_model_loads_unchecked(
    gpu: Llamactl, tiny: dict[str, Path], name: str, reason: str
) -> None:
    gpu.write_models(**{name: {**SPEC, "path": str(tiny["a"])}})
    gpu.start()
    failed = gpu.wait_event("measurement_failed", LLAMACTL_MODEL=name)
    assert reason in failed["LLAMACTL_REASON"]
    cursor = journal.acquire_cursor()
    gpu.cli("load", name)
    unchecked = gpu.read_events("load_decided", LLAMACTL_MODEL=name)
    assert ["without memory checks" in entry["LLAMACTL_REASON"] for entry in unchecked] == [True]
    # Once more after it has loaded, and then never again.
    again = journal.wait_entry(cursor, LLAMACTL_EVENT="measurement_failed", LLAMACTL_MODEL=name)
    assert again["LLAMACTL_ATTEMPT"] == "2"
    gpu.cli("unload", name)
    gpu.cli("load", name)
    assert list_measurements(gpu.cursor) == [name, name]
    assert gpu.list_loaded()[name]["memory"]["status"] == "failed"


def test_supervisor_that_stops_takes_its_measure_child_along(gpu: Llamactl, tiny: dict[str, Path]) -> None:
    gpu.write_models(hangs={**SPEC, "path": str(tiny["a"])}, x={**SPEC, "path": str(tiny["a"]), "ctx": 512})
    gpu.write_settings(measure_timeout="1min")
    gpu.start()
    unit = "llamactl-measure@hangs.service"
    journal.wait_entry(gpu.cursor, MESSAGE_ID=STARTED, UNIT=unit)
    run("systemctl", "stop", "llamactl.service")
    journal.wait_entry(gpu.cursor, MESSAGE_ID=STOPPED, UNIT=unit)
    assert show(unit, "ActiveState") == "inactive"
    assert list_measurements(gpu.cursor) == ["hangs"], "the queue is gone too"
