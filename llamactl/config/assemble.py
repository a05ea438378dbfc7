"""Which of the models that the files name can be used, and who gets a name that two of them want?

Drafts come in the order in which names are taken; who comes second loses, and both are named. A model whose own
tables have a mistake is invalid, with the first of its mistakes as the reason; its name stays taken, so that requests
for it are told that reason.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from llamactl.child.extra import parse_extra
from llamactl.config.model_files import FilesError, resolve_file, resolve_model
from llamactl.config.toml_tables import Place
from llamactl.errors import LlamactlError
from llamactl.escape import escape_text
from llamactl.names import check_model_name
from llamactl.settings import Config, GlobalSettings, InvalidModel, ModelSettings, Problem, encode_spec

MAX_SPEC_BYTES = 120_000
"""The settings travel in one environment variable, and the kernel takes at most 128 KiB in one."""


@dataclass
class Draft:
    """A model on its way: where it stands, and what its tables set, defaults included."""

    name: str
    place: Place
    fields: dict[str, Any]
    problems: list[Problem] = field(default_factory=list)
    found: bool = False
    set_here: frozenset[str] = frozenset()
    """Fields that the model's own table sets."""


def make_draft(
    name: str,
    place: Place,
    fields: dict[str, Any],
    problems: list[Problem],
    *,
    found: bool = False,
    set_here: frozenset[str] = frozenset(),
) -> Draft:
    """A draft under a name that can be shown, whatever the name of a file or a table holds; one that cannot be used is
    its first problem.
    """
    draft = Draft(escape_text(name), place, fields, problems, found, set_here)
    try:
        check_model_name(name)
    except LlamactlError as error:
        draft.problems.insert(0, place.report(error.message, hint="rename the file" if found else ""))
    return draft


def assemble_config(
    settings: GlobalSettings,
    file: str,
    drafts: list[Draft],
    kept_files: set[str],
    previous: Config | None,
    problems: list[Problem],
) -> Config:
    """One configuration of all drafts: names and aliases once each, files that are there; what is wrong is added to
    `problems`.
    """
    models: dict[str, ModelSettings] = {}
    invalid: dict[str, InvalidModel] = {}
    owners: dict[str, tuple[str, str]] = {}
    """Every name and alias that is taken: whose it is, and in which file."""
    if previous is not None:
        for name, model in previous.models.items():
            if model.source in kept_files:
                models[name] = model
                owners |= dict.fromkeys((name, *model.aliases), (name, model.source))
        for name, bad in previous.invalid.items():
            if bad.source in kept_files:
                invalid[name] = bad
                owners[name] = (name, bad.source)
    for draft in drafts:
        if draft.name in owners and owners[draft.name][0] == draft.name:
            problems.append(_report_second(draft, owners[draft.name][1]))
            continue
        finished = _finish_model(draft, settings)
        draft.problems += _find_taken(finished, draft, owners)
        problems += _without_repeats(draft, problems)
        if not any(problem.fatal for problem in draft.problems):
            models[draft.name] = finished
            owners |= dict.fromkeys((draft.name, *finished.aliases), (draft.name, draft.place.file))
        else:
            first = next(problem for problem in draft.problems if problem.fatal)
            reason = first.message + (f"; {first.hint}" if first.hint else "")
            invalid[draft.name] = InvalidModel(name=draft.name, reason=reason, source=draft.place.file)
            owners.setdefault(draft.name, (draft.name, draft.place.file))
    config = Config(settings=settings, models=models, invalid=invalid, problems=tuple(problems))
    if settings.default_model and config.resolve(settings.default_model) is None:
        message = f"cannot use default_model = {settings.default_model!r}: no model has this name or alias"
        problems.append(Place(file).report(message, "default_model", fatal=False))
        return replace(config, problems=tuple(problems))
    return config


def _without_repeats(draft: Draft, problems: list[Problem]) -> list[Problem]:
    """A mistake in a directory's table concerns each of its models but is told once."""
    told = {(problem.file, problem.where, problem.message) for problem in problems}
    return [problem for problem in draft.problems if (problem.file, problem.where, problem.message) not in told]


def _report_second(draft: Draft, other_file: str) -> Problem:
    path = draft.fields.get("path")
    of = f" of {path!r}" if draft.found and path else ""
    where = "this file too" if other_file == draft.place.file else f"{other_file} too"
    message = f"cannot use the name {draft.name!r}{of}: a model in {where} is called so"
    hint = "rename one of the files, or set prefix" if draft.found else "rename one of them"
    return draft.place.report(message, hint=hint)


def _find_taken(model: ModelSettings, draft: Draft, owners: dict[str, tuple[str, str]]) -> list[Problem]:
    problems = []
    for name in (model.name, *model.aliases):
        if name not in owners:
            continue
        other, file = owners[name]
        what = "name" if name == model.name else "alias"
        whose = "is the name" if name == other else "is an alias"
        message = f"cannot use the {what} {name!r} for model {model.name!r}: it {whose} of model {other!r} in {file}"
        problems.append(draft.place.report(message, "" if what == "name" else "aliases", "rename one of them"))
    return problems


def _finish_model(draft: Draft, settings: GlobalSettings) -> ModelSettings:
    """The settings of a draft, with problems added where they do not work together. Keys that are wrong by themselves
    have their defaults in it, and are no part of any other mistake.
    """
    place, problems = draft.place, draft.problems
    fields = dict(draft.fields)
    fields.setdefault("idle_timeout_s", settings.idle_timeout_s)
    fields.setdefault("sleep_after_s", settings.sleep_after_s)
    fields["aliases"] = tuple(alias for alias in fields.get("aliases", ()) if alias != draft.name)
    _resolve_paths(fields, place, problems)
    wrong = frozenset(problem.where.rpartition(".")[2] for problem in problems)
    if "batch" in fields and "ubatch" not in draft.set_here:
        fields["ubatch"] = min(fields.get("ubatch", 512), fields["batch"])
    model = ModelSettings(name=draft.name, source=place.file, found=draft.found, **{"path": "", **fields})
    problems += _find_contradictions(model, place, wrong)
    return model


def _resolve_paths(fields: dict[str, Any], place: Place, problems: list[Problem]) -> None:
    if "path" in fields:
        try:
            fields["files"] = resolve_model(fields["path"])
            fields["path"] = fields["files"][0]
        except FilesError as error:
            problems.append(place.report(f"cannot use {fields['path']!r}: {error}", "path", error.hint))
    for companion in ("mmproj", "draft"):
        if fields.get(companion):
            try:
                fields[companion] = resolve_file(fields[companion])
            except FilesError as error:
                problems.append(place.report(f"cannot use {fields[companion]!r}: {error}", companion, error.hint))
    if fields.get("media_path"):
        path = fields["media_path"]
        fields["media_path"] = os.path.realpath(path)
        if not os.path.isdir(path):
            problems.append(place.report(f"cannot use {path!r}: it is no directory", "media_path"))


def _find_contradictions(model: ModelSettings, place: Place, wrong: frozenset[str]) -> list[Problem]:
    """Among keys that are not wrong by themselves."""
    found = []
    if model.ubatch > model.batch and wrong.isdisjoint(("batch", "ubatch")):
        found.append(
            place.report(f"cannot use ubatch = {model.ubatch}: larger than batch, which is {model.batch}", "ubatch")
        )
    is_quantized = model.cache_type_v not in ("f32", "f16", "bf16")
    if is_quantized and model.flash_attn == "off" and wrong.isdisjoint(("cache_type_v", "flash_attn")):
        message = f'cannot use cache_type_v = "{model.cache_type_v}" with flash_attn = "off": needs flash attention'
        found.append(place.report(message, "cache_type_v"))
    n_shares, n_devices = len(model.tensor_split), len(model.devices)
    if 0 < n_devices < n_shares and wrong.isdisjoint(("devices", "tensor_split")):
        message = f"cannot use tensor_split of {n_shares} shares: there are {n_devices} devices"
        found.append(place.report(message, "tensor_split"))
    if model.extra:
        found += _find_wrong_properties(model, place)
    # With another mistake it may hold what JSON cannot: names of files that are no Unicode.
    size = 0 if wrong else len(encode_spec(model).encode())
    if size > MAX_SPEC_BYTES:
        message = f"all settings together take {size} bytes, at most {MAX_SPEC_BYTES} can be given to a unit"
        found.append(place.report(message, hint="shorten chat_template or env"))
    return found


def _find_wrong_properties(model: ModelSettings, place: Place) -> list[Problem]:
    found = []
    for name, value in model.extra.items():
        try:
            parse_extra({name: value})
        except LlamactlError as error:
            found.append(Place(place.file, place.at("extra"), place.model).report(error.message, name, error.hint))
    return found
