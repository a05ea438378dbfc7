"""Where is what the supervisor knows of its units not what systemd says?

What happens comes as signals, and a signal that is lost, or handled badly, would leave a model that serves nobody for
ever, or a unit that nobody is charged for. So both sides are compared now and then. A run whose start or end is under
way contradicts nothing.
"""

from collections.abc import Iterable, Mapping

from llamactl.names import parse_unit
from llamactl.supervisor.run import Run


def find_contradictions(runs: Iterable[Run], states: Mapping[str, bool]) -> list[str]:
    """Units that run here and not there, or there and not here. `states`: by unit, whether it is running; units that
    have ended and are kept, failed, are not in it.
    """
    known = {run.unit: run for run in runs}
    gone = [unit for unit, run in known.items() if run.begun and not run.over and unit not in states]
    strange = [
        unit for unit, running in states.items() if running and unit not in known and parse_unit(unit) is not None
    ]
    return gone + strange
