"""Which models of the configuration have files that are no models at all?

A web page that a download left, a pointer of Git LFS, a path that somebody mistyped: their first bytes tell, and such
a model is invalid like one that is configured wrongly. Whether a file that begins like a model is a whole one, `check`
looks at; llama.cpp finds out when it is measured.
"""

from msgspec.structs import replace

from llamactl.config.heads import FaultReader
from llamactl.config.toml_tables import place_model
from llamactl.settings import Config, InvalidModel, ModelSettings, Problem, list_named_files


def refuse_foreign_files(config: Config, read_faults: FaultReader) -> Config:
    """The configuration without the models whose files begin like no model."""
    paths = dict.fromkeys(path for model in config.models.values() for _, path in list_named_files(model))
    faults = read_faults(list(paths)) if paths else {}
    found = (
        {name: _find_problems(model, faults) for name, model in config.models.items()} if any(faults.values()) else {}
    )
    invalid = {
        name: InvalidModel(name=name, reason=problems[0].message, source=config.models[name].source)
        for name, problems in found.items()
        if problems
    }
    if not invalid:
        return config
    return replace(
        config,
        models={name: model for name, model in config.models.items() if name not in invalid},
        invalid=config.invalid | invalid,
        problems=(*config.problems, *(problem for problems in found.values() for problem in problems)),
    )


def _find_problems(model: ModelSettings, faults: dict[str, str]) -> list[Problem]:
    return [
        place_model(model).report(f"cannot use {path!r}: {faults[path]}", key)
        for key, path in list_named_files(model)
        if faults.get(path)
    ]
