"""What is told of a model's memory and state, on both sockets?"""

from enum import StrEnum
from typing import Any

import msgspec


class State(StrEnum):
    """Of a model, in the words of llama-server's router where it has them (it says `loaded` for `ready`)."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    SLEEPING = "sleeping"
    STOPPING = "stopping"
    FAILED = "failed"


class MemoryStatus(StrEnum):
    """Of what is known about a model's memory."""

    UNMEASURED = "unmeasured"
    MEASURING = "measuring"
    MEASURED = "measured"
    FAILED = "failed"


class RowKind(StrEnum):
    DEVICE = "device"
    HOST = "host"
    BUFFER_TYPE = "buffer_type"


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """A part of messages."""


class Row(Value, frozen=True, kw_only=True):
    """Bytes on one device, on the host, or in one other buffer type. `total` and `free` are known for devices only."""

    kind: RowKind
    name: str
    description: str = ""
    model: int = 0
    context: int = 0
    compute: int = 0
    total: int | None = None
    free: int | None = None

    @property
    def used(self) -> int:
        return self.model + self.context + self.compute


class Breakdown(Value, frozen=True, kw_only=True):
    """What a model takes at one context size, in bytes per row. llama.cpp's llama_get_memory_breakdown is the
    source.
    """

    n_ctx: int
    devices: tuple[Row, ...] = ()


class DeviceList(Value, frozen=True, kw_only=True):
    """The devices that a child can see, whether its model uses them or not. Rows have no bytes of a model."""

    rows: tuple[Row, ...] = ()
    ids: dict[str, str] = {}
    """Bus addresses by name, where known: "0000:01:00.0"."""
    busy: tuple[str, ...] = ()
    """RPC servers that have another client now: their devices are not among the rows, and not gone either."""
    cheap: bool = False
    """Asked without a GPU context: only `free` is known then, and only of the devices asked for."""


class ModelMemory(Value, frozen=True, kw_only=True):
    """All that is known of a model's memory; None where there is no figure."""

    status: MemoryStatus = MemoryStatus.UNMEASURED
    error: str = ""
    """Why it was not measured."""
    min: Breakdown | None = None
    max: Breakdown | None = None
    effective: Breakdown | None = None


def format_memory(memory: ModelMemory) -> dict[str, Any]:
    """As JSON shows it to people and programs: without `error` where there is none, without `total` and `free` in rows
    that have none.
    """
    plain: dict[str, Any] = msgspec.to_builtins(memory)
    if not memory.error:
        del plain["error"]
    for breakdown in (plain["min"], plain["max"], plain["effective"]):
        if breakdown is not None:
            breakdown["devices"] = [
                {key: value for key, value in row.items() if value is not None} for row in breakdown["devices"]
            ]
    return plain


class Facts(Value, frozen=True, kw_only=True):
    """What a child read from the model file."""

    architecture: str = ""
    description: str = ""
    n_ctx: int = 0
    n_ctx_train: int = 0
    n_embd: int = 0
    n_vocab: int = 0
    n_params: int = 0
    size_bytes: int = 0
    ftype: str = ""
    """How the weights are quantized, in llama.cpp's words (`Q4_K - Medium`)."""
    vocab_type: int = 0
    """Number of llama.cpp's kind of vocabulary (llama.h: llama_vocab_type)."""
    build: str = ""
    """llama.cpp's build, as it says it itself: `b` and a number, `-` and a commit."""
    extra_bufts: bool = True
    """False: this instance runs without llama.cpp's extra buffer types."""
    input_modalities: tuple[str, ...] = ("text",)
    """What requests may carry: `text`, `image`, `audio`."""


class Note(Value, frozen=True, kw_only=True):
    """What the supervisor alone knows of an instance. The instance keeps it and returns it with every report."""

    last_used_s: float = 0.0
    ready_since_s: float = 0.0
    pinned: bool | None = None
    keep_alive_s: float | None = None
    files: str = ""
    """Which files the instance was loaded from."""


class Stage(StrEnum):
    """Where a load is."""

    QUEUED = "queued"
    MEASURING = "measuring"
    WAITING = "waiting"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"


BY_SIGNAL = ("signal", "core-dump")
"""systemd's words for an end by a signal; the exit code is its number then."""


class LoadFailure(Value, frozen=True, kw_only=True):
    """How a model's last unit ended when it did not end well. `result` is systemd's word (`exit-code`, `signal`,
    `oom-kill`, `timeout`, `watchdog` ...).
    """

    result: str
    exit_code: int
    message: str
    """The last lines that it logged, or what is known else."""
