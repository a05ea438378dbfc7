"""Is another file told from the one that was there, and does one that hangs keep nobody else waiting?"""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from llamactl.settings import ModelSettings
from llamactl.supervisor import file_looks
from llamactl.supervisor.file_looks import FileLooks, acquire_files, format_files


@pytest.fixture
def model(tmp_path: Path) -> ModelSettings:
    """Of two shards, with a projector and a draft model."""
    names = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj.gguf", "draft.gguf")
    for name in names:
        (tmp_path / name).write_bytes(b"GGUF")
    first, second, mmproj, draft = (str(tmp_path / name) for name in names)
    return ModelSettings(name="m", path=first, files=(first, second), mmproj=mmproj, draft=draft)


def rename_over(path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(path.read_bytes())
    times = path.stat()
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
    new.rename(path)


@pytest.mark.parametrize("file", ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj.gguf", "draft.gguf"])
@pytest.mark.parametrize(
    "replace", [rename_over, lambda path: path.write_bytes(b"GGUF2"), os.utime], ids=["renamed", "written", "touched"]
)
def test_any_replaced_file_of_a_model_is_another_identity(
    model: ModelSettings, tmp_path: Path, file: str, replace: Callable[[Path], object]
) -> None:
    before = format_files(acquire_files(model))
    assert format_files(acquire_files(model)) == before
    replace(tmp_path / file)
    assert format_files(acquire_files(model)) != before


def test_a_file_that_is_missing_is_not_known(model: ModelSettings, tmp_path: Path) -> None:
    (tmp_path / "draft.gguf").unlink()
    other = ModelSettings(name="other", path=model.path)

    async def look() -> list[str]:
        return [seen.files for seen in await FileLooks().look([model, other])]

    missing, there = asyncio.run(look())
    assert (missing, bool(there)) == ("", True)


def test_a_file_system_that_hangs_keeps_nobody_else_waiting(
    model: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, acquire = threading.Event(), acquire_files

    def hang(settings: ModelSettings) -> object:
        return acquire(settings) if settings.name != "hangs" else (over.wait(), ())[1]

    monkeypatch.setattr(file_looks, "LOOK_S", 0.05)
    monkeypatch.setattr(file_looks, "acquire_files", hang)
    hangs = ModelSettings(name="hangs", path=model.path)

    async def look() -> list[list[bool]]:
        looks = FileLooks()
        first = await looks.look([model, hangs])
        begun = asyncio.get_running_loop().time()
        monkeypatch.setattr(file_looks, "LOOK_S", 60.0)
        second = await looks.look([hangs, model])
        assert asyncio.get_running_loop().time() - begun < 30, "it was looked at although it hangs"
        over.set()
        return [[bool(seen.files) for seen in one] for one in (first, second)]

    assert asyncio.run(look()) == [[True, False], [False, True]]
