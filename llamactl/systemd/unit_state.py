"""What can one know of a unit, and what can happen to it?

`UnitSnapshot` is a unit as systemd shows it at one moment; a UnitEvent is one step in the life of one run of a unit,
told exactly once. A run begins with the start (or is found running), may become active, ends, and at last frees the
unit's name. Between "ended" and "gone" a failed unit keeps its name: a new start fails with UnitExists until it is
reset.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from signal import Signals

from llamactl.names import Role
from llamactl.protocol.values import BY_SIGNAL

CLD_EXITED = 1
CLD_KILLED = 2
CLD_DUMPED = 3

RESULT_UNKNOWN = "unknown"
"""`result` of a run whose end nobody saw: it ended, and was collected, while the connection to systemd was down."""


@dataclass(frozen=True)
class UnitSnapshot:
    """One of our units as systemd shows it."""

    unit: str
    role: Role
    slug: str
    load_state: str
    active_state: str
    sub_state: str
    result: str
    """systemd's word: success, exit-code, signal, core-dump, timeout, watchdog, oom-kill, protocol, resources ..."""
    exit_code: int
    """ExecMainStatus: the exit status, or the signal when `exit_kind` is CLD_KILLED or CLD_DUMPED."""
    exit_kind: int
    """ExecMainCode: 0 still running or never run, else CLD_EXITED, CLD_KILLED or CLD_DUMPED."""
    main_pid: int
    invocation_id: str
    environment: Mapping[str, str] = field(repr=False)
    """May hold secrets of the model's `env`: never log it."""
    status_text: str = ""
    job: int = 0
    """Id of the queued job, 0 when there is none."""
    control_group: str = ""
    state_change_us: int = 0
    """CLOCK_MONOTONIC of the last change of state: orders what is known of a unit."""
    active_enter_us: int = 0
    """When this run became active, 0 when it never did."""

    @property
    def ended(self) -> bool:
        """Whether the run is over (a unit that is just being loaded says inactive too, with its start job)."""
        return self.active_state in ("inactive", "failed") and self.job == 0

    @property
    def has_run(self) -> bool:
        """Whether it was ever started; a start that systemd refuses may leave a unit that was not."""
        return self.state_change_us > 0 or not self.ended

    def make_end(self) -> "UnitEnded":
        """The end of this run, where it is over."""
        return UnitEnded(
            self.unit, self.result, self.exit_code, self.exit_kind, self.status_text, self.active_enter_us > 0
        )


@dataclass(frozen=True)
class UnitStarted:
    """The unit became active: for Type=notify it has said READY."""

    unit: str
    main_pid: int


@dataclass(frozen=True)
class UnitChanged:
    """Something else about a running unit: its state (activating, deactivating), main process or status line."""

    unit: str
    active_state: str
    sub_state: str
    main_pid: int
    status_text: str


@dataclass(frozen=True)
class UnitEnded:
    """The run is over; all its processes are gone. `started`: it had become active before."""

    unit: str
    result: str
    exit_code: int
    exit_kind: int
    status_text: str
    started: bool


@dataclass(frozen=True)
class UnitGone:
    """The name is free: a new start cannot meet UnitExists. Follows UnitEnded, for failed units after a reset."""

    unit: str


_DONE_TO_IT = {
    "watchdog": "gave no sign of life and was killed by the watchdog",
    "oom-kill": "was killed because memory ran out",
    "timeout": "took too long and was killed",
}
_CRASHES = frozenset(("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS"))


def explain_result(result: str, exit_code: int) -> str:
    """What was done to a unit that did not end by itself, as a person would say it; empty for all others."""
    if result not in BY_SIGNAL:
        return _DONE_TO_IT.get(result, "")
    try:
        name = Signals(exit_code).name
    except ValueError:
        name = f"signal {exit_code}"
    if name == "SIGBUS":  # what llama.cpp maps is the model file
        return "crashed with SIGBUS: its model file was shortened or could not be read"
    return f"crashed with {name}" if name in _CRASHES else f"was killed with {name}"


UnitEvent = UnitStarted | UnitChanged | UnitEnded | UnitGone
