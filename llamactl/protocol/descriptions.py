"""How does the supervisor describe models, devices, plans and what has happened?

Parts of its answers on `control.sock`: what lists, `status` and `plan` show. Times named `_s` with a moment are of
CLOCK_MONOTONIC unless the field says otherwise.
"""

from llamactl.protocol.values import Facts, LoadFailure, ModelMemory, Stage, State, Value


class Ending(Value, frozen=True, kw_only=True):
    """How a model ended last, in the journal's words: `event` is `model unloaded`, `load failed`, `load
    refused` or `instance crashed`.
    """

    event: str
    time_s: float
    """Of CLOCK_REALTIME: it is shown as a date."""
    reason: str = ""
    for_model: str = ""
    """The model that needed the room."""


class Decision(Value, frozen=True, kw_only=True):
    """What the supervisor has decided, in the journal's words (`load decided`, `victim chosen` ...)."""

    event: str
    time_s: float
    """Of CLOCK_REALTIME."""
    model: str = ""
    for_model: str = ""
    why: str = ""


class ModelStatus(Value, frozen=True, kw_only=True):
    """One model, as lists show it."""

    name: str
    state: State
    aliases: tuple[str, ...] = ()
    slug: str = ""
    unit: str = ""
    path: str = ""
    invalid: str = ""
    """Why the configuration of this model cannot be used; empty when it can."""
    stage: Stage | None = None
    progress: float | None = None
    waiting_for: tuple[str, ...] = ()
    pid: int = 0
    generation: str = ""
    busy: int = 0
    """Leases in use, or requests at the instance, whichever is known to be larger."""
    queued: int = 0
    pinned: bool = False
    unlisted: bool = False
    found: bool = False
    """Found in a directory, not named by a file of the configuration."""
    tags: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    """What is set for this model, as llama-server's arguments would say it."""
    ctx: int = 0
    """Context that is configured; 0: what fits."""
    created: int = 0
    """When its file was written, in seconds since 1970; 0: nobody knows."""
    waiting_settings: tuple[str, ...] = ()
    """Keys that were changed since the instance was started, and count from its next load on."""
    last_used_s: float = 0.0
    ready_since_s: float = 0.0
    memory: ModelMemory = ModelMemory()
    facts: Facts | None = None
    failure: LoadFailure | None = None
    failures: int = 0
    """Loads and runs that failed in a row."""
    exit_code: int = 0
    """Of its unit's last end, or the number of the signal that it died of."""
    stopped_from: State | None = None
    """What it was before it was `stopping`."""
    retry_at_s: float = 0.0
    """Until then requests do not cause a load; 0: they do."""
    keep_alive_s: float | None = None
    """What a request asked for: seconds without a request until it is unloaded, negative for never."""
    devices: tuple[str, ...] = ()
    """Where the instance was placed, if that was llamactl's choice."""
    parallel: int = 1
    ended: Ending | None = None
    """How it ended last, since the supervisor's start."""

    @property
    def context_length(self) -> int:
        """Tokens that it has room for, or that a load would give it room for; 0: nothing is known. What was measured
        comes before what is configured: llama.cpp rounds that up, and an encoder has no more than it was trained for.
        """
        known = self.memory.effective or self.memory.max
        if known is not None:
            return known.n_ctx
        return self.ctx or (self.facts.n_ctx or self.facts.n_ctx_train if self.facts is not None else 0)


class PlanDevice(Value, frozen=True, kw_only=True):
    """One account in a plan, in bytes. `limit` false: as much as you like fits there."""

    name: str
    needs: int
    total: int = 0
    external: int = 0
    held: int = 0
    available: int = 0
    margin: int = 0
    missing: int = 0
    """Beside what is held now."""
    limit: bool = True


class PlanInstance(Value, frozen=True, kw_only=True):
    """What would become of one instance, and why, in words. `frees`: what it holds, in bytes per account."""

    model: str
    goes: bool
    why: str
    idle_s: float = 0.0
    frees: dict[str, int] = {}


class LoadPlan(Value, frozen=True, kw_only=True):
    """A decision about one load, explained. `outcome` is one word: `loaded`, `loading`, `measure`, `blind`, `fits`,
    `evict`, `wait`, `pinned`, `refused`, `invalid`; `words` say the same as a sentence.
    """

    model: str
    outcome: str
    words: str
    placement: tuple[str, ...] = ()
    """Devices that are chosen; empty: as the model's settings say."""
    victims: tuple[str, ...] = ()
    waiting_for: tuple[str, ...] = ()
    loaded: int = 0
    max_loaded: int = 0
    devices: tuple[PlanDevice, ...] = ()
    instances: tuple[PlanInstance, ...] = ()


class DeviceStatus(Value, frozen=True, kw_only=True):
    """The account of one device (or of `Host`), in bytes. `total` 0: not known yet."""

    name: str
    description: str
    total: int
    external: int
    held: int
    available: int
    margin: int
    holders: dict[str, int] = {}
    """What each model is charged here."""


class ModelCounters(Value, frozen=True, kw_only=True):
    """What happened to a model since the supervisor's start."""

    loads: int = 0
    load_seconds: float = 0.0
    """In all loads together."""
    load_failures: int = 0
    crashes: int = 0
    unloads: dict[str, int] = {}
    """By reason, in the journal's words: `evicted`, `by command`, `idle timeout` ..."""
