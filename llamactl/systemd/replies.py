"""What does systemd answer, and what do its refusals mean?"""

from collections.abc import Mapping
from typing import Any

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.names import parse_unit
from llamactl.systemd.unit_state import UnitSnapshot

LOST = "Lost"
"""The error of calls that were under way when the connection was lost."""
TIMED_OUT = "Timeout"
RUNNING = "Running"
"""The error of a name that is to be freed, and whose unit runs."""


class ManagerError(LlamactlError):
    """systemd refused, or did not answer. `name` is the D-Bus error's, `errno` negative as sd-bus has it."""

    def __init__(self, message: str, *, unit: str = "", errno: int = 0, name: str = "", hint: str = "") -> None:
        super().__init__(ErrorCode.INTERNAL, message, hint=hint, details={"unit": unit} if unit else None)
        self.unit = unit
        self.errno = errno
        self.name = name

    @property
    def exists(self) -> bool:
        """The unit's name is taken, by a run of it or by a failed one that was not reset."""
        return self.name.endswith(".UnitExists")

    @property
    def is_running(self) -> bool:
        """The unit's name is taken by a run of it."""
        return self.name == RUNNING

    @property
    def is_lost(self) -> bool:
        """Nobody knows whether the call was carried out: the connection was lost in between."""
        return self.name == LOST

    @property
    def is_destructive(self) -> bool:
        """Something that the unit needs, its slice first of all, is just being stopped."""
        return self.name.endswith(".TransactionIsDestructive")

    @property
    def is_unreachable(self) -> bool:
        """It says nothing about the unit: systemd could not be asked, or not now."""
        return self.is_lost or self.is_destructive or self.name == TIMED_OUT


class CallFailedError(Exception):
    """As the worker tells of it."""

    def __init__(self, errno: int, name: str, message: str) -> None:
        super().__init__(message)
        self.errno = errno
        self.name = name
        self.message = message


def choose_hint(error: CallFailedError) -> str:
    """The one thing to do, where there is one."""
    if error.name.endswith(".UnitExists"):
        return "free the name first: it runs, or it has failed and was not reset"
    if error.errno in (-1, -13):
        return "only root may start system units"
    return ""


def parse_snapshots(message: Mapping[str, Any]) -> list[UnitSnapshot]:
    """The units of a list that the worker sent; units whose names are not ours are left out."""
    snapshots = []
    for row in message.get("units", []):
        known = parse_unit(row["unit"])
        if known is None:
            continue
        properties = row["properties"]
        snapshots.append(
            UnitSnapshot(
                unit=row["unit"],
                role=known[0],
                slug=known[1],
                load_state=row["load_state"],
                active_state=properties["ActiveState"],
                sub_state=properties["SubState"],
                result=properties["Result"],
                exit_code=properties["ExecMainStatus"],
                exit_kind=properties["ExecMainCode"],
                main_pid=properties["MainPID"],
                invocation_id=row["invocation_id"],
                environment=dict(entry.split("=", 1) for entry in row["environment"]),
                status_text=properties["StatusText"],
                job=properties["Job"],
                control_group=row["control_group"],
                state_change_us=properties["StateChangeTimestampMonotonic"],
                active_enter_us=properties["ActiveEnterTimestampMonotonic"],
            )
        )
    return snapshots
