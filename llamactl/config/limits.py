"""Which limits of models can this machine not apply?"""

from collections.abc import Iterable

from llamactl.child.extra import choose_unenforced
from llamactl.settings import Config, Problem


def find_unenforced(config: Config, controllers: Iterable[str]) -> list[Problem]:
    """One note for each model with such limits in its `extra`."""
    there = tuple(controllers)
    problems = []
    for model in config.models.values():
        limits = choose_unenforced(model.extra, there)
        if limits:
            missing = ", ".join(dict.fromkeys(limits.values()))
            message = f"{', '.join(limits)} NOT APPLIED: this machine has no {missing} controller (cgroup v2)"
            problems.append(
                Problem(file=model.source, where=f"{model.name}.extra", message=message, model=model.name, fatal=False)
            )
    return problems
