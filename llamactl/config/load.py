"""What do the configuration files say, all together?

`load_config` never raises for what it reads: whatever is wrong becomes a Problem, a model with a mistake of its own
becomes invalid, and the rest works. Names are taken in the order of the files, tables that name a model before models
found in directories; who comes second loses. A file that cannot be read as TOML hides which models it has. When an
older Config is given, that file's models stay as they were: an editor's half-written file must not take running
models down. Likewise a key of llamactl.toml that cannot be used keeps its value of before: a typo in a limit must not
take the limit away. Without an older Config there is nothing to keep, and `Config.unusable` names what is not in force.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from llamactl.config.assemble import Draft, assemble_config, make_draft
from llamactl.config.changes import show_setting
from llamactl.config.directory_models import (
    DirectoryTable,
    describe_found,
    find_drafts,
    read_directory,
    report_unread,
    resolve_quietly,
)
from llamactl.config.foreign_files import refuse_foreign_files
from llamactl.config.heads import FaultReader, HeadReader, forget_faults, forget_heads
from llamactl.config.keys import Key
from llamactl.config.machine_keys import GLOBAL_KEYS
from llamactl.config.model_keys import DEFAULT_KEYS, DIRECTORY_KEYS, MODEL_KEYS
from llamactl.config.read import UnreadableError, list_model_files, read_text, read_toml
from llamactl.config.toml_tables import Place, find_close_key, parse_table
from llamactl.config.value_parsers import show_value
from llamactl.escape import escape_text
from llamactl.paths import Paths
from llamactl.settings import Config, GlobalSettings, ModelSettings, Problem

_IN_MODELS_D = "models stand in files of their own, in models.d/NAME.toml"
_IN_GLOBAL = "this key stands in llamactl.toml, which is for the whole machine"
_NOT_A_DEFAULT = dict.fromkeys(
    (key.name for key in MODEL_KEYS if key.single), "this key is for a single [models.NAME] table"
)
_OF_THE_MACHINE = dict.fromkeys((key.name for key in GLOBAL_KEYS), _IN_GLOBAL)
_OF_A_DIRECTORY = {
    key.name: "this key stands in a [directories.LABEL] table"
    for key in DIRECTORY_KEYS
    if key.name not in {other.name for other in MODEL_KEYS}
}
_ABOVE_DEFAULTS = "this key is for the whole machine: it stands at the top of the file, above [defaults]"
_NOT_IN_DEFAULTS = _NOT_A_DEFAULT | _OF_A_DIRECTORY | dict.fromkeys(_OF_THE_MACHINE, _ABOVE_DEFAULTS)


def load_config(
    paths: Paths,
    previous: Config | None = None,
    read_heads: HeadReader = forget_heads,
    read_faults: FaultReader = forget_faults,
) -> Config:
    """The whole configuration of `paths.config_dir`. With `previous`, files that cannot be read leave what they set
    before as it was. `read_heads`: who reads the heads of model files, where those decide what belongs together.
    `read_faults`: who tells files that are no models.
    """
    problems: list[Problem] = []
    table = read_toml(paths.config_file, problems)
    if table is None and previous is not None:
        kept = problems[0].message + "; nothing of the configuration was changed"
        first = Problem(file=problems[0].file, where=problems[0].where, message=kept)
        return replace(previous, problems=(first,))
    machine = _read_globals(table or {}, str(paths.config_file), problems, previous)
    if table is None:
        machine.unusable += _list_hidden_keys(paths.config_file)
    defaults = machine.defaults
    drafts: list[Draft] = []
    directories: list[DirectoryTable] = []
    kept_files: set[str] = set()
    unread: list[str] = []
    files = list_model_files(paths.models_config_dir, problems)
    if files is None and previous is not None:
        kept_files = {model.source for model in previous.models.values()}
        kept_files |= {bad.source for bad in previous.invalid.values()}
    problems += _find_missing(paths)
    if files is None:
        unread.append(str(paths.models_config_dir))
    for file in files or []:
        document = read_toml(file, problems)
        if document is None:
            kept_files.add(str(file))
            unread.append(str(file))
            continue
        _read_models(document, str(file), defaults, drafts, directories, problems)
    named_paths = {resolve_quietly(draft.fields.get("path")): draft.name for draft in drafts}
    contents = [read_directory(directory, problems) for directory in directories]
    undecided = [path for content in contents for path in content.list_undecided()]
    heads = read_heads(undecided) if undecided else {}
    problems += report_unread(directories, [path for path in undecided if path not in heads])
    found = []
    for content in contents:
        new = find_drafts(content, heads, named_paths, problems)
        found += describe_found(content, new, named_paths)
        drafts += [draft for draft, _ in new]
    config = assemble_config(machine.settings, str(paths.config_file), drafts, kept_files, previous, problems)
    config = refuse_foreign_files(config, read_faults)
    return replace(
        config,
        defaults=machine.defaults,
        unusable=tuple(machine.unusable),
        unread=tuple(unread),
        found=tuple(found),
        created=_read_times(config),
    )


def _read_times(config: Config) -> dict[str, int]:
    """When each model's file was written, where it is there."""
    times = {}
    for model in config.models.values():
        with suppress(OSError):
            times[model.name] = int(os.stat(model.path).st_mtime)
    return times


def _find_missing(paths: Paths) -> list[Problem]:
    """A directory that is not there has no models, which looks like a configuration without any."""
    if not os.path.lexists(paths.config_dir):
        message, hint = "there is no such directory, and so there are no models", "`llamactl install` makes it"
        return [Place(str(paths.config_dir)).report(message, hint=hint)]
    if not os.path.lexists(paths.models_config_dir):
        message = "there is no such directory, and so there are no models"
        return [Place(str(paths.models_config_dir)).report(message, fatal=False)]
    return []


# --- llamactl.toml ----------------------------------------------------------------------------------------------------


@dataclass
class _Machine:
    """What `llamactl.toml` sets. `unusable`: keys that it sets in vain, as `host_budget` or `defaults.ctx`."""

    settings: GlobalSettings
    defaults: dict[str, Any]
    unusable: list[str] = field(default_factory=list)


def _read_globals(table: dict[str, Any], file: str, problems: list[Problem], previous: Config | None) -> _Machine:
    table = dict(table)
    content = table.pop("defaults", {})
    others = {key.name: "put it into the [defaults] table to set it for all models" for key in DEFAULT_KEYS}
    others |= dict.fromkeys(("model", "models", "directory", "directories"), _IN_MODELS_D)
    place = Place(file)
    own: list[Problem] = []
    fields = parse_table(GLOBAL_KEYS, table, place, own, others)
    former = GlobalSettings() if previous is None else previous.settings
    before = {key.field: getattr(former, key.field) for key in GLOBAL_KEYS}
    unusable = _keep_former(GLOBAL_KEYS, table, fields, before, place, own, previous is not None)
    machine = _Machine(GlobalSettings(**fields), {}, unusable)
    problems += own

    place = Place(file, "defaults")
    own = []
    before = {} if previous is None else previous.defaults
    if isinstance(content, dict):
        machine.defaults = parse_table(DEFAULT_KEYS, content, place, own, _NOT_IN_DEFAULTS)
        unusable = _keep_former(DEFAULT_KEYS, content, machine.defaults, before, place, own, previous is not None)
        machine.unusable += [place.at(name) for name in unusable]
    else:
        message = f"cannot use defaults = {show_value(content)}: must be a table"
        own.append(Place(file).report(message, "defaults", "all defaults stay as they were" if before else ""))
        machine.defaults = dict(before)
        machine.unusable += [] if before else ["defaults"]
    problems += own
    return machine


def _keep_former(
    keys: tuple[Key, ...],
    table: dict[str, Any],
    fields: dict[str, Any],
    before: dict[str, Any],
    place: Place,
    problems: list[Problem],
    is_reload: bool,
) -> list[str]:
    """Give each key that `table` sets in vain its value of before, and say so in the table's problems. Which of those
    keys have no value but the default.
    """
    known = {key.name: key for key in keys}
    in_vain = {name: key for name, key in known.items() if name in table and key.field not in fields}
    unusable = [name for name, key in in_vain.items() if before.get(key.field, _get_default(key)) == _get_default(key)]
    if not is_reload:
        return unusable
    for name in [name for name in table if name not in known]:  # the name of a key that is missing, misspelt
        meant = find_close_key(name, known)
        if meant and meant not in table:
            in_vain[name] = known[meant]
    for name, key in in_vain.items():
        kept = before.get(key.field, _get_default(key))
        if key.field in before:
            fields[key.field] = kept
        how = f"{'it' if name == key.name else key.name} keeps {show_setting(key, kept)}"
        for index, problem in enumerate(problems):
            if problem.where == place.at(name) and kept != _get_default(key):
                problems[index] = replace(problem, hint=f"{problem.hint} {how}".strip())
    return unusable


def _get_default(key: Key) -> Any:
    settings = GlobalSettings() if key in GLOBAL_KEYS else ModelSettings(name="", path="")
    return getattr(settings, key.field)


def _list_hidden_keys(file: Path) -> list[str]:
    """Keys that a file which is no TOML seems to set."""
    try:
        lines = read_text(file).splitlines()
    except (UnreadableError, FileNotFoundError):
        return []
    words = {line.partition("=")[0].strip() for line in lines if "=" in line}
    words |= {line.strip().strip("[]") for line in lines if line.startswith("[")}
    return [key.name for key in GLOBAL_KEYS if key.name in words] + ["defaults"] * ("defaults" in words)


# --- models.d ---------------------------------------------------------------------------------------------------------


def _read_models(
    document: dict[str, Any],
    file: str,
    defaults: dict[str, Any],
    drafts: list[Draft],
    directories: list[DirectoryTable],
    problems: list[Problem],
) -> None:
    others = {key.name: _IN_GLOBAL for key in GLOBAL_KEYS} | {
        key.name: "model keys stand in a [models.NAME] table" for key in MODEL_KEYS
    }
    others["defaults"] = "this table stands in llamactl.toml, or its keys in a [directories.LABEL] table"
    meant = {"models": "models stand in [models.NAME] tables", "directories": "did you mean [directories.LABEL]?"}
    tables = {name: document[name] for name in meant if name in document}
    for name, content in document.items():
        close = find_close_key(name, meant) if isinstance(content, dict) and name not in tables else ""
        if close:
            others[name] = meant[close]
    parse_table(
        (), {name: value for name, value in document.items() if name not in tables}, Place(file), problems, others
    )
    for kind, content in tables.items():
        if not isinstance(content, dict):
            problems.append(Place(file).report(f"cannot use {kind} = {show_value(content)}: must hold tables", kind))
            continue
        for name, table in content.items():
            place = Place(file, Place(file, kind).at(name), escape_text(name) if kind == "models" else "")
            if not isinstance(table, dict):
                message = f"cannot use {show_value(table)}: must be a table, [{place.table}]"
                problems.append(place.report(message, hint="settings of a model stand below [models.NAME]"))
            elif kind == "models":
                drafts.append(_read_model(name, table, place, defaults))
            else:
                directory = _read_directory_table(table, place, defaults, problems)
                if directory is not None:
                    directories.append(directory)


def _read_model(name: str, table: dict[str, Any], place: Place, defaults: dict[str, Any]) -> Draft:
    problems: list[Problem] = []
    fields = parse_table(MODEL_KEYS, table, place, problems, _OF_THE_MACHINE | _OF_A_DIRECTORY)
    if "path" not in table:
        problems.append(place.report("has no path", hint=f'add path = "/...gguf" to [{place.table}]'))
    return make_draft(name, place, merge_fields(defaults, fields), problems, set_here=frozenset(fields))


def merge_fields(defaults: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """What is set over the defaults; tables of names (`env`, `extra` ...) key by key."""
    merged = defaults | fields
    for name, value in fields.items():
        if isinstance(value, dict) and name in defaults:
            merged[name] = defaults[name] | value
    return merged


def _read_directory_table(
    table: dict[str, Any], place: Place, defaults: dict[str, Any], problems: list[Problem]
) -> DirectoryTable | None:
    own_names = {key.name for key in DIRECTORY_KEYS}
    own_problems: list[Problem] = []
    own = parse_table(DIRECTORY_KEYS, {k: v for k, v in table.items() if k in own_names}, place, own_problems)
    problems += own_problems
    if "path" not in table:
        problems.append(place.report("has no path", hint=f'add path = "/..." to [{place.table}]'))
    shared: list[Problem] = []
    rest = {name: value for name, value in table.items() if name not in own_names}
    others = _OF_THE_MACHINE | _NOT_A_DEFAULT | {"defaults": f"its keys stand in [{place.table}] itself"}
    fields = parse_table(DEFAULT_KEYS, rest, place, shared, others)
    if "path" not in own or own_problems:
        problems += shared
        return None
    return DirectoryTable(
        place,
        own["path"],
        own.get("prefix", ""),
        own.get("recursive", True),
        merge_fields(defaults, fields),
        tuple(shared),
    )
