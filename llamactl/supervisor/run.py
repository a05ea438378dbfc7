"""What is known of one unit that was started, or found running?"""

from dataclasses import dataclass

import msgspec

from llamactl.child import variables
from llamactl.journal_events import JournalEvent
from llamactl.names import DEVICES_SLUG, Role, format_unit
from llamactl.protocol.values import INSTALLING, UNREACHABLE
from llamactl.settings import ModelSettings, decode_spec
from llamactl.supervisor.installation import Stamp
from llamactl.systemd.journal import get_logger
from llamactl.systemd.unit_state import UnitSnapshot

__all__ = ["CONDEMNED", "INSTALLING", "NOT_STARTED", "STOPPED", "UNREACHABLE", "Run", "adopt_run"]

NOT_STARTED = "start"
STOPPED = "stopped"
CONDEMNED = "condemned"
"""Results that are not systemd's: it refused the start; it ended well but before it had anything to say; what it said
could not be handled."""

_log = get_logger()


@dataclass(eq=False)
class Run:
    """One unit that was started, or found running."""

    role: Role
    slug: str
    generation: str
    settings: ModelSettings
    pid: int = 0
    error: str = ""
    """What the child reported of its own failure."""
    condemned: str = ""
    """Why it is stopped and not heard any longer."""
    reported: bool = False
    """A measure child's figures have come."""
    stamp: Stamp = ()
    """Of the files that it was started from."""
    stopping: bool = False
    begun: bool = False
    """systemd has it: what is heard of its unit is about this run."""
    over: bool = False
    """Its unit has ended; why is being found out."""
    ended: bool = False
    """Its end has been told."""

    @property
    def unit(self) -> str:
        """Its name in systemd."""
        return format_unit(self.role, self.slug)

    @property
    def is_listing(self) -> bool:
        """It measures no model, and lists devices."""
        return self.slug == DEVICES_SLUG


def adopt_run(snapshot: UnitSnapshot) -> Run | None:
    """The run behind a unit found running; None for one that has ended or whose environment is not ours."""
    if snapshot.active_state not in ("active", "activating", "deactivating", "reloading"):
        return None
    try:
        settings = decode_spec(snapshot.environment[variables.SPEC])
        generation = snapshot.environment[variables.GENERATION]
    except (KeyError, msgspec.DecodeError, msgspec.ValidationError) as error:
        _log.warning(
            JournalEvent.UNIT_IGNORED,
            unit=snapshot.unit,
            reason=f"its environment does not say which model it is: {error}",
        )
        return None
    return Run(snapshot.role, snapshot.slug, generation, settings, pid=snapshot.main_pid, begun=True)
