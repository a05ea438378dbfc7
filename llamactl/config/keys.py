"""What is known of a key of the configuration: its name, what it may hold, and what follows from a change?

The tables are in `machine_keys` and `model_keys`. They drive the parser, the messages, docs/configuration.md, what an
instance that runs keeps until its next load, and what is measured again. What a key may hold is its kind's matter
(`kinds`).
"""

from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from llamactl.config.kinds import Kind
from llamactl.settings import GlobalSettings, ModelSettings, Sampling


class Applies(StrEnum):
    """From when on a change of a key counts, in the words of the documentation; the configuration is read again by
    `llamactl reload`.
    """

    AT_ONCE = "at once"
    NEXT_LOAD = "next load"
    """An instance that runs keeps what it was started with."""
    NEXT_MEASUREMENT = "next measurement"
    NEXT_START = "next start"
    """Of llamactl."""


class Measured(Enum):
    """What a change of a model's key means for what was measured."""

    AGAIN = auto()
    """The figures would be others: they are void."""
    IF_FAILED = auto()
    """The figures stay, but a measurement that has failed may come out otherwise."""
    KEPT = auto()


@dataclass(frozen=True)
class Key:
    """One key of a table: its name in TOML, the field that it sets, and one sentence of help."""

    name: str
    kind: Kind
    help: str
    default: str | None = None
    """Shown instead of the field's default."""
    sets: str = ""
    """The field, where it is called neither as the key is nor so with its kind's unit behind it."""

    @property
    def field(self) -> str:
        """Of the settings: `margin` becomes `margin_bytes`, because the file speaks in friendly units."""
        return self.sets or self.name + self.kind.unit


@dataclass(frozen=True)
class MachineKey(Key):
    """A key of `llamactl.toml`."""

    applies: Applies = field(kw_only=True)


@dataclass(frozen=True)
class ModelKey(Key):
    """A key of a model. From its entry follow its documentation, what waits for the next load, what is measured again,
    and whether `[defaults]` may hold it.
    """

    applies: Applies = field(kw_only=True)
    measured: Measured = field(kw_only=True)
    single: bool = field(kw_only=True, default=False)
    """It makes no sense as a default for several models."""


def show_default(key: Key, owner: type[ModelSettings] | type[GlobalSettings] | type[Sampling]) -> str:
    """The default of a key as the documentation shows it; empty where there is none."""
    if key.default is not None:
        return key.default
    defaults = ModelSettings(name="", path="") if issubclass(owner, ModelSettings) else owner()
    return key.kind.format(getattr(defaults, key.field))
