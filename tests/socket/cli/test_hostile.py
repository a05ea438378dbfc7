"""Does anything that others wrote reach a terminal as it is, from whichever field of whichever message?"""

import json
import types
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any, Union

import msgspec
import pytest

from llamactl.paths import Paths
from llamactl.protocol.control_socket import (
    Done,
    Failure,
    MachineStatus,
    MeasureResult,
    ModelList,
    PlanResult,
    Progress,
    ReloadResult,
)
from llamactl.protocol.descriptions import LoadPlan, ModelStatus
from llamactl.protocol.values import ModelMemory, State
from tests.socket.cli.scripted import Peer, Result, ask, run

HOSTILE = "x\x1b[31mred\x1b]0;title\x07\t\x7f\x9b2J\u202egnp\u2066\u2028\r\nllamactl: all is well"


def fill(kind: Any, text: str) -> Any:
    """A value of a type in which every text is `text`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in (str, Any):
        return text
    if origin in (Union, types.UnionType):
        return fill(next(one for one in inner if one is not type(None)), text)
    if origin is tuple:
        return (fill(inner[0], text),)
    if origin is dict:
        return {fill(inner[0], text): fill(inner[1], text)}
    if issubclass(kind, msgspec.Struct):
        fields = typing.get_type_hints(kind)
        return kind(**{field.name: fill(fields[field.name], text) for field in msgspec.structs.fields(kind)})
    if issubclass(kind, StrEnum):
        return State.READY if kind is State else next(iter(kind))
    return kind(1)


def answer_with(text: str, *kinds: Any) -> Any:
    """Progress full of a text, then a message of each kind for each request."""

    def script(peer: Peer) -> None:
        peer.greet()
        while (request := peer.receive()) is not None:
            for kind in (Progress, *kinds):
                message = fill(kind, text)
                peer.send(msgspec.structs.replace(message, id=request.id))

    return script


def count_lines(result: Result) -> int:
    return result.out.count("\n") + result.err.count("\n")


def show_id(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value[0])


COMMANDS = [
    (("list",), ModelList),
    (("ps",), ModelList),
    (("status",), MachineStatus),
    (("status", HOSTILE), ModelList),
    (("plan", HOSTILE), PlanResult),
    (("measure", HOSTILE), MeasureResult),
    (("load", HOSTILE), Done),
    (("load", HOSTILE, "other"), Failure),
    (("unload", HOSTILE), Done),
    (("pin", HOSTILE), Done),
    (("reload",), ReloadResult),
    (("list",), Failure),
    (("load", HOSTILE), Failure),
]


@pytest.mark.parametrize(("words", "kind"), COMMANDS, ids=show_id)
def test_command_shows_whatever_it_is_told_printably(words: tuple[str, ...], kind: type[msgspec.Struct]) -> None:
    result, _ = ask(answer_with(HOSTILE, kind), *words)
    shown = result.out + result.err
    assert shown.replace("\n", "").isprintable(), shown
    assert r"x\x1b[31mred\x1b]0;title\x07" in shown
    assert "internal error" not in shown


@pytest.mark.parametrize(("words", "kind"), [one for one in COMMANDS if one[1] is not Failure], ids=show_id)
def test_no_name_forges_a_line(words: tuple[str, ...], kind: type[msgspec.Struct]) -> None:
    """Where the reason of a failure is shown, it may have several."""
    plain = "x"
    benign = [plain if word == HOSTILE else word for word in words]
    lines = count_lines(ask(answer_with(HOSTILE, kind), *words)[0]) - count_lines(
        ask(answer_with(plain, kind), *benign)[0]
    )
    assert lines in ((0,) if kind not in (ModelList, MeasureResult) else (0, 1, 2))


@pytest.mark.parametrize(("words", "kind"), COMMANDS, ids=show_id)
def test_json_is_valid_and_printable_and_has_the_very_text(words: tuple[str, ...], kind: type[msgspec.Struct]) -> None:
    result, _ = ask(answer_with(HOSTILE, kind), *words, "--json")
    assert result.out.replace("\n", "").isprintable()
    value = json.loads(result.out)
    if kind is not Done:
        assert json.dumps(HOSTILE)[1:-1] in json.dumps(value)


@pytest.mark.parametrize(
    "words", [(HOSTILE,), ("load", HOSTILE, "--" + HOSTILE.replace(" ", "")), ("list", HOSTILE), ("help", HOSTILE)]
)
def test_wrong_usage_is_told_printably(tmp_path: Path, words: tuple[str, ...]) -> None:
    result = run(Paths(runtime_dir=tmp_path, config_dir=tmp_path), *words)
    assert result.status == 2
    assert (result.out + result.err).replace("\n", "").isprintable()


def test_names_of_files_and_tables_are_shown_printably_wherever_they_stand(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    paths = Paths(config_dir=tmp_path / "etc", runtime_dir=tmp_path / "run")
    (tmp_path / name / name).mkdir(parents=True)
    (tmp_path / name / name / f"{name}.gguf").write_bytes(b"GGUF\3\0\0\0" + bytes(16))
    (tmp_path / name / name / "x-mmproj.gguf").symlink_to(name)
    paths.models_config_dir.mkdir(parents=True)
    quoted = json.dumps(name)
    paths.config_file.write_text(f"{quoted} = 1\n[defaults]\n{quoted} = 1")
    (paths.models_config_dir / f"{name}.toml").write_text(
        f"[directories.{quoted}]\npath = {json.dumps(str(tmp_path / name))}\n"
        f"[models.{quoted}]\npath = {json.dumps('/' + name)}\naliases = [{quoted}]\n{quoted} = 1\n"
    )
    (paths.models_config_dir / f"not{name}.toml").write_bytes(b"\x1b[31m = \xff")
    checked = run(paths, "check")
    assert checked.status == 1
    assert (checked.out + checked.err).replace("\n", "").isprintable()
    problems = json.loads(run(paths, "check", "--json").out)
    assert len(checked.out.splitlines()) == len(problems["problems"]) + 2
    assert all(invalid.isprintable() for invalid in problems["invalid"])


def test_every_kind_of_answer_is_tried() -> None:
    """Those that hold a text for people and that a command asks for."""
    assert {kind for _, kind in COMMANDS} >= {
        ModelList,
        MachineStatus,
        PlanResult,
        MeasureResult,
        ReloadResult,
        Failure,
    }
    assert fill(ModelStatus, "t").facts.description == "t"
    assert fill(ModelMemory, "t").min.devices[0].name == "t"
    assert fill(LoadPlan, "t").devices[0].name == "t"
